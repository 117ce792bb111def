"""Parses the names of time zones that Java and Joda-Time accept, and converts wall-clock times to instants.

This module reads the files of the time zones.

The following names are accepted: names from the IANA database, offsets such as ``+02:00``, offsets with a prefix such
as ``GMT+2`` and ``UTC+02:00``, and Java's short names such as ``PST`` (``java.time.ZoneId.SHORT_IDS``).
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Sequence
from functools import cache, lru_cache
from zoneinfo import ZoneInfo

from headrace_connectors.common.instants import DAY_US, MICROSECOND, SECOND_US, in_python_years, microseconds

_UTC_NAMES = ("UTC", "GMT", "UT", "Z")
_OFFSET = re.compile(r"(?:UTC|GMT|UT)?(?P<sign>[+-])(?:(\d{1,2})(?::(\d{2})(?::(\d{2}))?)?|(\d{2})(\d{2})(\d{2})?)")
_LARGEST_OFFSET = dt.timedelta(hours=18)
_SHORT_NAMES = {
    "ACT": "Australia/Darwin",
    "AET": "Australia/Sydney",
    "AGT": "America/Argentina/Buenos_Aires",
    "ART": "Africa/Cairo",
    "AST": "America/Anchorage",
    "BET": "America/Sao_Paulo",
    "BST": "Asia/Dhaka",
    "CAT": "Africa/Harare",
    "CNT": "America/St_Johns",
    "CST": "America/Chicago",
    "CTT": "Asia/Shanghai",
    "EAT": "Africa/Addis_Ababa",
    "ECT": "Europe/Paris",
    "EST": "-05:00",
    "HST": "-10:00",
    "IET": "America/Indiana/Indianapolis",
    "IST": "Asia/Kolkata",
    "JST": "Asia/Tokyo",
    "MIT": "Pacific/Apia",
    "MST": "-07:00",
    "NET": "Asia/Yerevan",
    "NST": "Pacific/Auckland",
    "PLT": "Asia/Karachi",
    "PNT": "America/Phoenix",
    "PRT": "America/Puerto_Rico",
    "PST": "America/Los_Angeles",
    "SST": "Pacific/Guadalcanal",
    "VST": "Asia/Ho_Chi_Minh",
}


def time_zone(name: str) -> dt.tzinfo:
    """Return the time zone with this name. Raises ValueError with the reason if no time zone has this name."""
    name = name.strip()
    if name.upper() in _UTC_NAMES:
        return dt.UTC
    name = _SHORT_NAMES.get(name, name)
    offset = _OFFSET.fullmatch(name)
    if offset is not None:
        return _fixed(offset, name)
    try:
        return ZoneInfo(name)
    except (ValueError, KeyError, OSError):  # OSError: the name of a directory of zones, such as Europe
        raise ValueError(
            f"unknown time zone {name!r}; set a name such as UTC or Europe/Berlin, or an offset such as +02:00"
        ) from None


def to_instant(wall_clock: int, zone: dt.tzinfo) -> int:
    """Convert a wall-clock time of a time zone to an instant (see `instants`).

    A time that is skipped or repeated when clocks change has the offset of standard time, as in Java and PostgreSQL.
    """
    if zone is dt.UTC:
        return wall_clock
    offset = _offset_around(wall_clock // DAY_US, zone)
    if offset is not None:
        return wall_clock - offset
    naive, _ = in_python_years(wall_clock)
    return wall_clock - min(_offset(naive.replace(tzinfo=zone, fold=fold)) for fold in (0, 1))


def to_instants(wall_clocks: Sequence[int], zone: dt.tzinfo, unit_us: int) -> Sequence[int]:
    """Convert wall-clock times of a time zone to instants, like `to_instant`. Both have a unit of `unit_us`."""
    if zone is dt.UTC:
        return wall_clocks
    unit_of_day = DAY_US // unit_us
    offsets = {}
    for day in {time // unit_of_day for time in wall_clocks}:
        offset_us = _offset_around(day, zone)
        offsets[day] = None if offset_us is None else offset_us // unit_us

    def convert_near_clock_change(time: int) -> int:
        return to_instant(time * unit_us, zone) // unit_us

    return [
        convert_near_clock_change(time) if (offset := offsets[time // unit_of_day]) is None else time - offset
        for time in wall_clocks
    ]


def to_wall_clock(instant: int, zone: dt.tzinfo) -> int:
    """Convert an instant to a wall-clock time of a time zone (see `instants`)."""
    return instant + offset_at(instant, zone)


def offset_at(instant: int, zone: dt.tzinfo) -> int:
    """Return a time zone's offset from UTC at an instant, in microseconds."""
    if zone is dt.UTC:
        return 0
    offset = _offset_around(instant // DAY_US, zone)
    if offset is not None:
        return offset
    naive, _ = in_python_years(instant)
    return _offset(naive.replace(tzinfo=dt.UTC).astimezone(zone))


@lru_cache(maxsize=10_000)
def _offset_around(day: int, zone: dt.tzinfo) -> int | None:
    """Return the offset in microseconds that applies during the day, the day before and the day after.

    `day` is a number of days since 1970-01-01. Return None if clocks change.
    """
    naive, _ = in_python_years(day * DAY_US)
    midnights = (naive + dt.timedelta(days=number) for number in (-1, 0, 1, 2))
    offsets = {_offset(midnight.replace(tzinfo=zone, fold=fold)) for midnight in midnights for fold in (0, 1)}
    return offsets.pop() if len(offsets) == 1 else None


def _offset(moment: dt.datetime) -> int:
    return (moment.utcoffset() or dt.timedelta()) // MICROSECOND


def earliest_wall_clock(instant: int, zone: dt.tzinfo) -> int:
    """Return the earliest wall-clock time that `to_instant` converts to `instant`.

    If clocks are set forward from 02:00 to 03:00, for example, `to_instant` converts the skipped time 02:30 and the
    actual time 03:30 to the same instant. For this instant, the result is 02:30.
    """
    wall_clock = to_wall_clock(instant, zone)
    skipped = instant + offset_at(instant - DAY_US, zone)
    return min(skipped, wall_clock) if to_instant(skipped, zone) == instant else wall_clock


@cache
def offsets_by_wall_clock(zone: dt.tzinfo, last_year: int) -> list[tuple[dt.datetime, int]]:
    """Return (wall-clock time, offset in seconds) for each UTC offset of a time zone from 1900 to `last_year`.

    These are the offsets that `to_instant` uses. An offset applies from its wall-clock time until the wall-clock time
    of the next offset. The first offset also applies to earlier times.
    """

    def offset_s(wall_clock: dt.datetime) -> int:
        time = microseconds(wall_clock)
        return (time - to_instant(time, zone)) // SECOND_US

    day = dt.datetime(1900, 1, 1)
    found = [(day, offset_s(day))]
    while day.year <= last_year and not isinstance(zone, dt.timezone):
        low, day = day, day + dt.timedelta(days=1)
        if offset_s(day) == found[-1][1]:
            continue
        high = day
        while high - low > dt.timedelta(seconds=1):
            middle = low + dt.timedelta(seconds=(high - low) // dt.timedelta(seconds=2))
            low, high = (middle, high) if offset_s(middle) == found[-1][1] else (low, middle)
        found.append((high, offset_s(high)))
    return found


def check_time_zone(name: str) -> None:
    """Raise ValueError with the reason if a configuration value is not the name of a time zone."""
    time_zone(name)


def _fixed(offset: re.Match[str], name: str) -> dt.tzinfo:
    sign, *digits = offset.groups()
    hours, minutes, seconds = (int(digits[index] or digits[index + 3] or 0) for index in range(3))
    found = dt.timedelta(hours=hours, minutes=minutes, seconds=seconds)
    if found > _LARGEST_OFFSET or minutes > 59 or seconds > 59:
        raise ValueError(f"the offset of the time zone {name} is not between -18:00 and +18:00")
    return dt.timezone(-found if sign == "-" else found) if found else dt.UTC
