"""The segments of one partition's log as a whole: offsets, epochs, roll, flush, retention, truncation, close.

`PartitionLog` adds what reads and writes records. A failure of the storage takes the log offline: what was acknowledged
stays readable, nothing more is acknowledged, and recovery at the next start cuts whatever was torn. A log that only
lacked room to append can `come_back` before that.
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
from headrace_broker.log.producer_files import KeptSnapshots, load_producers, remove_snapshots_after
from headrace_broker.log.producer_state import ProducerState
from headrace_broker.log.retention import SegmentFacts, count_expired
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
from headrace_broker.log.storage import Storage, is_lack_of_room, is_passing
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.records.batch import CorruptBatchError

_log = logging.getLogger(__name__)


class SegmentedLog:
    """A partition's directory of segments; the last one is active. Belongs to the event loop of its broker."""

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
        self.is_damaged = loaded.is_damaged  # it had been closed cleanly, and was not whole
        self.offline_reason: str | None = None
        self.lacks_room = False
        """Whether it is offline only because the disk was full when something was to be appended."""
        self._epochs_unwritten = loaded.epochs_changed
        self._epochs_unflushed = loaded.is_unsynced
        self.last_flush_ms = now_ms
        self.recovery_point = loaded.recovery_point
        self.cleaner_offset: int | None = None  # compaction has seen everything before it
        self.is_being_cleaned = False
        self.truncations = 0
        is_overtold = loaded.is_overtold or high_watermark > loaded.log_end_offset
        self.unsafe_cut = loaded.segments[-1].path(LOG_SUFFIX) if is_overtold else None
        """The file that was cut, until the cut would survive a power failure: nothing is written behind it before."""
        self.is_overtold = is_overtold
        """Whether checkpoints may still tell what was before a cut: nothing is written behind it before they do not."""
        self.correct_checkpoints: Callable[[], None] | None = None
        """Writes them as they are to be. Raises OSError."""
        self.on_flushed: Callable[[float], None] | None = None
        self.on_epochs: Callable[[SegmentedLog], None] | None = None
        """Told that `write_epochs` is due, soon; without anybody to tell they are written at once."""
        self._segments: list[LogSegment] = loaded.segments
        self._active = loaded.segments[-1]
        self._log_start_offset = loaded.log_start_offset
        self._log_end_offset = loaded.log_end_offset
        self._high_watermark = min(max(high_watermark, self._log_start_offset), self._log_end_offset)
        self._epochs: LeaderEpochCache = loaded.epochs
        self._producers: ProducerState = loaded.producers
        self._kept_snapshots = KeptSnapshots()
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
        return self._high_watermark

    @high_watermark.setter
    def high_watermark(self, offset: int) -> None:
        """Move forward, never beyond the log end offset; a smaller offset changes nothing."""
        if offset > self._high_watermark:
            self._high_watermark = min(offset, self._log_end_offset)

    @property
    def last_stable_offset(self) -> int:
        """Where a read_committed consumer stops: the oldest open transaction, or the high watermark."""
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
    def producers(self) -> ProducerState:
        return self._producers

    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        """Note that leader `epoch` begins at `start_offset`. A new leader does so first of all. Raises ApiError."""
        if self._epochs.assign(epoch, start_offset):
            self._write_epochs_soon()

    def _write_epochs_soon(self) -> None:
        self._epochs_unwritten = self._epochs_unflushed = True
        if self.on_epochs is None:
            self.write_epochs()
        else:
            self.on_epochs(self)

    def write_epochs(self) -> None:
        """Write the file of leader epochs if memory is ahead of it. Raises ApiError."""
        if self._epochs_unwritten:
            try:
                self._write_epochs()
            except OSError as error:
                raise self._no_room_to("write the leader epochs of", error) from error

    def _write_epochs(self) -> None:
        # Without waiting for the disk, and a new leader's not at once: a broker that takes over a thousand partitions
        # would do this a thousand times, on the loop. Recovery finds the epochs behind the recovery point in the
        # records; a flush makes the others safe.
        self._epochs_unwritten = self._epochs_unflushed = True
        self.storage.write_atomic(self._epochs_path, encode_epoch_checkpoint(self._epochs.entries), durable=False)
        self._epochs_unwritten = False

    def _sync_epochs(self) -> None:
        if self._epochs_unflushed:
            self.storage.sync(self._epochs_path)
            self._epochs_unflushed = False

    @property
    def unflushed_epochs_path(self) -> str | None:
        """The file of leader epochs, if a power failure may take back what it says."""
        return self._epochs_path if self._epochs_unflushed else None

    @property
    def _epochs_path(self) -> str:
        return f"{self.directory}/{LEADER_EPOCH_FILE}"

    def _go_offline(self, action: str, error: OSError, *, may_pass: bool = True) -> ApiError:
        reason = f"cannot {action} {error.filename or self.directory}: {error.strerror or error}"
        if may_pass and is_passing(error):
            return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, reason)
        self.offline_reason = reason
        _log.error("Log %s goes offline: %s", self.name, self.offline_reason)
        return self._offline_error()

    def _no_room_to(self, action: str, error: OSError) -> ApiError:
        """Go offline before anything of the log has changed: all it takes to go on may be room."""
        went = self._go_offline(action, error)
        self.lacks_room = self.offline_reason is not None and is_lack_of_room(error)
        return went

    def come_back(self) -> bool:
        """Go on after a lack of room, now that there is some; False when it still cannot be written."""
        try:
            self._active.cut_torn_tail()
            self._write_epochs()
        except OSError:
            return False
        _log.info("Log %s goes on: there is room again", self.name)
        self.offline_reason, self.lacks_room = None, False
        return True

    def _offline_error(self) -> ApiError:
        return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, self.offline_reason or "")

    # Segments

    def roll(self, now_ms: int, next_offset: int | None = None) -> None:
        """Close the active segment and begin a new one; an empty active segment stays. Raises ApiError."""
        base_offset = self._log_end_offset if next_offset is None else next_offset
        active = self._active
        if active.size_bytes == 0 and active.base_offset == base_offset:
            return
        try:
            active.finish()
            active.trim()
            if self._epochs_unwritten:  # recovery looks for epochs in the last segments only
                self._write_epochs()
            if self.recovery_point >= self._log_end_offset:  # no flush looks at it again, and it may just have been cut
                active.flush()
                self._sync_epochs()
            self.write_producer_snapshot()
            segment = loader.new_segment(
                self.storage,
                self.directory,
                base_offset,
                self.config,
                now_ms=now_ms,
                open_segments=self._open_segments,
                roll_jitter_ms=self._next_jitter_ms(jitter_ms) if (jitter_ms := self.config.segment_jitter_ms) else 0,
            )
        except OSError as error:
            raise self._no_room_to("roll", error) from error
        active.is_active = False
        active.note_indexes()
        self._segments.append(segment)
        self._active = segment

    def write_producer_snapshot(self) -> None:
        """Write what is known of producers at the log end offset. Raises OSError."""
        path = f"{self.directory}/{file_name(self._log_end_offset, SNAPSHOT_SUFFIX)}"
        self.storage.write(path, self._producers.encode_snapshot())

    def flush(self, now_ms: int) -> None:
        """Return once every record would survive a power failure. Raises ApiError; a failed fsync is not repeated."""
        self.write_epochs()
        started_s = perf_counter()
        try:
            for segment in self._segments[search.segment_index(self._segments, self.recovery_point) : -1]:
                segment.flush()
            self._active.flush()
            self._sync_epochs()
        except OSError as error:
            raise self._go_offline("flush", error) from error
        if self.on_flushed is not None:
            self.on_flushed(perf_counter() - started_s)
        self.recovery_point = self._log_end_offset
        self.last_flush_ms = now_ms

    def unflushed_files(self, *, with_active: bool, before_close: bool = False) -> tuple[list[str], int]:
        """Return (files of segments behind the recovery point, the offset they reach), for a flush elsewhere.

        Of the active segment the records only: its indexes are written when it is rolled, and rebuilt after a crash.
        Before the log is closed they are written now, and flushed as well.  Raises ApiError where that fails.
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
                raise self._go_offline("close", error) from error
        of_active = suffixes if before_close else (LOG_SUFFIX,)
        return [*paths, *(self._active.path(suffix) for suffix in of_active)], self._log_end_offset

    def flushed_elsewhere(self, end_offset: int, truncations: int, error: OSError | None, now_ms: int) -> None:
        """Take the result of a flush that was begun after so many truncations: all before `end_offset` is on disk since
        `now_ms`, unless the log was cut meanwhile, and others stand there; or it failed.
        """
        if error is not None:
            self._epochs_unflushed = True
            self._go_offline("flush", error)  # or, of a passing failure, flushed the next time
            return
        if truncations == self.truncations:
            self.recovery_point = max(self.recovery_point, end_offset)
            self.last_flush_ms = now_ms

    def delete_records_before(self, offset: int) -> int:
        """Move the log start offset up to `offset` (-1 = the high watermark) and return it. Raises ApiError."""
        target = self._high_watermark if offset == -1 else offset
        if not 0 <= target <= self._high_watermark:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.name} can be deleted up to offset {self._high_watermark}, not {target}",
            )
        self.advance_log_start(target)
        return self._log_start_offset

    def advance_log_start(self, offset: int) -> None:
        """Raise the log start offset; a smaller one changes nothing."""
        if offset <= self._log_start_offset:
            return
        self._log_start_offset = offset
        self.high_watermark = offset
        if self._epochs.truncate_from_start(offset):
            self._epochs_unwritten = True
            self.write_epochs()

    def apply_retention(self, now_ms: int) -> int:
        """Delete the segments that have served their time and return how many. Raises ApiError."""
        try:
            facts = self._segment_facts()
        except OSError as error:
            raise self._go_offline("read", error) from error
        count = count_expired(
            facts,
            self.config,
            now_ms=now_ms,
            high_watermark=self._high_watermark,
            log_start_offset=self._log_start_offset,
        )
        if not count or (self.offline_reason is not None and not self.lacks_room):
            return 0
        if count == len(self._segments):
            self.roll(now_ms)
        expired = self._segments[:count]
        del self._segments[:count]
        first_kept = self._segments[0].base_offset
        _log.info("Deleting %d segments of %s up to offset %d", count, self.name, first_kept)
        self._delete(expired, now_ms)  # first: it makes room for what follows
        self.advance_log_start(first_kept)
        return count

    def _segment_facts(self) -> list[SegmentFacts]:
        ends = [segment.base_offset for segment in self._segments[1:]] + [self._log_end_offset]
        return [
            SegmentFacts(
                segment.size_bytes,
                end,
                segment.max_timestamp if segment.max_timestamp >= 0 else segment.started_ms,
            )
            for segment, end in zip(self._segments, ends, strict=True)
        ]

    def drop_prefix(self, offset: int, now_ms: int) -> None:
        """Delete the segments that end at or before `offset`, and begin there; nothing when no segment does.

        Unlike retention this asks for no policy: the caller has what the records said.  Raises ApiError.
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
            raise self._go_offline("delete segments of", error) from error

    def take_deleted_files(self, now_ms: int) -> list[str]:
        """Return the `.deleted` files whose delay is over; the caller removes them."""
        due = [path for due_ms, paths in self._deleted if due_ms <= now_ms for path in paths]
        self._deleted = [(due_ms, paths) for due_ms, paths in self._deleted if due_ms > now_ms]
        return due

    def replace_segments(self, cleaned: CleanedSegment, now_ms: int) -> None:
        """Put a segment whose `.cleaned` files are on disk in the place of those it was made from. Raises ApiError.

        The new files become `.swap`, the old ones `.deleted`, oldest first, then the new ones take their names, the
        records last each time: from any point of this the loader goes on or goes back.
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
            loader.put_in_place(self.storage, swap)
        except OSError as error:
            raise self._go_offline("compact", error) from error
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

    # Truncation and the end

    def truncate_to(self, offset: int, now_ms: int) -> None:
        """Drop every batch that reaches `offset`, with what was known from them. Raises ApiError."""
        try:
            if offset >= self._log_end_offset:
                # An epoch in which nothing was written may begin here: unless it goes, it is told the leader for ever.
                if self._epochs.truncate_from_end(offset):
                    self._write_epochs_soon()
                return
            start = min(self._log_start_offset, offset)  # a leader may end before what was deleted here
            index = search.segment_index(self._segments, offset)
            segment = self._segments[index]
            self._delete(self._segments[:index:-1], now_ms)  # the last first: a crash leaves no hole
            del self._segments[index + 1 :]
            segment.is_active = True
            self._active = segment
            position = segment.locate(offset)  # damage stops this: the next start finds it, in what is the last segment
            if position < segment.size_bytes:
                offset = min(offset, segment.read_header(position).base_offset)
            if offset < max(self._log_start_offset, self._segments[0].base_offset):
                self.truncate_fully_and_start_at(max(offset, start), now_ms)
                return
            segment.truncate_to_position(position, offset)
            self.unsafe_cut = segment.path(LOG_SUFFIX)
            self._end_at(offset)
            remove_snapshots_after(self.storage, self.directory, self._log_end_offset)
            kept = self._kept_snapshots.cut(self._log_end_offset)
            self._producers = load_producers(self.storage, self.directory, self._segments, self._log_end_offset, kept)
        except OSError as error:  # half cut, or with the producers of before, it may not be gone on with
            raise self._go_offline("truncate", error, may_pass=False) from error
        except CorruptBatchError as error:
            raise self._go_offline("truncate", OSError(errno.EIO, str(error), self.directory)) from error

    def make_cut_safe(self) -> None:
        """Return once what was cut would not come back after a power failure.  Raises ApiError.

        What is written there next is other records: the old ones would stand below a high watermark that is meant for
        those, and those be trusted for a recovery point, or dropped for a log start, of the old ones.
        """
        if self.unsafe_cut is not None:
            try:
                self.storage.sync(self.unsafe_cut)
            except OSError as error:
                raise self._go_offline("truncate", error) from error
            self._cut_is_synced()

    def _cut_is_synced(self) -> None:
        if self.is_overtold and self.correct_checkpoints is not None:
            try:
                self.correct_checkpoints()
            except OSError as error:
                raise self._no_room_to("write checkpoints of", error) from error
        self.unsafe_cut, self.is_overtold = None, False

    def cut_synced_elsewhere(self, truncations: int, error: OSError | None) -> None:
        """Take the result of a sync of the file that was cut as the last of so many; a failed one is not repeated.

        Raises ApiError.
        """
        if error is not None:
            self._go_offline("truncate", error)
        elif truncations == self.truncations:
            self._cut_is_synced()

    def truncate_fully_and_start_at(self, offset: int, now_ms: int) -> None:
        """Drop every record and go on at `offset`. Raises ApiError."""
        try:
            self._delete(self._segments[::-1], now_ms)  # the last first, here too
            remove_snapshots_after(self.storage, self.directory, -1)
            segment = loader.new_segment(
                self.storage, self.directory, offset, self.config, now_ms=now_ms, open_segments=self._open_segments
            )
            self._segments[:] = [segment]
            self._active = segment
            self.is_overtold = self.is_overtold or offset < self._log_start_offset
            self._log_start_offset = offset
            self._end_at(offset)
            if self._epochs.truncate_from_end(0):  # of what was before nothing is left, whichever epoch wrote it
                self._write_epochs()
            self._producers.clear(offset)
            self._kept_snapshots = KeptSnapshots()
            self.unsafe_cut = segment.path(LOG_SUFFIX) if self.is_overtold else None
        except OSError as error:
            raise self._go_offline("truncate", error, may_pass=False) from error

    def _end_at(self, offset: int) -> None:
        self._log_end_offset = offset
        self.truncations += 1
        self.is_overtold = self.is_overtold or offset < max(self.recovery_point, self._high_watermark)
        if self.cleaner_offset is not None:
            self.cleaner_offset = min(self.cleaner_offset, self._active.base_offset)
        self._high_watermark = min(max(self._high_watermark, self._log_start_offset), offset)
        self.recovery_point = min(self.recovery_point, offset)
        if self._epochs.truncate_from_end(offset):
            self._write_epochs()

    def move(self, directory: str) -> None:
        """Take note that the directory was renamed."""
        self.directory = directory
        for segment in self._segments:
            segment.move(directory)

    def release(self) -> None:
        """Close the files, writing nothing."""
        for segment in self._segments:
            segment.release()

    def close(self, *, clean: bool, now_ms: int) -> None:
        """Close the files; clean: with indexes, producer snapshot and records safe on disk. Raises ApiError."""
        if clean and self.offline_reason is None:
            try:
                is_changed = self._active.finish()
                is_changed = self._active.trim() or is_changed
                if self.unsafe_cut is not None:
                    self.storage.sync(self.unsafe_cut)
                if self._epochs_unwritten:
                    self._write_epochs()
                if self._log_end_offset > self._log_start_offset:
                    self.write_producer_snapshot()
            except OSError as error:
                raise self._go_offline("close", error) from error
            if is_changed or self._epochs_unflushed or self._log_end_offset > self.recovery_point:
                self.flush(now_ms)
        self.release()
