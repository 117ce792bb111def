"""Compares the columns of tables, and converts them from Arrow and to text. This module does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from headrace_connectors.lakehouse.column_types import (
    ColumnType,
    TableColumn,
    describe_changes,
    leaf_types,
    quoted,
)
from headrace_connectors.lakehouse.committers.base import TableSchemaError
from headrace_connectors.lakehouse.ddl import parse_ddl
from headrace_connectors.lakehouse.files.layout import FileLayout, PartitionField

_KINDS = {
    "int8": "int8",
    "int16": "int16",
    "int32": "int32",
    "int64": "int64",
    "float": "float32",
    "double": "float64",
    "bool": "boolean",
    "string": "string",
    "large_string": "string",
    "string_view": "string",
    "binary": "bytes",
    "large_binary": "bytes",
    "binary_view": "bytes",
    "date32[day]": "date",
}


def check_columns(location: str, table: Iterable[TableColumn], rows: Iterable[TableColumn]) -> None:
    """Raise TableSchemaError if the columns of table and rows differ. The order of columns does not matter."""
    found = describe_changes(leaf_types(table), leaf_types(rows))
    if found:
        raise TableSchemaError(
            f"the records' columns do not match table {location}: {', '.join(found)}; load the records into another"
            " table (lakehouse.table.name.format), or change the table's columns"
        )


def check_partition_fields(location: str, table: FileLayout, wanted: FileLayout) -> None:
    """Raise TableSchemaError if the partition fields of the existing table are not the configured ones."""
    if table.partition_fields != wanted.partition_fields:
        raise TableSchemaError(
            f"table {location} is partitioned by {describe_partitions(table.partition_fields)}, but the configuration"
            f" says {describe_partitions(wanted.partition_fields)}; correct the partition fields, or load the records"
            " into another table (lakehouse.table.name.format)"
        )


def describe_partitions(fields: Sequence[PartitionField]) -> str:
    """Return partition fields as text, such as `day(ts), bucket(16, id), region`."""
    return ", ".join(map(partition_text, fields)) or "no column"


def partition_text(field: PartitionField) -> str:
    """Return a partition field as text: the column's name, or the transform with its arguments."""
    if field.transform == "identity":
        return field.column
    arguments = f"{field.argument}, {field.column}" if field.argument else field.column
    return f"{field.transform}({arguments})"


def columns_from_arrow(schema: Iterable[pa.Field]) -> tuple[TableColumn, ...]:
    """Return the columns of an Arrow schema, which contains each column's type as the table stores it.

    A type that no record can have, such as uint8, becomes a type of that name.
    """
    return tuple(TableColumn(field.name, _type_from_arrow(field.type)) for field in schema)


def _type_from_arrow(type_: pa.DataType) -> ColumnType:
    if pa.types.is_struct(type_):
        return ColumnType("struct", fields=columns_from_arrow(type_))
    if pa.types.is_map(type_):
        return ColumnType("map", key=_type_from_arrow(type_.key_type), element=_type_from_arrow(type_.item_type))
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return ColumnType("array", element=_type_from_arrow(type_.value_type))
    if pa.types.is_decimal(type_):
        return ColumnType("decimal", precision=type_.precision, scale=type_.scale)
    if pa.types.is_timestamp(type_):
        return ColumnType("timestamp" if type_.tz else "timestamp_ntz")
    return ColumnType(_KINDS.get(str(type_), str(type_)))


def columns_to_text(columns: Iterable[TableColumn]) -> str:
    """Return columns as Spark DDL."""
    return ", ".join(f"{quoted(column.name)} {column.type}" for column in columns)


def columns_from_text(text: str) -> tuple[TableColumn, ...]:
    """Parse the text that `columns_to_text` returns."""
    return parse_ddl(text)
