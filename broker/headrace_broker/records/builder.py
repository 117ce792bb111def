"""Build record batches from columns, and cut columns into batches of a size.

Two ways to the same bytes. Values that share one timestamp and have neither keys nor headers (lines of a file, JSON
rows) are joined from tables of ready-made prefixes; anything else goes through aiokafka's C builder.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, pairwise

from headrace_broker.records._extensions import load_aiokafka_records
from headrace_broker.records.batch import (
    ATTRIBUTES_OFFSET,
    CRC_OFFSET,
    HEADER,
    HEADER_SIZE,
    MAGIC,
    NO_LEADER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    OVERHEAD_SIZE,
    TRANSACTIONAL_MASK,
    Buffer,
    crc32c,
)
from headrace_broker.records.columns import RecordColumns
from headrace_broker.records.compression import Compression, compress
from headrace_broker.records.varint import encode_varint, size_of_varint

_C_BUILDER_SIZE_MAX = 0x7FFFFFFF
_TABLE_LENGTH_MAX = 1 << 16
_NO_KEY = b"\x01"  # varint -1


class _LengthTable(dict[int, bytes]):
    """length of a value -> bytes that depend on it only; filled as lengths turn up, and bounded."""

    def __init__(self, make: Callable[[int], bytes]) -> None:
        self._make = make

    def __missing__(self, length: int) -> bytes:
        made = self._make(length)
        if length < _TABLE_LENGTH_MAX:
            self[length] = made
        return made


def _head_maker(offset_size: int) -> Callable[[int], bytes]:
    # Record length covers: attributes, timestamp delta 0, offset delta, key length, value length, value, header count.
    def make(length: int) -> bytes:
        return encode_varint(1 + 1 + offset_size + 1 + size_of_varint(length) + length + 1) + b"\0\0"

    return make


_HEADS = {offset_size: _LengthTable(_head_maker(offset_size)) for offset_size in range(1, 6)}
_VALUE_LENGTHS = _LengthTable(encode_varint)
_OFFSET_DELTAS_AND_NO_KEY = [encode_varint(delta) + _NO_KEY for delta in range(1024)]
_OFFSET_SIZE_STEPS = (0, 64, 8192, 1 << 20, 1 << 27, 1 << 31)
"""Offset deltas from one step up to the next take one byte more."""


def build_batch(
    columns: RecordColumns,
    *,
    compression: int = Compression.NONE,
    compression_level: int | None = None,
    base_offset: int = 0,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = -1,
    base_sequence: int = NO_SEQUENCE,
    partition_leader_epoch: int = NO_LEADER_EPOCH,
    is_transactional: bool = False,
) -> bytearray:
    """Return one batch of all the records, at offsets from `base_offset` on (`columns.offsets` is not looked at).

    Raises ValueError for no records, or records without timestamps.
    """
    count = len(columns.values)
    if count == 0:
        raise ValueError("a batch needs at least one record")
    timestamps = columns.timestamps
    if timestamps is None:
        raise ValueError("records need timestamps before they can be built into a batch")
    if isinstance(timestamps, list) and timestamps.count(timestamps[0]) == count:
        timestamps = timestamps[0]
    payload: Buffer
    if isinstance(timestamps, int) and columns.keys is None and columns.headers is None and None not in columns.values:
        base_timestamp = max_timestamp = timestamps
        payload = _join_values(columns.values)  # type: ignore[arg-type]  # no None among them
    else:
        payload = _build_records(columns, columns.timestamp_list())
        base_timestamp = timestamps if isinstance(timestamps, int) else timestamps[0]
        max_timestamp = timestamps if isinstance(timestamps, int) else max(timestamps)
    if compression:
        payload = compress(compression, payload, compression_level)
    return finish_batch(
        payload,
        attributes=compression | (TRANSACTIONAL_MASK if is_transactional else 0),
        records_count=count,
        last_offset_delta=count - 1,
        base_offset=base_offset,
        base_timestamp=base_timestamp,
        max_timestamp=max_timestamp,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        partition_leader_epoch=partition_leader_epoch,
    )


def finish_batch(
    payload: Buffer,
    *,
    attributes: int,
    records_count: int,
    last_offset_delta: int,
    base_offset: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    partition_leader_epoch: int,
) -> bytearray:
    """Return header and encoded records as one batch, checksum included."""
    batch = bytearray(HEADER_SIZE)
    batch += payload
    fields = (
        last_offset_delta,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        records_count,
    )
    length = len(batch) - OVERHEAD_SIZE
    HEADER.pack_into(batch, 0, base_offset, length, partition_leader_epoch, MAGIC, 0, attributes, *fields)
    crc = crc32c(memoryview(batch)[ATTRIBUTES_OFFSET:])
    batch[CRC_OFFSET : CRC_OFFSET + 4] = crc.to_bytes(4, "big")
    return batch


def _join_values(values: Sequence[bytes]) -> bytes:
    """Encode keyless records of one timestamp: five ready pieces per record, one join."""
    count = len(values)
    deltas = _OFFSET_DELTAS_AND_NO_KEY
    if count > len(deltas):
        deltas.extend(encode_varint(delta) + _NO_KEY for delta in range(len(deltas), count))
    lengths = list(map(len, values))
    parts: list[bytes] = [b"\0"] * (5 * count)  # the fifth piece is the header count
    for offset_size, (start, stop) in enumerate(pairwise(_OFFSET_SIZE_STEPS), start=1):
        if start >= count:
            break
        head = _HEADS[offset_size]
        parts[5 * start : 5 * min(stop, count) : 5] = [head[length] for length in lengths[start:stop]]
    parts[1::5] = deltas[:count]
    parts[2::5] = [_VALUE_LENGTHS[length] for length in lengths]
    parts[3::5] = values
    return b"".join(parts)


def _build_records(columns: RecordColumns, timestamps: list[int]) -> memoryview:
    """Encode any records with aiokafka's builder, and take the part behind its header."""
    count = len(columns.values)
    builder = load_aiokafka_records().DefaultRecordBatchBuilder(MAGIC, 0, 0, -1, -1, -1, _C_BUILDER_SIZE_MAX)
    append = builder.append
    keys: Sequence[bytes | None] = columns.keys if columns.keys is not None else [None] * count
    if columns.headers is None:
        no_headers: list[tuple[str, bytes | None]] = []
        for offset, timestamp, key, value in zip(range(count), timestamps, keys, columns.values, strict=True):
            append(offset, timestamp, key, value, no_headers)
    else:
        for offset, timestamp, key, value, headers in zip(
            range(count), timestamps, keys, columns.values, columns.headers, strict=True
        ):
            append(offset, timestamp, key, value, headers)
    return memoryview(builder.build())[HEADER_SIZE:]


