"""Determines what compaction retains of a batch: the whole batch, some records, only the header, or nothing.

Compaction never changes offsets. If it removes records from a batch, the batch keeps its base offset, last offset and
sequence numbers.

The delete horizon (KIP-534) of a batch is the time after which compaction may remove the tombstones or the transaction
marker in the batch. The first cleaning that processes the batch sets the delete horizon: it stores this time as the
base timestamp of the batch and sets attribute bit 6. For a transaction marker, the first cleaning that finds no
remaining records of the transaction sets the delete horizon.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from headrace_broker.log.compaction.job import LastRecord
from headrace_broker.log.compaction.offset_map import OffsetMap
from headrace_broker.log.compaction.transactions import TransactionTracker
from headrace_broker.records.batch import (
    COMPRESSION_MASK,
    DELETE_HORIZON_MASK,
    HEADER_SIZE,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    CorruptBatchError,
)
from headrace_broker.records.builder import replace_records
from headrace_broker.records.columns import RecordColumns
from headrace_broker.records.compression import DECOMPRESSED_SIZE_BYTES_MAX, compress
from headrace_broker.records.reader import decompress_batch, read_batch
from headrace_broker.records.varint import decode_varint, encode_varint


class BatchFilter:
    """Applies compaction to the batches of a log, one batch at a time, in the order of their offsets."""

    def __init__(
        self,
        offset_map: OffsetMap,
        transactions: TransactionTracker,
        *,
        map_end_offset: int,
        now_ms: int,
        delete_retention_ms: int,
        high_watermark: int,
        last_records: Iterable[LastRecord] = (),
    ) -> None:
        """`offset_map` contains the newest offset of each key in the dirty records before `map_end_offset`.

        All records at or after `map_end_offset` are retained.
        """
        self._offset_map = offset_map
        self._transactions = transactions
        self._map_end_offset = map_end_offset
        self._now_ms = now_ms
        self._delete_retention_ms = delete_retention_ms
        self._high_watermark = high_watermark
        self.segment_end = -1
        """End offset of the new segment. The last batch of this segment is retained, at least as an empty batch."""
        self._last_records = {record.producer_id: record for record in last_records}
        self.records_before = 0
        self.records_after = 0

    def filter_batch(self, header: BatchHeader, batch: memoryview) -> Buffer | None:
        """Return the batch to write, or None if compaction removes the whole batch. Raises CorruptBatchError."""
        self.records_before += header.records_count
        is_discardable = self._transactions.process_batch(header, batch)
        horizon_ms = header.base_timestamp if header.has_delete_horizon else None
        if is_discardable and (not header.is_control or (horizon_ms is not None and horizon_ms <= self._now_ms)):
            return self._empty_batch(header)
        if header.is_control:
            kept, columns = list(range(header.records_count)), RecordColumns(values=[], timestamps=[])
            needs_horizon = is_discardable
        else:
            columns = read_batch(batch, 0, header)
            kept = self._retained_indexes(header, columns)
            needs_horizon = any(columns.values[index] is None for index in kept)
        if not kept:
            return self._empty_batch(header)
        self.records_after += len(kept)
        needs_horizon = needs_horizon and horizon_ms is None
        if len(kept) == header.records_count and not needs_horizon:
            return batch
        return _rewrite_batch(header, batch, kept, self._now_ms + self._delete_retention_ms if needs_horizon else None)

    def _retained_indexes(self, header: BatchHeader, columns: RecordColumns) -> list[int]:
        """Return the indexes of the records to retain.

        Compaction retains the newest record of each key, tombstones whose delete horizon has not passed, and all
        records at or after the end offset of the offset map. It removes records without a key that are before this end
        offset.
        """
        count = len(columns)
        offsets: Sequence[int] = columns.offsets or ()
        keys: Sequence[bytes | None] = columns.keys if columns.keys is not None else [None] * count
        keeps_tombstones = not header.has_delete_horizon or self._now_ms < header.base_timestamp
        end_offset = self._map_end_offset
        return [
            index
            for index, (offset, key, value, newest) in enumerate(
                zip(offsets, keys, columns.values, self._offset_map.latest_offsets(keys), strict=True)
            )
            if offset >= end_offset
            or (key is not None and (newest is None or offset >= newest) and (value is not None or keeps_tombstones))
        ]

    def _empty_batch(self, header: BatchHeader) -> Buffer | None:
        """Return the batch as a header without records, or None if compaction may remove the whole batch.

        The header is retained if the batch contains a producer's last sequence, the last offset before the high
        watermark, or the segment's last offset. If compaction removed the batch with the segment's last offset,
        recovery would find a gap before the next segment.
        """
        is_last_batch = header.next_offset in (self._high_watermark, self.segment_end)
        if not is_last_batch and not self._is_last_of_producer(header):
            return None
        attributes = header.attributes & ~(COMPRESSION_MASK | DELETE_HORIZON_MASK)
        return replace_records(header, b"", attributes=attributes, records_count=0, base_timestamp=NO_TIMESTAMP)

    def _is_last_of_producer(self, header: BatchHeader) -> bool:
        last = self._last_records.get(header.producer_id) if header.has_producer_id else None
        if last is None:
            return False
        if last.last_offset >= 0:
            return header.last_offset == last.last_offset
        return header.is_control and header.producer_epoch == last.epoch


def _rewrite_batch(header: BatchHeader, batch: memoryview, kept: Sequence[int], horizon_ms: int | None) -> bytearray:
    """Return the batch with only the records whose indexes are in `kept`.

    If the delete horizon `horizon_ms` is not None, it becomes the base timestamp of the batch, and the timestamp delta
    of each record is adjusted. Otherwise the bytes of the records do not change.
    """
    records = bytes(memoryview(decompress_batch(batch, 0, header, DECOMPRESSED_SIZE_BYTES_MAX))[HEADER_SIZE:])
    try:
        bounds = _record_bounds(records, header.records_count)
        spans = [(bounds[index], bounds[index + 1]) for index in kept]
        deltas = [_timestamp_delta(records, start) for start, _ in spans]
        if horizon_ms is None:
            payload = b"".join([records[start:end] for start, end in spans])
        else:
            shift = header.base_timestamp - horizon_ms
            payload = b"".join(
                [_with_delta(records, span, delta + shift) for span, delta in zip(spans, deltas, strict=True)]
            )
    except (ValueError, IndexError) as error:
        raise CorruptBatchError(0, f"the records of the batch cannot be parsed: {error}") from error
    newest_ms = header.max_timestamp if header.timestamp_type else header.base_timestamp + max(deltas)
    return replace_records(
        header,
        compress(header.compression, payload),
        attributes=header.attributes | (0 if horizon_ms is None else DELETE_HORIZON_MASK),
        records_count=len(kept),
        base_timestamp=header.base_timestamp if horizon_ms is None else horizon_ms,
        max_timestamp=newest_ms,
    )


def _record_bounds(records: bytes, count: int) -> list[int]:
    """Return the byte offset at which each record starts, followed by the end of the last record."""
    position = 0
    bounds = [0]
    for _ in range(count):
        first = records[position]
        if first < 0x80:
            position += 1 + (first >> 1)
        else:
            length, body = decode_varint(records, position)
            position = body + length
        bounds.append(position)
    if position != len(records):
        raise ValueError(f"the last record ends at byte {position}, but the records have {len(records)} bytes")
    return bounds


def _timestamp_delta(records: bytes, start: int) -> int:
    _, body = decode_varint(records, start)
    return decode_varint(records, body + 1)[0]


def _with_delta(records: bytes, span: tuple[int, int], delta: int) -> bytes:
    """Return the encoded record at `span` (start, end) in `records`, with the timestamp delta `delta`."""
    _, body = decode_varint(records, span[0])
    _, rest = decode_varint(records, body + 1)
    changed = records[body : body + 1] + encode_varint(delta) + records[rest : span[1]]
    return encode_varint(len(changed)) + changed
