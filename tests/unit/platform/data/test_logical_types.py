from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest

from headrace.data.errors import DataError
from headrace.data.logical import (
    DATE_SCHEMA,
    TIME_SCHEMA,
    TIMESTAMP_SCHEMA,
    big_endian,
    bytes_to_decimal,
    days_to_date,
    decimal_schema,
    decimal_to_bytes,
    from_base,
    millis_to_time,
    millis_to_timestamp,
    time_to_millis,
    timestamp_to_millis,
    to_base,
)
from headrace.data.values import validate


@pytest.mark.parametrize(
    ("number", "data"),
    [(0, "00"), (1, "01"), (-1, "ff"), (127, "7f"), (128, "0080"), (-128, "80"), (-129, "ff7f"), (156, "009c")],
)
def test_decimal_is_encoded_as_the_shortest_twos_complement_bytes(number: int, data: str) -> None:
    assert big_endian(number).hex() == data


@pytest.mark.parametrize("text", ["0.00", "1.56", "-1.28", "99999999999999999999999999999999999999999999.01"])
def test_decimal_of_any_size_round_trips_through_bytes_without_losing_digits(text: str) -> None:
    value = Decimal(text)
    back = bytes_to_decimal(decimal_to_bytes(value, 2), 2)
    assert (back, str(back)) == (value, text)


def test_decimal_with_a_scale_other_than_the_scale_of_its_schema_is_rejected() -> None:
    with pytest.raises(DataError, match=r"Schema has scale 2, value has scale 1\."):
        decimal_to_bytes(Decimal("1.5"), 2)
    assert decimal_to_bytes(Decimal("1E+3"), -3) == b"\x01"
    with pytest.raises(DataError, match="Invalid value NaN"):
        decimal_to_bytes(Decimal("NaN"), 2)


def test_dates_times_and_timestamps_are_converted_to_and_from_the_integers_of_their_logical_types() -> None:
    assert from_base(DATE_SCHEMA)(-1) == dt.date(1969, 12, 31)  # type: ignore[misc]
    assert to_base(DATE_SCHEMA)(dt.date(2000, 1, 1)) == 10957  # type: ignore[misc]
    assert millis_to_time(86_399_999) == dt.time(23, 59, 59, 999000)
    assert time_to_millis(dt.time(1, 2, 3, 4999)) == 3_723_004
    assert millis_to_timestamp(-1) == dt.datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=dt.UTC)
    assert timestamp_to_millis(dt.datetime(2023, 11, 14, 22, 13, 20, 123999, tzinfo=dt.UTC)) == 1_700_000_000_123
    shifted = dt.datetime(1970, 1, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=2)))
    assert timestamp_to_millis(shifted) == 0


def test_date_values_outside_the_range_of_python_are_rejected() -> None:
    for convert, number in ((millis_to_timestamp, 2**62), (days_to_date, 2**31), (millis_to_time, 86_400_000)):
        with pytest.raises(DataError):
            convert(number)


def test_value_whose_python_type_does_not_match_its_logical_schema_is_rejected() -> None:
    validate(TIMESTAMP_SCHEMA, dt.datetime(2020, 1, 1, tzinfo=dt.UTC))
    validate(decimal_schema(2), Decimal("1.00"))
    for schema, value in (
        (TIMESTAMP_SCHEMA, 5),
        (TIMESTAMP_SCHEMA, dt.date(2020, 1, 1)),
        (DATE_SCHEMA, dt.datetime(2020, 1, 1, tzinfo=dt.UTC)),
        (TIME_SCHEMA, 5),
        (decimal_schema(2), 1.5),
        (decimal_schema(2), Decimal("inf")),
    ):
        with pytest.raises(DataError):
            validate(schema, value)
