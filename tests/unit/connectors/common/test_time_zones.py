"""Tests of the time zone names that connector configurations accept."""

from __future__ import annotations

import datetime as dt
from zoneinfo import ZoneInfo

import pytest

from headrace_connectors.common.instants import microseconds
from headrace_connectors.common.time_zones import (
    check_time_zone,
    earliest_wall_clock,
    offsets_by_wall_clock,
    time_zone,
    to_instant,
)

_NOON = dt.datetime(2026, 7, 1, 12)


@pytest.mark.parametrize("name", ["UTC", "utc", "GMT", "UT", "Z", "+00:00", "GMT+0", "GMT-00:00"])
def test_time_zone_names_for_utc_are_parsed_to_instant(name: str) -> None:
    assert time_zone(name) is dt.UTC


@pytest.mark.parametrize("name", ["+2", "+02", "+02:00", "+0200", "+020000", "+02:00:00", "GMT+2", "UTC+02:00", "UT+2"])
def test_utc_offset_in_any_format_of_java_is_parsed_to_a_time_zone(name: str) -> None:
    assert time_zone(name) == dt.timezone(dt.timedelta(hours=2))


@pytest.mark.parametrize(
    ("name", "seconds"), [("-03:30", -12600), ("GMT-1", -3600), ("+18:00", 64800), ("EST", -18000)]
)
def test_utc_offset_with_a_sign_and_minutes_is_parsed_to_a_time_zone(name: str, seconds: int) -> None:
    assert time_zone(name).utcoffset(_NOON) == dt.timedelta(seconds=seconds)


def test_java_time_zone_abbreviation_is_parsed_to_its_iana_time_zone() -> None:
    assert time_zone("PST") == ZoneInfo("America/Los_Angeles")
    assert time_zone("Europe/Berlin") == ZoneInfo("Europe/Berlin")
    # In these names of the IANA database, the sign is the opposite of the sign of the UTC offset.
    assert time_zone("Etc/GMT+2").utcoffset(_NOON) == dt.timedelta(hours=-2)


@pytest.mark.parametrize(
    "name", ["", "Mars/X", "Europe", "../UTC", "+19:00", "+01:60", "GMT+", "+1:2", "UTC+99", "+123"]
)
def test_unknown_time_zone_name_is_rejected(name: str) -> None:
    with pytest.raises(ValueError, match="time zone"):
        check_time_zone(name)


@pytest.mark.parametrize(
    ("wall_clock", "utc"),
    [
        (dt.datetime(2026, 3, 29, 1, 59), dt.datetime(2026, 3, 29, 0, 59)),
        (dt.datetime(2026, 3, 29, 2, 30), dt.datetime(2026, 3, 29, 1, 30)),  # skipped
        (dt.datetime(2026, 3, 29, 3, 0), dt.datetime(2026, 3, 29, 1, 0)),
        (dt.datetime(2026, 10, 25, 1, 59), dt.datetime(2026, 10, 24, 23, 59)),
        (dt.datetime(2026, 10, 25, 2, 30), dt.datetime(2026, 10, 25, 1, 30)),  # repeated
    ],
)
def test_local_time_that_a_clock_change_skips_or_repeats_is_converted_to_instant_with_the_offset_of_standard_time(
    wall_clock: dt.datetime, utc: dt.datetime
) -> None:
    assert to_instant(microseconds(wall_clock), ZoneInfo("Europe/Berlin")) == microseconds(utc)


def test_each_change_of_the_utc_offset_is_returned_with_its_local_time() -> None:
    """The first item is the UTC offset at the beginning of 1900."""
    offsets = offsets_by_wall_clock(ZoneInfo("Europe/Berlin"), 2026)
    assert offsets[0] == (dt.datetime(1900, 1, 1), 3600)
    assert offsets[-2:] == [(dt.datetime(2026, 3, 29, 3), 7200), (dt.datetime(2026, 10, 25, 2), 3600)]
    assert offsets_by_wall_clock(time_zone("-05:30"), 2026) == [(dt.datetime(1900, 1, 1), -19800)]


@pytest.mark.parametrize(
    ("utc", "wall_clock"),
    [
        (dt.datetime(2026, 3, 29, 0, 59), dt.datetime(2026, 3, 29, 1, 59)),
        (dt.datetime(2026, 3, 29, 1, 0), dt.datetime(2026, 3, 29, 2, 0)),
        (dt.datetime(2026, 3, 29, 1, 59), dt.datetime(2026, 3, 29, 2, 59)),
        (dt.datetime(2026, 3, 29, 2, 0), dt.datetime(2026, 3, 29, 4, 0)),
        (dt.datetime(2026, 10, 25, 0, 30), dt.datetime(2026, 10, 25, 2, 30)),
        (dt.datetime(2026, 10, 25, 1, 30), dt.datetime(2026, 10, 25, 2, 30)),
        (dt.datetime(1, 1, 1), dt.datetime(1, 1, 1, 0, 53, 28)),
    ],
)
def test_if_to_instant_converts_two_local_times_to_the_same_utc_time_the_earlier_local_time_is_returned(
    utc: dt.datetime, wall_clock: dt.datetime
) -> None:
    """In Berlin, for example, clocks are set forward from 02:00 to 03:00.

    The function `to_instant` converts both the skipped local time 02:30 and the local time 03:30 to the UTC time 01:30.
    For this UTC time, the function `earliest_wall_clock` returns 02:30.
    """
    assert earliest_wall_clock(microseconds(utc), ZoneInfo("Europe/Berlin")) == microseconds(wall_clock)
