"""Logical types: Decimal, Date, Time and Timestamp over BYTES, INT32 and INT64.

In records and batches a logical value is Python's own: `decimal.Decimal`, `datetime.date`, `datetime.time` and aware
`datetime.datetime` in UTC. The functions here go between that and the base value which travels on the wire:
two's-complement unscaled bytes, days since 1970-01-01, milliseconds of the day, milliseconds since the epoch.
Java keeps milliseconds, so a conversion to the base type rounds microseconds down.
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
    """A Decimal schema of that many digits after the point."""
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
    """The scale of a Decimal schema. Raises DataError when it has none."""
    text = (schema.parameters or {}).get(SCALE_PARAMETER)
    if text is None:
        raise DataError("Invalid Decimal schema: scale parameter not found.")
    try:
        return int(text)
    except ValueError:
        raise DataError(f"Invalid scale parameter found in Decimal schema: {text!r}") from None


def decimal_scale(value: Decimal) -> int:
    """Java's ``BigDecimal.scale()``: the digits after the point. Raises DataError for NaN and infinities."""
    exponent = value.as_tuple().exponent
    if not isinstance(exponent, int):
        raise DataError(f"A Decimal cannot be {value}")
    return -exponent


def unscaled(value: Decimal, scale: int) -> int:
    """The integer that, divided by ``10**scale``, is `value`. Raises DataError when the scale differs."""
    if decimal_scale(value) != scale:
        raise DataError(
            "Decimal value has mismatching scale for given Decimal schema. "
            f"Schema has scale {scale}, value has scale {decimal_scale(value)}."
        )
    return int(value.scaleb(scale, _EXACT))


def from_unscaled(number: int, scale: int) -> Decimal:
    """The Decimal ``number / 10**scale`` with exactly that scale, whatever the number of digits."""
    return Decimal(number).scaleb(-scale, _EXACT)


def big_endian(number: int) -> bytes:
    """Java's ``BigInteger.toByteArray()``: the shortest two's complement, big-endian."""
    bits = (number if number >= 0 else ~number).bit_length()
    return number.to_bytes(bits // 8 + 1, "big", signed=True)


def decimal_to_bytes(value: Decimal, scale: int) -> bytes:
    """The unscaled value in big-endian two's complement."""
    return big_endian(unscaled(value, scale))


def bytes_to_decimal(data: bytes, scale: int) -> Decimal:
    """The reverse of `decimal_to_bytes`. Raises DataError for no bytes at all."""
    if not data:
        raise DataError("Invalid bytes for Decimal field: zero length")
    return from_unscaled(int.from_bytes(data, "big", signed=True), scale)


def date_to_days(value: dt.date) -> int:
    """Days since 1970-01-01."""
    return value.toordinal() - _EPOCH_ORDINAL


def days_to_date(days: int) -> dt.date:
    """The date so many days after 1970-01-01. Raises DataError beyond the years 1 to 9999."""
    try:
        return dt.date.fromordinal(days + _EPOCH_ORDINAL)
    except (ValueError, OverflowError):
        raise DataError(f"Date out of range (years 1 to 9999): {days} days since 1970-01-01") from None


def time_to_millis(value: dt.time) -> int:
    """Milliseconds since midnight."""
    return ((value.hour * 60 + value.minute) * 60 + value.second) * 1000 + value.microsecond // 1000


def millis_to_time(millis: int) -> dt.time:
    """The time of day so many milliseconds after midnight. Raises DataError outside of one day."""
    if not 0 <= millis < MILLIS_PER_DAY:
        raise DataError(f"Time values must use number of milliseconds between 0 and 86400000, but found {millis}")
    seconds, ms = divmod(millis, 1000)
    minutes, second = divmod(seconds, 60)
    return dt.time(minutes // 60, minutes % 60, second, ms * 1000)


def timestamp_to_millis(value: dt.datetime) -> int:
    """Milliseconds since the epoch; a naive datetime counts as UTC."""
    if value.tzinfo is None:
        value = value.replace(tzinfo=dt.UTC)
    past = value - _EPOCH
    return past.days * MILLIS_PER_DAY + past.seconds * 1000 + past.microseconds // 1000


def millis_to_timestamp(millis: int) -> dt.datetime:
    """The instant in UTC. Raises DataError beyond the years 1 to 9999."""
    try:
        return _EPOCH + _MILLISECOND * millis
    except OverflowError:
        raise DataError(f"Timestamp out of range (years 1 to 9999): {millis} ms since the epoch") from None


def to_base(schema: Schema) -> Callable[[Any], Any] | None:
    """The function from the logical to the base value for that schema, None for a schema that is not logical.

    A logical name over another type than its own is an ordinary schema, as in Connect's own checks.
    """
    if schema.name == DECIMAL_NAME:
        scale = scale_of(schema)
        return lambda value: decimal_to_bytes(value, scale)
    return _TO_BASE.get(schema.name or "")


def from_base(schema: Schema) -> Callable[[Any], Any] | None:
    """The function from the base to the logical value for that schema, None for a schema that is not logical."""
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
