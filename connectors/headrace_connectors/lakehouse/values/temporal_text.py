"""Parses dates and timestamps in texts, as Spark's `from_json` does.

A date is a number of days since 1970-01-01. A timestamp is a number of microseconds since 1970-01-01 00:00 UTC. A text
without a time zone is in UTC: neither the time zone of the host nor Spark's session time zone has any influence. Names
of time zones are looked up in the IANA database.
"""

from __future__ import annotations

import datetime as dt
import re

from headrace.data.calendar_days import gregorian_date, gregorian_days
from headrace_connectors.common.time_zones import time_zone

_BLANKS = "".join(map(chr, (*range(33), 127)))
_DATE = re.compile(r"([+-]?)(\d{4,7})(?:-(\d{1,2})(?:-(\d{1,2})(?:[ T].*)?)?)?", re.ASCII | re.DOTALL)
_DAYS = re.compile(r"[+-]?\d{1,18}")
_TIMESTAMP = re.compile(
    r"([+-]?)(\d{4,6})(?:-(\d{1,2})(?:-(\d{1,2})"
    r"(?:[ T](\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?([^\d.].*)?)?)?)?)?)?",
    re.ASCII | re.DOTALL,
)
_ZONE_OFFSET = re.compile(
    r"(?:UTC|GMT|UT)?([+-])(?:(\d{2})(\d{2})(\d{2})?|(\d{1,2})(?::(\d{2})(?::(\d{2}))?)?|(\d{1,2}):(\d))", re.ASCII
)
_ZONE_NAME = re.compile(r"[A-Z][A-Za-z0-9/._+-]+")
_UTC_NAMES = ("Z", "UTC", "GMT", "UT")
_SECOND_US = 1_000_000
_DAY_US = 86_400 * _SECOND_US
_ZONE_OFFSET_MAX_S = 18 * 3600
_INT32, _INT64 = 2**31, 2**63


def parse_date(text: str) -> int | None:
    """Return the date in a text, or None. A time after the date is ignored. A number is a number of days."""
    match = _DATE.fullmatch(text.strip(_BLANKS))
    days = _days(match[1], match[2], match[3], match[4]) if match is not None else None
    if days is None and _DAYS.fullmatch(text):
        days = int(text)
    return days if days is not None and -_INT32 <= days < _INT32 else None


def parse_timestamp(text: str) -> int | None:
    """Return the timestamp in a text, or None. Digits after the microseconds are ignored."""
    match = _TIMESTAMP.fullmatch(text.strip(_BLANKS))
    if match is None:
        return None
    sign, year, month, day, hour, minute, second, fraction, zone = match.groups()
    days = _days(sign, year, month, day)
    hours, minutes, seconds = int(hour or 0), int(minute or 0), int(second or 0)
    if days is None or hours > 23 or minutes > 59 or seconds > 59:
        return None
    micros = ((hours * 60 + minutes) * 60 + seconds) * _SECOND_US + int((fraction or "")[:6].ljust(6, "0"))
    local = days * _DAY_US + micros
    offset_s = _offset_seconds(zone.strip(_BLANKS), local) if zone else 0
    if offset_s is None:
        return None
    instant = local - offset_s * _SECOND_US
    return instant if -_INT64 <= instant < _INT64 else None


def _days(sign: str, year: str, month: str | None, day: str | None) -> int | None:
    date = (-int(year) if sign == "-" else int(year), int(month or 1), int(day or 1))
    if not 1 <= date[1] <= 12:
        return None
    days = gregorian_days(*date)
    return days if gregorian_date(days) == date else None


def _offset_seconds(zone: str, local_us: int) -> int | None:
    """Return the offset of a time zone from UTC at a local time, or None for an unknown time zone."""
    if zone in _UTC_NAMES:
        return 0
    match = _ZONE_OFFSET.fullmatch(zone)
    if match is not None:
        hours, minutes = (int(match[at] or match[at + 3] or match[at + 6] or 0) for at in (2, 3))
        seconds = int(match[4] or match[7] or 0)
        offset_s = (hours * 60 + minutes) * 60 + seconds
        if minutes > 59 or seconds > 59 or offset_s > _ZONE_OFFSET_MAX_S:
            return None
        return -offset_s if match[1] == "-" else offset_s
    if not _ZONE_NAME.fullmatch(zone):
        return None  # this excludes `localtime`, which is the time zone of the host
    try:
        local = dt.datetime(1970, 1, 1) + dt.timedelta(microseconds=local_us)
        offset = time_zone(zone).utcoffset(local)
    except (ValueError, OverflowError):
        return None
    return None if offset is None else offset.days * 86_400 + offset.seconds
