"""Converts columns of values with a Connect schema to Arrow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa

from headrace.data.logical import Date, Time, Timestamp
from headrace.data.schema import Schema
from headrace_connectors.lakehouse.column_types import ColumnType
from headrace_connectors.lakehouse.values.arrays import array_converter
from headrace_connectors.lakehouse.values.arrow_types import arrow_type
from headrace_connectors.lakehouse.values.column_converter import (
    ColumnConverter,
    Vectorised,
    days_to_dates,
    millis_to_timestamps,
    of_classes,
    plain,
)
from headrace_connectors.lakehouse.values.json_values import INTEGER_RANGES, round_decimal
from headrace_connectors.lakehouse.values.mismatch import MismatchError

_TIMESTAMP_LIMIT = 2**63
_DATE_LIMIT = 2**31
_CLASSES: dict[str, tuple[Any, ...]] = {
    "float32": (int, float),
    "float64": (int, float),
    "boolean": (bool,),
    "string": (str,),
    "bytes": (bytes,),
    "decimal": (Decimal, int),
}


def schema_column_converter(name: str, type_: ColumnType, schema: Schema) -> ColumnConverter:
    """Return the converter of a column. `type_` is the type of the table's column, `schema` that of the values."""
    return ColumnConverter(name, type_, _vectorised(type_, schema), _exact(type_, schema))


def _vectorised(type_: ColumnType, schema: Schema) -> Vectorised | None:
    kind = type_.kind
    if kind in INTEGER_RANGES or kind == "time":
        return of_classes(plain(arrow_type(type_)), int, Time)  # an existing table stores a Time as int
    if kind == "timestamp":
        return of_classes(millis_to_timestamps, Timestamp, int)
    if kind == "date":
        return of_classes(days_to_dates, Date, int)
    if kind == "string":
        return of_classes(plain(pa.string()), str)
    if kind == "bytes":
        return of_classes(plain(pa.binary()), bytes)
    if kind in ("float32", "float64", "boolean", "decimal") or _is_identity(type_, schema):
        return plain(arrow_type(type_))
    return None


def _is_identity(type_: ColumnType, schema: Schema) -> bool:
    """Whether Arrow accepts a nested value as it is."""
    if type_.kind == "array" and type_.element is not None and schema.value_schema is not None:
        return type_.element.kind in ("string", "boolean")
    return False


def _exact(type_: ColumnType, schema: Schema) -> Callable[[Any], Any]:
    """Return the function that converts one value to the form that `pyarrow.array` accepts."""
    if type_.kind == "array":
        assert type_.element is not None
        assert schema.value_schema is not None
        convert = array_converter(type_, (list, tuple), _exact(type_.element, schema.value_schema))
    elif type_.kind == "map":
        convert = _map(type_, schema)
    elif type_.kind == "struct":
        convert = _struct(type_, schema)
    else:
        convert = _scalar(type_)
    return lambda value: None if value is None else convert(value)


def _scalar(type_: ColumnType) -> Callable[[Any], Any]:
    kind = type_.kind
    if kind == "timestamp":
        return lambda value: _in_range(type_, value, int(_integer(type_, value, Timestamp)) * 1000, _TIMESTAMP_LIMIT)
    if kind == "date":
        return lambda value: _in_range(type_, value, _integer(type_, value, Date), _DATE_LIMIT)
    if kind == "time":
        return lambda value: _in_range(type_, value, _integer(type_, value, Time), _DATE_LIMIT)
    if kind in INTEGER_RANGES:
        limit = INTEGER_RANGES[kind][1] + 1
        return lambda value: _in_range(type_, value, _integer(type_, value, int), limit)
    classes = _CLASSES[kind]

    def convert(value: Any) -> Any:
        if not isinstance(value, classes) or (isinstance(value, bool) and kind != "boolean"):
            raise MismatchError(type_, value)
        if kind == "decimal":
            return _decimal(type_, value)
        if kind == "string":
            return _text(type_, value)
        return float(value) if isinstance(value, int) and kind != "boolean" else value

    return convert


def _integer(type_: ColumnType, value: Any, class_: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, class_ if type(value) is not int else int):
        raise MismatchError(type_, value)
    return int(value)


def _in_range(type_: ColumnType, value: Any, number: int, limit: int) -> int:
    if not -limit <= number < limit:
        raise MismatchError(type_, value, is_range=True)
    return number


def _decimal(type_: ColumnType, value: Decimal | int) -> Decimal:
    rounded = round_decimal(Decimal(value), type_)
    if rounded is None:
        raise MismatchError(type_, value, is_range=True)
    return rounded


def _text(type_: ColumnType, value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise MismatchError(type_, value) from None
    return value


# --- nested values ----------------------------------------------------------------------------------------------------


def _map(type_: ColumnType, schema: Schema) -> Callable[[Any], Any]:
    assert type_.key is not None
    assert type_.element is not None
    assert schema.key_schema is not None
    assert schema.value_schema is not None
    of_key, of_item = _exact(type_.key, schema.key_schema), _exact(type_.element, schema.value_schema)

    def convert(value: Any) -> list[tuple[Any, Any]]:
        if not isinstance(value, dict):
            raise MismatchError(type_, value)
        pairs = []
        for key, item in value.items():
            try:
                if key is None:
                    raise MismatchError(type_.key or type_, key)
                pairs.append((of_key(key), of_item(item)))
            except MismatchError as error:
                raise error.inside(str(key)) from None
        return pairs

    return convert


def _struct(type_: ColumnType, schema: Schema) -> Callable[[Any], Any]:
    """Return the function for rows, which have the order of the schema's fields."""
    fields = []
    for field in type_.fields:
        of_schema = schema.field(field.name)
        assert of_schema is not None
        fields.append((field.name, of_schema.index, _exact(field.type, of_schema.schema)))
    width = len(schema.fields)

    def convert(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, Sequence) or isinstance(value, str | bytes) or len(value) != width:
            raise MismatchError(type_, value)
        items = []
        for name, index, of_field in fields:
            try:
                items.append(of_field(value[index]))
            except MismatchError as error:
                raise error.inside(name) from None
        return tuple(items)

    return convert
