"""Tests that numbers are formatted and cast as in Java, and that HashMap keys have the same order as in Java.

The test vectors were generated with Java 17. JDK 19 fixed Double.toString and Float.toString. If JDK 17 and JDK 19
return different texts, the vector contains the text of JDK 19, and a comment shows the text of JDK 17.
"""

from __future__ import annotations

import math

import pytest

from headrace.data.java import (
    double_text,
    float32,
    float_text,
    float_to_integer,
    hash_map_copy_order,
    hash_map_order,
    parse_double,
    parse_float,
    parse_integer,
    string_hash,
    wrap,
)

DOUBLES = {
    1.0e10: "1.0E10",
    1.0e-7: "1.0E-7",
    123456789.123: "1.23456789123E8",
    0.001: "0.001",
    9.99e-4: "9.99E-4",
    9999999.0: "9999999.0",
    1.0e7: "1.0E7",
    -1.0e7: "-1.0E7",
    0.1: "0.1",
    1e21: "1.0E21",
    1e22: "1.0E22",
    5e-324: "4.9E-324",
    1.7976931348623157e308: "1.7976931348623157E308",
    2.2250738585072014e-308: "2.2250738585072014E-308",
    100.0: "100.0",
    1234567.125: "1234567.125",
    -0.0: "-0.0",
    5e-5: "5.0E-5",
    3.0e-310: "3.0E-310",
    math.inf: "Infinity",
    -math.inf: "-Infinity",
    2e23: "2.0E23",  # JDK 17: 1.9999999999999998E23
    1e23: "1.0E23",  # JDK 17: 9.999999999999999E22
    1e-323: "9.9E-324",  # JDK 17: 1.0E-323
}

FLOATS = {
    0.1: "0.1",
    1.0e10: "1.0E10",
    1e-7: "1.0E-7",
    16777216.0: "1.6777216E7",
    3.4028235e38: "3.4028235E38",
    1.4e-45: "1.4E-45",
    33554432.0: "3.3554432E7",
    1.1: "1.1",
    123456.789: "123456.79",
    9999999.0: "9999999.0",
    1.0e7: "1.0E7",
    0.001: "0.001",
    9.99e-4: "9.99E-4",
    3.3e-44: "3.4E-44",
    2.0e-3: "0.002",
    -0.0: "-0.0",
    1e39: "Infinity",
    8589934592.0: "8.589935E9",  # JDK 17: 8.5899346E9
    1.17549435e-38: "1.1754944E-38",  # JDK 17: 1.17549435E-38
}


@pytest.mark.parametrize(("value", "text"), DOUBLES.items())
def test_double_is_formatted_as_in_java(value: float, text: str) -> None:
    assert double_text(value) == text


@pytest.mark.parametrize(("value", "text"), FLOATS.items())
def test_float_is_formatted_as_in_java(value: float, text: str) -> None:
    assert float_text(value) == text


def test_nan_is_formatted_as_in_java() -> None:
    assert double_text(math.nan) == "NaN"
    assert float_text(math.nan) == "NaN"


# The results of Java's casts of each value to byte, short, int and long.
CASTS = {
    1.0e30: (-1, -1, 2147483647, 9223372036854775807),
    -1.0e30: (0, 0, -2147483648, -9223372036854775808),
    math.nan: (0, 0, 0, 0),
    math.inf: (-1, -1, 2147483647, 9223372036854775807),
    300.7: (44, 300, 300, 300),
    -129.9: (127, -129, -129, -129),
    3.0e9: (-1, -1, 2147483647, 3000000000),
    -3.0e9: (0, 0, -2147483648, -3000000000),
    40000.5: (64, -25536, 40000, 40000),
    1.0e19: (-1, -1, 2147483647, 9223372036854775807),
    2147483648.0: (-1, -1, 2147483647, 2147483648),
}


@pytest.mark.parametrize(("value", "casts"), CASTS.items())
def test_float_to_integer_cast_clamps_and_narrows_as_in_java(value: float, casts: tuple[int, ...]) -> None:
    assert tuple(float_to_integer(value, bits) for bits in (8, 16, 32, 64)) == casts


