"""The contract of a table writer, and what every format shares: commit identity, type texts, schema comparison."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from headrace.api.errors import ConnectError
from headrace_connectors.lakehouse.column_types import changes, quoted
from headrace_connectors.lakehouse.ranges import Position, TopicPartition

OFFSETS_KEY = "headrace.offsets"
"""The commit's JSON of topic ids and next offsets, complete for the table, not only for the batch."""


class TableSchemaError(ConnectError):
    """The table has other columns than the records."""


class TableUnusableError(ConnectError):
    """The table's directory holds something else, which rows must not be mixed with."""


class TableConflictError(ConnectError):
    """Another process has loaded the same offsets into the table meanwhile: this one is a stray and must end."""


@dataclass(frozen=True, slots=True)
class BatchIdentity:
    """Who writes: a connector, its run (generation, milliseconds since the epoch) and the batch within the run."""

    connector: str
    generation: int
    batch_id: int

    @property
    def app_id(self) -> str:
        return f"headrace/{self.connector}/{self.generation}"

    def partition_app_id(self, key: TopicPartition) -> str:
        """The name under which the connector's next offset of a partition is kept."""
        return f"headrace/{self.connector}/{key[0]}/{key[1]}"


class TableWriter(ABC):
    """Appends batches to one table. Used by one thread at a time.

    The law: what `committed` returns is exactly what the table's rows stand for; `write` moves both or neither.
    """

    def __init__(self, directory: Path, connector: str) -> None:
        self.directory = directory
        self.connector = connector

    @abstractmethod
    def committed(self, partitions: Iterable[TopicPartition] = ()) -> Position:
        """Return the next offset of each partition that the table has rows of, read from the table itself.

        `partitions` are looked up one by one where the table's history no longer reaches back to the last commit.
        """

    @abstractmethod
    def columns(self) -> pa.Schema | None:
        """Return the table's columns, None when there is no table yet."""

    @abstractmethod
    def write(self, identity: BatchIdentity, rows: pa.Table, position: Position) -> None:
        """Append `rows` (there may be none) and move the table's offsets to `position`, in one commit.

        Raises TableConflictError when the offsets were moved by someone else since `committed`.
        """

    def maintain(self) -> None:
        """Do the upkeep that the format needs from time to time; there is none yet."""
        return

    def prepare(self, columns: pa.Schema) -> None:
        """Check that rows of these columns fit the table. Raises TableSchemaError naming the first that does not."""
        existing = self.columns()
        if existing is not None:
            check_columns(self.directory, existing, columns)


def unusable(directory: Path, what: str) -> TableUnusableError:
    """The error for a table's directory that holds something else."""
    return TableUnusableError(
        f"{directory} {what}: name another table (lakehouse.table.name.format) or another lakehouse.path, or move"
        " what is there away"
    )


def check_columns(directory: Path, table: pa.Schema, rows: pa.Schema) -> None:
    """Raise TableSchemaError naming the columns in which table and rows differ; order does not count."""
    check_types(directory, leaf_type_texts(table), leaf_type_texts(rows))


def check_types(directory: Path, table: Mapping[str, str], rows: Mapping[str, str]) -> None:
    """Do so for columns that are told by their leaf types."""
    found = changes(table, rows)
    if found:
        raise TableSchemaError(
            f"the records' columns are not those of table {directory}: {', '.join(found)}; load them into another table"
            " (lakehouse.table.name.format), or give this one their columns"
        )


def leaf_type_texts(fields: Iterable[pa.Field], path: str = "") -> dict[str, str]:
    """Return {path: type} of Arrow's columns as `column_types.leaf_types` does of Connect's."""
    leaves = {}
    for field in fields:
        name = path + quoted(field.name)
        if pa.types.is_struct(field.type) and field.type.num_fields:
            leaves.update(leaf_type_texts(field.type, f"{name}."))
        else:
            leaves[name] = type_text(field.type)
    return leaves


def type_text(type_: pa.DataType) -> str:
    """Return an Arrow type in Spark's DDL words, equal for types that a table stores alike."""
    if pa.types.is_struct(type_):
        return "struct<" + ",".join(f"{quoted(field.name)}:{type_text(field.type)}" for field in type_) + ">"
    if pa.types.is_map(type_):
        return f"map<{type_text(type_.key_type)},{type_text(type_.item_type)}>"
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return f"array<{type_text(type_.value_type)}>"
    if pa.types.is_decimal(type_):
        return f"decimal({type_.precision},{type_.scale})"
    if pa.types.is_timestamp(type_):
        return "timestamp" if type_.tz else "timestamp_ntz"
    return _TEXTS.get(str(type_), str(type_))


_TEXTS = {
    "int8": "tinyint",
    "int16": "smallint",
    "int32": "int",
    "int64": "bigint",
    "float": "float",
    "double": "double",
    "bool": "boolean",
    "string": "string",
    "large_string": "string",
    "string_view": "string",
    "binary": "binary",
    "large_binary": "binary",
    "binary_view": "binary",
    "date32[day]": "date",
}


def offsets_json(position: Position) -> str:
    """Return a position as the JSON that commits carry."""
    return json.dumps(position.to_json()["topics"], separators=(",", ":"))


def offsets_position(text: str) -> Position:
    """Read what `offsets_json` wrote."""
    return Position.from_json({"topics": json.loads(text)})
