"""Tests that the JSON of the internal topics has the bytes that Kafka Connect 4.3.1 writes."""

from __future__ import annotations

import json
import math

import pytest

from headrace.stores.connect_json import encode


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ('\x1b \x01 \x7f / " \\ \n\t\b\f\r', r'"\u001B \u0001 ' + '\x7f / \\" \\\\ \\n\\t\\b\\f\\r"'),
        ("é 名 \u2028", '"é 名 \u2028"'),
        ("\U0001f600", r'"\uD83D\uDE00"'),
        ("\ud800 \U0001f600 \x1b", r'"\uD800 \uD83D\uDE00 \u001B"'),
        (1e10, "1.0E10"),
        (1e-7, "1.0E-7"),
        (123456789.123, "1.23456789123E8"),
        (0.1, "0.1"),
        (-0.0, "-0.0"),
        (math.nan, '"NaN"'),
        (2**63 - 1, "9223372036854775807"),
        (["c", {"b": True, "a": None}], '["c",{"b":true,"a":null}]'),
    ],
)
def test_encoded_json_value_equals_the_bytes_of_kafka_connect(value: object, expected: str) -> None:
    assert encode(value) == expected.encode()


def test_integer_of_more_than_64_bits_is_encoded_with_all_digits() -> None:
    assert json.loads(encode({"position": 2**70})) == {"position": 2**70}
