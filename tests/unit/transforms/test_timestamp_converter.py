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
from support.transforms import apply_to_value, apply_to_values, make_plugin, source_batch, transform_errors

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
def test_timestamp_converter_converts_between_all_types(
    source_schema: Schema, value: Any, target: str, schema: Schema, expected: Any
) -> None:
    convert = make_plugin("TimestampConverter$Value", target__type=target, format=FORMAT)
    assert apply_to_value(convert, value, source_schema) == (schema, expected)
    assert apply_to_value(convert, value) == (None, expected)


def test_timestamp_converter_reads_dates_and_times() -> None:
    convert = make_plugin("TimestampConverter$Value", target__type="unix")
    assert apply_to_value(convert, dt.date(1970, 1, 2), DATE_SCHEMA)[1] == 86_400_000
    assert apply_to_value(convert, dt.time(0, 0, 1), TIME_SCHEMA)[1] == 1000


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
def test_timestamp_converter_reads_and_writes_unix_times_with_the_configured_precision(
    precision: str, number: int, written: int
) -> None:
    from_unix = make_plugin("TimestampConverter$Value", target__type="Timestamp", unix__precision=precision)
    to_unix = make_plugin("TimestampConverter$Value", target__type="unix", unix__precision=precision)
    schema, timestamp = apply_to_value(from_unix, number, INT64_SCHEMA)
    assert apply_to_value(to_unix, timestamp, schema) == (INT64_SCHEMA, written)


def test_timestamp_converter_converts_unix_times_beyond_the_year_9999_to_unix_times() -> None:
    convert = make_plugin("TimestampConverter$Value", target__type="unix", unix__precision="microseconds")
    assert apply_to_value(convert, 2**62 + 1500, INT64_SCHEMA) == (INT64_SCHEMA, (2**62 + 1500) // 1000 * 1000)
    assert list(transform_errors(convert, source_batch([True], BOOLEAN_SCHEMA))) == [0]


def test_timestamp_converter_converts_the_configured_field() -> None:
    schema = struct([("ts", INT64_SCHEMA.replace(optional=True)), ("other", STRING_SCHEMA)], name="n", optional=True)
    convert = make_plugin("TimestampConverter$Value", target__type="Timestamp", field="ts")
    new_schema, value = apply_to_value(convert, Struct(schema, {"ts": MILLIS, "other": "x"}), schema)
    assert new_schema == struct([("ts", OPTIONAL_TIMESTAMP_SCHEMA), ("other", STRING_SCHEMA)], name="n", optional=True)
    assert value.row == [MOMENT, "x"]
    assert apply_to_value(convert, None, schema) == (new_schema, None)
    assert apply_to_values(convert, [Struct(schema, {"other": "x"})], schema)[0].row == [None, "x"]
    assert apply_to_value(convert, {"ts": MILLIS, "a": 1}) == (None, {"ts": MOMENT, "a": 1})
    assert apply_to_value(convert, {"a": 1}) == (None, {"a": 1, "ts": None})
    missing = make_plugin("TimestampConverter$Value", target__type="Timestamp", field="nope")
    assert apply_to_value(missing, Struct(schema, {"other": "x"}), schema)[1].row == [None, "x"]


def test_timestamp_converter_leaves_null_values_unchanged() -> None:
    convert = make_plugin("TimestampConverter$Value", target__type="string", format=FORMAT)
    assert apply_to_values(convert, [MOMENT, None], OPTIONAL_TIMESTAMP_SCHEMA) == [TEXT, None]
    assert apply_to_value(convert, None, OPTIONAL_TIMESTAMP_SCHEMA)[0] == OPTIONAL_STRING_SCHEMA
    assert apply_to_value(convert, None) == (None, None)


def test_timestamp_converter_rejects_invalid_timestamps() -> None:
    convert = make_plugin("TimestampConverter$Value", target__type="Timestamp", format=FORMAT)
    errors = transform_errors(convert, source_batch([TEXT, "bad", None], STRING_SCHEMA.replace(optional=True)))
    assert list(errors) == [1]
    assert "bad" in str(errors[1])
    assert list(transform_errors(convert, source_batch([1], INT32_SCHEMA))) == [0]
    assert list(transform_errors(convert, source_batch([1.5, MILLIS, True]))) == [0, 2]
    no_format = make_plugin("TimestampConverter$Value", target__type="Timestamp")
    assert list(transform_errors(no_format, source_batch([TEXT], STRING_SCHEMA))) == [0]


@pytest.mark.parametrize(
    "props",
    [{}, {"target__type": "date"}, {"target__type": "string"}, {"target__type": "string", "format": "bad-format"},
     {"target__type": "unix", "unix__precision": "hours"}],
)  # fmt: skip
def test_timestamp_converter_rejects_invalid_configuration(props: dict[str, str]) -> None:
    with pytest.raises(ConfigErrors):
        make_plugin("TimestampConverter$Value", **props)
