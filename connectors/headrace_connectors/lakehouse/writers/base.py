"""The contract of a table writer, and what every format shares: commit identity, type texts, schema comparison."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from headrace.api.errors import ConnectError
from headrace_connectors.lakehouse.column_types import quoted
from headrace_connectors.lakehouse.ranges import Position, TopicPartition

OFFSETS_KEY = "headrace.offsets"
"""The commit's JSON of topic ids and next offsets, complete for the table, not only for the batch."""


class TableSchemaError(ConnectError):
    """The table has other columns than the records."""


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


def check_columns(directory: Path, table: pa.Schema, rows: pa.Schema) -> None:
    """Raise TableSchemaError naming the first column in which table and rows differ."""
    found = list(schema_differences(table, rows))
    if found:
        name, old, new = found[0]
        more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
        raise TableSchemaError(
            f"table {directory}: column {quoted(name)} is {old} in the table and {new} in the records{more};"
            " load the new form into another table (lakehouse.table.name.format) or rewrite this one"
        )


def schema_differences(table: pa.Schema, rows: pa.Schema) -> Iterable[tuple[str, str, str]]:
    """Yield (column, type in the table, type in the rows) where they differ; order does not count."""
    before = {field.name: type_text(field.type) for field in table}
    after = {field.name: type_text(field.type) for field in rows}
    for name in [*before, *(name for name in after if name not in before)]:
        if before.get(name) != after.get(name):
            yield name, before.get(name, "absent"), after.get(name, "absent")


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
