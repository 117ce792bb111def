"""Reads the records of an object that existed before its upload, to decide which records need not be written again.

Only checksums of the records stay in memory. A record is skipped only if its checksum is equal, because the object may
belong to a deleted topic of the same name.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from tempfile import SpooledTemporaryFile
from typing import Any
from zlib import crc32

from headrace.api.errors import DataError
from headrace_connectors.common.gzip_reader import GzipReader
from headrace_connectors.s3.readers import Body, Format, LineReader

_BLOCK_BYTES = 256 * 1024
_MEMORY_MAX = 32 * 1024 * 1024
_RECORDS_PER_READ = 10_000


def _always(position: int, record: Sequence[Any]) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class ExistingRecords:
    """The records at the beginning of an existing object."""

    key: str
    count: int
    """The number of records that the object contains for certain, beginning with the first one."""
    matches: Callable[[int, Sequence[Any]], bool] = _always
    """Whether the record at a position in the object is equal to an encoded record, which is a sequence of length 1."""


def read_lines(body: Body, key: str, limit: int) -> ExistingRecords:
    """Read at most `limit` lines of an object with JSON. Raises DataError if the object is damaged."""
    form = Format("bytearray", b"\n", sys.maxsize)
    reader = LineReader(body, form, None, bytes, is_gzip=key.endswith(".gz"))
    found = array("I")
    try:
        while length := reader.prepare(min(_RECORDS_PER_READ, limit - len(found))):
            found.extend(map(crc32, reader.take(length).values))
        reader.raise_error()
    finally:
        reader.close()
    return _with_checksums(key, found, lambda record: crc32(record[0]))


def read_rows(body: Body, key: str, limit: int) -> ExistingRecords:
    """Read at most `limit` rows of a Parquet object. Raises DataError if the object is damaged."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with SpooledTemporaryFile(_MEMORY_MAX, prefix="headrace-s3-") as copy:
        try:
            for block in _blocks(body):
                copy.write(block)
        finally:
            body.close()
        try:
            batches = pq.ParquetFile(copy).iter_batches(min(_RECORDS_PER_READ, limit))
            found = array("I")
            for batch in batches:
                found.extend(_row_checksums(batch))
                if len(found) >= limit:
                    break
        except (pa.ArrowException, OSError, ValueError) as error:
            raise DataError(f"not a Parquet file: {error}") from error
    return _with_checksums(key, found, lambda record: next(iter(_row_checksums(record.batch))))  # type: ignore[attr-defined]


def read_first_value(body: Body, key: str) -> ExistingRecords:
    """Read the beginning of an object of ByteArrayFormat. Its other records are unknown. Raises DataError."""
    try:
        stream = GzipReader(body.read) if key.endswith(".gz") else body
        head = stream.read(_BLOCK_BYTES)
    finally:
        body.close()

    def matches(position: int, record: Sequence[Any]) -> bool:
        return head.startswith(record[0][: len(head)])

    return ExistingRecords(key, 1, matches)


def _with_checksums(key: str, found: array[int], checksum: Callable[[Sequence[Any]], int]) -> ExistingRecords:
    return ExistingRecords(key, len(found), lambda position, record: found[position] == checksum(record))


def _row_checksums(batch: Any) -> Iterable[int]:
    return (crc32(repr(row).encode("utf-8", "surrogatepass")) for row in batch.to_pylist())


def _blocks(body: Body) -> Iterator[bytes]:
    while block := body.read(_BLOCK_BYTES):
        yield block
