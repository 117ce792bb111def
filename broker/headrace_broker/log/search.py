"""Finds records in a list of segments, by offset or by timestamp."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from operator import attrgetter

from headrace_broker.log.segment import LogSegment
from headrace_broker.records.batch import BatchHeader, CorruptBatchError
from headrace_broker.records.reader import read_batch

_DECOMPRESSED_SIZE_BYTES_MAX = 64 * 1024 * 1024

_base_offset = attrgetter("base_offset")


def segment_index(segments: Sequence[LogSegment], offset: int) -> int:
    """Return the index of the segment that contains `offset`, or 0 if `offset` is before the first segment."""
    last = len(segments) - 1
    if offset >= segments[last].base_offset:  # most reads are in the active segment
        return last
    return max(bisect_right(segments, offset, key=_base_offset) - 1, 0)


def offset_for_timestamp(
    segments: Sequence[LogSegment], target: int, *, start_offset: int, end_offset: int
) -> tuple[int, int, int] | None:
    """Return (timestamp, offset, leader epoch) of the first record at or after the timestamp `target`, or None.

    Only records from `start_offset` up to, but excluding, `end_offset` are considered.
    """
    for segment in segments[segment_index(segments, start_offset) :]:
        if segment.max_timestamp < target:
            continue
        relative = max(segment.time_index.lookup(target), start_offset - segment.base_offset)
        for position, header in segment.iter_headers(segment.index.lookup(relative)):
            if header.base_offset >= end_offset:
                return None
            if header.max_timestamp < target or header.last_offset < start_offset:
                continue
            found = _first_record(segment, position, header, target, start_offset)
            if found is not None:
                return found if found[1] < end_offset else None
    return None


def max_timestamp_offset(segments: Sequence[LogSegment]) -> tuple[int, int, int] | None:
    """Return (timestamp, offset, leader epoch) of the first record with the largest timestamp, or None."""
    newest = max(segments, key=lambda segment: segment.max_timestamp)
    timestamp = newest.max_timestamp
    if timestamp < 0:
        return None
    position = newest.locate(newest.max_timestamp_offset)
    for at, header in newest.iter_headers(position):
        if header.max_timestamp >= timestamp:
            found = _first_record(newest, at, header, timestamp, header.base_offset)
            if found is not None:  # compaction may have removed the batch's records
                return found
    return None


def _first_record(
    segment: LogSegment, position: int, header: BatchHeader, target: int, start_offset: int
) -> tuple[int, int, int] | None:
    epoch = header.partition_leader_epoch
    if header.timestamp_type == 1:  # LogAppendTime: all records of the batch have the same timestamp
        return header.max_timestamp, max(header.base_offset, start_offset), epoch
    batch = memoryview(segment.read_whole_batch(position, header))
    try:
        columns = read_batch(batch, 0, header, _DECOMPRESSED_SIZE_BYTES_MAX)
    except CorruptBatchError:
        # If the records of a batch are invalid, use the timestamp in the batch header. The broker does not decompress a
        # produced batch, so the log may contain invalid records. The consumer reports them.
        return header.max_timestamp, max(header.base_offset, start_offset), epoch
    for timestamp, offset in zip(columns.timestamp_list(), columns.offsets or (), strict=True):
        if timestamp >= target and offset >= start_offset:
            return timestamp, offset, epoch
    return None
