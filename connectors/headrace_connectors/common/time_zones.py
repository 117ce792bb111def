"""Parses the names of time zones that Java and Joda-Time accept. This module reads the files of the time zones.

The following names are accepted: names from the IANA database, offsets such as ``+02:00``, offsets with a prefix such
as ``GMT+2`` and ``UTC+02:00``, and Java's short names such as ``PST`` (``java.time.ZoneId.SHORT_IDS``).
"""

from __future__ import annotations

import datetime as dt
import re
from functools import cache
from zoneinfo import ZoneInfo

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


def to_utc(wall_clock: dt.datetime, zone: dt.tzinfo) -> dt.datetime:
    """Convert a wall-clock time of a time zone, a naive datetime, to UTC.

    A time that is skipped or repeated when clocks change has the offset of standard time, as in Java and PostgreSQL.
    """
    if zone is dt.UTC:
        return wall_clock.replace(tzinfo=dt.UTC)
    return max(wall_clock.replace(tzinfo=zone, fold=fold).astimezone(dt.UTC) for fold in (0, 1))


def earliest_wall_clock(instant: dt.datetime, zone: dt.tzinfo) -> dt.datetime:
    """Return the earliest wall-clock time that `to_utc` converts to `instant`, as a naive datetime.

    If clocks are set forward from 02:00 to 03:00, for example, `to_utc` converts the skipped time 02:30 and the actual
    time 03:30 to the same instant. For this instant, the result is 02:30.
    """
    wall_clock = instant.astimezone(zone).replace(tzinfo=None)
    if isinstance(zone, dt.timezone) or instant.year == 1:
        return wall_clock
    offset_before = (instant - dt.timedelta(days=1)).astimezone(zone).utcoffset() or dt.timedelta()
    skipped = instant.astimezone(dt.UTC).replace(tzinfo=None) + offset_before
    return min(skipped, wall_clock) if to_utc(skipped, zone) == instant else wall_clock


@cache
def offsets_by_wall_clock(zone: dt.tzinfo, last_year: int) -> list[tuple[dt.datetime, int]]:
    """Return (wall-clock time, offset in seconds) for each UTC offset of a time zone from 1900 to `last_year`.

    These are the offsets that `to_utc` uses. An offset applies from its wall-clock time until the wall-clock time of
    the next offset. The first offset also applies to earlier times.
    """

    def offset_s(wall_clock: dt.datetime) -> int:
        return (wall_clock - to_utc(wall_clock, zone).replace(tzinfo=None)) // dt.timedelta(seconds=1)

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
