"""Clean one log: learn the newest offset of each key in its dirty part, then write its segments anew.

Works on the storage port and on nothing but the files: no clock, no broker. The first pass stops when the key map is
full, and only what it has seen is compacted then. The second pass writes each group of old segments as one new segment
with `.cleaned` names, safe on disk before it is reported; whoever asked puts them in place, in this order. That order
matters: a tombstone must not go while an older record of its key stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from headrace_broker.log.compaction.batch_filter import BatchFilter
from headrace_broker.log.compaction.grouping import SegmentSizes, group_segments
from headrace_broker.log.compaction.job import CleanedSegment, CleaningDone, CleaningFailed, CleaningJob, Report
from headrace_broker.log.compaction.key_map import KeyMap
from headrace_broker.log.compaction.output import SegmentOutput
from headrace_broker.log.compaction.transactions import TransactionTracker
from headrace_broker.log.open_segments import OpenSegments
from headrace_broker.log.segment import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    TIME_INDEX_SUFFIX,
    TRANSACTION_INDEX_SUFFIX,
    LogSegment,
)
from headrace_broker.log.storage import Storage
from headrace_broker.log.transaction_index import AbortedTransaction, decode_transaction_index
from headrace_broker.records.batch import BatchHeader, CorruptBatchError
from headrace_broker.records.reader import read_batch

Pace = Callable[[int], None]
"""Called with the number of bytes just read or written; it may wait, or raise to give up."""

Result = TypeVar("Result")


def clean(storage: Storage, job: CleaningJob, pace: Pace) -> Iterator[Report]:
    """Yield each finished segment, then `CleaningDone`; or `CleaningFailed` at the end. Raises what `pace` raises."""
    cleaning = _Cleaning(storage, job, pace)
    try:
        yield from cleaning.run()
    except CorruptBatchError as error:
        reason = f"{cleaning.path}: record batch at byte {error.position}: {error.reason}"
        yield CleaningFailed(reason, is_lasting=True)
    except ValueError as error:  # an index that no reader knows
        yield CleaningFailed(f"{cleaning.path}: {error}", is_lasting=True)
    except OverflowError:
        reason = f"{cleaning.path}: the compacted segment would be larger than 2 GiB; segment.bytes is too near to that"
        yield CleaningFailed(reason, is_lasting=True)
    except OSError as error:
        yield CleaningFailed(f"{error.filename or cleaning.path}: {error.strerror or error}", is_lasting=False)


class _Cleaning:
    """One run over one log; `path` is the file it is at."""

    def __init__(self, storage: Storage, job: CleaningJob, pace: Pace) -> None:
        self.path = job.directory
        self._storage = storage
        self._job = job
        self._pace = pace
        self._open_segments = OpenSegments()
        self._segments = [self._segment(base_offset, size_bytes) for base_offset, size_bytes in job.segments]
        self._key_map = KeyMap(job.key_map_bytes_max)
        self._aborted = self._aborted_transactions()

    def _segment(self, base_offset: int, size_bytes: int, name_suffix: str = "") -> LogSegment:
        return LogSegment(
            self._storage,
            self._job.directory,
            base_offset,
            open_segments=self._open_segments,
            size_bytes=size_bytes,
            started_ms=0,
            is_new=bool(name_suffix),
            name_suffix=name_suffix,
        )

    def _aborted_transactions(self) -> list[AbortedTransaction]:
        """Return those of the whole log: a marker may lie behind what is cleaned."""
        names = [name for name in self._storage.listdir(self._job.directory) if name.endswith(TRANSACTION_INDEX_SUFFIX)]
        entries: list[AbortedTransaction] = []
        for name in names:
            self.path = f"{self._job.directory}/{name}"
            entries += decode_transaction_index(self._storage.read(self.path))
        return entries

    def run(self) -> Iterator[Report]:
        job = self._job
        try:
            map_end_offset = self._map_keys()
            transactions = TransactionTracker(self._aborted)
            batches = BatchFilter(
                self._key_map,
                transactions,
                map_end_offset=map_end_offset,
                now_ms=job.now_ms,
                delete_retention_ms=job.delete_retention_ms,
                high_watermark=job.high_watermark,
                last_records=job.last_records,
            )
            bytes_before = bytes_after = 0
            for group, batches.segment_end in self._groups(map_end_offset):
                cleaned = self._write_group(group, batches, transactions)
                bytes_before += sum(segment.size_bytes for segment in group)
                bytes_after += cleaned.size_bytes
                yield cleaned
            counts = (bytes_before, bytes_after, batches.records_before, batches.records_after, len(self._key_map))
            yield CleaningDone(map_end_offset, *counts)
        finally:
            for segment in self._segments:
                segment.release()

    # First pass

    def _map_keys(self) -> int:
        """Take the keys of the dirty records into the map; return the offset up to which it knows them all."""
        job = self._job
        transactions = TransactionTracker(
            entry for entry in self._aborted if entry.last_offset >= job.first_dirty_offset
        )
        known_to = job.first_dirty_offset
        ends = [segment.base_offset for segment in self._segments[1:]] + [job.end_offset]
        for segment, end in zip(self._segments, ends, strict=True):
            if end <= job.first_dirty_offset:
                continue
            self.path = segment.path(LOG_SUFFIX)
            start = segment.locate(job.first_dirty_offset) if segment.base_offset < job.first_dirty_offset else 0
            for position, header, batch in segment.iter_checked_batches(start):
                self._pace(len(batch))
                if not self._at(position, transactions.is_discardable, header, batch) and not header.is_control:
                    self._at(position, self._map_batch, header, batch)
                known_to = max(known_to, header.next_offset)
                if self._key_map.is_full:
                    return known_to
            known_to = end
        return known_to

    def _at(
        self, position: int, work: Callable[[BatchHeader, memoryview], Result], header: BatchHeader, batch: memoryview
    ) -> Result:
        """Return work(header, batch); what it finds broken is reported with the batch's place in the file."""
        try:
            return work(header, batch)
        except CorruptBatchError as error:
            raise CorruptBatchError(position, error.reason) from error

    def _map_batch(self, header: BatchHeader, batch: memoryview) -> None:
        columns = read_batch(batch, 0, header)
        keys, offsets = columns.keys, columns.offsets
        if keys is None or offsets is None:
            return
        first_dirty_offset = self._job.first_dirty_offset
        if header.base_offset < first_dirty_offset or None in keys:
            pairs = [
                (key, offset)
                for key, offset in zip(keys, offsets, strict=True)
                if key is not None and offset >= first_dirty_offset
            ]
            self._key_map.add([key for key, _ in pairs], [offset for _, offset in pairs])
        else:
            self._key_map.add(keys, offsets)  # type: ignore[arg-type]  # no None among them

    # Second pass

    def _groups(self, map_end_offset: int) -> list[tuple[list[LogSegment], int]]:
        """What becomes one segment each, and where that is to end."""
        by_base = {segment.base_offset: segment for segment in self._segments}
        sizes = [self._sizes(segment) for segment in self._segments if segment.base_offset < map_end_offset]
        following = [segment.base_offset for segment in self._segments[len(sizes) :]]
        end_offset = following[0] if following else self._job.end_offset
        groups = group_segments(
            sizes,
            segment_bytes=self._job.segment_bytes,
            segment_index_bytes=self._job.segment_index_bytes,
            end_offset=end_offset,
        )
        ends = [*(group[0].base_offset for group in groups[1:]), end_offset]
        return [([by_base[each.base_offset] for each in group], end) for group, end in zip(groups, ends, strict=True)]

    def _sizes(self, segment: LogSegment) -> SegmentSizes:
        indexes = (segment.path(INDEX_SUFFIX), segment.path(TIME_INDEX_SUFFIX))
        index_sizes = [self._storage.size(path) if self._storage.exists(path) else 0 for path in indexes]
        return SegmentSizes(segment.base_offset, segment.size_bytes, *index_sizes)

    def _write_group(
        self, group: list[LogSegment], batches: BatchFilter, transactions: TransactionTracker
    ) -> CleanedSegment:
        segment = self._segment(group[0].base_offset, 0, CLEANED_SUFFIX)
        output = SegmentOutput(self._storage, segment, self._job.index_interval_bytes, self._pace)
        try:
            for segment in group:
                self.path = segment.path(LOG_SUFFIX)
                for position, header, batch in segment.iter_checked_batches(0):
                    self._pace(len(batch))
                    kept = self._at(position, batches.keep, header, batch)
                    if kept is not None:
                        output.add(kept)
                segment.release()
            output.finish(transactions.retained)
        except BaseException:
            output.discard()
            raise
        transactions.retained.clear()
        return CleanedSegment(
            group[0].base_offset, output.segment.size_bytes, tuple(segment.base_offset for segment in group)
        )
