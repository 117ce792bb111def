"""Tests of the console consumer's formatter, which formats records like Kafka's DefaultMessageFormatter."""

from __future__ import annotations

import struct
import uuid

import pytest

from headrace_broker.records.columns import RecordColumns
from headrace_broker.tools.deserializers import deserializer, java_double, java_float
from headrace_broker.tools.record_formatter import RecordFormatter

RECORDS = RecordColumns(
    values=[b"v1", None],
    keys=[b"k1", None],
    headers=[[("h", b"1"), ("i", None)], []],
    timestamps=[10, 20],
    offsets=[5, 7],
)


def test_console_consumer_prints_only_values_by_default() -> None:
    assert RecordFormatter({}).format(0, RECORDS) == b"v1\nnull\n"
    assert RecordFormatter({"line.separator": ";", "null.literal": ""}).format(0, RECORDS) == b"v1;;"
    assert RecordFormatter({}).format(0, RecordColumns(values=[])) == b""
    assert RECORDS.values == [b"v1", None]


def test_console_consumer_prints_all_record_fields_in_kafkas_order() -> None:
    names = ("timestamp", "partition", "offset", "delivery", "epoch", "headers", "key", "value")
    formatter = RecordFormatter({f"print.{name}": "true" for name in names})
    assert formatter.format(3, RECORDS).decode().splitlines() == [
        "CreateTime:10\tPartition:3\tOffset:5\tDelivery:NOT_PRESENT\tEpoch:NOT_PRESENT\th:1,i:null\tk1\tv1",
        "CreateTime:20\tPartition:3\tOffset:7\tDelivery:NOT_PRESENT\tEpoch:NOT_PRESENT\tNO_HEADERS\tnull\tnull",
    ]


def test_console_consumer_prints_placeholders_if_a_record_has_no_key_and_no_headers() -> None:
    """The placeholders are `null` and `NO_HEADERS`, as in Apache Kafka."""
    formatter = RecordFormatter({"print.key": "true", "print.headers": "true", "key.separator": "|"})
    assert formatter.format(0, RecordColumns(values=[b"v"])) == b"NO_HEADERS|null|v\n"


def test_console_consumer_omits_values_if_print_value_is_false() -> None:
    assert RecordFormatter({"print.key": "true", "print.value": "false"}).format(0, RECORDS) == b"k1\nnull\n"
    assert RecordFormatter({"print.value": "false"}).format(0, RECORDS) == b""


def test_console_consumer_prints_the_label_log_append_time_for_broker_timestamps() -> None:
    columns = RecordColumns(values=[b"v"], timestamps=9, timestamp_type=1)
    assert RecordFormatter({"print.timestamp": "true"}).format(0, columns) == b"LogAppendTime:9\tv\n"


def test_console_consumer_uses_the_configured_deserializer_classes_and_rejects_unsupported_classes() -> None:
    formatter = RecordFormatter(
        {
            "print.key": "true",
            "key.deserializer": "org.apache.kafka.common.serialization.LongDeserializer",
            "value.deserializer": "IntegerDeserializer",
        }
    )
    columns = RecordColumns(values=[struct.pack(">i", -2), None], keys=[struct.pack(">q", 1 << 40), None])
    assert formatter.format(0, columns) == b"1099511627776\t-2\nnull\tnull\n"
    with pytest.raises(ValueError, match="Size of data received by IntegerDeserializer is not 4"):
        formatter.format(0, RecordColumns(values=[b"abc"]))
    with pytest.raises(ValueError, match=r"com\.example\.Mine is not supported; the supported deserializers are"):
        RecordFormatter({"value.deserializer": "com.example.Mine"})


@pytest.mark.parametrize(
    ("name", "data", "text"),
    [
        ("String", b"a\xff", "a\ufffd".encode()),
        ("ByteArrayDeserializer", b"\xff", b"\xff"),
        ("ShortDeserializer", b"\xff\xfe", b"-2"),
        ("FloatDeserializer", struct.pack(">f", 0.1), b"0.1"),
        ("DoubleDeserializer", struct.pack(">d", 1e21), b"1.0E21"),
        ("BooleanDeserializer", b"\1", b"true"),
        ("UUIDDeserializer", str(uuid.UUID(int=7)).encode(), str(uuid.UUID(int=7)).encode()),
    ],
)
def test_deserializer_of_the_console_consumer_converts_bytes_to_text(name: str, data: bytes, text: bytes) -> None:
    assert deserializer(name)(data) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.0, "1.0"),
        (-12.5, "-12.5"),
        (100.0, "100.0"),
        (1234567.0, "1234567.0"),
        (1e7, "1.0E7"),
        (1.5e-5, "1.5E-5"),
        (0.001, "0.001"),
        (0.00123, "0.00123"),
        (float("inf"), "Infinity"),
        (float("nan"), "NaN"),
    ],
)
def test_console_consumer_formats_doubles_as_java_does(value: float, text: str) -> None:
    assert java_double(value) == text


def test_console_consumer_formats_floats_with_single_precision() -> None:
    third = struct.unpack(">f", struct.pack(">f", 1 / 3))[0]
    assert java_float(third) == "0.33333334"
    assert java_float(16777216.0) == "1.6777216E7"
