from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest

from headrace.data.logical import Date, Time, Timestamp
from headrace.data.schema import (
    BOOLEAN_SCHEMA,
    FLOAT32_SCHEMA,
    INT8_SCHEMA,
    INT16_SCHEMA,
    INT32_SCHEMA,
    INT64_SCHEMA,
    STRING_SCHEMA,
    Schema,
    Type,
    array,
    map_of,
    struct,
)
from headrace.data.struct import Struct
from headrace.data.value_text import convert_to_string, parse_string

NOTHING = Schema(Type.ARRAY, value_schema=None)


@pytest.mark.parametrize(
    ("text", "schema", "value"),
    [
        ("", STRING_SCHEMA, ""),
        ("null", None, None),
        ("true", BOOLEAN_SCHEMA, True),
        ("true}", STRING_SCHEMA, "true}"),
        ("truer", STRING_SCHEMA, "truer"),
        ("1", INT8_SCHEMA, 1),
        ("1.0", INT8_SCHEMA, 1),
        ("\uff15", INT8_SCHEMA, 5),
        ("\u0663.5", FLOAT32_SCHEMA, 3.5),
        ("-129", INT16_SCHEMA, -129),
        ("70000", INT32_SCHEMA, 70000),
        ("9223372036854775807", INT64_SCHEMA, 2**63 - 1),
        ("1.5", FLOAT32_SCHEMA, 1.5),
        ("1e3", INT16_SCHEMA, 1000),
        ("hello 1", STRING_SCHEMA, "hello 1"),
        ("1 and 2", STRING_SCHEMA, "1 and 2"),
        ("1,2", STRING_SCHEMA, "1,2"),
        ("12:30", STRING_SCHEMA, "12:30"),
        ("[]", NOTHING, []),
        ("[1, 2, 300]", array(INT16_SCHEMA), [1, 2, 300]),
        ("[1, 2.5]", array(FLOAT32_SCHEMA), [1.0, 2.5]),
        ('["a", 1]', NOTHING, ["a", 1]),
        ('["a","b,c"]', array(STRING_SCHEMA), ["a", "b,c"]),
        ('{"a":1,"b":2}', map_of(STRING_SCHEMA, INT8_SCHEMA), {"a": 1, "b": 2}),
        ("[a, b]", STRING_SCHEMA, "[a, b]"),
        ("[1", STRING_SCHEMA, "[1"),
        ("[" * 9999, STRING_SCHEMA, "[" * 9999),
        ("1e99999999999999999999", STRING_SCHEMA, "1e99999999999999999999"),
        ("[1,]", array(INT8_SCHEMA), [1]),
        ("[,1]", STRING_SCHEMA, "[,1]"),
        ("[1 2]", STRING_SCHEMA, "[1 2]"),
        ("[null,null]", NOTHING, [None, None]),
        ("[null,1]", STRING_SCHEMA, "[null,1]"),
        (".5", STRING_SCHEMA, ".5"),
        ('["2019-08-23","12:34:56.789Z"]', STRING_SCHEMA, '["2019-08-23","12:34:56.789Z"]'),
        ('[1,"12:34:56.789Z"]', STRING_SCHEMA, '[1,"12:34:56.789Z"]'),
        ('["  ", " a "]', array(STRING_SCHEMA), ["  ", " a "]),
        ('["a', STRING_SCHEMA, '["a'),
        ('[12:34:56.789Z , "a"]', STRING_SCHEMA, '[12:34:56.789Z , "a"]'),
        ('{1:2,"a":3}', Schema(Type.MAP), {1: 2, "a": 3}),
        ('{1:2,2:"b"}', map_of(INT8_SCHEMA, None), {1: 2, 2: "b"}),
        ('[[0.5],"a"]', NOTHING, [[0.5], "a"]),
        ("[[1],[2]]", array(array(INT8_SCHEMA)), [[1], [2]]),
    ],
)
def test_header_text_is_parsed_to_a_schema_and_a_value(text: str, schema: Schema | None, value: Any) -> None:
    assert parse_string(text) == (schema, value)
    assert type(parse_string(text).value) is type(value)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2019-08-23", Date(18131)),
        ("14:34:54.346Z", Time(52_494_346)),
        ("2019-08-23T14:34:54.346Z", Timestamp(1_566_570_894_346)),
    ],
)
def test_dates_times_and_timestamps_round_trip_through_header_text(text: str, value: Any) -> None:
    assert parse_string(text).value == value
    assert convert_to_string(value) == text
    assert parse_string(f'["{text}"]').value == [value]


def test_numbers_in_header_text_are_parsed_to_the_smallest_type_that_fits() -> None:
    assert parse_string("9223372036854775808").value == Decimal("9223372036854775808")
    assert parse_string("1.0e300").value == 1e300
    assert parse_string("0.1").value == 0.10000000149011612


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ('a"b', 'a"b'),
        (['a"b', None, 1, 1e10], '["a\\"b",null,1,1.0E10]'),
        ({"k": [True]}, '{"k":[true]}'),
        (b"\x00\xff", "AP8="),
        ([b"\x00\xff"], '["AP8="]'),
        (Struct(struct([("a", INT8_SCHEMA)]), {"a": 1}), '{"a":1}'),
        (Decimal("1.50"), "1.50"),
        (Timestamp(3_600_000), "01:00:00.000Z"),
        (Timestamp(1_577_836_800_000), "2020-01-01"),
        (Timestamp(-631_148_400_000), "1950-01-01T01:00:00.000Z"),
        (Timestamp(253_402_318_799_000), "10000-01-01T04:59:59.000Z"),
        (Date(2**31 - 1), "5881580-07-11"),
        (dt.datetime(1970, 1, 1, 1, tzinfo=dt.UTC), "01:00:00.000Z"),
    ],
)
def test_header_values_are_converted_to_text(value: Any, text: str) -> None:
    assert convert_to_string(value) == text


def test_numbers_in_nested_header_text_without_a_schema_stay_float32() -> None:
    assert convert_to_string(parse_string('[[0.1],{"k":0.2},"a"]').value) == '[[0.1],{"k":0.2},"a"]'
