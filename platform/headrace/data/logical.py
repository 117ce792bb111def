"""Logical types: Decimal (stored as BYTES), Date and Time (as INT32), and Timestamp (as INT64).

In records and batches a Decimal is a `decimal.Decimal`. A Date, Time or Timestamp is an integer of the class `Date`,
`Time` or `Timestamp` in this module: days since 1970-01-01, milliseconds since midnight, or milliseconds since the
epoch. These classes have the range of Java's types, which is larger than that of Python's `date` and `datetime` (years
1 to 9999). A plug-in converts a value to an object of Python's `datetime` module only where it needs one.

The functions in this module convert between values and the base values that converters serialize: the bytes of the
unscaled number in two's complement (Decimal), or an int (Date, Time and Timestamp).
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal
from functools import partial
from typing import Any, Self

from headrace.data.errors import DataError
from headrace.data.schema import INT_RANGES, Schema, Type

DECIMAL_NAME = "org.apache.kafka.connect.data.Decimal"
DATE_NAME = "org.apache.kafka.connect.data.Date"
TIME_NAME = "org.apache.kafka.connect.data.Time"
TIMESTAMP_NAME = "org.apache.kafka.connect.data.Timestamp"

SCALE_PARAMETER = "scale"
MILLIS_PER_DAY = 86_400_000

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_EPOCH_ORDINAL = dt.date(1970, 1, 1).toordinal()
_MILLISECOND = dt.timedelta(milliseconds=1)
_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)


class Timestamp(int):
    """A Timestamp: the number of milliseconds since 1970-01-01 00:00 UTC, an INT64."""

    __slots__ = ()

    def to_datetime(self) -> dt.datetime:
        """Return the datetime in UTC. Raises DataError outside the years 1 to 9999."""
        try:
            return _EPOCH + _MILLISECOND * self
        except OverflowError:
            raise DataError(f"Timestamp out of range (years 1 to 9999): {self} ms since the epoch") from None

    @classmethod
    def of(cls, value: dt.datetime) -> Self:
        """Return the Timestamp of a datetime, rounded down to milliseconds. A naive datetime is interpreted as UTC."""
        elapsed = (value.replace(tzinfo=dt.UTC) if value.tzinfo is None else value) - _EPOCH
        return cls(elapsed.days * MILLIS_PER_DAY + elapsed.seconds * 1000 + elapsed.microseconds // 1000)

    def __repr__(self) -> str:
        return f"Timestamp({int.__repr__(self)})"

    __str__ = int.__repr__


class Date(int):
    """A Date: the number of days since 1970-01-01, an INT32."""

    __slots__ = ()

    def to_date(self) -> dt.date:
        """Return the Python date. Raises DataError outside the years 1 to 9999."""
        try:
            return dt.date.fromordinal(self + _EPOCH_ORDINAL)
        except (ValueError, OverflowError):
            raise DataError(f"Date out of range (years 1 to 9999): {self} days since 1970-01-01") from None

    @classmethod
    def of(cls, value: dt.date) -> Self:
        """Return the Date of a Python date."""
        return cls(value.toordinal() - _EPOCH_ORDINAL)

    def __repr__(self) -> str:
        return f"Date({int.__repr__(self)})"

    __str__ = int.__repr__


class Time(int):
    """A Time: the number of milliseconds since midnight, an INT32 from 0 to 86399999."""

    __slots__ = ()

    def to_time(self) -> dt.time:
        """Return the Python time. Raises DataError outside of one day."""
        if not 0 <= self < MILLIS_PER_DAY:
            raise DataError(_TIME_ERROR.format(self))
        seconds, ms = divmod(self, 1000)
        minutes, second = divmod(seconds, 60)
        return dt.time(minutes // 60, minutes % 60, second, ms * 1000)

    @classmethod
    def of(cls, value: dt.time) -> Self:
        """Return the Time of a Python time, rounded down to milliseconds. A time zone is ignored."""
        return cls(((value.hour * 60 + value.minute) * 60 + value.second) * 1000 + value.microsecond // 1000)

    def __repr__(self) -> str:
        return f"Time({int.__repr__(self)})"

    __str__ = int.__repr__


PYTHON_TYPES: Mapping[str, type] = {DECIMAL_NAME: Decimal, DATE_NAME: Date, TIME_NAME: Time, TIMESTAMP_NAME: Timestamp}
TEMPORAL_TYPES = (Timestamp, Date, Time)
COUNT_RANGES: Mapping[str, tuple[int, int]] = {
    DATE_NAME: INT_RANGES[Type.INT32],
    TIME_NAME: (0, MILLIS_PER_DAY - 1),
    TIMESTAMP_NAME: INT_RANGES[Type.INT64],
}
"""The lowest and the highest integer of Date, Time and Timestamp."""

_TIME_ERROR = "Time values must use number of milliseconds between 0 and 86400000, but found {}"


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


def checked_count(name: str, count: int) -> Any:
    """Return the integer as a value of the Date, Time or Timestamp type `name`. Raises DataError if out of range."""
    low, high = COUNT_RANGES[name]
    if not low <= count <= high:
        if name == TIME_NAME:
            raise DataError(_TIME_ERROR.format(count))
        base = "INT32" if name == DATE_NAME else "INT64"
        raise DataError(f"{name.rpartition('.')[2]} value {count} is out of range for type {base}")
    return PYTHON_TYPES[name](count)


def to_count(name: str, value: Any) -> Any:
    """Convert a value that a plug-in gave for the Date, Time or Timestamp type `name` to the form that batches contain.

    A `datetime`, `date` or `time`, and a plain int, become a `Timestamp`, `Date` or `Time`. The range is not checked.
    Any other value, for example null or one of a wrong type, is returned unchanged.
    """
    class_ = PYTHON_TYPES[name]
    if value.__class__ is class_:
        return value
    if value.__class__ is int:
        return class_(value)
    converted = from_python_date(value)
    return converted if isinstance(converted, class_) else value


def from_python_date(value: Any) -> Any:
    """Convert a `datetime`, `date` or `time` to a `Timestamp`, `Date` or `Time`. Return any other value unchanged."""
    if isinstance(value, dt.datetime):
        return Timestamp.of(value)
    if isinstance(value, dt.date):
        return Date.of(value)
    return Time.of(value) if isinstance(value, dt.time) else value


def to_base(schema: Schema) -> Callable[[Any], Any] | None:
    """Return the function that converts values of a logical schema to base values (the form that is serialized).

    Return None if the schema's name is not that of a logical type. The schema's type is not checked.
    """
    if schema.name == DECIMAL_NAME:
        scale = scale_of(schema)
        return lambda value: decimal_to_bytes(value, scale)
    return int if schema.name in COUNT_RANGES else None


def from_base(schema: Schema) -> Callable[[Any], Any] | None:
    """Return the function that converts base values (the form that is serialized) to values of a logical schema.

    Return None if the schema's name is not that of a logical type. The schema's type is not checked.
    """
    if schema.name == DECIMAL_NAME:
        scale = scale_of(schema)
        return lambda data: bytes_to_decimal(data, scale)
    name = schema.name or ""
    return partial(checked_count, name) if name in COUNT_RANGES else None
