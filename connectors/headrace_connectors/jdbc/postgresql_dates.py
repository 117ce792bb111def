"""Converts PostgreSQL's dates, times and timestamps, which have a larger range than Python's `datetime` module.

In binary format, PostgreSQL's values are integers: days since 2000-01-01, microseconds since midnight, or microseconds
since 2000-01-01. A timestamp with time zone is an instant, and any other timestamp is a wall-clock time. In text
format, the driver returns objects of `datetime`, or the text of values that such objects cannot represent.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

import psycopg
from psycopg.adapt import Loader
from psycopg.types.datetime import DateLoader, TimeLoader, TimestampLoader, TimestamptzLoader
from psycopg.types.numeric import Int4BinaryLoader, Int8BinaryLoader

from headrace.data.logical import MILLIS_PER_DAY, Date, Time
from headrace_connectors.common import instants
from headrace_connectors.common.instants import DAY_US, days, in_python_years
from headrace_connectors.jdbc import temporal_values
from headrace_connectors.jdbc.temporal_values import (
    FIRST_DATE,
    FIRST_INSTANT,
    LAST_DATE,
    LAST_INSTANT,
    LAST_TIME,
    UnmappableError,
)

_EPOCH_DAYS = dt.date(2000, 1, 1).toordinal() - dt.date(1970, 1, 1).toordinal()
_EPOCH_US = _EPOCH_DAYS * DAY_US
_INFINITE_TIMES = {2**63 - 1: "infinity", -(2**63): "-infinity"}
_INFINITE_DATES = {2**31 - 1: "infinity", -(2**31): "-infinity"}

_FIRST_TIME_OF_TIMESTAMP, _LAST_TIME_OF_TIMESTAMP = days(-4712, 1, 1) * DAY_US, days(294_277, 1, 1) * DAY_US - 1

BINARY_LOADERS: Mapping[str, type[Loader]] = {
    "date": Int4BinaryLoader,
    **dict.fromkeys(("time", "timestamp", "timestamptz"), Int8BinaryLoader),
}
"""Loaders for the binary format that return integers."""


def _loader_of_any_value(base: type[Loader]) -> type[Loader]:
    """Return a loader like `base` that returns the text of a value that `base` cannot represent."""

    class AnyValueLoader(base):  # type: ignore[misc, valid-type]
        def load(self, data: Any) -> Any:
            try:
                return super().load(data)
            except psycopg.DataError:
                return bytes(data).decode()

    return AnyValueLoader


LOADERS_OF_ANY_VALUE: Mapping[str, type[Loader]] = {
    "date": _loader_of_any_value(DateLoader),
    "time": _loader_of_any_value(TimeLoader),
    "timestamp": _loader_of_any_value(TimestampLoader),
    "timestamptz": _loader_of_any_value(TimestamptzLoader),
}
"""Loaders for the text format. They are slower than the driver's own loaders."""


def to_time_of_timestamp(value: Any, is_zoned: bool) -> tuple[int, bool]:
    """Return (time, whether it is an instant) for a timestamp of the driver. Raises UnmappableError if it is infinite.

    `is_zoned` is true for the type timestamp with time zone.
    """
    if type(value) is int:
        if value in _INFINITE_TIMES:
            raise _infinite_timestamp(_INFINITE_TIMES[value])
        return value + _EPOCH_US, is_zoned
    if isinstance(value, str) and value.endswith("infinity"):
        raise _infinite_timestamp(value)
    return temporal_values.read_timestamp(value)


def _infinite_timestamp(text: str) -> UnmappableError:
    return UnmappableError(text, FIRST_INSTANT if text.startswith("-") else LAST_INSTANT)


def to_date(value: Any) -> Date:
    """Convert a date of the driver. Raises UnmappableError if it is infinite."""
    text = value
    if type(value) is int:
        if value not in _INFINITE_DATES:
            return Date(value + _EPOCH_DAYS)
        text = _INFINITE_DATES[value]
    elif not (isinstance(value, str) and value.endswith("infinity")):
        return temporal_values.to_date(value)
    raise UnmappableError(text, FIRST_DATE if text.startswith("-") else LAST_DATE)


def to_time(value: Any) -> Time:
    """Convert a time of the driver. Raises UnmappableError for 24:00:00, which is not a time of day in Python and Java.

    PostgreSQL's other times are before 24:00:00.
    """
    if isinstance(value, dt.time):
        return Time.of(value)
    if type(value) is int and value // 1000 < MILLIS_PER_DAY:
        return Time(value // 1000)
    raise UnmappableError("24:00:00", LAST_TIME)


def times_of_integers(values: Sequence[int], unit_us: int) -> list[int] | None:
    """Convert timestamps of the binary format to times in units of `unit_us`, or return None if one is infinite."""
    return [(value + _EPOCH_US) // unit_us for value in values] if _INFINITE_TIMES.keys().isdisjoint(values) else None


def days_of_integers(values: Sequence[int]) -> list[int] | None:
    """Convert dates of the binary format, or return None if one of them is infinite."""
    return [value + _EPOCH_DAYS for value in values] if _INFINITE_DATES.keys().isdisjoint(values) else None


def milliseconds_of_integers(values: Sequence[int]) -> list[int] | None:
    """Convert times of the binary format, or return None if one of them is 24:00:00."""
    return [value // 1000 for value in values] if max(values, default=0) < DAY_US else None


def timestamp_text(time: int, *, offset: str = "") -> str:
    """Return PostgreSQL's input text for an instant or a wall-clock time, with the text of its offset from UTC."""
    value, years = in_python_years(time)
    text = value.isoformat(" ") + offset
    return text if years == 0 else _with_year(value.year + years, text[4:])


def timestamp_parameter(time: int, *, offset: str = "") -> str:
    """Return the text of a query parameter, which is infinite if PostgreSQL has no such timestamp."""
    if _FIRST_TIME_OF_TIMESTAMP <= time <= _LAST_TIME_OF_TIMESTAMP:
        return timestamp_text(time, offset=offset)
    return "-infinity" if time < 0 else "infinity"


def date_text(date: int) -> str:
    """Return PostgreSQL's input text for a number of days since 1970-01-01."""
    text = instants.date_text(date)
    if text is not None:
        return text
    value, years = in_python_years(date * DAY_US)
    return _with_year(value.year + years, value.date().isoformat()[4:])


def _with_year(year: int, rest: str) -> str:
    return f"{year:04d}{rest}" if year > 0 else f"{1 - year:04d}{rest} BC"


def describe(value: Any, type_name: str) -> str:
    """Return the text of a value of the driver for error messages. `type_name` is date, time, timestamp or timestamptz.

    Only integers of the binary format are converted.
    """
    if type(value) is not int:
        return str(value)
    if type_name == "time":
        return str(dt.timedelta(microseconds=value))
    if type_name == "date":
        return _INFINITE_DATES.get(value) or date_text(value + _EPOCH_DAYS)
    offset = "+00" if type_name == "timestamptz" else ""
    return _INFINITE_TIMES.get(value) or timestamp_text(value + _EPOCH_US, offset=offset)