def split(columns: RecordColumns, size_bytes_max: int) -> Iterator[RecordColumns]:
    """Yield the columns in runs whose uncompressed batch is at most `size_bytes_max`, but of at least one record."""
    count = len(columns)
    sizes = _record_sizes(columns)
    ends = list(accumulate(sizes))
    start = 0
    done = 0
    while start < count:
        stop = bisect_right(ends, done + size_bytes_max - HEADER_SIZE, lo=start)
        stop = max(stop, start + 1)
        yield columns if stop - start == count else columns.slice(start, stop)
        done = ends[stop - 1]
        start = stop


def _record_sizes(columns: RecordColumns) -> list[int]:
    """Return an upper bound of each record's encoded size, tight to a few bytes."""
    values = columns.values
    sizes = [0 if value is None else len(value) for value in values]
    timestamps = columns.timestamps
    if isinstance(timestamps, list) and timestamps:
        first = timestamps[0]
        spread = max(max(timestamps) - first, first - min(timestamps))
    else:
        spread = 0
    overhead = 2 + size_of_varint(spread) + size_of_varint(len(values)) + size_of_varint(max(sizes, default=0))
    if columns.keys is not None:
        key_sizes = [0 if key is None else len(key) for key in columns.keys]
        overhead += size_of_varint(max(key_sizes, default=0))
        sizes = list(map(int.__add__, sizes, key_sizes))
    else:
        overhead += 1
    if columns.headers is not None:
        sizes = list(map(int.__add__, sizes, map(_headers_size, columns.headers)))
    overhead += size_of_varint(max(sizes, default=0) + overhead)
    return [size + overhead for size in sizes]


def _headers_size(headers: list[tuple[str, bytes | None]]) -> int:
    return sum(len(key.encode()) + len(value or b"") + 10 for key, value in headers) + 4
