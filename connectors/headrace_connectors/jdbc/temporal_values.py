"""Converts dates, times and timestamps of drivers to the values of record fields. This module does no I/O.

Between the two, a timestamp is an integer: an instant or a wall-clock time (see `common.instants`). Drivers return
objects of Python's `datetime` module, or the database's text for a value that such an object cannot represent.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import Any

from headrace.data.logical import MILLIS_PER_DAY, Date, Time, Timestamp
from headrace.data.schema import INT_RANGES, Type
from headrace_connectors.common.instants import iso_text, microseconds, parse_date, parse_timestamp
from headrace_connectors.common.time_zones import to_wall_clock

_FIRST_INT64, _LAST_INT64 = INT_RANGES[Type.INT64]
FIRST_INSTANT, LAST_INSTANT = _FIRST_INT64 * 1000, _LAST_INT64 * 1000 + 999
"""The first and the last instant that a Timestamp can represent."""
FIRST_DATE, LAST_DATE = map(Date, INT_RANGES[Type.INT32])
FIRST_TIME, LAST_TIME = Time(0), Time(MILLIS_PER_DAY - 1)


class UnmappableError(ValueError):
    """A date or time in the database cannot be represented by its field.

    `text` is the database's text for the value. `nearest` is the nearest value that the field can represent.
    """

    def __init__(self, text: str, nearest: Any) -> None:
        super().__init__(f"{text} is out of range")
        self.text = text
        self.nearest = nearest


def read_timestamp(value: Any) -> tuple[int, bool]:
    """Return (time, whether it is an instant) for a timestamp of the driver.

    A timestamp without an offset from UTC is a wall-clock time. Raises ValueError for any other value.
    """
    if isinstance(value, str):
        wall_clock, offset = parse_timestamp(value)
        return wall_clock - (offset or 0), offset is not None
    if not isinstance(value, dt.datetime):
        raise ValueError(f"{value!r:.60} is not a timestamp")
    return microseconds(value), value.tzinfo is not None


def to_date(value: Any) -> Date:
    """Convert a date of the driver. Raises UnmappableError, or ValueError for text that is not a date."""
    return Date.of(value) if isinstance(value, dt.date) else checked_date(parse_date(value), value)


def checked_date(days: int, text: str) -> Date:
    """Return the Date. Raises UnmappableError with the database's text if it does not fit INT32."""
    if not FIRST_DATE <= days <= LAST_DATE:
        raise UnmappableError(text, FIRST_DATE if days < 0 else LAST_DATE)
    return Date(days)


def timestamp_converter(
    to_instant: Callable[[Any], int], granularity: str, zone: dt.tzinfo
) -> Callable[[Any], Timestamp | int | str]:
    """Return a function that converts the driver's timestamps to the field's values for a `timestamp.granularity`.

    `to_instant` converts the driver's timestamps to instants. Both functions raise UnmappableError.
    """
    from_instant = instant_converter(granularity, zone)

    def convert(value: Any) -> Any:
        try:
            instant = to_instant(value)
        except UnmappableError as error:
            raise UnmappableError(error.text, _nearest(from_instant, error.nearest)) from None
        return from_instant(instant)

    return convert


def _nearest(from_instant: Callable[[int], Any], instant: int) -> Any:
    try:
        return from_instant(instant)
    except UnmappableError as error:
        return error.nearest


def instant_converter(granularity: str, zone: dt.tzinfo) -> Callable[[int], Any]:
    """Return a function that converts an instant to the field's value for a `timestamp.granularity`.

    If this value is ISO 8601 text, its date and time are in the time zone `zone`. The function raises UnmappableError.
    """
    if granularity == "connect_logical":
        return _to_timestamp
    nanos = 1000 if granularity.startswith("nanos") else 1
    if granularity.endswith("_iso_datetime_string"):
        zeros = "000" if nanos == 1000 else ""
        return lambda instant: iso_text(to_wall_clock(instant, zone)) + zeros
    if granularity.endswith("_string"):
        return lambda instant: str(instant * nanos)

    def to_int64(instant: int) -> int:
        count = instant * nanos
        if _FIRST_INT64 <= count <= _LAST_INT64:
            return count
        raise UnmappableError(iso_text(instant, " "), _FIRST_INT64 if instant < 0 else _LAST_INT64)

    return to_int64


def _to_timestamp(instant: int) -> Timestamp:
    if FIRST_INSTANT <= instant <= LAST_INSTANT:
        return Timestamp(instant // 1000)
    first, last = Timestamp(_FIRST_INT64), Timestamp(_LAST_INT64)
    raise UnmappableError(iso_text(instant, " "), first if instant < 0 else last)
