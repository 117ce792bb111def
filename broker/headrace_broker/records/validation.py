"""Checks every record of a batch: the records' number, their lengths and offset deltas, and the end of the data.

`check_batch` checks a batch whose decompressed records fit into a buffer. It parses the records in C. `check_stream`
reads the records from a stream of decompressed data, so it needs little memory even for a large batch. It is slower,
because it parses the records in Python. If the C parser rejects a batch, `check_batch` checks it again with
`check_stream`. So `check_stream` decides which batches are valid, and its errors name the record at fault.

The leader accepts what Kafka's consumers can read. For example, names of headers need not be valid UTF-8.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from operator import attrgetter, eq

from headrace_broker.records._extensions import load_aiokafka_records
from headrace_broker.records.batch import HEADER_SIZE, BatchHeader, Buffer, CorruptBatchError

RECORDS_WITHOUT_KEYS_MAX = 100
_RECORDS_PER_STEP = 500
_STEP_BYTES = 16 * 1024
_VARINT_BYTES_MAX = 10
_offset_of = attrgetter("offset")
_key_of = attrgetter("key")


def _continue() -> None:
    """The default of `check_batch`: do not pause."""


@dataclass(slots=True)
class RecordsWithoutKeys:
    """The number of records without a key, and the indexes of at most `RECORDS_WITHOUT_KEYS_MAX` of them."""

    count: int = 0
    indexes: list[int] = field(default_factory=list)

    def add(self, index: int) -> None:
        """Add one record."""
        self.count += 1
        if self.count <= RECORDS_WITHOUT_KEYS_MAX:
            self.indexes.append(index)


def check_batch(
    batch: Buffer, header: BatchHeader, *, find_keyless: bool, pause: Callable[[], None] = _continue
) -> RecordsWithoutKeys:
    """Check all records of an uncompressed batch, and return the records without keys if `find_keyless` is set.

    `header` is the header of the original batch, and the header in `batch` has no codec. `pause` is called every few
    hundred records, so that a thread can release the GIL. Raises CorruptBatchError.
    """
    keyless = parse_batch(batch, header, find_keyless=find_keyless, pause=pause)
    if keyless is not None:
        return keyless
    return check_stream(_pieces(memoryview(batch)[HEADER_SIZE:], pause), header)


def parse_batch(
    batch: Buffer, header: BatchHeader, *, find_keyless: bool, pause: Callable[[], None] = _continue
) -> RecordsWithoutKeys | None:
    """Check a batch as `check_batch` does, but only with the C parser. Return None if this parser rejects the batch."""
    try:
        return _parse_all(batch, header, find_keyless, pause)
    except Exception:  # noqa: BLE001  the C parser raises various exceptions, and is stricter than Kafka's consumers
        return None


def _parse_all(
    batch: Buffer, header: BatchHeader, find_keyless: bool, pause: Callable[[], None]
) -> RecordsWithoutKeys | None:
    """Parse all records, and return None if their number or an offset delta is wrong.

    The C parser raises an exception for a record with a wrong length, and for data after the last record.
    """
    keyless = RecordsWithoutKeys()
    records = chain(load_aiokafka_records().DefaultRecordBatch(batch))  # islice would restart the parser itself
    count = 0
    while True:
        step = list(islice(records, _RECORDS_PER_STEP))
        offset = header.base_offset + count
        if not all(map(eq, map(_offset_of, step), range(offset, offset + len(step)))):
            return None
        if find_keyless and None in map(_key_of, step):
            for index, record in enumerate(step, count):
                if record.key is None:
                    keyless.add(index)
        count += len(step)
        if len(step) < _RECORDS_PER_STEP:  # the parser must not be called again after its end
            return keyless if count == header.records_count else None
        pause()


def _pieces(data: memoryview, pause: Callable[[], None]) -> Iterator[memoryview]:
    for start in range(0, len(data), _STEP_BYTES):
        yield data[start : start + _STEP_BYTES]
        pause()


def check_stream(chunks: Iterable[Buffer], header: BatchHeader) -> RecordsWithoutKeys:
    """Check all records in the decompressed data of a batch, and return the records without keys.

    Raises CorruptBatchError, and any exception that `chunks` raises.
    """
    keyless = RecordsWithoutKeys()
    stream = _Stream(chunks)
    index = 0
    try:
        for index in range(header.records_count):
            if stream.is_at_end():
                raise _InvalidRecordError(
                    f"the data ends, but the batch header declares {header.records_count} records"
                )
            if not _check_record(stream, index):
                keyless.add(index)
        index = header.records_count
        if not stream.is_at_end():
            raise _InvalidRecordError(f"the batch header declares only {header.records_count} records")
    except _InvalidRecordError as error:
        raise CorruptBatchError(0, f"record {index}: {error}") from None
    return keyless


def _check_record(stream: _Stream, index: int) -> bool:
    """Read one record, and return whether it has a key."""
    size_bytes = stream.read_varint()
    if size_bytes < 0:
        raise _InvalidRecordError(f"its length is {size_bytes}")
    end = stream.position + size_bytes
    stream.skip(1)  # attributes
    stream.read_varint()  # timestamp delta
    offset_delta = stream.read_varint()
    if offset_delta != index:
        raise _InvalidRecordError(f"its offset delta is {offset_delta}, expected {index}")
    has_key = _skip_bytes(stream)
    _skip_bytes(stream)  # value
    headers_count = stream.read_varint()
    if not 0 <= headers_count <= size_bytes:
        raise _InvalidRecordError(f"it declares {headers_count} headers in {size_bytes} bytes")
    for _ in range(headers_count):
        if not _skip_bytes(stream):
            raise _InvalidRecordError("a header has no name")
        _skip_bytes(stream)
    if stream.position != end:
        raise _InvalidRecordError(f"its length is {size_bytes}, but its fields have {stream.position - end:+d} bytes")
    return has_key


def _skip_bytes(stream: _Stream) -> bool:
    """Skip a nullable byte array with its length, and return whether it is not null."""
    size_bytes = stream.read_varint()
    if size_bytes > 0:
        stream.skip(size_bytes)
    return size_bytes >= 0


class _InvalidRecordError(Exception):
    """A record is invalid."""


class _Stream:
    """Reads varints from consecutive chunks of data. `position` is the number of bytes before the next byte."""

    def __init__(self, chunks: Iterable[Buffer]) -> None:
        self._chunks = iter(chunks)
        self._chunk: Buffer = b""
        self._next = 0
        self._chunk_start = 0

    @property
    def position(self) -> int:
        return self._chunk_start + self._next

    def is_at_end(self) -> bool:
        """Return whether no byte is left."""
        while self._next >= len(self._chunk):
            self._chunk_start += len(self._chunk)
            self._next -= len(self._chunk)
            following = next(self._chunks, None)
            if following is None:
                self._chunk = b""
                return True
            self._chunk = following
        return False

    def skip(self, size_bytes: int) -> None:
        """Skip `size_bytes` bytes, at least one."""
        self._next += size_bytes - 1
        if self._next >= len(self._chunk) and self.is_at_end():
            raise _InvalidRecordError("the data ends inside the record")
        self._next += 1

    def read_varint(self) -> int:
        """Read a zig-zag varint of at most ten bytes."""
        position = self._next
        chunk = self._chunk
        if position < len(chunk) and chunk[position] < 0x80:
            self._next = position + 1
            return (chunk[position] >> 1) ^ -(chunk[position] & 1)
        raw = 0
        for shift in range(0, 7 * _VARINT_BYTES_MAX, 7):
            if self._next >= len(self._chunk) and self.is_at_end():
                raise _InvalidRecordError("the data ends inside the record")
            byte = self._chunk[self._next]
            self._next += 1
            raw |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (raw >> 1) ^ -(raw & 1)
        raise _InvalidRecordError("a varint has more than ten bytes")
