"""Builds record batches from columns, and splits columns by batch size.

Two encoders build the same bytes. If all records have the same timestamp and the same headers, and no record has a key,
the module joins the values with prefixes from precomputed tables. Otherwise aiokafka's C builder encodes the records.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise
from operator import itemgetter

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
    BatchHeader,
    Buffer,
    crc32c,
)
from headrace_broker.records.columns import RecordColumns, RecordHeaders
from headrace_broker.records.compression import Compression, compress
from headrace_broker.records.varint import encode_varint, size_of_varint

_C_BUILDER_SIZE_MAX = 0x7FFFFFFF
_NO_KEY = b"\x01"  # varint -1
_NO_HEADERS = b"\0"  # the number of headers
_KEPT_FIELDS = tuple(name for name in BatchHeader.__slots__ if name not in ("batch_length", "crc", "magic"))


_Getter = Callable[[dict[int, bytes]], Sequence[bytes]]


def _make_getter(lengths: list[int]) -> _Getter:
    """Return a function that looks up all of these lengths in a dictionary."""
    return itemgetter(*lengths) if len(lengths) > 1 else lambda prefixes: (prefixes[lengths[0]],)


class _PrefixTable:
    """A bounded cache that maps a value's length to the encoded bytes that precede the value in a record."""

    LENGTHS_MAX = 1 << 16

    def __init__(self, encode: Callable[[int], bytes]) -> None:
        self._encode = encode
        self._prefixes: dict[int, bytes] = {}

    def get_all(self, lengths: list[int], getter: _Getter) -> Sequence[bytes]:
        """Return the bytes for each length. `getter` is the result of `_make_getter(lengths)`."""
        prefixes = self._prefixes
        try:
            return getter(prefixes)
        except KeyError:
            if len(prefixes) > self.LENGTHS_MAX:
                prefixes = self._prefixes = {}  # another thread may be using the full cache
            prefixes.update((length, self._encode(length)) for length in set(lengths) - prefixes.keys())
            return getter(prefixes)


class _EncodingTables:
    """Tables of the encoded bytes that precede a value in a batch. `_join_values` looks up these bytes by value length.

    `affix_bytes` is the total size of `RecordColumns.before` and `RecordColumns.after`, which surround each value.
    `headers_bytes` is the size of each record's header count and headers.

    Each entry of `record_starts` begins with `previous_end`, the last bytes of the previous record. These are the same
    for all records: `RecordColumns.after` and the header count 0. Each entry of `value_lengths` ends with
    `before_value`, the bytes between the encoded value length and the value: `RecordColumns.before`. `before_value` and
    `previous_end` are both empty if the records have headers, or if `_are_in_tables` returns False.
    """

    def __init__(self, affix_bytes: int, headers_bytes: int, before_value: bytes, previous_end: bytes) -> None:
        self.record_starts = [
            _PrefixTable(self._record_start_encoder(size, affix_bytes, headers_bytes, previous_end))
            for size in range(1, 6)
        ]
        """Indexed by the size of the offset delta in bytes, minus 1."""
        self.value_lengths = _PrefixTable(lambda length: encode_varint(length + affix_bytes) + before_value)

    @staticmethod
    def _record_start_encoder(
        offset_size: int, affix_bytes: int, headers_bytes: int, previous_end: bytes
    ) -> Callable[[int], bytes]:
        # Encode the end of the previous record, then this record's length, attributes (0) and timestamp delta (0). The
        # record's length is the size of its attributes, timestamp delta, offset delta, key length, value length, value
        # and headers.
        def encode(length: int) -> bytes:
            length += affix_bytes
            record_bytes = 1 + 1 + offset_size + 1 + size_of_varint(length) + length + headers_bytes
            return previous_end + encode_varint(record_bytes) + b"\0\0"

        return encode


class _OffsetDeltas:
    """A list of the encoded offset deltas, each followed by the length of a null key. The index is the offset delta.

    Several threads may use the list, so it is replaced by a longer list, and never changed.
    """

    def __init__(self) -> None:
        self._encoded = self._encode(0, 1024)

    def get(self, count: int) -> list[bytes]:
        """Return a list of at least `count` encoded offset deltas."""
        encoded = self._encoded
        if count > len(encoded):
            self._encoded = encoded = encoded + self._encode(len(encoded), count)
        return encoded

    @staticmethod
    def _encode(start: int, stop: int) -> list[bytes]:
        return [encode_varint(delta) + _NO_KEY for delta in range(start, stop)]


_offset_deltas = _OffsetDeltas()
_tables = lru_cache(maxsize=16)(_EncodingTables)


@lru_cache(maxsize=64)
def _uses(before: bytes, after: bytes) -> list[None]:
    """Return the counter of the batches in which all values have the prefix `before` and the suffix `after`.

    The counter is a cached list, and its length is the count. `_are_in_tables` appends one element for each batch, up
    to `_USES_BEFORE_TABLES` elements.
    """
    return []


