"""Converts parsed JSON to values of declared types, one value at a time. This is the reference implementation.

The conversions are those of Spark's `from_json` (docs/lakehouse.md has them in a table), so that a table has the same
values as with earlier versions. `headrace_connectors.lakehouse.values.json_columns` converts columns faster, with the
same results. Besides JSON, a value may contain what transforms put into maps without a schema: bytes, `Decimal`,
`Date`, `Time` and `Timestamp`.

The results have the form that `pyarrow.array` accepts: dates are days, timestamps are microseconds, structs are tuples,
and maps are lists of pairs.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Mapping
from decimal import ROUND_HALF_UP, Context, Decimal, DecimalException
from typing import Any

import msgspec

from headrace.data.java import double_text, float32, parse_decimal, parse_float
from headrace.data.json_encoding import encode_tree
from headrace.data.logical import Date, Timestamp
from headrace_connectors.lakehouse.column_types import ColumnType
from headrace_connectors.lakehouse.values.arrays import array_converter
from headrace_connectors.lakehouse.values.mismatch import MismatchError
from headrace_connectors.lakehouse.values.temporal_text import parse_date, parse_timestamp

Convert = Callable[[Any], Any]
"""Converts a value to the column's type. Null becomes null. Raises MismatchError."""

INTEGER_RANGES = {f"int{bits}": (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) for bits in (8, 16, 32, 64)}
_TIMESTAMP_LIMIT = 2**63
_NOT_FINITE = {
    "NaN": math.nan,
    **dict.fromkeys(("Infinity", "+Infinity", "+INF"), math.inf),
    **dict.fromkeys(("-Infinity", "-INF"), -math.inf),
}
_BASE64 = re.compile(
    r"(?:[\x00-\x20]*(?:[A-Za-z0-9+/]{4}|[A-Za-z0-9+/]{3}=|[A-Za-z0-9+/]{2}==))*[\x00-\x20]*", re.ASCII
)
_BLANKS = re.compile(r"[\x00-\x20]+")
_DIGITS = Context(prec=80, rounding=ROUND_HALF_UP)


def parse_json(text: bytes) -> Any:
    """Parse JSON. A number with a decimal point or an exponent becomes an exact `Decimal`."""
    return _exact.decode(text)


def _number(text: str) -> Decimal | float:
    try:
        return Decimal(text)
    except DecimalException:  # an exponent with too many digits: the number is 0 or infinite
        return float(text)


_exact = msgspec.json.Decoder(float_hook=_number)


def json_converter(type_: ColumnType) -> Convert:
    """Return the function that converts parsed JSON to values of a type."""
    convert = _converter(type_)
    return lambda value: None if value is None else convert(value)


def _converter(type_: ColumnType) -> Convert:
    """Return the function that converts values except null."""
    kind = type_.kind
    if kind in INTEGER_RANGES:
        return _integer(type_)
    if kind == "decimal":
        return _decimal(type_)
    if kind == "struct":
        return _struct(type_)
    if kind == "array":
        assert type_.element is not None
        return array_converter(type_, (list,), json_converter(type_.element))
    if kind == "map":
        return _map(type_)
    convert = _CONVERTERS[kind]

    def checked(value: Any) -> Any:
        converted = convert(value)
        if converted is None:
            raise MismatchError(type_, value)
        return converted

    return checked


# --- scalars: functions that return None for a value that does not fit ------------------------------------------------


