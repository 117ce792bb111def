from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.data.calendar_days import gregorian_date, gregorian_days, gregorian_fields, java_date, java_days

EPOCH = dt.date(1970, 1, 1)
JAVA_DAYS = st.integers(-(2**63) // 86_400_000, 2**63 // 86_400_000)


@given(st.dates())
def test_gregorian_dates_of_the_years_1_to_9999_equal_those_of_python(date: dt.date) -> None:
    days = (date - EPOCH).days
    assert gregorian_date(days) == (date.year, date.month, date.day)
    assert gregorian_days(date.year, date.month, date.day) == days


@given(JAVA_DAYS)
def test_every_day_of_javas_range_is_converted_to_a_date_and_back(days: int) -> None:
    assert gregorian_days(*gregorian_date(days)) == days
    assert java_days(*java_date(days)) == days
    year, month, day = gregorian_date(days)
    assert gregorian_date(days + 146_097) == (year + 400, month, day)


@pytest.mark.parametrize(
    ("days", "gregorian", "java"),
    [
        (-141_427, (1582, 10, 15), (1582, 10, 15)),
        (-141_428, (1582, 10, 14), (1582, 10, 4)),
        (-719_162, (1, 1, 1), (1, 1, 3)),
        (-719_528, (0, 1, 1), (0, 1, 3)),
        (2_932_897, (10_000, 1, 1), (10_000, 1, 1)),
    ],
)
def test_java_counts_in_the_julian_calendar_before_october_1582(
    days: int, gregorian: tuple[int, int, int], java: tuple[int, int, int]
) -> None:
    assert (gregorian_date(days), java_date(days)) == (gregorian, java)


def test_days_outside_of_a_month_are_counted_from_its_first_day() -> None:
    assert gregorian_date(gregorian_days(2024, 3, 0)) == (2024, 2, 29)
    assert java_date(java_days(1582, 10, 10)) == (1582, 10, 20)


def test_fields_of_a_timestamp_before_1970_have_a_positive_time_of_day() -> None:
    assert gregorian_fields(-1) == (1969, 12, 31, 23, 59, 59, 999)
    assert gregorian_fields(253_402_318_799_000) == (10_000, 1, 1, 4, 59, 59, 0)
