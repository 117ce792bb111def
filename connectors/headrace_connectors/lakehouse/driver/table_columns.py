"""Checks the columns of an existing table against the configuration, before records are read.

This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace_connectors.lakehouse.column_types import TableColumn
from headrace_connectors.lakehouse.committers.base import TableSchemaError
from headrace_connectors.lakehouse.committers.columns import check_columns
from headrace_connectors.lakehouse.values.options import (
    KEY_COLUMN,
    METADATA_NAMES,
    RowOptions,
)


def check_table_columns(location: str, columns: Sequence[TableColumn], options: RowOptions) -> None:
    """Raise TableSchemaError if the configuration does not match the columns of the existing table.

    The order and nullability of columns do not matter. The columns of values with schemas are not checked here, because
    they are not known before a record is read.
    """
    names = [column.name for column in columns]
    _check_metadata(location, names, options)
    _check_key(location, names, options)
    expected = list(options.fixed_columns)
    if options.headers_column is not None and options.headers_column not in names:
        raise TableSchemaError(
            f"table {location} has no column {options.headers_column}: the table was created without"
            " lakehouse.headers.column, or by another tool; remove lakehouse.headers.column or set another table"
            " name (lakehouse.table.name.format)"
        )
    fixed = {column.name for column in expected}
    if options.declared is not None:
        expected += options.stored(options.declared)
        compared = [column for column in columns if not options.is_key_column(column.name)]
    else:
        compared = [column for column in columns if column.name in fixed]
    declared = "the declared columns (lakehouse.schema or lakehouse.table.<table>.schema)"
    check_columns(location, compared, expected, "the records' columns" if options.declared is None else declared)


def _check_metadata(location: str, names: Sequence[str], options: RowOptions) -> None:
    absent = [name for name in METADATA_NAMES if name not in names]
    if options.metadata_columns and absent:
        raise TableSchemaError(
            f"table {location} has no column {absent[0]}: the table was created with lakehouse.metadata.columns=false,"
            " or by another tool; set lakehouse.metadata.columns=false or another table name"
            " (lakehouse.table.name.format)"
        )
    if not options.metadata_columns and not absent:
        raise TableSchemaError(
            f"table {location} has metadata columns ({', '.join(METADATA_NAMES)}), but"
            " lakehouse.metadata.columns=false; set it to true, or set another table name (lakehouse.table.name.format)"
        )


def _check_key(location: str, names: Sequence[str], options: RowOptions) -> None:
    has_key_columns = any(map(options.is_key_column, names))
    if options.key_columns != "none" and not has_key_columns:
        raise TableSchemaError(
            f"table {location} has no column of the record's key: the table was created with"
            " lakehouse.key.columns=none, or by another tool; set lakehouse.key.columns=none or another table name"
            " (lakehouse.table.name.format)"
        )
    if options.key_columns == "none" and KEY_COLUMN in names:
        raise TableSchemaError(
            f"table {location} has the column {KEY_COLUMN}, but lakehouse.key.columns=none; set it to key, or set"
            " another table name (lakehouse.table.name.format)"
        )
