"""The interface of table writers, and the code that all table formats share."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

from headrace.api.errors import ConnectError
from headrace_connectors.lakehouse.column_types import describe_changes, quoted
from headrace_connectors.lakehouse.ranges import KafkaSourceOffset, TopicPartition

OFFSETS_KEY = "headrace.offsets"
"""Key in the commit metadata. Its value is JSON with the topic ids and the next offsets of all partitions."""


class TableSchemaError(ConnectError):
    """The columns of the table and of the records do not match."""


class TableUnusableError(ConnectError):
    """The writer rejects the table's directory, because it contains files that do not belong to the table."""


class TableConflictError(ConnectError):
    """Another process has loaded the same offsets into the table, so this task must fail."""


@dataclass(frozen=True, slots=True)
class BatchIdentity:
    """Identifies a micro-batch by connector, generation and batch id.

    The generation is the start time of the query's run in milliseconds, and `batch_id` counts the run's
    micro-batches.
    """

    connector: str
    generation: int
    batch_id: int

    @property
    def app_id(self) -> str:
        return f"headrace/{self.connector}/{self.generation}"

    def partition_app_id(self, key: TopicPartition) -> str:
        """Return the Delta application id under which the connector's next offset of a partition is stored."""
        return f"headrace/{self.connector}/{key[0]}/{key[1]}"


class TableWriter(ABC):
    """Appends micro-batches to one table. This class is not thread-safe.

    The table always contains exactly the records before the offsets that `committed` returns. `write`
    changes both the rows and the offsets, or neither rows nor offsets.
    """

    def __init__(self, directory: Path, connector: str) -> None:
        self.directory = directory
        self.connector = connector

    @abstractmethod
    def committed(self, partitions: Iterable[TopicPartition] = ()) -> KafkaSourceOffset:
        """Read the table, and return the next Kafka offset of each topic partition.

        The metadata of the connector's last commit contains these offsets. A Delta table also contains a transaction
        identifier for each topic partition. The version of the transaction identifier is the offset. If the history of
        a Delta table no longer includes the connector's last commit, the result contains only the offsets of
        `partitions`, from their transaction identifiers.
        """

    @abstractmethod
    def columns(self) -> pa.Schema | None:
        """Return the table's columns, or None if the table does not exist yet."""

    @abstractmethod
    def write(self, identity: BatchIdentity, rows: pa.Table, offsets: KafkaSourceOffset) -> None:
        """Append `rows`, which may be empty, and store `offsets` as the table's offsets, in one commit.

        Raises TableConflictError if another process has changed the offsets since `committed` was called.
        """

    def maintain(self) -> None:
        """Perform periodic maintenance of the table. The default does nothing."""
        return

    def prepare(self, columns: pa.Schema) -> None:
        """Check that rows with `columns` can be appended. Raises TableSchemaError with the differences."""
        existing = self.columns()
        if existing is not None:
            check_columns(self.directory, existing, columns)


def unusable_directory_error(problem: str) -> TableUnusableError:
    """Return the error for a table's directory with files that do not belong to the table.

    The message consists of `problem`, which must name the directory, and advice for the user.
    """
    return TableUnusableError(
        f"{problem}; set another table name (lakehouse.table.name.format) or lakehouse.path, or move these files away"
    )


def check_columns(directory: Path, table: pa.Schema, rows: pa.Schema) -> None:
    """Raise TableSchemaError if the columns of table and rows differ. The order of columns does not matter."""
    check_types(directory, leaf_type_texts(table), leaf_type_texts(rows))


def check_types(directory: Path, table: Mapping[str, str], rows: Mapping[str, str]) -> None:
    """Raise TableSchemaError with the differences between the leaf types of table and rows."""
    found = describe_changes(table, rows)
    if found:
        raise TableSchemaError(
            f"the records' columns do not match table {directory}: {', '.join(found)}; load the records into another"
            " table (lakehouse.table.name.format), or change the table's columns"
        )


def leaf_type_texts(fields: Iterable[pa.Field], path: str = "") -> dict[str, str]:
    """Return {path: type} of Arrow columns, in the same format as `column_types.leaf_types`.

    Every path in the result begins with `path`.
    """
    leaves = {}
    for field in fields:
        name = path + quoted(field.name)
        if pa.types.is_struct(field.type) and field.type.num_fields:
            leaves.update(leaf_type_texts(field.type, f"{name}."))
        else:
            leaves[name] = type_text(field.type)
    return leaves


def type_text(type_: pa.DataType) -> str:
    """Return an Arrow type as Spark DDL. Types that tables store in the same way have equal DDL."""
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


def offsets_json(offsets: KafkaSourceOffset) -> str:
    """Return offsets as JSON text for the metadata of a commit."""
    return json.dumps(offsets.to_json()["topics"], separators=(",", ":"))


def parse_offsets_json(text: str) -> KafkaSourceOffset:
    """Parse the JSON that `offsets_json` returns."""
    return KafkaSourceOffset.from_json({"topics": json.loads(text)})
