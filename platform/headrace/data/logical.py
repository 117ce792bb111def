"""Logical types: Decimal (stored as BYTES), Date and Time (as INT32), and Timestamp (as INT64).

In records and batches a logical value is a Python object: `decimal.Decimal`, `datetime.date`, `datetime.time` or an
aware `datetime.datetime` in UTC. The functions in this module convert between these objects and the base values that
converters serialize: the bytes of the unscaled number in two's complement (Decimal), days since 1970-01-01 (Date),
milliseconds since midnight (Time), and milliseconds since the epoch (Timestamp). Java's types have a precision of
milliseconds, so a conversion to the base value rounds microseconds down.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from typing import Any

from headrace.data.errors import DataError
from headrace.data.schema import Schema, Type

DECIMAL_NAME = "org.apache.kafka.connect.data.Decimal"
DATE_NAME = "org.apache.kafka.connect.data.Date"
TIME_NAME = "org.apache.kafka.connect.data.Time"
TIMESTAMP_NAME = "org.apache.kafka.connect.data.Timestamp"

SCALE_PARAMETER = "scale"
MILLIS_PER_DAY = 86_400_000

PYTHON_TYPES: Mapping[str, type] = {
    DECIMAL_NAME: Decimal,
    DATE_NAME: dt.date,
    TIME_NAME: dt.time,
    TIMESTAMP_NAME: dt.datetime,
}

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH_ORDINAL = dt.date(1970, 1, 1).toordinal()
_MILLISECOND = dt.timedelta(milliseconds=1)
_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)


def decimal_schema(scale: int, *, optional: bool = False, default: Decimal | None = None, **attributes: Any) -> Schema:
    """Return a Decimal schema with `scale` digits after the decimal point."""
    parameters = {**(attributes.pop("parameters", None) or {}), SCALE_PARAMETER: str(scale)}
    return Schema(
        Type.BYTES,
        name=DECIMAL_NAME,
        version=1,
        parameters=parameters,
        optional=optional,
        default=default,
        **attributes,
    )


DATE_SCHEMA = Schema(Type.INT32, name=DATE_NAME, version=1)
TIME_SCHEMA = Schema(Type.INT32, name=TIME_NAME, version=1)
TIMESTAMP_SCHEMA = Schema(Type.INT64, name=TIMESTAMP_NAME, version=1)
OPTIONAL_DATE_SCHEMA = DATE_SCHEMA.replace(optional=True)
OPTIONAL_TIME_SCHEMA = TIME_SCHEMA.replace(optional=True)
OPTIONAL_TIMESTAMP_SCHEMA = TIMESTAMP_SCHEMA.replace(optional=True)


def is_logical(schema: Schema) -> bool:
    """Whether the schema is one of the four logical types."""
    return schema.name in PYTHON_TYPES


def scale_of(schema: Schema) -> int:
    """Return the scale of a Decimal schema. Raises DataError if the schema has no valid scale."""
    text = (schema.parameters or {}).get(SCALE_PARAMETER)
    if text is None:
        raise DataError("Invalid Decimal schema: scale parameter not found.")
    try:
        return int(text)
    except ValueError:
        raise DataError(f"Invalid scale parameter found in Decimal schema: {text!r}") from None


def decimal_scale(value: Decimal) -> int:
    """Java's ``BigDecimal.scale()``: the number of digits after the point. Raises DataError for NaN and infinities."""
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int):
        raise DataError(f"Invalid value {value}: a Decimal must be a finite number")
    return -exponent


def unscaled(value: Decimal, scale: int) -> int:
    """Return the integer ``value * 10**scale``. Raises DataError if `value` has another scale."""
    if decimal_scale(value) != scale:
        raise DataError(
            "Decimal value has mismatching scale for given Decimal schema. "
            f"Schema has scale {scale}, value has scale {decimal_scale(value)}."
        )
    return int(value.scaleb(scale, _EXACT))


def from_unscaled(number: int, scale: int) -> Decimal:
    """Return the Decimal ``number / 10**scale`` with exactly that scale, however many digits it has."""
    return Decimal(number).scaleb(-scale, _EXACT)


