"""The columns of CSV files: their declarations, and the conversion of fields to values. This module does no I/O."""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, NamedTuple

from headrace.data.java import float32
from headrace.data.logical import DATE_SCHEMA, TIME_SCHEMA, TIMESTAMP_SCHEMA, Date, Time, Timestamp, decimal_schema
from headrace.data.schema import Schema, Type
from headrace_connectors.common.instants import parse_date, parse_timestamp

_DECLARATION = re.compile(
    r"(?P<name>.+?)(:\s*(?P<type>[a-z0-9]+)(\((?P<scale>-?\d+)\))?(?P<required>\s+not\s+null)?)?", re.I
)

Convert = Callable[[str], Any]


class Column(NamedTuple):
    """A column of a CSV file.

    `convert` converts the text of a field to a value, and raises ValueError for an invalid field. If the values are
    strings, `convert` is None.
    """

    name: str
    schema: Schema
    convert: Convert | None = None


def parse_columns(texts: Sequence[str]) -> list[Column]:
    """Parse the declarations of csv.columns. Raises ValueError."""
    columns: list[Column] = []
    for text in texts:
        found = _DECLARATION.fullmatch(text.strip())
        if found is None:
            raise ValueError(f"{text!r} does not declare a column: write name, name:type or name:type not null")
        name, type_name = found["name"].strip(), (found["type"] or "string").lower()
        if any(column.name == name for column in columns):
            raise ValueError(f"the column {name} is declared twice")
        if (found["scale"] is not None) != (type_name == "decimal") or type_name not in _TYPES:
            names = ", ".join(f"{each}(scale)" if each == "decimal" else each for each in _TYPES)
            raise ValueError(f"column {name} has no valid type ({text.strip()!r}): use one of {names}")
        schema, convert = _TYPES[type_name](int(found["scale"] or 0))
        columns.append(Column(name, schema.replace(optional=found["required"] is None), convert))
    return columns


def text_columns(names: Sequence[str]) -> list[Column]:
    """Return a column of optional strings for each name."""
    return [Column(name, Schema(Type.STRING, optional=True)) for name in names]


def with_nulls(column: Column, null: str) -> Convert:
    """Return a function that converts the text of the column's fields to values, and a text equal to `null` to None.

    If the column is not optional, the function raises ValueError for a text equal to `null`.
    """
    convert, is_optional = column.convert, column.schema.optional

    def to_value(text: str) -> Any:
        if text == null:
            if is_optional:
                return None
            raise ValueError(f"the field {text!r:.100} is null, but the column is declared as not null")
        return text if convert is None else convert(text)

    return to_value


def _integer(type_: Type, bits: int) -> Callable[[int], tuple[Schema, Convert]]:
    low, high = -(1 << bits - 1), (1 << bits - 1) - 1

    def convert(text: str) -> int:
        try:
            value = int(text) if text.isascii() and "_" not in text else None
        except ValueError:
            value = None
        if value is None:
            raise ValueError(f"the field {text!r:.100} is not an integer")
        if not low <= value <= high:
            raise ValueError(f"the field {text!r:.100} is not between {low} and {high}")
        return value

    return lambda scale: (Schema(type_), convert)


def _to_float64(text: str) -> float:
    if "_" in text:
        raise ValueError(f"the field {text!r:.100} is not a number")
    try:
        value = float(text)
    except ValueError:
        raise ValueError(f"the field {text!r:.100} is not a number") from None
    if math.isinf(value) and "inf" not in text.lower():
        raise ValueError(f"the field {text!r:.100} is too large for a float64")
    return value


def _to_float32(text: str) -> float:
    value = _to_float64(text)
    rounded = float32(value)
    if math.isinf(rounded) and not math.isinf(value):
        raise ValueError(f"the field {text!r:.100} is too large for a float32")
    return rounded


def _to_boolean(text: str) -> bool:
    lower = text.strip().lower()
    if lower not in ("true", "false"):
        raise ValueError(f"the field {text!r:.100} is neither true nor false")
    return lower == "true"


def _decimal(scale: int) -> tuple[Schema, Convert]:
    unit = Decimal(1).scaleb(-scale)

    def convert(text: str) -> Decimal:
        try:
            value = Decimal(text.strip())
            exact = value.quantize(unit) if value.is_finite() and "_" not in text else None
        except InvalidOperation:
            exact = None
        if exact is None:
            raise ValueError(
                f"the field {text!r:.100} is not a decimal number with at most {28 - scale} digits before the point"
            )
        if exact != value:
            raise ValueError(f"the field {text!r:.100} has more than {scale} digits after the point")
        return exact

    return decimal_schema(scale), convert


def _iso(parse: Callable[[str], Any], name: str, example: str) -> Convert:
    def convert(text: str) -> Any:
        try:
            return parse(text.strip())
        except ValueError:
            raise ValueError(f"the field {text!r:.100} is not a {name} like {example}") from None

    return convert


def _to_timestamp(text: str) -> Timestamp:
    time, offset = parse_timestamp(text)
    return Timestamp((time - (offset or 0)) // 1000)


def _to_time(text: str) -> Time:
    value = dt.time.fromisoformat(text)
    if value.tzinfo is not None:
        raise ValueError(text)
    return Time.of(value)


def _parse_date(text: str) -> Date:
    try:
        return Date.of(dt.date.fromisoformat(text))
    except ValueError:  # a year outside of the years 1 to 9999
        return Date(parse_date(text))


_to_date = _iso(_parse_date, "date", "2026-11-24")
_to_iso_time = _iso(_to_time, "time", "13:45:00")
_to_iso_timestamp = _iso(_to_timestamp, "timestamp", "2026-11-24T13:45:00Z")

_TYPES: dict[str, Callable[[int], tuple[Schema, Convert | None]]] = {
    "string": lambda scale: (Schema(Type.STRING), None),
    "boolean": lambda scale: (Schema(Type.BOOLEAN), _to_boolean),
    "int8": _integer(Type.INT8, 8),
    "int16": _integer(Type.INT16, 16),
    "int32": _integer(Type.INT32, 32),
    "int64": _integer(Type.INT64, 64),
    "float32": lambda scale: (Schema(Type.FLOAT32), _to_float32),
    "float64": lambda scale: (Schema(Type.FLOAT64), _to_float64),
    "decimal": _decimal,
    "date": lambda scale: (DATE_SCHEMA, _to_date),
    "time": lambda scale: (TIME_SCHEMA, _to_iso_time),
    "timestamp": lambda scale: (TIMESTAMP_SCHEMA, _to_iso_timestamp),
}
