"""Arrow types of table columns. This module does no I/O."""

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
