"""Compares the columns and partition fields of tables, and converts columns to text. This module does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace_connectors.lakehouse.column_types import (
    TableColumn,
    describe_changes,
    leaf_types,
    quoted,
)
from headrace_connectors.lakehouse.committers.base import TableSchemaError
from headrace_connectors.lakehouse.ddl import parse_ddl
from headrace_connectors.lakehouse.files.layout import FileLayout, PartitionField


def check_columns(
    location: str, table: Iterable[TableColumn], rows: Iterable[TableColumn], rows_name: str = "the records' columns"
) -> None:
    """Raise TableSchemaError if the columns of table and rows differ. The order of columns does not matter."""
    found = describe_changes(leaf_types(table), leaf_types(rows))
    if found:
        raise TableSchemaError(
            f"{rows_name} do not match table {location}: {', '.join(found)}; load the records into another"
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
    return ", ".join(map(str, fields)) or "no column"


def columns_to_text(columns: Iterable[TableColumn]) -> str:
    """Return columns as Spark DDL."""
    return ", ".join(f"{quoted(column.name)} {column.type}" for column in columns)


def columns_from_text(text: str) -> tuple[TableColumn, ...]:
    """Parse the text that `columns_to_text` returns."""
    return parse_ddl(text)
