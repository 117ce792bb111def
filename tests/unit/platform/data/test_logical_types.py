from __future__ import annotations

import copy
import datetime as dt
import pickle
from decimal import Decimal
from typing import Any

import pytest

from headrace.data.batch import from_records
from headrace.data.errors import DataError
from headrace.data.headers import Headers
from headrace.data.json_encoding import encode_list
from headrace.data.json_values import EncodingOptions
from headrace.data.logical import (
    DATE_NAME,
    DATE_SCHEMA,
    TIME_NAME,
    TIME_SCHEMA,
    TIMESTAMP_NAME,
    TIMESTAMP_SCHEMA,
    Date,
    Time,
    Timestamp,
    big_endian,
    bytes_to_decimal,
    checked_count,
    decimal_schema,
    decimal_to_bytes,
    from_base,
    to_base,
)
from headrace.data.records import SourceRecord
from headrace.data.schema import INT32_SCHEMA, INT64_SCHEMA, STRING_SCHEMA, Schema, array, map_of, struct
from headrace.data.struct import Struct
from headrace.data.values import infer_type, validate
from support.connect_data import is_identical

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


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


def test_dates_times_and_timestamps_are_converted_to_and_from_pythons_objects() -> None:
    assert Date(-1).to_date() == dt.date(1969, 12, 31)
    assert is_identical(Date.of(dt.date(2000, 1, 1)), Date(10957))
    assert Time(86_399_999).to_time() == dt.time(23, 59, 59, 999000)
    assert is_identical(Time.of(dt.time(1, 2, 3, 4999)), Time(3_723_004))
    assert Timestamp(-1).to_datetime() == dt.datetime(1969, 12, 31, 23, 59, 59, 999000, tzinfo=dt.UTC)
    moment = dt.datetime(2023, 11, 14, 22, 13, 20, 123999, tzinfo=dt.UTC)
    assert is_identical(Timestamp.of(moment), Timestamp(1_700_000_000_123))
    assert Timestamp.of(dt.datetime(1970, 1, 1, 2, tzinfo=dt.timezone(dt.timedelta(hours=2)))) == 0
    assert Timestamp.of(dt.datetime(1970, 1, 1, 2)) == 7_200_000


def test_dates_outside_the_years_1_to_9999_are_not_converted_to_pythons_objects() -> None:
    assert Timestamp(253_402_300_799_999).to_datetime().year == 9999
    for convert in (Timestamp(253_402_300_800_000).to_datetime, Date(2_932_897).to_date, Time(86_400_000).to_time):
        with pytest.raises(DataError, match=r"out of range|must use number"):
            convert()


@pytest.mark.parametrize("value", [Timestamp(-(2**63)), Date(2**31 - 1), Time(5)])
def test_dates_are_integers_that_keep_their_type_when_pickled_and_show_it_in_repr(value: int) -> None:
    assert is_identical(pickle.loads(pickle.dumps(value)), value)
    assert is_identical(copy.deepcopy(value), value)
    number = int(value)
    assert (repr(value), str(value), f"{value}") == (f"{type(value).__name__}({number})", str(number), str(number))
    assert value == number
    assert type(value + 1) is int
    assert infer_type(value) is None


@pytest.mark.parametrize(
    ("name", "low", "high"),
    [(DATE_NAME, -(2**31), 2**31 - 1), (TIME_NAME, 0, 86_399_999), (TIMESTAMP_NAME, -(2**63), 2**63 - 1)],
)
def test_dates_have_the_range_of_their_base_types(name: str, low: int, high: int) -> None:
    schema = {each.name: each for each in (DATE_SCHEMA, TIME_SCHEMA, TIMESTAMP_SCHEMA)}[name]
    for count in (low, high):
        value = from_base(schema)(count)  # type: ignore[misc]
        assert is_identical(value, checked_count(name, count))
        assert is_identical(to_base(schema)(value), count)  # type: ignore[misc]
    for count in (low - 1, high + 1):
        with pytest.raises(DataError):
            from_base(schema)(count)  # type: ignore[misc]
        with pytest.raises(DataError, match='for field: "a"'):
            Struct(struct([("a", schema)])).put("a", count)


@pytest.mark.parametrize(
    ("schema", "given", "value"),
    [
        (TIMESTAMP_SCHEMA, NOON, Timestamp(1_767_268_800_000)),
        (TIMESTAMP_SCHEMA, NOON.replace(tzinfo=None), Timestamp(1_767_268_800_000)),
        (TIMESTAMP_SCHEMA, 5, Timestamp(5)),
        (DATE_SCHEMA, NOON.date(), Date(20_454)),
        (TIME_SCHEMA, NOON.time(), Time(43_200_000)),
    ],
)
def test_structs_defaults_and_records_contain_the_integers_of_pythons_dates(
    schema: Schema, given: Any, value: Any
) -> None:
    fields = struct([("a", schema), ("list", array(schema)), ("map", map_of(STRING_SCHEMA, schema))])
    checked = Struct(fields, {"a": given, "list": [given], "map": {"x": given}})
    unchecked = Struct(fields, [given, [given], {"x": given}])
    for row in (checked.row, from_records([_record(fields, unchecked)])[0].values[0]):
        assert is_identical(row[0], value)
        assert is_identical(row[1][0], value)
        assert is_identical(row[2]["x"], value)
    assert is_identical(schema.replace(default=given).default, value)
    assert schema.replace(default=given) == schema.replace(default=value)
    assert is_identical(from_records([_record(schema, given)])[0].values[0], value)
    if not isinstance(given, int):
        nested = from_records([_record(None, {"a": [given], "b": 1})])[0].values[0]
        assert is_identical(nested["a"][0], value)
    assert is_identical(Headers().add("h", given, schema)[0].value, value)


def test_dates_in_fields_with_an_integer_schema_become_integers() -> None:
    schema = struct([("a", INT64_SCHEMA)])
    assert type(Struct(schema, {"a": Timestamp(5)})["a"]) is int
    assert encode_list(schema, [(Timestamp(5),)], EncodingOptions()) == [b'{"a":5}']


def _record(schema: Schema | None, value: Any) -> SourceRecord:
    return SourceRecord(topic="t", value_schema=schema, value=value)


def test_value_whose_python_type_does_not_match_its_logical_schema_is_rejected() -> None:
    validate(decimal_schema(2), Decimal("1.00"))
    for schema, value in (
        (TIMESTAMP_SCHEMA, dt.date(2020, 1, 1)),
        (TIMESTAMP_SCHEMA, Date(1)),
        (TIMESTAMP_SCHEMA, True),
        (TIMESTAMP_SCHEMA, 1.5),
        (DATE_SCHEMA, NOON),
        (TIME_SCHEMA, "5"),
        (INT32_SCHEMA, Timestamp(2**31)),
        (STRING_SCHEMA, Date(5)),
        (decimal_schema(2), 1.5),
        (decimal_schema(2), Decimal("inf")),
    ):
        with pytest.raises(DataError):
            validate(schema, value)