def test_function_wrap_returns_the_lowest_bits_of_an_integer_as_a_signed_number() -> None:
    assert [wrap(3000000000, bits) for bits in (8, 16, 32)] == [0, 24064, -1294967296]
    assert [wrap(-1, bits) for bits in (8, 16, 32, 64)] == [-1] * 4
    assert wrap(2**63, 64) == -(2**63)


def test_float32_rounds_to_nearest_and_overflows_to_infinity() -> None:
    assert float32(0.1) == 0.10000000149011612
    assert float32(-1e39) == -math.inf


def test_string_hash_equals_java_hash_code() -> None:
    assert string_hash("") == 0
    assert string_hash("Aa") == string_hash("BB") == 2112
    assert string_hash("polygenelubricants") == -(2**31)
    assert string_hash("名前") == 688096
    assert string_hash("\U0001f600x") == 54959989


# The keys in insertion order, and in the iteration order of Java's HashMap.
WALKS = [
    (["line", "data_source"], ["line", "data_source"]),
    (["data_source", "line"], ["line", "data_source"]),
    (["timestamp", "timestamp_nanos", "incrementing"], ["timestamp_nanos", "incrementing", "timestamp"]),
    (["table", "protocol"], ["protocol", "table"]),
    (["kafka_topic", "kafka_partition"], ["kafka_partition", "kafka_topic"]),
    # 13 keys need 32 buckets. Keys in the same bucket, such as Aa and BB, keep their insertion order.
    (["line", "data_source", "id", "名前", "timestamp_nanos", "incrementing", "timestamp", "kafka_topic",
      "kafka_partition", "Aa", "BB", "protocol", "table"],
     ["Aa", "BB", "kafka_partition", "line", "名前", "kafka_topic", "data_source", "incrementing",
      "timestamp_nanos", "protocol", "id", "table", "timestamp"]),
]  # fmt: skip


@pytest.mark.parametrize(("inserted", "iterated"), WALKS)
def test_hash_map_order_equals_java_iteration_order(inserted: list[str], iterated: list[str]) -> None:
    assert hash_map_order(inserted) == tuple(iterated)


# Keys in insertion order, and the iteration order of Java's `copy = new HashMap<>(map)` after `copy.put("task.class")`.
COPIES = [
    (["key.1pbz", "key.12ng"], ["task.class", "key.12ng", "key.1pbz"]),  # 4 buckets
    (["key.ptu", "key.1hkg", "key.b6y", "key.dl1", "key.1vse"],
     ["key.ptu", "key.dl1", "key.1vse", "task.class", "key.b6y", "key.1hkg"]),  # 8 buckets
]  # fmt: skip


@pytest.mark.parametrize(("inserted", "iterated"), COPIES)
def test_order_of_a_copied_hash_map_equals_java_iteration_order(inserted: list[str], iterated: list[str]) -> None:
    assert hash_map_copy_order(hash_map_order(inserted), ["task.class"]) == tuple(iterated)


def test_numbers_are_parsed_as_in_java() -> None:
    assert [parse_integer(text) for text in ("+5", "-007", "\u0663", "\uff15")] == [5, -7, 3, 5]
    assert [parse_integer(text) for text in ("", "1_0", " 5", "5.0", "\U0001d7d8")] == [None] * 5
    assert [parse_double(text) for text in (" 1.5f", ".5", "5.", "0x1p3", "-0x.8P1d")] == [1.5, 0.5, 5.0, 8.0, -1.0]
    assert [parse_double(text) for text in ("0x1p99999", "-0x1p99999", "1e999")] == [math.inf, -math.inf, math.inf]
    assert [parse_double(text) for text in ("", "0x1", "1_0", "\u0663", "\u00a05", "nan", "1ff")] == [None] * 7


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0.1", 0.10000000149011612),
        ("1.00000005960464477539062", 1.0),
        ("1.00000005960464477539063", 1.0000001192092896),
        ("1.00000017881393432617187", 1.0000001192092896),
        ("1.00000017881393432617188", 1.0000002384185791),
        ("3.4028236e38", math.inf),
        ("NaN5", None),
    ],
)
def test_text_is_rounded_once_to_a_32_bit_float(text: str, expected: float | None) -> None:
    assert parse_float(text) == expected
