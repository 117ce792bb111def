"""Dates and times as integers, which have no limits like those of Python's `datetime` (years 1 to 9999).

This module does no I/O.

An instant is a number of microseconds since 1970-01-01 00:00 UTC. A wall-clock time is a number of microseconds since
1970-01-01 00:00 on the clocks of its time zone. Dates are dates of the proleptic Gregorian calendar, as in SQL
databases. The year 0 is 1 BC, as in ISO 8601. The calendar repeats itself every 400 years.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable

MICROSECOND, SECOND_US, DAY_US = dt.timedelta(microseconds=1), 1_000_000, 86_400_000_000
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_LOCAL_EPOCH = dt.datetime(1970, 1, 1)
_EPOCH_ORDINAL, _LAST_ORDINAL = _EPOCH.toordinal(), dt.date.max.toordinal()
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097
_FIRST_YEAR_US, _LAST_YEAR_US = (
    (dt.datetime(year, 1, 1) - _LOCAL_EPOCH) // MICROSECOND for year in (2, 9999)
)  # the years that `datetime` represents completely in every time zone
_DATE = re.compile(r"([+-]?\d{1,9})-(\d\d?)-(\d\d?)( \(?BC\)?)?")
_TIMESTAMP = re.compile(
    r"([+-]?\d{1,9}-\d\d?-\d\d?)( \(BC\))?"
    r"(?:[T ](\d\d):(\d\d)(?::(\d\d)(?:[.,](\d+))?)?\s?(Z|(?:[+-]\d\d(?::?\d\d(?::?\d\d)?)?))?)?( BC)?"
)


def microseconds(value: dt.datetime) -> int:
    """Return an aware datetime as an instant, or a naive datetime as a wall-clock time."""
    return (value - (_LOCAL_EPOCH if value.tzinfo is None else _EPOCH)) // MICROSECOND


def datetimes(unit_us: int, zone: dt.tzinfo | None) -> Callable[[int], dt.datetime]:
    """Return a function that converts an instant to an aware datetime, or a time to a naive one if `zone` is None.

    The unit of the instant or time is `unit_us`. The function raises OverflowError outside of the years 1 to 9999.
    """
    unit = MICROSECOND * unit_us
    if zone is None:
        return lambda count: _LOCAL_EPOCH + unit * count
    if zone is dt.UTC:
        return lambda count: _EPOCH + unit * count
    return lambda count: (_EPOCH + unit * count).astimezone(zone)


def date_text(date: int) -> str | None:
    """Return a number of days since 1970-01-01 as ISO 8601 text, or None outside of the years 1 to 9999."""
    ordinal = date + _EPOCH_ORDINAL
    return dt.date.fromordinal(ordinal).isoformat() if 0 < ordinal <= _LAST_ORDINAL else None


def to_naive(wall_clock: int) -> dt.datetime:
    """Return a wall-clock time as a naive datetime. Raises OverflowError outside of the years 1 to 9999."""
    return _LOCAL_EPOCH + MICROSECOND * wall_clock


def in_python_years(time: int) -> tuple[dt.datetime, int]:
    """Return (datetime, years) for an instant or a wall-clock time.

    The time is `years` years after the naive datetime. `years` is a multiple of 400, and 0 for the years 2 to 9998. The
    datetime is never in the first or the last of the years that Python supports.
    """
    if _FIRST_YEAR_US <= time < _LAST_YEAR_US:
        return _LOCAL_EPOCH + MICROSECOND * time, 0
    first = _FIRST_YEAR_US if time < _FIRST_YEAR_US else _LAST_YEAR_US - _CYCLE_DAYS * DAY_US
    cycles = (time - first) // (_CYCLE_DAYS * DAY_US)
    return _LOCAL_EPOCH + MICROSECOND * (time - cycles * _CYCLE_DAYS * DAY_US), cycles * _CYCLE_YEARS


def days(year: int, month: int, day: int) -> int:
    """Return the number of days from 1970-01-01 to a date of any year. Raises ValueError if the date does not exist."""
    cycles, year_of_cycle = divmod(year - 1, _CYCLE_YEARS)
    return dt.date(year_of_cycle + 1, month, day).toordinal() - _EPOCH_ORDINAL + cycles * _CYCLE_DAYS


def parse_date(text: str) -> int:
    """Return the days since 1970-01-01 for a date such as ``2026-11-24``, ``12026-11-24`` or ``0044-03-15 BC``.

    A year before the year 0 may also be negative. Raises ValueError.
    """
    found = _DATE.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r:.60} is not a date")
    return _days_of(found[1], found[2], found[3], found[4] is not None)


def parse_timestamp(text: str) -> tuple[int, int | None]:
    """Return (wall-clock time, offset from UTC in microseconds) for ISO 8601 text, or for a database's similar text.

    The offset is None if the text has none. The year has the same forms as in `parse_date`. Raises ValueError.
    """
    try:
        value = dt.datetime.fromisoformat(text)
    except ValueError:
        return _parse_timestamp(text)
    offset = value.utcoffset()
    return microseconds(value.replace(tzinfo=None)), None if offset is None else offset // MICROSECOND


def _parse_timestamp(text: str) -> tuple[int, int | None]:
    found = _TIMESTAMP.fullmatch(text)
    if found is None:
        raise ValueError(f"{text!r:.60} is not a timestamp")
    date, bc, hour, minute, second, fraction, offset, late_bc = found.groups()
    parsed_date = _DATE.fullmatch(date)
    assert parsed_date is not None
    day = _days_of(parsed_date[1], parsed_date[2], parsed_date[3], bool(bc or late_bc))
    time = dt.time(int(hour or 0), int(minute or 0), int(second or 0), int((fraction or "").ljust(6, "0")[:6]))
    seconds = (time.hour * 60 + time.minute) * 60 + time.second
    return day * DAY_US + seconds * SECOND_US + time.microsecond, _offset_us(offset)


def _days_of(year: str, month: str, day: str, is_bc: bool) -> int:
    return days(1 - int(year) if is_bc else int(year), int(month), int(day))


def _offset_us(text: str | None) -> int | None:
    if text is None or text == "Z":
        return None if text is None else 0
    digits = text[1:].replace(":", "").ljust(6, "0")
    seconds = (int(digits[:2]) * 60 + int(digits[2:4])) * 60 + int(digits[4:])
    return (-seconds if text[0] == "-" else seconds) * SECOND_US


def iso_text(wall_clock: int, separator: str = "T") -> str:
    """Return a wall-clock time as ISO 8601 text with microseconds. Years after 9999 have a plus sign, as in Java."""
    value, years = in_python_years(wall_clock)
    text = value.isoformat(separator, "microseconds")
    if years == 0:
        return text
    year = value.year + years
    return f"{'+' if year > 9999 else ''}{year:0{5 if year < 0 else 4}d}{text[4:]}"
