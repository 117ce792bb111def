"""Converts rows of tables to JSON values, as the S3 sink's JSON format writes them."""

from __future__ import annotations

import base64
import datetime as dt
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa

from headrace.data.java import float_text


def table_row(schema: pa.Schema, row: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a row of a table (`rows_of_table`, or PyArrow's `to_pylist`) to JSON values."""
    return without_nulls({name: _to_json(schema.field(name).type, value) for name, value in row.items()})


def rows_of_table(table: pa.Table) -> list[dict[str, Any]]:
    """Return the rows for `table_row`. Timestamps may be of years that Python's `datetime` does not have."""
    return table.cast(pa.schema([each.with_type(_with_integers(each.type)) for each in table.schema])).to_pylist()


def _with_integers(type_: pa.DataType) -> pa.DataType:
    """Return the type with integers instead of timestamps and dates."""
    if pa.types.is_timestamp(type_):
        return pa.int64()
    if pa.types.is_date32(type_):
        return pa.int32()
    if pa.types.is_struct(type_):
        return pa.struct([each.with_type(_with_integers(each.type)) for each in type_])
    return pa.list_(_with_integers(type_.value_type)) if pa.types.is_list(type_) else type_


def without_nulls(value: Any) -> Any:
    """Remove the fields of objects that are null, because a table contains a null for a missing field."""
    if isinstance(value, dict):
        return {name: without_nulls(item) for name, item in value.items() if item is not None}
    return [without_nulls(item) for item in value] if isinstance(value, list) else value


def _to_json(type_: pa.DataType, value: Any) -> Any:
    if value is None:
        return None
    if pa.types.is_struct(type_):
        return {name: _to_json(type_.field(name).type, item) for name, item in value.items()}
    if pa.types.is_map(type_):
        return {name: _to_json(type_.item_type, item) for name, item in value}
    if pa.types.is_list(type_) or pa.types.is_large_list(type_):
        return [_to_json(type_.value_type, item) for item in value]
    if pa.types.is_float32(type_):
        return Decimal(float_text(value))
    if pa.types.is_floating(type_):
        return Decimal(repr(value))
    if pa.types.is_timestamp(type_) and isinstance(value, int):
        return value // 1000  # microseconds
    if isinstance(value, dt.datetime):
        return (value.replace(tzinfo=dt.UTC) - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(milliseconds=1)
    if isinstance(value, dt.date):
        return value.toordinal() - dt.date(1970, 1, 1).toordinal()
    if isinstance(value, dt.time):
        return ((value.hour * 60 + value.minute) * 60 + value.second) * 1000 + value.microsecond // 1000
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value
