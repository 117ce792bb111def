from __future__ import annotations

from typing import Any

import pytest

from headrace.api.converter import SchemaRun
from headrace.api.errors import DataError, RecordErrors
from headrace.converters.primitive_converters import (
    BooleanConverter,
    ByteArrayConverter,
    DoubleConverter,
    FloatConverter,
    IntegerConverter,
    LongConverter,
    ShortConverter,
)
from headrace.data.java import Float32
from headrace.data.logical import TIMESTAMP_SCHEMA
from headrace.data.schema import (
    BYTES_SCHEMA,
    FLOAT32_SCHEMA,
    INT8_SCHEMA,
    INT64_SCHEMA,
    OPTIONAL_BYTES_SCHEMA,
    OPTIONAL_FLOAT32_SCHEMA,
    STRING_SCHEMA,
)

VALUES = [
    (ShortConverter, -2, "fffe"),
    (IntegerConverter, 1, "00000001"),
    (LongConverter, -(2**63), "8000000000000000"),
    (FloatConverter, Float32(1.5), "3fc00000"),
    (DoubleConverter, 1.5, "3ff8000000000000"),
    (BooleanConverter, True, "01"),
    (BooleanConverter, False, "00"),
    (ByteArrayConverter, b"\x01\xff", "01ff"),
]


@pytest.mark.parametrize(("converter_class", "value", "data"), VALUES)
def test_values_round_trip_through_the_primitive_converters(converter_class: Any, value: Any, data: str) -> None:
    converter = converter_class()
    encoded = bytes.fromhex(data)
    assert converter.from_connect_batch("t", None, [value, None]) == [encoded, None]
    assert converter.from_connect("t", converter.schema, value) == encoded
    assert converter.to_connect_batch("t", [encoded, None]) == [SchemaRun(converter.schema, [value, None])]
    assert converter.to_connect("t", encoded) == (converter.schema, value)
    assert converter.to_connect("t", None) == (converter.schema, None)


@pytest.mark.parametrize(
    ("converter_class", "value"),
    [(ShortConverter, 2**15), (IntegerConverter, "1"), (LongConverter, True), (DoubleConverter, 1),
     (DoubleConverter, Float32(1.5)), (FloatConverter, 1.5),
     (BooleanConverter, 1), (ByteArrayConverter, "a"), (FloatConverter, 1e300)],
)  # fmt: skip
def test_primitive_converter_rejects_a_value_of_a_wrong_type(converter_class: Any, value: Any) -> None:
    converter = converter_class()
    with pytest.raises(DataError):
        converter.from_connect("t", None, value)
    with pytest.raises(RecordErrors) as caught:
        converter.from_connect_batch("t", None, [None, value])
    assert list(caught.value.errors) == [1]


@pytest.mark.parametrize(
    ("converter_class", "schema", "value"),
    [(LongConverter, INT8_SCHEMA, 1), (ShortConverter, INT64_SCHEMA, 1), (DoubleConverter, FLOAT32_SCHEMA, 1.5),
     (LongConverter, TIMESTAMP_SCHEMA, 1)],
)  # fmt: skip
def test_number_converter_rejects_values_with_another_schema_but_not_nulls(
    converter_class: Any, schema: Any, value: Any
) -> None:
    with pytest.raises(DataError):
        converter_class().from_connect("t", schema, value)
    with pytest.raises(RecordErrors) as caught:
        converter_class().from_connect_batch("t", schema, [None, value])
    assert list(caught.value.errors) == [1]
    assert converter_class().from_connect_batch("t", OPTIONAL_FLOAT32_SCHEMA, [None]) == [None]


@pytest.mark.parametrize("converter_class", [ShortConverter, LongConverter, DoubleConverter, BooleanConverter])
def test_primitive_converter_rejects_data_of_a_wrong_length(converter_class: Any) -> None:
    with pytest.raises(RecordErrors) as caught:
        converter_class().to_connect_batch("t", [None, b"abc"])
    assert list(caught.value.errors) == [1]


def test_primitive_converter_rejects_a_value_with_a_schema_of_a_wrong_type() -> None:
    with pytest.raises(DataError, match="Invalid schema type for ByteArrayConverter: STRING"):
        ByteArrayConverter().from_connect("t", STRING_SCHEMA, None)
    with pytest.raises(RecordErrors) as caught:
        ByteArrayConverter().from_connect_batch("t", STRING_SCHEMA, [b"", b""])
    assert list(caught.value.errors) == [0, 1]
    assert ByteArrayConverter().from_connect("t", BYTES_SCHEMA, memoryview(b"ab")) == b"ab"
    assert ByteArrayConverter().to_connect("t", b"ab") == (OPTIONAL_BYTES_SCHEMA, b"ab")
