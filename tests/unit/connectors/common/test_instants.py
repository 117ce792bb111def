"""Tests of dates and times as integers, and of their conversion between time zones."""

from __future__ import annotations

import datetime as dt
from zoneinfo import ZoneInfo

import pytest

from headrace_connectors.common.instants import (
    DAY_US,
    days,
    in_python_years,
    iso_text,
    microseconds,
    parse_date,
    parse_timestamp,
)
from headrace_connectors.common.time_zones import earliest_wall_clock, to_instant, to_wall_clock

BERLIN, NEW_YORK = ZoneInfo("Europe/Berlin"), ZoneInfo("America/New_York")


@pytest.mark.parametrize(
    ("text", "zone", "timestamp_ms"),
    [
        ("9999-12-31 23:59:59", NEW_YORK, 253402318799000),
        ("0001-01-01 00:00:00", BERLIN, -62135600008000),
        ("9999-12-31 23:59:59.999", dt.UTC, 253402300799999),
        ("12345-07-01 12:00:00", BERLIN, 327419064000000 - 7200000),
        ("0044-03-15 12:00:00 BC", BERLIN, -63517780800000 - 3208000),
        ("0044-03-15 (BC) 12:00:00", dt.UTC, -63517780800000),
        ("-0043-03-15T12:00:00+01:00", BERLIN, -63517780800000 - 3600000),
        ("0001-12-31 23:06:32-00:53:28 BC", BERLIN, -62135596800000),
        ("0000-05-05 00:00:00", dt.UTC, -62156419200000),
    ],
)
def test_text_of_any_year_is_converted_to_an_instant_with_the_offset_of_its_time_zone(
    text: str, zone: dt.tzinfo, timestamp_ms: int
) -> None:
    time, offset = parse_timestamp(text)
    instant = to_instant(time, zone) if offset is None else time - offset
    assert instant // 1000 == timestamp_ms


@pytest.mark.parametrize("zone", [dt.UTC, BERLIN, NEW_YORK, dt.timezone(dt.timedelta(hours=14))])
@pytest.mark.parametrize("year", [-292_275_000, -4712, -1, 0, 1, 2, 1900, 2026, 9998, 9999, 10_000, 292_278_000])
@pytest.mark.parametrize("month", [1, 7])
def test_wall_clock_time_of_any_year_is_converted_to_an_instant_and_back(
    zone: dt.tzinfo, year: int, month: int
) -> None:
    wall_clock = days(year, month, 15) * DAY_US + 1
    instant = to_instant(wall_clock, zone)
    assert to_wall_clock(instant, zone) == wall_clock
    assert earliest_wall_clock(instant, zone) == wall_clock
    assert parse_timestamp(iso_text(wall_clock)) == (wall_clock, None)


def test_summer_time_applies_after_the_year_9999() -> None:
    assert [
        days(20_000, month, 1) * DAY_US - to_instant(days(20_000, month, 1) * DAY_US, BERLIN) for month in (1, 7)
    ] == [
        3_600_000_000,
        7_200_000_000,
    ]


@pytest.mark.parametrize("year", [1, 2, 1582, 9998, 9999])
def test_dates_that_python_supports_equal_those_of_python(year: int) -> None:
    first = dt.datetime(year, 1, 1)
    for number in range(365):
        day = first + dt.timedelta(days=number)
        assert days(day.year, day.month, day.day) * DAY_US == microseconds(day)
        value, years = in_python_years(microseconds(day))
        assert (value.year + years, value.month, value.day) == (day.year, day.month, day.day)


@pytest.mark.parametrize("text", ["2026-02-30", "2026-13-01", "20260101", "", "infinity", "2026-01-01 10:00"])
def test_text_that_is_not_a_date_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"date|day|month"):
        parse_date(text)


@pytest.mark.parametrize("text", ["12026-02-30 00:00:00", "12026-01-01 24:00:00", "infinity", "12026-01-01 10:00:00 x"])
def test_text_that_is_not_a_timestamp_is_rejected(text: str) -> None:
    with pytest.raises(ValueError, match=r"timestamp|day|hour"):
        parse_timestamp(text)
