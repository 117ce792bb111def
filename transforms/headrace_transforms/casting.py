"""Functions that cast single values between Connect's primitive types, with the results of Java's casts."""

from __future__ import annotations

import base64
from collections.abc import Callable
from decimal import Decimal
from typing import Any

from headrace.api.errors import DataError
from headrace.data.java import (
    Float32,
    double_text,
    float32,
    float_text,
    float_to_integer,
    low_bits,
    parse_double,
    parse_float,
    parse_integer,
    wrap,
)
from headrace.data.logical import TEMPORAL_TYPES, is_logical, to_base
from headrace.data.schema import INT_RANGES, Schema, Type
from headrace.data.text import java_string
from headrace.data.value_text import iso_date_text
from headrace.data.values import infer_type
from headrace_transforms.record_errors import message_of, record_error, type_name

TARGETS = (
    Type.INT8,
    Type.INT16,
    Type.INT32,
    Type.INT64,
    Type.FLOAT32,
    Type.FLOAT64,
    Type.BOOLEAN,
    Type.STRING,
)
"""The types that Cast supports as targets."""

_INFERRED_CLASSES = frozenset((str, int, bool, float, Float32))
"""The most frequent classes whose type Connect infers without a schema."""
EXACT_DOUBLE_MAX = 2**53
"""A 64-bit float contains every integer up to this one exactly."""
_BITS = {Type.INT8: 8, Type.INT16: 16, Type.INT32: 32, Type.INT64: 64}


def caster(schema: Schema | None, target: Type, place: str) -> Callable[[Any], Any]:
    """Return a function that casts values with this schema to the target type. It does not change nulls.

    The function raises DataError for a value that cannot be cast. The message contains `place`, the value's type and
    the target type.
    """
    cast = _TO[target]
    if schema is not None and not schema.type.is_primitive:
        cast = _unsupported(schema.type)
    if target is Type.STRING and schema is not None and schema.type is Type.FLOAT32:
        cast = float_text
    if target is Type.FLOAT32 and schema is None:
        cast = _to_schemaless_float
    base = to_base(schema) if schema is not None and is_logical(schema) and target is not Type.STRING else None
    if base is not None:
        cast = _after_base(cast, base)

    inferred = _INFERRED_CLASSES

    def apply(value: Any) -> Any:
        if value is None:
            return None
        try:
            if value.__class__ not in inferred and schema is None and infer_type(value) is None:
                raise _unexpected(value)  # a date or Decimal has no type without a schema
            return cast(value)
        except (DataError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise record_error(message_of(error), place, target.name, type_name(value, schema)) from None

    return apply


def _after_base(cast: Callable[[Any], Any], base: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return a function that casts the base value of a logical value. Decimals are cast directly."""
    return lambda value: cast(value if isinstance(value, Decimal) else base(value))


def _to_integer(target: Type) -> Callable[[Any], int]:
    bits = _BITS[target]
    low, high = INT_RANGES[target]

    def cast(value: Any) -> int:
        if isinstance(value, int):  # Python's booleans are the integers 0 and 1
            return wrap(value, bits)
        if isinstance(value, float):
            return float_to_integer(value, bits)
        if isinstance(value, Decimal):
            return wrap(low_bits(value), bits)
        if isinstance(value, str):
            number = parse_integer(value)
            if number is None or not low <= number <= high:
                raise _out_of_range(value)
            return number
        raise _unexpected(value)

    return cast


def _to_double(value: Any) -> float:
    if isinstance(value, str):
        number = parse_double(value)
        if number is None:
            raise _out_of_range(value)
        return number
    if isinstance(value, (int, float, Decimal)):
        try:
            return float(value)
        except OverflowError:
            return float("inf") if value > 0 else float("-inf")
    raise _unexpected(value)


def _to_float(value: Any) -> float:
    if isinstance(value, (str, Decimal)) or (isinstance(value, int) and abs(value) > EXACT_DOUBLE_MAX):
        number = parse_float(str(value))  # a conversion to 64 and then to 32 bits could round twice
        if number is None:
            raise _out_of_range(value)
        return number
    return float32(_to_double(value))


def _to_schemaless_float(value: Any) -> Float32:
    return Float32(float32(value) if value.__class__ is float else _to_float(value))


def _to_boolean(value: Any) -> bool:
    if isinstance(value, str):
        return value.lower() == "true"
    if isinstance(value, float):
        return float_to_integer(value, 64) != 0
    if isinstance(value, Decimal):
        return low_bits(value) != 0
    if isinstance(value, int):
        return wrap(value, 64) != 0
    raise _unexpected(value)


def _to_string(value: Any) -> str:
    write = _PLAIN_TEXT.get(type(value))
    if write is not None:
        return write(value)
    if isinstance(value, TEMPORAL_TYPES):
        return iso_date_text(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        return base64.b64encode(value).decode()
    if not isinstance(value, (int, Decimal)) and infer_type(value) is None:
        raise _unexpected(value)
    if isinstance(value, (list, dict)):
        raise DataError(f"Cast transformation does not support casting from {type(value).__name__}")
    return java_string(value)  # for booleans, Decimals, and subclasses of the types above


def _unsupported(type_: Type) -> Callable[[Any], Any]:
    def reject(value: Any) -> Any:
        raise DataError(f"Cast transformation does not support casting from {type_.name}")

    return reject


_PLAIN_TEXT: dict[type, Callable[[Any], str]] = {str: str, int: str, Float32: float_text, float: double_text}


def _out_of_range(value: Any) -> DataError:
    return DataError(f"Value ({value}) was out of range for requested data type")


def _unexpected(value: Any) -> DataError:
    return DataError(f"Unexpected type in Cast transformation: {type(value).__name__}")


_TO: dict[Type, Callable[[Any], Any]] = {
    **{type_: _to_integer(type_) for type_ in _BITS},
    Type.FLOAT32: _to_float,
    Type.FLOAT64: _to_double,
    Type.BOOLEAN: _to_boolean,
    Type.STRING: _to_string,
}
