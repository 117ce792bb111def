"""Formats any Connect value as Java's ``toString`` does, for StringConverter, the file sink and Cast.

Examples: ``Struct{a=1,b=x}`` (null fields are omitted), ``{a=1, b=2}`` for maps in HashMap order, ``[a, b]`` for lists,
``null``, ``true``. Floating point numbers have Java's format. Dates have the format of ``java.util.Date`` in UTC. Bytes
are printed in hexadecimal; Java prints only an object address for them.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from decimal import Decimal
from functools import lru_cache
from typing import Any

from headrace.data.java import Float32, double_text, float_text, hash_map_order
from headrace.data.java_dates import SimpleDateFormat
from headrace.data.logical import MILLIS_PER_DAY, Date, Time, Timestamp, from_python_date, is_logical
from headrace.data.schema import Schema, Type
from headrace.data.struct import Struct

_DATE = SimpleDateFormat("EEE MMM dd HH:mm:ss zzz y")


def java_string(value: Any, schema: Schema | None = None) -> str:
    """Return the text of one value. If the value is a row or a FLOAT32 number, pass its schema.

    A row is a tuple of the field values of a struct. Without a schema, the text of a row has no field names, and a
    Python float is formatted as FLOAT64, unless it is a `Float32`.
    """
    return formatter(schema)(value)


def date_text(value: Timestamp | Date | Time) -> str:
    """Format as ``java.util.Date.toString`` does in UTC: ``Thu Jan 01 00:00:00 UTC 1970``."""
    return _DATE.format(value * MILLIS_PER_DAY if isinstance(value, Date) else value)


def _python_date_text(value: dt.datetime | dt.date | dt.time) -> str:
    return date_text(from_python_date(value))


def _text_by_class(value: Any) -> str:
    """Format a value by its Python type alone, without a schema."""
    convert = _BY_CLASS.get(type(value))
    if convert is None:
        convert = next((function for class_, function in _BY_CLASS.items() if isinstance(value, class_)), str)
    return convert(value)


def _struct_text(value: Struct) -> str:
    parts = [
        f"{field.name}={formatter(field.schema)(item)}"
        for field, item in zip(value.schema.fields, value.row, strict=True)
        if item is not None
    ]
    return "Struct{" + ",".join(parts) + "}"


def _map_text(items: dict[Any, Any], key_text: Callable[[Any], str], value_text: Callable[[Any], str]) -> str:
    keys: Any = items
    if len(items) > 1 and all(type(key) is str for key in items):
        keys = hash_map_order(items)
    return "{" + ", ".join(f"{key_text(key)}={value_text(items[key])}" for key in keys) + "}"


_BY_CLASS: dict[type, Callable[[Any], str]] = {
    str: str,
    bool: lambda value: "true" if value else "false",
    Timestamp: date_text,
    Date: date_text,
    Time: date_text,
    int: str,
    Float32: float_text,
    float: double_text,
    type(None): lambda value: "null",
    dict: lambda value: _map_text(value, _text_by_class, _text_by_class),
    list: lambda value: "[" + ", ".join(map(_text_by_class, value)) + "]",
    tuple: lambda value: "[" + ", ".join(map(_text_by_class, value)) + "]",
    Struct: _struct_text,
    Decimal: str,
    bytes: bytes.hex,
    bytearray: bytearray.hex,
    memoryview: lambda value: bytes(value).hex(),
    dt.datetime: _python_date_text,
    dt.date: _python_date_text,
    dt.time: _python_date_text,
}


@lru_cache(maxsize=1024)
def formatter(schema: Schema | None) -> Callable[[Any], str]:
    """Return the function that formats values of this schema.

    A STRUCT value is a row (a tuple of the field values) or a `Struct` object.
    """
    if schema is None or is_logical(schema):
        return _text_by_class
    if schema.type is Type.FLOAT32:
        return lambda value: "null" if value is None else float_text(value)
    if schema.type is Type.ARRAY:
        element = formatter(schema.value_schema)
        return lambda value: "null" if value is None else "[" + ", ".join(map(element, value)) + "]"
    if schema.type is Type.MAP:
        key, item = formatter(schema.key_schema), formatter(schema.value_schema)
        return lambda value: "null" if value is None else _map_text(value, key, item)
    if schema.type is Type.STRUCT:
        return _row_formatter(schema)
    return _text_by_class


def _row_formatter(schema: Schema) -> Callable[[Any], str]:
    fields = [(field.name + "=", formatter(field.schema)) for field in schema.fields]

    def row_text(value: Any) -> str:
        if value is None:
            return "null"
        if value.__class__ is not tuple:
            return _text_by_class(value)
        parts = [name + text(item) for (name, text), item in zip(fields, value, strict=True) if item is not None]
        return "Struct{" + ",".join(parts) + "}"

    return row_text
