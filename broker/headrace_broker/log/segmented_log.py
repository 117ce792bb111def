"""Manages the segments of one partition's log: offsets, leader epochs, roll, flush, retention, truncation, close.

`PartitionLog` is a subclass that adds append and read. The log also stores its high watermark, which is always between
the log start offset and the log end offset (`SegmentedLog.high_watermark`, `advance_high_watermark`).

A disk error takes the log offline: acknowledged records remain readable, appends fail, and recovery at the next start
truncates incomplete batches. A log that went offline only because the disk was full can go online again without a
restart (`try_go_online`).

After a truncation, the log syncs the truncated file before it appends records (`sync_truncation`). Otherwise a power
failure could restore the truncated records and lose the new records at the same offsets. The new records may already be
below the high watermark.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Sequence
from time import perf_counter

from headrace_broker.log import loader, search
from headrace_broker.log.checkpoints import LEADER_EPOCH_FILE, encode_epoch_checkpoint
from headrace_broker.log.compaction.job import CleanedSegment
from headrace_broker.log.config import LogConfig
from headrace_broker.log.epochs import LeaderEpochCache
from headrace_broker.log.open_segments import OpenSegments
from headrace_broker.log.producer_files import RecentSnapshots, load_producers, remove_snapshots_after
from headrace_broker.log.producer_state import ProducerStateManager
from headrace_broker.log.retention import SegmentInfo, count_expired
from headrace_broker.log.segment import (
    CLEANED_SUFFIX,
    INDEX_SUFFIX,
    INDEX_SUFFIXES,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    SWAP_SUFFIX,
    TIME_INDEX_SUFFIX,
    LogSegment,
    file_name,
)
from headrace_broker.log.storage import Storage, is_disk_full_error, is_out_of_file_descriptors
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.records.batch import CorruptBatchError

_log = logging.getLogger(__name__)


class SegmentedLog:
    """The segments in a partition's directory. The last segment is active.

    Only the broker's event loop uses this class.
    """

    def __init__(
        self,
        storage: Storage,
        directory: str,
        topic: str,
        partition: int,
        config: LogConfig,
        *,
        loaded: loader.LoadedLog,
        open_segments: OpenSegments,
        next_jitter_ms: Callable[[int], int],
        high_watermark: int,
        now_ms: int,
    ) -> None:
        self.storage = storage
        self.directory = directory
        self.topic = topic
        self.partition = partition
        self.config = config
        self.topic_id = loaded.topic_id
        self.is_corrupt = loaded.is_corrupt
        """Whether the log was closed cleanly, but some of its records or files are missing or corrupt."""
        self.offline_reason: str | None = None
        self.is_disk_full = False
        """Whether the log is offline only because the disk was full, so that `try_go_online` may succeed."""
        self._epochs_unwritten = loaded.epochs_changed
        self._epochs_unflushed = loaded.is_unsynced
        self.last_flush_ms = now_ms
        self.recovery_point = loaded.recovery_point
        self.cleaner_offset: int | None = None  # compaction has processed all records before this offset
        self.is_being_cleaned = False
        self.truncations = 0
        checkpoint_ahead_of_log = loaded.checkpoint_ahead_of_log or high_watermark > loaded.log_end_offset
        self.unsynced_truncation = loaded.segments[-1].path(LOG_SUFFIX) if checkpoint_ahead_of_log else None
        """The truncated segment file that is not synced yet. It must be synced before the next append."""
        self.checkpoint_ahead_of_log = checkpoint_ahead_of_log
        """Whether offset checkpoints may contain offsets from before a truncation.

        If they may, the checkpoints are rewritten before the next append.
        """
        self.rewrite_checkpoints: Callable[[], None] | None = None
        """Function that writes all offset checkpoints with the current offsets. Raises OSError."""
        self.on_flushed: Callable[[float], None] | None = None
        """Optional listener, called with the duration of each flush in seconds."""
        self.on_epochs_changed: Callable[[SegmentedLog], None] | None = None
        """Optional listener that calls `write_epochs` soon. Without it, the leader epochs are written immediately."""
        self._segments: list[LogSegment] = loaded.segments
        self._active = loaded.segments[-1]
        self._log_start_offset = loaded.log_start_offset
        self._log_end_offset = loaded.log_end_offset
        # The checkpointed high watermark, clamped to the log's offset range.
        self._high_watermark = min(max(high_watermark, self._log_start_offset), self._log_end_offset)
        self._epochs: LeaderEpochCache = loaded.epochs
        self._producers: ProducerStateManager = loaded.producers
        self._recent_snapshots = RecentSnapshots()
        self._open_segments = open_segments
        self._next_jitter_ms = next_jitter_ms
        self._deleted: list[tuple[int, list[str]]] = []

    @property
    def name(self) -> str:
        return f"{self.topic}-{self.partition}"

    # Offsets

    @property
    def log_start_offset(self) -> int:
        return self._log_start_offset

    @property
    def log_end_offset(self) -> int:
        return self._log_end_offset

    @property
    def high_watermark(self) -> int:
        """The high watermark, always between the log start offset and the log end offset.

        The log keeps the high watermark in memory. When the log is opened, the high watermark is the offset in
        `replication-offset-checkpoint`, limited to the log's offset range. After that, `advance_high_watermark` raises
        it, and a truncation lowers it to the new log end offset (`_set_end_offset`).
        """
        return self._high_watermark

    def advance_high_watermark(self, offset: int) -> None:
        """Raise the high watermark to `offset`, but at most to the log end offset.

        An offset at or below the current high watermark has no effect.

        Only this method raises the high watermark. It has these callers:

        - `Broker.append` and `PartitionTable`, for a partition with only one replica
        - `Replication`, for the leader and the followers of a partition with several replicas
        - `Quorum`, for the metadata log
        - `advance_log_start`
        """
        if offset > self._high_watermark:
            self._high_watermark = min(offset, self._log_end_offset)

    @property
    def last_stable_offset(self) -> int:
        """The first offset of the oldest open transaction, but at most the high watermark (KIP-98).

        If no transaction is open, this is the high watermark.
        """
        unstable = self._producers.first_unstable_offset()
        return self._high_watermark if unstable is None else min(unstable, self._high_watermark)

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._segments)

    @property
    def segments(self) -> Sequence[LogSegment]:
        """The segments, oldest first."""
        return self._segments

    @property
    def latest_epoch(self) -> int:
        return self._epochs.latest_epoch

    @property
    def producers(self) -> ProducerStateManager:
        return self._producers

    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        """Add the leader epoch `epoch`, which begins at `start_offset`, to the epoch cache.

        A new leader calls this method before its first append. Raises ApiError KAFKA_STORAGE_ERROR.
        """
        if self._epochs.assign(epoch, start_offset):
            self._write_epochs_soon()

    def _write_epochs_soon(self) -> None:
        self._epochs_unwritten = self._epochs_unflushed = True
        if self.on_epochs_changed is None:
            self.write_epochs()
        else:
            self.on_epochs_changed(self)

    def write_epochs(self) -> None:
        """Write the leader epoch checkpoint if the leader epochs have changed. Raises ApiError."""
        if self._epochs_unwritten:
            try:
                self._write_epochs()
            except OSError as error:
                raise self._go_offline_unchanged("cannot write the leader epoch checkpoint", error) from error

    def _write_epochs(self) -> None:
        # Do not sync the file, and do not write it immediately for a new leader. Otherwise a broker that becomes the
        # leader of a thousand partitions would block its event loop a thousand times. Recovery rebuilds the epochs
        # after the recovery point from the records, and a flush syncs the epochs before the recovery point.
        self._epochs_unwritten = self._epochs_unflushed = True
        self.storage.write_atomic(self._epochs_path, encode_epoch_checkpoint(self._epochs.entries), durable=False)
        self._epochs_unwritten = False

    def _sync_epochs(self) -> None:
        if self._epochs_unflushed:
            self.storage.sync(self._epochs_path)
            self._epochs_unflushed = False

    @property
    def unflushed_epochs_path(self) -> str | None:
        """The path of the leader epoch checkpoint if its last write is not synced yet, otherwise None."""
        return self._epochs_path if self._epochs_unflushed else None

    @property
    def _epochs_path(self) -> str:
        return f"{self.directory}/{LEADER_EPOCH_FILE}"

    def _go_offline(self, problem: str, error: OSError, *, may_stay_online: bool = True) -> ApiError:
        """Take the log offline and return the ApiError to raise.

        `problem` names the failed operation in the error text. With `may_stay_online`, the log stays online if `error`
        means that the process is out of file descriptors.
        """
        reason = f"{problem} ({error.filename or self.directory}): {error.strerror or error}"
        if may_stay_online and is_out_of_file_descriptors(error):
            return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, reason)
        self.offline_reason = reason
        _log.error("Log %s is offline: %s", self.name, self.offline_reason)
        return self._offline_error()

    def _go_offline_unchanged(self, problem: str, error: OSError) -> ApiError:
        """Take the log offline after an operation that failed without changing the log; return the ApiError to raise.

        If the disk was full, `try_go_online` can bring the log online again once the disk has free space.
        """
        offline_error = self._go_offline(problem, error)
        self.is_disk_full = self.offline_reason is not None and is_disk_full_error(error)
        return offline_error

    def try_go_online(self) -> bool:
        """Bring the log online again after its disk was full. Return False if a write still fails."""
        try:
            self._active.truncate_torn_tail()
            self._write_epochs()
        except OSError:
            return False
        _log.info("Log %s is online again: the disk has free space", self.name)
        self.offline_reason, self.is_disk_full = None, False
        return True

    def _offline_error(self) -> ApiError:
        return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, self.offline_reason or "")

    # Segments

    def roll(self, now_ms: int, next_offset: int | None = None) -> None:
        """Close the active segment and start a new segment at `next_offset`, by default the log end offset.

        Does nothing if the active segment is empty and already starts at this offset. Raises ApiError.
        """
        base_offset = self._log_end_offset if next_offset is None else next_offset
        active = self._active
        if active.size_bytes == 0 and active.base_offset == base_offset:
            return
        try:
            active.finish()
            active.trim()
            # Write the epochs before the roll, because recovery rebuilds epochs only from the segments after the
            # recovery point.
            if self._epochs_unwritten:
                self._write_epochs()
            # Sync the truncation of the active segment here, because later flushes skip a segment before the recovery
            # point.
            if self.recovery_point >= self._log_end_offset:
                active.flush()
                self._sync_epochs()
            self.write_producer_snapshot()
            segment = loader.create_segment(
                self.storage,
                self.directory,
                base_offset,
                self.config,
                now_ms=now_ms,
                open_segments=self._open_segments,
                roll_jitter_ms=self._next_jitter_ms(jitter_ms) if (jitter_ms := self.config.segment_jitter_ms) else 0,
            )
        except OSError as error:
            raise self._go_offline_unchanged("cannot roll the log", error) from error
        active.is_active = False
        active.account_indexes()
        self._segments.append(segment)
        self._active = segment

    def write_producer_snapshot(self) -> None:
        """Write a producer snapshot at the log end offset. Raises OSError."""
        path = f"{self.directory}/{file_name(self._log_end_offset, SNAPSHOT_SUFFIX)}"
        self.storage.write(path, self._producers.encode_snapshot())

    def flush(self, now_ms: int) -> None:
        """Sync all records after the recovery point to disk. Raises ApiError; a failed fsync is not retried."""
        self.write_epochs()
        started_s = perf_counter()
        try:
            for segment in self._segments[search.segment_index(self._segments, self.recovery_point) : -1]:
                segment.flush()
            self._active.flush()
            self._sync_epochs()
        except OSError as error:
            raise self._go_offline("cannot flush the log", error) from error
        if self.on_flushed is not None:
            self.on_flushed(perf_counter() - started_s)
        self.recovery_point = self._log_end_offset
        self.last_flush_ms = now_ms

    def unflushed_files(self, *, with_active: bool, before_close: bool = False) -> tuple[list[str], int]:
        """Return (paths of the files to sync, the offset up to which these files contain records).

        The files belong to segments with records after the recovery point. The active segment is included only if
        `with_active` is set, and its indexes only if `before_close` is set too. Otherwise its indexes are written when
        the segment is rolled. The caller syncs the files in the background and then calls `complete_flush`. Raises
        ApiError.
        """
        first = search.segment_index(self._segments, self.recovery_point)
        rolled = self._segments[first:-1]
        suffixes = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX)
        paths = [segment.path(suffix) for segment in rolled for suffix in suffixes]
        if self._epochs_unflushed and (paths or with_active):
            self.write_epochs()
            paths.append(self._epochs_path)
            self._epochs_unflushed = False
        if not with_active:
            return paths, self._active.base_offset
        if before_close:
            try:
                self._active.finish()
            except OSError as error:
                raise self._go_offline("cannot close the log", error) from error
        active_suffixes = suffixes if before_close else (LOG_SUFFIX,)
        return [*paths, *(self._active.path(suffix) for suffix in active_suffixes)], self._log_end_offset

    def complete_flush(self, end_offset: int, truncations: int, error: OSError | None, now_ms: int) -> None:
        """Handle the result of a background flush of the files from `unflushed_files`.

        `truncations` is the log's number of truncations when the flush started. A successful flush raises the recovery
        point to `end_offset`. If the log was truncated during the flush, the recovery point stays as it is, because
        records before `end_offset` may be new and unsynced. A failed flush takes the log offline.
        """
        if error is not None:
            self._epochs_unflushed = True
            # If no file descriptor was free, the log stays online and the next flush retries.
            self._go_offline("cannot flush the log", error)
            return
        if truncations == self.truncations:
            self.recovery_point = max(self.recovery_point, end_offset)
            self.last_flush_ms = now_ms

    def delete_records_before(self, offset: int) -> int:
        """Raise the log start offset to `offset`, or to the high watermark if `offset` is -1.

        Returns the log start offset. Raises ApiError.
        """
        target = self._high_watermark if offset == -1 else offset
        if not 0 <= target <= self._high_watermark:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.name}: cannot delete records before offset {target}, because the high watermark is "
                f"{self._high_watermark}",
            )
        self.advance_log_start(target)
        return self._log_start_offset

    def advance_log_start(self, offset: int) -> None:
        """Raise the log start offset to `offset`, and the high watermark to at least `offset`.

        An offset at or below the current log start offset has no effect.
        """
        if offset <= self._log_start_offset:
            return
        self._log_start_offset = offset
        self.advance_high_watermark(offset)
        if self._epochs.truncate_from_start(offset):
            self._epochs_unwritten = True
            self.write_epochs()

    def apply_retention(self, now_ms: int) -> int:
        """Delete the segments that retention selects and return their number. Raises ApiError."""
        try:
            segments = self._segment_infos()
        except OSError as error:
            raise self._go_offline("cannot read the log", error) from error
        count = count_expired(
            segments,
            self.config,
            now_ms=now_ms,
            high_watermark=self._high_watermark,
            log_start_offset=self._log_start_offset,
        )
        if not count or (self.offline_reason is not None and not self.is_disk_full):
            return 0
        if count == len(self._segments):
            self.roll(now_ms)
        expired = self._segments[:count]
        del self._segments[:count]
        start_offset = self._segments[0].base_offset
        _log.info("Log %s: deleting %d segments before offset %d for retention", self.name, count, start_offset)
        # delete the files before writing the epoch checkpoint, which needs free disk space
        self._delete(expired, now_ms)
        self.advance_log_start(start_offset)
        return count

    def _segment_infos(self) -> list[SegmentInfo]:
        ends = [segment.base_offset for segment in self._segments[1:]] + [self._log_end_offset]
        return [
            SegmentInfo(
                segment.size_bytes,
                end,
                segment.max_timestamp if segment.max_timestamp >= 0 else segment.started_ms,
            )
            for segment, end in zip(self._segments, ends, strict=True)
        ]

    def delete_segments_before(self, offset: int, now_ms: int) -> None:
        """Delete the segments that end at or before `offset`.

        If a segment was deleted, the log start offset becomes `offset`. Unlike retention, this method ignores
        cleanup.policy, because the caller has a snapshot of the deleted records. Raises ApiError.
        """
        count = sum(segment.base_offset <= offset for segment in self._segments[1:])
        if count:
            expired = self._segments[:count]
            del self._segments[:count]
            self._delete(expired, now_ms)
            self.advance_log_start(offset)

    def _delete(self, segments: Sequence[LogSegment], now_ms: int) -> None:
        due_ms = now_ms + self.config.file_delete_delay_ms
        try:
            self._deleted.append((due_ms, [path for segment in segments for path in segment.mark_deleted()]))
        except OSError as error:
            raise self._go_offline("cannot delete the segment file", error) from error

    def pop_expired_files(self, now_ms: int) -> list[str]:
        """Return the `.deleted` files that are older than file.delete.delay.ms. The caller removes them."""
        due = [path for due_ms, paths in self._deleted if due_ms <= now_ms for path in paths]
        self._deleted = [(due_ms, paths) for due_ms, paths in self._deleted if due_ms > now_ms]
        return due

    def replace_segments(self, cleaned: CleanedSegment, now_ms: int) -> None:
        """Replace segments with the compacted segment `cleaned`, whose files have the suffix `.cleaned`.

        The new files are renamed to `.swap`. Then the old files are renamed to `.deleted`, oldest first. Finally, the
        new files are renamed to their final names. Each step renames the `.log` file last. After a crash, the loader
        completes or undoes the replacement. Raises ApiError.
        """
        bases = set(cleaned.replaced)
        old = [segment for segment in self._segments if segment.base_offset in bases]
        first = self._segments.index(old[0])
        swap = self._closed_segment(cleaned.base_offset, cleaned.size_bytes, old[-1].started_ms, SWAP_SUFFIX)
        try:
            for suffix in (*INDEX_SUFFIXES, LOG_SUFFIX):
                source = swap.path(suffix).removesuffix(SWAP_SUFFIX) + CLEANED_SUFFIX
                if self.storage.exists(source):
                    self.storage.rename(source, swap.path(suffix))
            deleted = [
                path
                for segment in old
                for path in segment.mark_deleted(with_snapshot=segment.base_offset != cleaned.base_offset)
            ]
            loader.rename_swap_files(self.storage, swap)
        except OSError as error:
            raise self._go_offline("cannot compact the log", error) from error
        self._deleted.append((now_ms + self.config.file_delete_delay_ms, deleted))
        self._segments[first : first + len(old)] = [
            self._closed_segment(cleaned.base_offset, cleaned.size_bytes, old[-1].started_ms)
        ]

    def _closed_segment(self, base_offset: int, size_bytes: int, started_ms: int, name_suffix: str = "") -> LogSegment:
        return LogSegment(
            self.storage,
            self.directory,
            base_offset,
            open_segments=self._open_segments,
            size_bytes=size_bytes,
            started_ms=started_ms,
            name_suffix=name_suffix,
        )

    # Truncation and close

    def truncate_to(self, offset: int, now_ms: int) -> None:
        """Remove the batches at or after `offset`, with their leader epochs and producer state. Raises ApiError."""
        try:
            if offset >= self._log_end_offset:
                # Remove a leader epoch without records that begins at the log end offset. Otherwise this follower would
                # report this epoch to the leader as its last epoch forever.
                if self._epochs.truncate_from_end(offset):
                    self._write_epochs_soon()
                return
            start = min(self._log_start_offset, offset)  # the leader's log may end before the start offset of this log
            index = search.segment_index(self._segments, offset)
            segment = self._segments[index]
            # start with the last segment, so that a crash leaves no gap
            self._delete(self._segments[:index:-1], now_ms)
            del self._segments[index + 1 :]
            segment.is_active = True
            self._active = segment
            # A corrupt segment raises CorruptBatchError. The next start recovers this segment, because it is now last.
            position = segment.locate(offset)
            if position < segment.size_bytes:
                offset = min(offset, segment.read_header(position).base_offset)
            if offset < max(self._log_start_offset, self._segments[0].base_offset):
                self.truncate_fully_and_start_at(max(offset, start), now_ms)
                return
            segment.truncate_to_position(position, offset)
            self.unsynced_truncation = segment.path(LOG_SUFFIX)
            self._set_end_offset(offset)
            remove_snapshots_after(self.storage, self.directory, self._log_end_offset)
            recent = self._recent_snapshots.truncate(self._log_end_offset)
            self._producers = load_producers(self.storage, self.directory, self._segments, self._log_end_offset, recent)
        # a log that is only partly truncated, or whose producer state is outdated, must not stay online
        except OSError as error:
            raise self._go_offline("cannot truncate the log", error, may_stay_online=False) from error
        except CorruptBatchError as error:
            raise self._go_offline("cannot truncate the log", OSError(errno.EIO, str(error), self.directory)) from error

    def sync_truncation(self) -> None:
        """Sync a truncation and rewrite the checkpoints. Call this before the next append. Raises ApiError.

        Without the sync, a later power failure could restore the truncated records and lose the new records at the same
        offsets. At that time, the new records may be committed. With the old checkpoints, recovery would not check new
        records before the old recovery point, and would delete new records before the old log start offset.
        """
        if self.unsynced_truncation is not None:
            try:
                self.storage.sync(self.unsynced_truncation)
            except OSError as error:
                raise self._go_offline("cannot truncate the log", error) from error
            self._finish_truncation()

    def _finish_truncation(self) -> None:
        if self.checkpoint_ahead_of_log and self.rewrite_checkpoints is not None:
            try:
                self.rewrite_checkpoints()
            except OSError as error:
                raise self._go_offline_unchanged("cannot write the offset checkpoint", error) from error
        self.unsynced_truncation, self.checkpoint_ahead_of_log = None, False

    def complete_truncation_sync(self, truncations: int, error: OSError | None) -> None:
        """Handle the result of a background sync of a truncation.

        `truncations` is the log's number of truncations when the sync started. A failed sync takes the log offline and
        is not retried. Raises ApiError.
        """
        if error is not None:
            self._go_offline("cannot truncate the log", error)
        elif truncations == self.truncations:
            self._finish_truncation()

    def truncate_fully_and_start_at(self, offset: int, now_ms: int) -> None:
        """Delete all records and start the log at `offset`. Raises ApiError."""
        try:
            self._delete(self._segments[::-1], now_ms)  # start with the last segment, so that a crash leaves no gap
            remove_snapshots_after(self.storage, self.directory, -1)
            segment = loader.create_segment(
                self.storage, self.directory, offset, self.config, now_ms=now_ms, open_segments=self._open_segments
            )
            self._segments[:] = [segment]
            self._active = segment
            self.checkpoint_ahead_of_log = self.checkpoint_ahead_of_log or offset < self._log_start_offset
            self._log_start_offset = offset
            self._set_end_offset(offset)
            if self._epochs.truncate_from_end(0):  # the log has no records, so remove all leader epochs
                self._write_epochs()
            self._producers.clear(offset)
            self._recent_snapshots = RecentSnapshots()
            self.unsynced_truncation = segment.path(LOG_SUFFIX) if self.checkpoint_ahead_of_log else None
        except OSError as error:
            raise self._go_offline("cannot truncate the log", error, may_stay_online=False) from error

    def _set_end_offset(self, offset: int) -> None:
        """Set the log end offset after a truncation.

        This also lowers the high watermark and the recovery point to at most `offset`, and removes the leader epochs
        that begin at or after `offset`.
        """
        self._log_end_offset = offset
        self.truncations += 1
        self.checkpoint_ahead_of_log = self.checkpoint_ahead_of_log or offset < max(
            self.recovery_point, self._high_watermark
        )
        if self.cleaner_offset is not None:
            self.cleaner_offset = min(self.cleaner_offset, self._active.base_offset)
        self._high_watermark = min(max(self._high_watermark, self._log_start_offset), offset)
        self.recovery_point = min(self.recovery_point, offset)
        if self._epochs.truncate_from_end(offset):
            self._write_epochs()

    def update_directory(self, directory: str) -> None:
        """Set the new path of the directory after it was renamed."""
        self.directory = directory
        for segment in self._segments:
            segment.update_directory(directory)

    def release(self) -> None:
        """Close the files without writing to them."""
        for segment in self._segments:
            segment.release()

    def close(self, *, clean: bool, now_ms: int) -> None:
        """Close the files. If `clean` is set, first write and sync indexes, producer snapshot and records.

        Raises ApiError.
        """
        if clean and self.offline_reason is None:
            try:
                is_changed = self._active.finish()
                is_changed = self._active.trim() or is_changed
                if self.unsynced_truncation is not None:
                    self.storage.sync(self.unsynced_truncation)
                if self._epochs_unwritten:
                    self._write_epochs()
                if self._log_end_offset > self._log_start_offset:
                    self.write_producer_snapshot()
            except OSError as error:
                raise self._go_offline("cannot close the log", error) from error
            if is_changed or self._epochs_unflushed or self._log_end_offset > self.recovery_point:
                self.flush(now_ms)
        self.release()