def big_endian(number: int) -> bytes:
    """Java's ``BigInteger.toByteArray()``: the shortest big-endian two's complement representation."""
    bits = (number if number >= 0 else ~number).bit_length()
    return number.to_bytes(bits // 8 + 1, "big", signed=True)


def decimal_to_bytes(value: Decimal, scale: int) -> bytes:
    """Return the unscaled value of a Decimal as bytes in big-endian two's complement."""
    return big_endian(unscaled(value, scale))


def bytes_to_decimal(data: bytes, scale: int) -> Decimal:
    """Return the Decimal with this unscaled value (see `decimal_to_bytes`). Raises DataError for empty bytes."""
    if not data:
        raise DataError("Invalid bytes for Decimal field: zero length")
    return from_unscaled(int.from_bytes(data, "big", signed=True), scale)


def date_to_days(value: dt.date) -> int:
    """Return the number of days since 1970-01-01."""
    return value.toordinal() - _EPOCH_ORDINAL


def days_to_date(days: int) -> dt.date:
    """Return the date `days` days after 1970-01-01. Raises DataError outside the years 1 to 9999."""
    try:
        return dt.date.fromordinal(days + _EPOCH_ORDINAL)
    except (ValueError, OverflowError):
        raise DataError(f"Date out of range (years 1 to 9999): {days} days since 1970-01-01") from None


def time_to_millis(value: dt.time) -> int:
    """Return the number of milliseconds since midnight."""
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 1000 + value.microsecond // 1000


def millis_to_time(millis: int) -> dt.time:
    """Return the time of day `millis` milliseconds after midnight. Raises DataError outside of one day."""
    if not 0 <= millis < MILLIS_PER_DAY:
        raise DataError(f"Time values must use number of milliseconds between 0 and 86400000, but found {millis}")
    seconds, ms = divmod(millis, 1000)
    minutes, second = divmod(seconds, 60)
    return dt.time(minutes // 60, minutes % 60, second, ms * 1000)


def timestamp_to_millis(value: dt.datetime) -> int:
    """Return the number of milliseconds since the epoch. A naive datetime is interpreted as UTC."""
    if value.tzinfo is None:
        value = value.replace(tzinfo=dt.UTC)
    elapsed = value - _EPOCH
    return elapsed.days * MILLIS_PER_DAY + elapsed.seconds * 1000 + elapsed.microseconds // 1000


def millis_to_timestamp(millis: int) -> dt.datetime:
    """Return the datetime in UTC, `millis` milliseconds after the epoch. Raises DataError outside years 1 to 9999."""
    try:
        return _EPOCH + _MILLISECOND * millis
    except OverflowError:
        raise DataError(f"Timestamp out of range (years 1 to 9999): {millis} ms since the epoch") from None


def to_base(schema: Schema) -> Callable[[Any], Any] | None:
    """Return the function that converts values of a logical schema to base values (the form that is serialized).

    Return None if the schema's name is not that of a logical type. The schema's type is not checked.
    """
    if schema.name == DECIMAL_NAME:
        scale = scale_of(schema)
        return lambda value: decimal_to_bytes(value, scale)
    return _TO_BASE.get(schema.name or "")


def from_base(schema: Schema) -> Callable[[Any], Any] | None:
    """Return the function that converts base values (the form that is serialized) to values of a logical schema.

    Return None if the schema's name is not that of a logical type. The schema's type is not checked.
    """
    if schema.name == DECIMAL_NAME:
        scale = scale_of(schema)
        return lambda data: bytes_to_decimal(data, scale)
    return _FROM_BASE.get(schema.name or "")


_TO_BASE: Mapping[str, Callable[[Any], Any]] = {
    DATE_NAME: date_to_days,
    TIME_NAME: time_to_millis,
    TIMESTAMP_NAME: timestamp_to_millis,
}
_FROM_BASE: Mapping[str, Callable[[Any], Any]] = {
    DATE_NAME: days_to_date,
    TIME_NAME: millis_to_time,
    TIMESTAMP_NAME: millis_to_timestamp,
}
