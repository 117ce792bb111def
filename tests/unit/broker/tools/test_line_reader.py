"""Tests of the console producer's line reader, which parses lines like Kafka's LineMessageReader."""

from __future__ import annotations

import pytest

from headrace_broker.tools.line_reader import LineReader, LineSplitter
from headrace_broker.tools.tool_error import ToolError


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
@pytest.mark.parametrize(
    ("data", "lines"),
    [
        (b"a\nb\n", [b"a", b"b"]),
        (b"a\r\nb\r\n\r\nc", [b"a", b"b", b"", b"c"]),
        (b"a\rb\r", [b"a", b"b"]),
        (b"\n\n", [b"", b""]),
        (b"no end", [b"no end"]),
        (b"", []),
        (b"v\x0bt\x1c\xe2\x80\xa8\x85\n", [b"v\x0bt\x1c\xe2\x80\xa8\x85"]),
    ],
)
def test_console_producer_splits_input_into_the_same_lines_for_any_chunk_size(
    data: bytes, lines: list[bytes], size: int
) -> None:
    splitter = LineSplitter()
    found: list[bytes] = []
    for start in range(0, len(data), size):
        found += splitter.feed(data[start : start + size])
    assert found + splitter.finish() == lines


def test_console_producer_reads_each_line_as_a_value_by_default() -> None:
    reader = LineReader({})
    columns, error = reader.read([b"a\tb", b"", b"\xff"])
    assert (columns.values, columns.keys, columns.headers, error) == ([b"a\tb", b"", b"\xff"], None, None, None)
    assert reader.line_number == 3


def test_console_producer_parses_keys_headers_and_null_markers_with_the_configured_separators() -> None:
    reader = LineReader(
        {"parse.key": "TRUE", "parse.headers": "true", "key.separator": "=>", "null.marker": "NULL"},
    )
    columns, error = reader.read([b"h1:v1,h2:NULL,h2:\tk=>v=>w", b"NULL\tNULL=>NULL", b"\xc3\xa9:1\t=>"])
    assert error is None
    assert columns.headers == [[("h1", b"v1"), ("h2", None), ("h2", b"")], [], [("é", b"1")]]
    assert columns.keys == [b"k", None, b""]
    assert columns.values == [b"v=>w", None, b""]


def test_console_producer_reads_a_line_equal_to_the_null_marker_as_a_null_value() -> None:
    assert LineReader({"null.marker": "-"}).read([b"-", b"--"])[0].values == [None, b"--"]


def test_console_producer_returns_the_records_before_an_invalid_line_together_with_the_error() -> None:
    reader = LineReader({"parse.key": "true"})
    reader.read([b"k\tv"])
    columns, error = reader.read([b"a\tb", b"no separator", b"c\td"])
    assert (columns.keys, columns.values) == ([b"a"], [b"b"])
    assert str(error) == "No key separator found on line number 3: 'no separator'"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"nothing", "No headers delimiter found on line number 1: 'nothing'"),
        (b"h\tk\tv", "No header key separator found in pair 'h' on line number 1"),
        (b"N:v\tk\tv", "Header keys should not be equal to the null marker 'N' as they can't be null"),
    ],
)
def test_console_producer_reports_invalid_headers_with_the_reason(line: bytes, message: str) -> None:
    reader = LineReader({"parse.key": "true", "parse.headers": "true", "null.marker": "N"})
    columns, error = reader.read([line])
    assert (len(columns), str(error)) == (0, message)


def test_console_producer_accepts_lines_without_key_separator_if_ignore_error_is_set() -> None:
    reader = LineReader({"parse.key": "true", "parse.headers": "true", "ignore.error": "true"})
    columns, error = reader.read([b"value", b"h\tkey\tvalue"])
    assert error is None
    assert columns.keys == [None, b"key"]
    assert columns.values == [b"value", b"value"]
    assert columns.headers == [[], [("h", None)]]


@pytest.mark.parametrize(
    "properties",
    [
        {"headers.delimiter": ","},
        {"headers.key.separator": ","},
        {"null.marker": "\t"},
        {"key.separator": ""},
        {"headers.separator": "("},
    ],
)
def test_console_producer_rejects_equal_or_empty_separators(properties: dict[str, str]) -> None:
    with pytest.raises(ToolError, match=next(iter(properties))):
        LineReader(properties)
