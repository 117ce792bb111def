"""Converts the text of MySQL's dates and times: to Python objects when rows are read, and to values of fields later.

The text of values that Python's objects cannot represent stays unchanged in the rows. An example is the zero date.
"""

from __future__ import annotations

import calendar
import datetime as dt
import re
from collections.abc import Callable, Mapping
from typing import Any

from pymysql.constants import FIELD_TYPE
from pymysql.converters import conversions

from headrace.data.logical import Date, Time
from headrace_connectors.common.instants import DAY_US, days
from headrace_connectors.jdbc import temporal_values
from headrace_connectors.jdbc.temporal_values import FIRST_TIME, LAST_TIME, UnmappableError

_FIRST_DATE = "0001-01-01"
_ZERO_DATE = "0000-00-00"
_DATE = re.compile(r"(\d{4})-(\d\d)-(\d\d)")


def to_date(value: Any) -> Date:
    """Convert a date of the driver. Raises UnmappableError for a date that is not in the calendar."""
    if isinstance(value, str) and (nearest := _nearest_date(value)) is not None:
        raise UnmappableError(value, Date(nearest))
    return temporal_values.to_date(value)


def to_time_of_timestamp(value: Any) -> tuple[int, bool]:
    """Return (time, whether it is an instant) for a timestamp of the driver.

    Raises UnmappableError, with the nearest wall-clock time, for a date that is not in the calendar.
    """
    if isinstance(value, str) and (nearest := _nearest_date(value)) is not None:
        raise UnmappableError(value, nearest * DAY_US)
    return temporal_values.read_timestamp(value)


def to_time(value: Any) -> Time:
    """Convert a time of the driver. Raises UnmappableError for a time that is negative or not less than 24 hours."""
    if isinstance(value, dt.time):
        return Time.of(value)
    raise UnmappableError(value, FIRST_TIME if value.startswith("-") else LAST_TIME)


def _nearest_date(text: str) -> int | None:
    """Return the nearest date, in days since 1970-01-01, for text with a date that is not in the calendar.

    Return None for any other text. A month or a day that is zero becomes the first one. Like MySQL's JDBC driver, this
    function returns 0001-01-01 for the zero date.
    """
    if text.startswith(_ZERO_DATE):
        return days(1, 1, 1)
    found = _DATE.match(text)
    if found is None:
        return None
    year, month, day = map(int, found.groups())
    month_or_first = max(month, 1)
    nearest_day = min(max(day, 1), calendar.monthrange(year or 400, month_or_first)[1])
    return None if (month_or_first, nearest_day) == (month, day) else days(year, month_or_first, nearest_day)


def _or_text(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """Return a function that calls `parse`, and returns the text unchanged if `parse` raises ValueError."""

    def decode(text: str) -> Any:
        try:
            return parse(text)
        except ValueError:
            return text

    return decode


def _timestamp(text: str) -> dt.datetime:
    return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)  # the session's time zone


_DECODERS: Mapping[int, Callable[[str], Any]] = {
    FIELD_TYPE.DATE: _or_text(dt.date.fromisoformat),
    FIELD_TYPE.NEWDATE: _or_text(dt.date.fromisoformat),
    FIELD_TYPE.DATETIME: _or_text(dt.datetime.fromisoformat),
    FIELD_TYPE.TIMESTAMP: _or_text(_timestamp),
}


def decoders(zero_dates: str) -> dict[int, Any]:
    """Return the decoders for PyMySQL. `zero_dates` is the value of the property zeroDateTimeBehavior."""
    found: dict[Any, Any] = {**conversions, **_DECODERS, FIELD_TYPE.TIME: _or_text(dt.time.fromisoformat)}
    if zero_dates != "EXCEPTION":
        found |= {code: _with_zero_dates(decode, zero_dates) for code, decode in _DECODERS.items()}
    return found


def _with_zero_dates(decode: Callable[[str], Any], zero_dates: str) -> Callable[[str], Any]:
    def decode_zero_date(text: str) -> Any:
        if not text.startswith(_ZERO_DATE):
            return decode(text)
        return decode(text.replace(_ZERO_DATE, _FIRST_DATE)) if zero_dates == "ROUND" else None

    return decode_zero_date