def _integer(type_: ColumnType) -> Convert:
    low, high = INTEGER_RANGES[type_.kind]

    def convert(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise MismatchError(type_, value)
        return value

    return convert


def _double(value: Any) -> float | None:
    if isinstance(value, str):
        return _NOT_FINITE.get(value)
    if not isinstance(value, int | float | Decimal) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _float(value: Any) -> float | None:
    """Round once, and not first to a double and then to a float."""
    if isinstance(value, int | Decimal) and not isinstance(value, bool):
        return parse_float(str(value))
    double = _double(value)
    return None if double is None else float32(double)


def _boolean(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _string(value: Any) -> str | None:
    if not isinstance(value, str):
        value = json_text(value)
    return value if _is_unicode(value) else None


def _bytes(value: Any) -> bytes | None:
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str) or not _BASE64.fullmatch(value):
        return None
    text = _BLANKS.sub("", value)
    if "=" not in text[:-2]:
        return base64.b64decode(text)
    return b"".join(base64.b64decode(text[at : at + 4]) for at in range(0, len(text), 4))


def _date(value: Any) -> int | None:
    if isinstance(value, Date):
        return int(value)
    return parse_date(value) if isinstance(value, str) else None


def _timestamp(value: Any) -> int | None:
    if isinstance(value, str):
        return parse_timestamp(value)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    micros = int(value) * (1000 if isinstance(value, Timestamp) else 1_000_000)
    return micros if -_TIMESTAMP_LIMIT <= micros < _TIMESTAMP_LIMIT else None


_CONVERTERS: Mapping[str, Convert] = {
    "float32": _float,
    "float64": _double,
    "boolean": _boolean,
    "string": _string,
    "bytes": _bytes,
    "date": _date,
    "timestamp": _timestamp,
}


def _decimal(type_: ColumnType) -> Convert:
    def convert(value: Any) -> Decimal:
        number = value
        if isinstance(value, str):
            number = parse_decimal(value.replace(",", ""))
        elif isinstance(value, float):
            number = Decimal(repr(float(value)))  # the shortest text of the double
        elif isinstance(value, int) and not isinstance(value, bool):
            number = Decimal(value)
        rounded = round_decimal(number, type_) if isinstance(number, Decimal) else None
        if rounded is None:
            raise MismatchError(type_, value)
        return rounded

    return convert


def round_decimal(number: Decimal, type_: ColumnType) -> Decimal | None:
    """Round a number half up to the scale of a decimal type. Return None if it has too many digits."""
    if not number.is_finite():
        return None
    scale, adjusted = type_.scale, number.adjusted()
    if not number or adjusted < -scale - 1:
        return Decimal((0, (0,), -scale))
    if adjusted >= type_.precision - scale:  # also avoids computing with huge exponents
        return None
    rounded = number.quantize(Decimal((0, (1,), -scale)), context=_DIGITS)
    return rounded if not rounded or rounded.adjusted() < type_.precision - scale else None


# --- nested values ----------------------------------------------------------------------------------------------------


def _map(type_: ColumnType) -> Convert:
    assert type_.element is not None
    element = json_converter(type_.element)

    def convert(value: Any) -> list[tuple[Any, Any]]:
        if not isinstance(value, dict):
            raise MismatchError(type_, value)
        pairs = []
        for key, item in value.items():
            try:
                pairs.append((_text_key(key, type_), element(item)))
            except MismatchError as error:
                raise error.inside(str(key)) from None
        return pairs

    return convert


def _text_key(key: Any, type_: ColumnType) -> str:
    if isinstance(key, str) and _is_unicode(key):
        return key
    raise MismatchError(type_, key)


def _struct(type_: ColumnType) -> Convert:
    fields = [(field.name, json_converter(field.type)) for field in type_.fields]

    def convert(value: Any) -> tuple[Any, ...]:
        if not isinstance(value, Mapping):
            raise MismatchError(type_, value)
        items = []
        for name, of_field in fields:
            try:
                items.append(of_field(value.get(name)))
            except MismatchError as error:
                raise error.inside(name) from None
        return tuple(items)

    return convert


# --- JSON text --------------------------------------------------------------------------------------------------------


def json_text(value: Any) -> str:
    """Return parsed JSON as compact JSON text, with numbers as Java's `Double.toString` writes them."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float | Decimal):
        text = double_text(float(value))
        return text if text[-1].isdigit() else f'"{text}"'  # NaN and infinities
    if isinstance(value, bytes):
        return f'"{base64.b64encode(value).decode()}"'
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{_quoted(str(key))}:{json_text(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(json_text, value)) + "]"
    return _quoted(str(value))


def _quoted(text: str) -> str:
    return encode_tree(text).decode()


def _is_unicode(text: str) -> bool:
    """Whether the text has no unpaired surrogates."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