_OFFSET_SIZE_STEPS = (0, 64, 8192, 1 << 20, 1 << 27, 1 << 31)
"""The offset deltas at which the encoded offset delta becomes one byte longer."""
_USES_BEFORE_TABLES = 20
"""The number of batches after which a prefix and suffix become parts of the tables, because new tables take time."""
_AFFIXES_IN_TABLES_MAX = 128
"""A table has an entry for each length of a value, so longer bytes would use too much memory and CPU cache."""
_BLANK_HEADER = bytes(HEADER_SIZE)


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
    checksum: bool = True,
) -> bytearray:
    """Return one batch of all records, with offsets from `base_offset` on (`columns.offsets` is ignored).

    With `checksum=False` this function does not set the CRC. The caller first sets the producer id, epoch and sequence,
    and then the CRC. Raises ValueError if `columns` contains no records or no timestamps.
    """
    count = len(columns.values)
    if count == 0:
        raise ValueError("a batch needs at least one record")
    timestamps = columns.timestamps
    if timestamps is None:
        raise ValueError("a batch cannot be built from records without timestamps")
    if isinstance(timestamps, list) and timestamps.count(timestamps[0]) == count:
        timestamps = timestamps[0]
    headers = columns.shared_headers()
    has_only_values = (
        columns.keys is None and (columns.headers is None or headers is not None) and not columns.has_null_values()
    )
    if has_only_values and isinstance(timestamps, int):
        batch = _join_values(columns, _encode_headers(headers) if headers else _NO_HEADERS)
    else:
        batch = _build_records(columns, columns.timestamp_list())
    if compression:
        batch = bytearray(_BLANK_HEADER + compress(compression, memoryview(batch)[HEADER_SIZE:], compression_level))
    _write_header(
        batch,
        attributes=compression | (TRANSACTIONAL_MASK if is_transactional else 0),
        records_count=count,
        last_offset_delta=count - 1,
        base_offset=base_offset,
        base_timestamp=timestamps if isinstance(timestamps, int) else timestamps[0],
        max_timestamp=timestamps if isinstance(timestamps, int) else max(timestamps),
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=base_sequence,
        partition_leader_epoch=partition_leader_epoch,
    )
    if checksum:
        _write_crc(batch)
    return batch


def finish_batch(payload: Buffer, **fields: int) -> bytearray:
    """Return a batch of encoded records, including the CRC. `fields` are the arguments of `_write_header`."""
    batch = bytearray(_BLANK_HEADER)
    batch += payload
    _write_header(batch, **fields)
    _write_crc(batch)
    return batch


def replace_records(header: BatchHeader, payload: Buffer, **changes: int) -> bytearray:
    """Return a batch of the encoded records in `payload`, with a copy of the fields of `header`.

    `changes` contains the fields whose values must differ from `header`.
    """
    return finish_batch(payload, **{name: getattr(header, name) for name in _KEPT_FIELDS} | changes)


def _write_header(
    batch: bytearray,
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
) -> None:
    """Write the header into the start of `batch`, without the CRC."""
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


def _write_crc(batch: bytearray) -> None:
    """Compute the CRC and write it into the header."""
    crc = crc32c(memoryview(batch)[ATTRIBUTES_OFFSET:])
    batch[CRC_OFFSET : CRC_OFFSET + 4] = crc.to_bytes(4, "big")


def _encode_headers(headers: RecordHeaders) -> bytes:
    """Encode the header count and the headers, which are the last part of an encoded record."""
    parts = [encode_varint(len(headers))]
    for name, value in headers:
        key = name.encode()
        parts += (encode_varint(len(key)), key)
        parts += (encode_varint(-1),) if value is None else (encode_varint(len(value)), value)
    return b"".join(parts)


