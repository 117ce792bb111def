"""Tests of the readers of the S3 source: blocks, damaged data, empty lines, and sizes of records."""

from __future__ import annotations

import gzip
import io
import tracemalloc
import zlib
from collections.abc import Iterator
from typing import Any
from unittest import mock

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.api.errors import DataError
from headrace_connectors.s3 import readers
from headrace_connectors.s3.readers import ItemReader, headers_of, object_format, reader_for
from support.cpu_time import LINEAR_GROWTH_MAX, growth

_opened: list[ItemReader] = []


@pytest.fixture(autouse=True)
def _close_readers() -> Iterator[None]:
    yield
    while _opened:
        _opened.pop().close()


def open_reader(
    data: bytes, name: str, key: str = "a", separator: bytes = b"\n", limit: int = 1 << 26, convert: Any = None
) -> ItemReader:
    reader = reader_for(io.BytesIO(data), key, object_format(name, separator, limit), convert)
    _opened.append(reader)
    return reader


def items_of(reader: ItemReader, count: int = 1000) -> list[Any]:
    """Read `count` items at a time. Return all items up to the end of the object or up to invalid data."""
    found: list[Any] = []
    while length := reader.prepare(count):
        found += reader.take(length).values
    return found


@given(
    pieces=st.lists(st.sampled_from([b"a", b"bc", b"|", b"||", b"\n", b"\xff"]), max_size=20),
    separator=st.sampled_from([b"\n", b"||", b"|\n|"]),
    block=st.integers(1, 6),
    count=st.integers(1, 4),
    done=st.integers(0, 5),
    is_gzip=st.booleans(),
)
def test_reader_returns_the_same_items_for_any_block_size_and_any_number_of_items_per_call(
    pieces: list[bytes], separator: bytes, block: int, count: int, done: int, is_gzip: bool
) -> None:
    data = b"".join(pieces)
    expected = data.split(separator)
    if not expected[-1]:
        expected.pop()
    key = "a.gz" if is_gzip else "a"
    with mock.patch.object(readers, "_BLOCK_BYTES", block):
        reader = open_reader(gzip.compress(data) if is_gzip else data, "bytearray", key, separator)
        assert reader.skip(done) == min(done, len(expected))
        assert items_of(reader, count) == expected[done:]
        assert reader.ends_after(0)


@pytest.mark.parametrize("count", [1, 100, 1000])
def test_json_lines_that_precede_an_invalid_line_of_an_s3_object_are_read(count: int) -> None:
    reader = open_reader(b'{"n":1}\n' * 199 + b"{\n" + b'{"n":2}\n', "json")
    assert items_of(reader, count) == [{"n": 1}] * 199
    assert not reader.ends_after(0)
    with pytest.raises(DataError, match="line 200 is invalid"):
        reader.raise_error()


@pytest.mark.parametrize("count", [10, 50_000])
@pytest.mark.parametrize("damage", ["truncated", "invalid"])
def test_items_before_damaged_gzip_data_are_read(count: int, damage: str) -> None:
    compressor = zlib.compressobj(wbits=31)
    data = compressor.compress(b"".join(b"%d\n" % number for number in range(count)))
    data += compressor.flush(zlib.Z_SYNC_FLUSH) + (b"\xff" * 9 if damage == "invalid" else b"")
    reader = open_reader(data, "json", "a.gz")
    assert items_of(reader) == list(range(count))
    with pytest.raises(DataError, match=f"the compressed data is {damage}"):
        reader.raise_error()


def test_record_headers_that_precede_an_invalid_line_are_read_before_the_error_is_raised() -> None:
    reader = open_reader(b'[{"key":"a","value":"b"}]\n{}\n[]\n', "json", convert=headers_of)
    (headers,) = items_of(reader)
    assert [(each.key, each.value) for each in headers] == [("a", "b")]
    with pytest.raises(DataError, match="headers must be a JSON array"):
        reader.raise_error()


@pytest.mark.parametrize("done", range(4))
def test_empty_lines_and_a_byte_order_mark_in_json_are_ignored(done: int) -> None:
    reader = open_reader(b'\xef\xbb\xbf\n{"n":1}\r\n\r\n  \n{"n":2}\n\n{"n":3}\n\n', "json")
    assert reader.skip(done) == done
    assert items_of(reader, 2) == [{"n": 1}, {"n": 2}, {"n": 3}][done:]


def test_empty_lines_of_text_are_records() -> None:
    assert items_of(open_reader(b"a\n\nb\r\n", "string")) == ["a", "", "b"]


def test_huge_object_without_a_separator_is_read_or_rejected_in_linear_time_and_limited_memory() -> None:
    def read(size: int) -> None:
        assert len(items_of(open_reader(b"x" * size, "string"))[0]) == size

    assert growth(read, 2 << 20) < LINEAR_GROWTH_MAX
    body = open_reader(b"a\n" + b"x" * (48 << 20), "string", limit=1 << 20)
    tracemalloc.start()
    try:
        assert items_of(body) == ["a"]
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    with pytest.raises(DataError, match=r"record 2 has more than record\.max\.bytes=1048576 bytes"):
        body.raise_error()


@pytest.mark.parametrize("invalid", [0, 5, 199])
def test_rows_before_an_invalid_value_of_a_parquet_object_are_read(invalid: int) -> None:
    times = pa.array([86_400_000 if number == invalid else 0 for number in range(200)], pa.int32())
    buffer = io.BytesIO()
    pq.write_table(pa.table({"n": list(range(200)), "time": times.cast(pa.time32("ms"))}), buffer)
    reader = open_reader(buffer.getvalue(), "parquet")
    assert [row[0] for row in items_of(reader)] == list(range(invalid))
    with pytest.raises(DataError, match=rf"cannot read row {invalid + 1} or a row after it: column time"):
        reader.raise_error()


def test_rows_of_a_parquet_object_can_be_skipped() -> None:
    buffer = io.BytesIO()
    pq.write_table(pa.table({"n": list(range(20))}), buffer, row_group_size=6)
    for done in (0, 1, 6, 13, 20, 30):
        reader = open_reader(buffer.getvalue(), "parquet")
        assert reader.skip(done) == min(done, 20)
        assert [row[0] for row in items_of(reader, 4)] == list(range(done, 20))
        assert reader.ends_after(0)
