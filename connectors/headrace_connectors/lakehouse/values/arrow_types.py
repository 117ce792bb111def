"""Converts types of table columns to Arrow types, and back. This module does no I/O."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable
from functools import cache

import pyarrow as pa

from headrace_connectors.lakehouse.column_types import ColumnType, SchemaError, TableColumn

TIMESTAMP = pa.timestamp("us", tz="UTC")
_TYPES = {
    "int8": pa.int8(),
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "time": pa.int32(),
    "float32": pa.float32(),
    "float64": pa.float64(),
    "boolean": pa.bool_(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "date": pa.date32(),
    "timestamp": TIMESTAMP,
}
_KINDS = {
    **{type_: kind for kind, type_ in _TYPES.items() if kind != "time"},
    pa.large_string(): "string",
    pa.string_view(): "string",
    pa.large_binary(): "bytes",
    pa.binary_view(): "bytes",
}


def arrow_schema(columns: Iterable[TableColumn]) -> pa.Schema:
    """Return the Arrow schema of rows with these columns. All columns, and all fields of structs, are nullable.

    Raises SchemaError for a type that records cannot have.
    """
    return pa.schema([pa.field(column.name, arrow_type(column.type)) for column in columns])


def arrow_type(type_: ColumnType) -> pa.DataType:
    """Return the Arrow type of a column. Raises SchemaError for a type that records cannot have."""
    if type_.kind == "struct":
        return pa.struct([pa.field(field.name, arrow_type(field.type)) for field in type_.fields])
    if type_.kind == "array" and type_.element is not None:
        return pa.list_(arrow_type(type_.element))
    if type_.kind == "map" and type_.key is not None and type_.element is not None:
        return pa.map_(arrow_type(type_.key), arrow_type(type_.element))
    if type_.kind == "decimal":
        return pa.decimal128(type_.precision, type_.scale)
    found = _TYPES.get(type_.kind)
    if found is None:
        raise SchemaError(f"columns of type {type_.kind} are not supported")
    return found


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
    return ColumnType(_KINDS.get(type_, str(type_)))


@cache
def prevent_import_of_pandas() -> None:
    """Let pyarrow assume that pandas is not installed, unless pandas is imported already.

    The first call of `pyarrow.array` imports pandas, only to recognize its classes. This would delay the first rows of
    each of Spark's Python workers by 0.3 s of CPU time. pyarrow still converts tables to pandas afterwards.
    """
    if "pandas" in sys.modules:
        return
    sys.modules["pandas"] = None  # type: ignore[assignment]  # pyarrow cannot import it, and does not try again
    try:
        with contextlib.suppress(ImportError, AttributeError):
            pa.array([])
    finally:
        del sys.modules["pandas"]
