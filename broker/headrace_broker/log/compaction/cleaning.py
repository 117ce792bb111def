"""Cleans one log in two passes: builds the offset map of its dirty range, then rewrites its segments.

This module accesses the log's files through the storage interface. It uses neither the broker nor the clock. If the
offset map becomes full, the first pass stops, and only the records that it has read are cleaned. The second pass writes
each group of old segments as one new segment with `.cleaned` files. When these files are synced, the function `clean`
yields a `CleanedSegment` object. The broker receives these objects and replaces the old segments in the same order,
because a tombstone must not be removed before the older records of its key.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from headrace_broker.log.compaction.batch_filter import BatchFilter
from headrace_broker.log.compaction.grouping import SegmentSizes, group_segments
from headrace_broker.log.compaction.job import CleanedSegment, CleanerReport, CleaningDone, CleaningFailed, CleaningJob
from headrace_broker.log.compaction.offset_map import OffsetMap
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
from headrace_broker.log.transaction_index import AbortedTxn, decode_transaction_index
from headrace_broker.records.batch import BatchHeader, CorruptBatchError
from headrace_broker.records.reader import read_batch

if TYPE_CHECKING:
    from headrace_broker.log.storage import Storage

MaybeThrottle = Callable[[int], None]
"""Called with the number of bytes just read or written. It may sleep, or raise an exception to stop the cleaning."""

Result = TypeVar("Result")


def clean(storage: Storage, job: CleaningJob, maybe_throttle: MaybeThrottle) -> Iterator[CleanerReport]:
    """Yield each cleaned segment, then `CleaningDone` or `CleaningFailed`.

    Corrupt batches, invalid transaction indexes, segments over 2 GiB and I/O errors end the cleaning with
    `CleaningFailed`. Other exceptions are propagated, for example the exception that `maybe_throttle` raises to
    stop the cleaning.
    """
    cleaning = _Cleaning(storage, job, maybe_throttle)
    try:
        yield from cleaning.run()
    except CorruptBatchError as error:
        reason = f"{cleaning.path}: record batch at byte {error.position}: {error.reason}"
        yield CleaningFailed(reason, is_lasting=True)
    except ValueError as error:  # the transaction index has an unknown version
        yield CleaningFailed(f"{cleaning.path}: {error}", is_lasting=True)
    except OverflowError:
        reason = f"{cleaning.path}: the cleaned segment would be larger than 2 GiB; reduce segment.bytes"
        yield CleaningFailed(reason, is_lasting=True)
    except OSError as error:
        yield CleaningFailed(f"{error.filename or cleaning.path}: {error.strerror or error}", is_lasting=False)


class _Cleaning:
    """The cleaning of one log. `path` is the file that is currently read. Error messages contain this path."""

    def __init__(self, storage: Storage, job: CleaningJob, maybe_throttle: MaybeThrottle) -> None:
        self.path = job.directory
        self._storage = storage
        self._job = job
        self._maybe_throttle = maybe_throttle
        self._open_segments = OpenSegments()
        self._segments = [self._segment(base_offset, size_bytes) for base_offset, size_bytes in job.segments]
        self._offset_map = OffsetMap(job.offset_map_bytes_max)
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

    def _aborted_transactions(self) -> list[AbortedTxn]:
        """Return the aborted transactions of the whole log, not only of the range to clean.

        A transaction that begins in this range may have its abort marker after the range.
        """
        names = [name for name in self._storage.listdir(self._job.directory) if name.endswith(TRANSACTION_INDEX_SUFFIX)]
        entries: list[AbortedTxn] = []
        for name in names:
            self.path = f"{self._job.directory}/{name}"
            entries += decode_transaction_index(self._storage.read(self.path))
        return entries

    def run(self) -> Iterator[CleanerReport]:
        job = self._job
        try:
            map_end_offset = self._map_keys()
            transactions = TransactionTracker(self._aborted)
            batches = BatchFilter(
                self._offset_map,
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
            counts = (bytes_before, bytes_after, batches.records_before, batches.records_after, len(self._offset_map))
            yield CleaningDone(map_end_offset, *counts)
        finally:
            for segment in self._segments:
                segment.release()

    # First pass

    def _map_keys(self) -> int:
        """Add the dirty records to the offset map; return the offset up to which the map is complete."""
        job = self._job
        transactions = TransactionTracker(
            entry for entry in self._aborted if entry.last_offset >= job.first_dirty_offset
        )
        map_end_offset = job.first_dirty_offset
        ends = [segment.base_offset for segment in self._segments[1:]] + [job.end_offset]
        for segment, end in zip(self._segments, ends, strict=True):
            if end <= job.first_dirty_offset:
                continue
            self.path = segment.path(LOG_SUFFIX)
            start = segment.locate(job.first_dirty_offset) if segment.base_offset < job.first_dirty_offset else 0
            for position, header, batch in segment.iter_checked_batches(start):
                self._maybe_throttle(len(batch))
                if not self._apply(position, transactions.process_batch, header, batch) and not header.is_control:
                    self._apply(position, self._map_batch, header, batch)
                map_end_offset = max(map_end_offset, header.next_offset)
                if self._offset_map.is_full:
                    return map_end_offset
            map_end_offset = end
        return map_end_offset

    def _apply(
        self,
        position: int,
        function: Callable[[BatchHeader, memoryview], Result],
        header: BatchHeader,
        batch: memoryview,
    ) -> Result:
        """Call function(header, batch) and return its result.

        If the function raises CorruptBatchError, set the position in the error to the batch's position in the file.
        """
        try:
            return function(header, batch)
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
            self._offset_map.add([key for key, _ in pairs], [offset for _, offset in pairs])
        else:
            self._offset_map.add(keys, offsets)  # type: ignore[arg-type]  # no None among them

    # Second pass

    def _groups(self, map_end_offset: int) -> list[tuple[list[LogSegment], int]]:
        """Return (segments, end offset) for each group of segments. Each group is merged into one segment.

        The groups contain the segments that start before `map_end_offset`.
        """
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
        output = SegmentOutput(self._storage, segment, self._job.index_interval_bytes, self._maybe_throttle)
        try:
            for segment in group:
                self.path = segment.path(LOG_SUFFIX)
                for position, header, batch in segment.iter_checked_batches(0):
                    self._maybe_throttle(len(batch))
                    retained = self._apply(position, batches.filter_batch, header, batch)
                    if retained is not None:
                        output.add(retained)
                segment.release()
            output.finish(transactions.retained)
        except BaseException:
            output.discard()
            raise
        transactions.retained.clear()
        return CleanedSegment(
            group[0].base_offset, output.segment.size_bytes, tuple(segment.base_offset for segment in group)
        )
