from __future__ import annotations

from typing import Any

import pytest

from headrace.api.errors import ConfigErrors, RecordErrors
from headrace.data.logical import (
    DATE_SCHEMA,
    OPTIONAL_TIMESTAMP_SCHEMA,
    TIME_SCHEMA,
    TIMESTAMP_SCHEMA,
    Date,
    Time,
    Timestamp,
)
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
from support.connect_data import is_identical
from support.transforms import apply_to_value, apply_to_values, make_plugin, source_batch, transform_errors

MOMENT = Timestamp(90_123_456)
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
        ("Date", DATE_SCHEMA, Date(1)),
        ("Time", TIME_SCHEMA, Time(3_723_456)),
        ("unix", INT64_SCHEMA, MILLIS),
        ("string", STRING_SCHEMA, TEXT),
    ],
)
def test_timestamp_converter_converts_between_all_types(
    source_schema: Schema, value: Any, target: str, schema: Schema, expected: Any
) -> None:
    convert = make_plugin("TimestampConverter$Value", target__type=target, format=FORMAT)
    found_schema, found = apply_to_value(convert, value, source_schema)
    assert found_schema == schema
    assert is_identical(found, expected)
    assert is_identical(apply_to_value(convert, value)[1], expected)


INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
FULL_FORMAT = "G yyyy-MM-dd HH:mm:ss.SSS"


@pytest.mark.parametrize(
    ("millis", "text", "date", "time"),
    [
        (253_402_318_799_000, "AD 10000-01-01 04:59:59.000", 2_932_897, 17_999_000),
        (-62_135_600_008_000, "AD 0001-01-02 23:06:32.000", -719_163, 83_192_000),
        (-62_167_392_000_001, "BC 0002-12-31 23:59:59.999", -719_531, 86_399_999),
        (INT64_MIN, "BC 292269055-12-02 16:47:04.192", None, 60_424_192),
        (INT64_MAX, "AD 292278994-08-17 07:12:55.807", None, 25_975_807),
    ],
)
def test_timestamp_converter_converts_timestamps_outside_the_years_of_python(
    millis: int, text: str, date: int | None, time: int
) -> None:
    def convert(target: str, value: Any, schema: Schema) -> Any:
        converter = make_plugin("TimestampConverter$Value", target__type=target, format=FULL_FORMAT)
        converted = apply_to_value(converter, value, schema)[1]
        assert is_identical(apply_to_value(converter, value)[1], converted)
        return converted

    timestamp = Timestamp(millis)
    assert is_identical(convert("string", timestamp, TIMESTAMP_SCHEMA), text)
    assert is_identical(convert("Timestamp", text, STRING_SCHEMA), timestamp)
    assert is_identical(convert("unix", timestamp, TIMESTAMP_SCHEMA), millis)
    assert is_identical(convert("Timestamp", millis, INT64_SCHEMA), timestamp)
    assert is_identical(convert("Time", timestamp, TIMESTAMP_SCHEMA), Time(time))
    if date is not None:
        assert is_identical(convert("Date", timestamp, TIMESTAMP_SCHEMA), Date(date))
        assert is_identical(convert("Timestamp", Date(date), DATE_SCHEMA), Timestamp(millis // 86_400_000 * 86_400_000))
        return
    date_converter = make_plugin("TimestampConverter$Value", target__type="Date")
    errors = transform_errors(date_converter, source_batch([timestamp], TIMESTAMP_SCHEMA))
    assert "is out of range for type INT32" in str(errors[0])


@pytest.mark.parametrize(
    ("precision", "number", "millis", "written"),
    [
        ("seconds", INT64_MAX, INT64_MAX, INT64_MAX // 1000),
        ("seconds", INT64_MIN, INT64_MIN, -(2**63 // 1000)),
        ("microseconds", INT64_MAX, INT64_MAX // 1000, INT64_MAX // 1000 * 1000),
        ("nanoseconds", INT64_MIN, -(2**63 // 1_000_000), -(2**63 // 1_000_000 * 1_000_000)),
    ],
)
def test_timestamp_converter_limits_unix_times_to_64_bits_as_javas_time_unit_does(
    precision: str, number: int, millis: int, written: int
) -> None:
    to_timestamp = make_plugin("TimestampConverter$Value", target__type="Timestamp", unix__precision=precision)
    to_unix = make_plugin("TimestampConverter$Value", target__type="unix", unix__precision=precision)
    assert apply_to_value(to_timestamp, number, INT64_SCHEMA)[1] == millis
    assert apply_to_value(to_unix, Timestamp(millis), TIMESTAMP_SCHEMA)[1] == written
    assert apply_to_value(to_unix, Timestamp(INT64_MAX), TIMESTAMP_SCHEMA)[1] == (
        INT64_MAX // 1000 if precision == "seconds" else INT64_MAX
    )


def test_timestamp_converter_reads_dates_and_times() -> None:
    convert = make_plugin("TimestampConverter$Value", target__type="unix")
    assert apply_to_value(convert, Date(1), DATE_SCHEMA)[1] == 86_400_000
    assert apply_to_value(convert, Time(1000), TIME_SCHEMA)[1] == 1000


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


def test_timestamp_converter_changes_the_schema_of_null_structs_without_checking_the_type_of_the_field() -> None:
    convert = make_plugin("TimestampConverter$Value", target__type="unix", field="flag")
    schema = struct([("flag", BOOLEAN_SCHEMA)], optional=True)
    assert apply_to_value(convert, None, schema) == (struct([("flag", INT64_SCHEMA)], optional=True), None)
    assert list(transform_errors(convert, source_batch([None, Struct(schema, {"flag": True})], schema))) == [1]


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


@pytest.mark.parametrize("field", ["ts", "missing"])
def test_default_of_the_struct_schema_is_converted(field: str) -> None:
    inner = struct([("x", INT32_SCHEMA)])
    plain = struct([("ts", TIMESTAMP_SCHEMA), ("inner", inner)])
    schema = plain.replace(default=Struct(plain, {"ts": MOMENT, "inner": Struct(inner, {"x": 1})}))
    convert = make_plugin("TimestampConverter$Value", field=field, target__type="unix")
    value = Struct(schema, {"ts": MOMENT, "inner": Struct(inner, {"x": 2})})
    new_schema, _ = apply_to_value(convert, value, schema)
    assert new_schema is not None
    assert new_schema.default["ts"] == (MILLIS if field == "ts" else MOMENT)
    assert new_schema.default["inner"]["x"] == 1


def test_record_with_a_default_of_the_struct_schema_that_cannot_be_converted_fails() -> None:
    plain = struct([("ts", STRING_SCHEMA)])
    schema = plain.replace(default=Struct(plain, {"ts": "x"}))
    convert = make_plugin("TimestampConverter$Value", field="ts", target__type="unix", format="yyyy")
    with pytest.raises(RecordErrors, match="Unparseable date"):
        apply_to_value(convert, Struct(schema, {"ts": "2024"}), schema)
