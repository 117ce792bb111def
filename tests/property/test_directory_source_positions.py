"""Tests that the directory source returns the same records for any block size, batch size and restart position."""

from __future__ import annotations

import csv
import gzip
import io
import os
from typing import Any
from unittest import mock

from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace_connectors.file import record_lines
from headrace_connectors.file.directory_source_config import DirectorySourceConfig
from headrace_connectors.file.file_formats import BadRecordError, RecordReader, text_reader
from headrace_connectors.file.record_lines import RecordLines
from support.examples import examples

FIELD = st.text(st.sampled_from("a\u00e9\"',\r\n \u4e2d"), max_size=6)
ROWS = st.lists(st.tuples(FIELD, FIELD.filter(bool)), max_size=12)


def open_reader(data: bytes, form: str, is_gzip: bool, position: int, line: int) -> tuple[RecordReader, int]:
    descriptor = os.memfd_create("data")
    os.write(descriptor, gzip.compress(data) if is_gzip else data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    props = {"directory": "d", "topic": "t", "format": form, "record.max.bytes": "60"}
    lines = RecordLines(descriptor, is_gzip=is_gzip, limit=60)
    reader = text_reader(lines, DirectorySourceConfig.parse(props))
    if position > lines.position:
        assert lines.skip_to(position, line)
    return reader, descriptor


def read_with_restarts(data: bytes, form: str, is_gzip: bool, counts: list[int]) -> list[Any]:
    """Read all records and errors. After each batch, open the file again at the position where the batch ended.

    `form` is the value of the configuration key `format`. `counts` lists the maximum number of records in each of the
    first batches.
    """
    found: list[Any] = []
    position = line = 0
    for count in [*counts, *[1000] * 100]:
        reader, descriptor = open_reader(data, form, is_gzip, position, line)
        try:
            batch = reader.read(count)
            found += batch if isinstance(batch, list) else batch.items()
        except BadRecordError as error:
            found.append((error.line, str(error)))
        finally:
            os.close(descriptor)
        position, line = reader.position, reader.line
        if reader.is_at_end:
            break
    return found


@settings(deadline=None, max_examples=examples(150))
@given(rows=ROWS, is_gzip=st.booleans(), counts=st.lists(st.integers(1, 4), max_size=15), block=st.integers(1, 40))
def test_rows_of_a_valid_csv_file_equal_the_rows_that_were_written_to_it(
    rows: list[tuple[str, str]], is_gzip: bool, counts: list[int], block: int
) -> None:
    text = io.StringIO(newline="")
    csv.writer(text).writerows([("first", "second"), *rows])
    with mock.patch.object(record_lines, "BLOCK_BYTES", block):
        assert read_with_restarts(text.getvalue().encode(), "csv", is_gzip, counts) == rows


@settings(deadline=None, max_examples=examples(200))
@given(
    pieces=st.lists(st.sampled_from([b"a", b"1", b"\n", b"\r\n", b",", b'"', b"\xff", b"{", b"}", b" ", b"x" * 61])),
    form=st.sampled_from(["csv", "json", "lines"]),
    counts=st.lists(st.integers(1, 4), max_size=15),
    block=st.integers(1, 40),
)
@example(pieces=[b"\n", b'"', b'"', b'"', b'"', b"\n"], form="json", counts=[], block=1)
def test_records_and_errors_of_any_file_depend_neither_on_the_block_size_nor_on_restarts(
    pieces: list[bytes], form: str, counts: list[int], block: int
) -> None:
    data = b"h,i\n" + b"".join(pieces)
    expected = read_with_restarts(data, form, False, [])
    with mock.patch.object(record_lines, "BLOCK_BYTES", block):
        assert read_with_restarts(data, form, False, counts) == expected
        assert read_with_restarts(data, form, True, counts) == expected
