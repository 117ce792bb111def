from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from headrace.api.errors import ConfigErrors
from headrace.data.logical import DATE_SCHEMA, OPTIONAL_TIMESTAMP_SCHEMA, TIME_SCHEMA, TIMESTAMP_SCHEMA
from headrace.data.schema import (
    BOOLEAN_SCHEMA,
    INT32_SCHEMA,
    INT64_SCHEMA,
    OPTIONAL_STRING_SCHEMA,
    STRING_SCHEMA,
    Schema,
    struct,
)
from headrace.data.struct import Struct
from support.transforms import failures, make, one, source, values

MOMENT = dt.datetime(1970, 1, 2, 1, 2, 3, 456000, tzinfo=dt.UTC)
FORMAT = "yyyy MM dd HH mm ss SSS z"
TEXT = "1970 01 02 01 02 03 456 UTC"
MILLIS = 90_123_456


@pytest.mark.parametrize(
    ("source_schema", "value"),
    [(TIMESTAMP_SCHEMA, MOMENT), (INT64_SCHEMA, MILLIS), (STRING_SCHEMA, TEXT)],
)
@pytest.mark.parametrize(
    ("target", "schema", "expected"),
    [
        ("Timestamp", TIMESTAMP_SCHEMA, MOMENT),
        ("Date", DATE_SCHEMA, dt.date(1970, 1, 2)),
        ("Time", TIME_SCHEMA, dt.time(1, 2, 3, 456000)),
        ("unix", INT64_SCHEMA, MILLIS),
        ("string", STRING_SCHEMA, TEXT),
    ],
)
def test_every_way(source_schema: Schema, value: Any, target: str, schema: Schema, expected: Any) -> None:
    convert = make("TimestampConverter$Value", target__type=target, format=FORMAT)
    assert one(convert, value, source_schema) == (schema, expected)
    assert one(convert, value) == (None, expected)


def test_dates_and_times_are_sources_too() -> None:
    convert = make("TimestampConverter$Value", target__type="unix")
    assert one(convert, dt.date(1970, 1, 2), DATE_SCHEMA)[1] == 86_400_000
    assert one(convert, dt.time(0, 0, 1), TIME_SCHEMA)[1] == 1000


@pytest.mark.parametrize(
    ("precision", "number", "written"),
    [
        ("seconds", 90_123, 90_123),
        ("milliseconds", MILLIS, MILLIS),
        ("microseconds", MILLIS * 1000 + 789, MILLIS * 1000),
        ("nanoseconds", MILLIS * 1_000_000 + 789, MILLIS * 1_000_000),
        ("microseconds", -1500, -1000),
        ("seconds", -2, -2),
    ],
)
def test_unix_precision(precision: str, number: int, written: int) -> None:
    there = make("TimestampConverter$Value", target__type="Timestamp", unix__precision=precision)
    back = make("TimestampConverter$Value", target__type="unix", unix__precision=precision)
    assert one(back, *reversed(one(there, number, INT64_SCHEMA))) == (INT64_SCHEMA, written)


def test_unix_to_unix_knows_no_calendar() -> None:
    convert = make("TimestampConverter$Value", target__type="unix", unix__precision="microseconds")
    assert one(convert, 2**62 + 1500, INT64_SCHEMA) == (INT64_SCHEMA, (2**62 + 1500) // 1000 * 1000)
    assert list(failures(convert, source([True], BOOLEAN_SCHEMA))) == [0]


def test_a_field() -> None:
    schema = struct([("ts", INT64_SCHEMA.replace(optional=True)), ("other", STRING_SCHEMA)], name="n", optional=True)
    convert = make("TimestampConverter$Value", target__type="Timestamp", field="ts")
    made_schema, value = one(convert, Struct(schema, {"ts": MILLIS, "other": "x"}), schema)
    assert made_schema == struct([("ts", OPTIONAL_TIMESTAMP_SCHEMA), ("other", STRING_SCHEMA)], name="n", optional=True)
    assert value.values == [MOMENT, "x"]
    assert one(convert, None, schema) == (made_schema, None)
    assert values(convert, [Struct(schema, {"other": "x"})], schema)[0].values == [None, "x"]
    assert one(convert, {"ts": MILLIS, "a": 1}) == (None, {"ts": MOMENT, "a": 1})
    assert one(convert, {"a": 1}) == (None, {"a": 1, "ts": None})
    missing = make("TimestampConverter$Value", target__type="Timestamp", field="nope")
    assert one(missing, Struct(schema, {"other": "x"}), schema)[1].values == [None, "x"]


def test_nulls_stay_null() -> None:
    convert = make("TimestampConverter$Value", target__type="string", format=FORMAT)
    assert values(convert, [MOMENT, None], OPTIONAL_TIMESTAMP_SCHEMA) == [TEXT, None]
    assert one(convert, None, OPTIONAL_TIMESTAMP_SCHEMA)[0] == OPTIONAL_STRING_SCHEMA
    assert one(convert, None) == (None, None)


def test_errors() -> None:
    convert = make("TimestampConverter$Value", target__type="Timestamp", format=FORMAT)
    errors = failures(convert, source([TEXT, "bad", None], STRING_SCHEMA.replace(optional=True)))
    assert list(errors) == [1]
    assert "bad" in str(errors[1])
    assert list(failures(convert, source([1], INT32_SCHEMA))) == [0]
    assert list(failures(convert, source([1.5, MILLIS, True]))) == [0, 2]
    no_format = make("TimestampConverter$Value", target__type="Timestamp")
    assert list(failures(no_format, source([TEXT], STRING_SCHEMA))) == [0]


@pytest.mark.parametrize(
    "props",
    [{}, {"target__type": "date"}, {"target__type": "string"}, {"target__type": "string", "format": "bad-format"},
     {"target__type": "unix", "unix__precision": "hours"}],
)  # fmt: skip
def test_settings(props: dict[str, str]) -> None:
    with pytest.raises(ConfigErrors):
        make("TimestampConverter$Value", **props)
