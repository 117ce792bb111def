from __future__ import annotations

import datetime as dt
from typing import Any

import pytest

from headrace.converters.simple_header_converter import SimpleHeaderConverter
from headrace.data.logical import DATE_SCHEMA, TIME_SCHEMA, TIMESTAMP_SCHEMA, Date, Time, Timestamp
from headrace.data.schema import BYTES_SCHEMA, INT8_SCHEMA, STRING_SCHEMA, array, map_of
from support.connect_data import is_identical


@pytest.mark.parametrize(
    ("value", "data", "schema", "back"),
    [
        ("text", b"text", STRING_SCHEMA, "text"),
        (7, b"7", INT8_SCHEMA, 7),
        ([1, 2], b"[1,2]", array(INT8_SCHEMA), [1, 2]),
        ({"a": "b"}, b'{"a":"b"}', map_of(STRING_SCHEMA, STRING_SCHEMA), {"a": "b"}),
        (b"\x00\xff", b"AP8=", STRING_SCHEMA, "AP8="),
        ("7", b"7", INT8_SCHEMA, 7),
        (Timestamp(1), b"00:00:00.001Z", TIME_SCHEMA, Time(1)),
        (Timestamp(86_400_001), b"1970-01-02T00:00:00.001Z", TIMESTAMP_SCHEMA, Timestamp(86_400_001)),
        (Date(-719_163), b"0001-01-02", DATE_SCHEMA, Date(-719_163)),
        (Date(2_932_897), b"10000-01-01", STRING_SCHEMA, "10000-01-01"),
        (dt.date(1970, 1, 2), b"1970-01-02", DATE_SCHEMA, Date(1)),
        (None, None, None, None),
    ],
)
def test_simple_header_converter_encodes_values_as_text_and_infers_the_schemas_of_decoded_values(
    value: Any, data: bytes | None, schema: Any, back: Any
) -> None:
    converter = SimpleHeaderConverter()
    assert converter.from_connect_header("t", "h", None, value) == data
    found_schema, found = converter.to_connect_header("t", "h", data)
    assert found_schema == schema
    assert is_identical(found, back)


@pytest.mark.parametrize("text", ["9.99", "[0.1,1.0E-4]", '[9.99,"x"]', '{"a":9.99}', '{"a":9.99,"b":"x"}'])
def test_simple_header_converter_writes_float32_values_with_the_digits_that_it_read(text: str) -> None:
    converter = SimpleHeaderConverter()
    schema, value = converter.to_connect_header("t", "h", text.encode())
    assert converter.from_connect_header("t", "h", schema, value) == text.encode()


def test_simple_header_converter_decodes_invalid_utf_8_as_bytes() -> None:
    assert SimpleHeaderConverter().to_connect_header("t", "h", b"\xff\xfe") == (BYTES_SCHEMA, b"\xff\xfe")