def _join_values(columns: RecordColumns, headers: bytes) -> bytearray:
    """Return a blank batch header followed by the encoded records.

    No record may have a key. All records must have the same timestamp and the same headers. `headers` contains the
    encoded count of these headers, followed by the encoded headers.
    """
    before, after, lengths = columns.before, columns.after, columns.value_lengths()
    count, affix_bytes, end = len(lengths), len(before) + len(after), after + headers
    # A record consists of its start, the offset delta and key, the value length, and the value. Short bytes before and
    # after the value are parts of the value length and of the next record's start, because few parts are joined faster.
    # RecordHeaders are not, because each batch may have different headers and would need tables of its own.
    record: list[bytes | None] = [b"", b"", b"", b""]
    if headers == _NO_HEADERS and _are_in_tables(before, after):
        tables = _tables(affix_bytes, len(headers), before, end)
    else:
        tables = _tables(affix_bytes, len(headers), b"", b"")
        record, end = [b"", b"", b"", before, b"", end], b""
    width = len(record)
    parts = record * count
    for record_starts, (start, stop) in zip(tables.record_starts, pairwise(_OFFSET_SIZE_STEPS), strict=True):
        if start >= count:
            break
        range_lengths = lengths[start:stop]
        getter = _make_getter(range_lengths)
        parts[width * start : width * stop : width] = record_starts.get_all(range_lengths, getter)
        parts[width * start + 2 : width * stop : width] = tables.value_lengths.get_all(range_lengths, getter)
    first: bytes = parts[0]  # type: ignore[assignment]  # all are bytes
    parts[0] = _BLANK_HEADER + first[len(end) :]
    parts[1::width] = _offset_deltas.get(count)[:count]
    parts[width // 2 + 1 :: width] = columns.values
    parts.append(end)
    return bytearray().join(parts)  # type: ignore[arg-type]


def _are_in_tables(before: bytes, after: bytes) -> bool:
    """Return whether to use tables that contain `before` and `after`, the bytes around the value of each record.

    This is worth the cost of new tables if the bytes are short and many batches have the same bytes. Therefore, the
    first batches (`_USES_BEFORE_TABLES`) with the same bytes use tables without them. The bytes differ in each batch,
    for example, if a transform adds a timestamp.
    """
    if not before and not after:
        return True
    if len(before) + len(after) > _AFFIXES_IN_TABLES_MAX:
        return False
    uses = _uses(before, after)
    if len(uses) < _USES_BEFORE_TABLES:
        uses.append(None)
        return False
    return True


def _build_records(columns: RecordColumns, timestamps: list[int]) -> bytearray:
    """Encode records with aiokafka's C builder. The caller overwrites the header that the builder has written."""
    values = columns.whole_values()
    count = len(values)
    builder = load_aiokafka_records().DefaultRecordBatchBuilder(MAGIC, 0, 0, -1, -1, -1, _C_BUILDER_SIZE_MAX)
    append = builder.append
    keys: Sequence[bytes | None] = columns.keys if columns.keys is not None else [None] * count
    if columns.headers is None:
        no_headers: list[tuple[str, bytes | None]] = []
        for offset, timestamp, key, value in zip(range(count), timestamps, keys, values, strict=True):
            append(offset, timestamp, key, value, no_headers)
    else:
        for offset, timestamp, key, value, headers in zip(
            range(count), timestamps, keys, values, columns.headers, strict=True
        ):
            append(offset, timestamp, key, value, headers)
    built: bytearray = builder.build()
    return built


def split(columns: RecordColumns, size_bytes_max: int) -> Iterator[RecordColumns]:
    """Split the records into groups for batches of at most `size_bytes_max`. A larger record forms its own group."""
    count = len(columns)
    ends = list(accumulate(_record_sizes(columns)))
    start = 0
    yielded_bytes = 0
    while start < count:
        stop = bisect_right(ends, yielded_bytes + size_bytes_max - HEADER_SIZE, lo=start)
        stop = max(stop, start + 1)
        yield columns if stop - start == count else columns.slice(start, stop)
        yielded_bytes = ends[stop - 1]
        start = stop


def _record_sizes(columns: RecordColumns) -> Iterable[int]:
    """Return an upper bound of each record's encoded size, at most a few bytes too large."""
    sizes, affix_bytes = columns.value_lengths(), len(columns.before) + len(columns.after)
    timestamps = columns.timestamps
    if isinstance(timestamps, list) and timestamps:
        first = timestamps[0]
        spread = max(max(timestamps) - first, first - min(timestamps))
    else:
        spread = 0
    value_length_size = size_of_varint(max(sizes, default=0) + affix_bytes)
    overhead = 2 + size_of_varint(spread) + size_of_varint(len(sizes)) + value_length_size
    overhead += affix_bytes
    if columns.keys is not None:
        key_sizes = _lengths(columns.keys)
        overhead += size_of_varint(max(key_sizes, default=0))
        sizes = list(map(int.__add__, sizes, key_sizes))
    else:
        overhead += 1
    if columns.headers is not None:
        shared = columns.shared_headers()
        if shared is not None:
            overhead += _headers_size(shared)
        else:
            sizes = list(map(int.__add__, sizes, map(_headers_size, columns.headers)))
    overhead += size_of_varint(max(sizes, default=0) + overhead)
    return map(overhead.__add__, sizes)


def _lengths(values: list[bytes | None]) -> list[int]:
    try:
        return list(map(len, values))  # type: ignore[arg-type]  # len(None) raises TypeError
    except TypeError:
        return [0 if value is None else len(value) for value in values]


def _headers_size(headers: list[tuple[str, bytes | None]]) -> int:
    return sum(len(key.encode()) + len(value or b"") + 10 for key, value in headers) + 4
