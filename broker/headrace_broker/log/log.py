"""One partition's log: append, read, roll, truncate, retain.

A log belongs to the event loop of its broker; nothing here locks or waits. Records below the high watermark are what
consumers see, records up to the log end offset what followers fetch. A write that fails takes the log offline: what was
acknowledged stays readable, nothing more is acknowledged, and recovery at the next start cuts whatever was torn.
Order of an append (as Kafka's): admit, producer check, epoch entry, roll, write, then the state in memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace_broker.log import loader, search
from headrace_broker.log.admission import AppendOrigin, admit, recompress
from headrace_broker.log.checkpoints import (
    LEADER_EPOCH_FILE,
    PARTITION_METADATA_FILE,
    encode_epoch_checkpoint,
    encode_partition_metadata,
)
from headrace_broker.log.config import LogConfig
from headrace_broker.log.epochs import LeaderEpochCache
from headrace_broker.log.producer_state import ProducerBatch, ProducerState
from headrace_broker.log.retention import SegmentFacts, count_expired
from headrace_broker.log.segment import (
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    TIME_INDEX_SUFFIX,
    LogSegment,
    OpenSegments,
    file_name,
)
from headrace_broker.log.storage import Storage
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.records.batch import (
    BatchHeader,
    CorruptBatchError,
    iter_batches,
    patch_offset_and_epoch,
    patch_timestamps,
    read_header,
    verify_crc,
)

_log = logging.getLogger(__name__)
NO_TIMESTAMP = -1


@dataclass(slots=True)
class AppendInfo:
    """Where a batch went. `log_append_time_ms` is -1 unless the topic stamps records itself."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    is_duplicate: bool = False


@dataclass(slots=True)
class LogRead:
    """Records as they lie in the file, in buffers that need no joining. A batch at the end may be cut."""

    buffers: list[bytes]
    size_bytes: int


class PartitionLog:
    """The log of one partition, in one directory."""

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
        self.offline_reason: str | None = None
        self.last_flush_ms = now_ms
        self.recovery_point = loaded.recovery_point
        self._segments: list[LogSegment] = loaded.segments
        self._active = loaded.segments[-1]
        self._log_start_offset = loaded.log_start_offset
        self._log_end_offset = loaded.log_end_offset
        self._high_watermark = min(max(high_watermark, self._log_start_offset), self._log_end_offset)
        self._epochs: LeaderEpochCache = loaded.epochs
        self._producers: ProducerState = loaded.producers
        self._open_segments = open_segments
        self._next_jitter_ms = next_jitter_ms
        self._deleted: list[tuple[int, list[str]]] = []

    @classmethod
    def open(
        cls,
        storage: Storage,
        directory: str,
        topic: str,
        partition: int,
        config: LogConfig,
        now_ms: int,
        *,
        topic_id: bytes | None = None,
        was_closed_cleanly: bool = False,
        recovery_point: int = 0,
        log_start_offset: int = 0,
        high_watermark: int = 0,
        open_segments: OpenSegments | None = None,
        next_jitter_ms: Callable[[int], int] = lambda bound: 0,
    ) -> PartitionLog:
        """Open or make the log in `directory`, recovering it unless it was closed cleanly.

        `next_jitter_ms(bound)` draws from [0, bound) for segment.jitter.ms. Raises OSError.
        """
        open_segments = open_segments or OpenSegments()
        loaded = loader.load(
            storage,
            directory,
            config,
            now_ms=now_ms,
            was_closed_cleanly=was_closed_cleanly,
            recovery_point=recovery_point,
            log_start_offset=log_start_offset,
            open_segments=open_segments,
        )
        log = cls(
            storage,
            directory,
            topic,
            partition,
            config,
            loaded=loaded,
            open_segments=open_segments,
            next_jitter_ms=next_jitter_ms,
            high_watermark=high_watermark,
            now_ms=now_ms,
        )
        if topic_id is not None and log.topic_id is None:
            storage.write_atomic(f"{directory}/{PARTITION_METADATA_FILE}", encode_partition_metadata(topic_id))
            log.topic_id = topic_id
        if loaded.epochs_changed:
            log._write_epochs()
        return log

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

    # Appending

    def append_as_leader(
        self,
        records: bytearray | memoryview,
        *,
        leader_epoch: int,
        now_ms: int,
        origin: AppendOrigin = AppendOrigin.CLIENT,
    ) -> AppendInfo:
        """Append one batch; offsets, epoch and (if the topic says so) timestamps are written into `records` in place.

        A batch that an idempotent producer repeats is not appended: the answer is where it already is.
        Raises ApiError; the log is unchanged then.
        """
        if self.offline_reason is not None:
            raise self._offline_error()
        config = self.config
        header = admit(records, config, origin, now_ms)
        if header.producer_id >= 0:
            duplicate = self._check_producer(header, origin)
            if duplicate is not None:
                append_time = duplicate.timestamp if config.is_log_append_time else NO_TIMESTAMP
                offsets = (duplicate.base_offset, duplicate.last_offset)
                return AppendInfo(*offsets, append_time, self._log_start_offset, is_duplicate=True)
        if config.compression_type != "producer":
            packed = recompress(records, header, config)
            if packed is not None:
                records, header = packed, read_header(packed)
        base_offset = self._log_end_offset
        header.base_offset = base_offset
        header.partition_leader_epoch = leader_epoch
        patch_offset_and_epoch(records, 0, base_offset, leader_epoch)
        if config.is_log_append_time:
            patch_timestamps(records, 0, header, timestamp_type=1, max_timestamp=now_ms)
        self._write(records, (header,), now_ms)
        append_time = now_ms if config.is_log_append_time else NO_TIMESTAMP
        return AppendInfo(base_offset, self._log_end_offset - 1, append_time, self._log_start_offset)

    def append_as_follower(self, records: bytes | bytearray | memoryview, *, now_ms: int) -> AppendInfo | None:
        """Append the leader's batches as they are, offsets and epochs included; a cut one at the end is left out.

        Returns None when no whole batch is there. Raises ApiError for offsets that do not follow on, or broken bytes.
        """
        if self.offline_reason is not None:
            raise self._offline_error()
        view = memoryview(records)
        headers: list[BatchHeader] = []
        next_offset = self._log_end_offset
        size_bytes = 0
        try:
            for position, header in iter_batches(view):
                verify_crc(view, position, header)
                if header.base_offset < next_offset:
                    raise ApiError(
                        ErrorCode.UNKNOWN_SERVER_ERROR,
                        f"{self.name}: batch at offset {header.base_offset} where {next_offset} is next",
                    )
                next_offset = header.next_offset
                size_bytes = position + header.size_bytes
                headers.append(header)
        except CorruptBatchError as error:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, str(error)) from error
        if not headers:
            return None
        self._write(view[:size_bytes], headers, now_ms)
        return AppendInfo(headers[0].base_offset, next_offset - 1, NO_TIMESTAMP, self._log_start_offset)

    def _check_producer(self, header: BatchHeader, origin: AppendOrigin) -> ProducerBatch | None:
        if origin is AppendOrigin.CLIENT:
            return self._producers.check(header)
        self._producers.check_epoch(header)
        return None

    def _write(self, data: bytearray | memoryview, headers: Sequence[BatchHeader], now_ms: int) -> None:
        last = headers[-1]
        config = self.config
        for header in headers:
            if header.partition_leader_epoch != self._epochs.latest_epoch:
                self.assign_epoch(header.partition_leader_epoch, header.base_offset)
        segment = self._active
        has_room = segment.has_room(len(data), last.last_offset, config.segment_bytes, config.segment_index_bytes)
        if not has_room or self._is_aged(segment, now_ms, last.max_timestamp):
            self.roll(now_ms, headers[0].base_offset)
            segment = self._active
        try:
            segment.append(data, headers, config.index_interval_bytes)
        except OSError as error:
            raise self._go_offline("append to", error) from error
        self._log_end_offset = last.base_offset + last.last_offset_delta + 1
        position = 0
        for header in headers:
            if header.producer_id >= 0:
                loader.replay_producer(self._producers, header, memoryview(data)[position:])
            position += header.size_bytes
        self._producers.end_offset = self._log_end_offset
        if config.flush_messages <= self._log_end_offset - self.recovery_point:
            self.flush(now_ms)

    def _is_aged(self, segment: LogSegment, now_ms: int, timestamp: int) -> bool:
        if not segment.size_bytes:
            return False
        return segment.age_ms(now_ms, timestamp) > self.config.segment_age_ms_max - segment.roll_jitter_ms

    def assign_epoch(self, epoch: int, start_offset: int) -> None:
        """Note that leader `epoch` begins at `start_offset`. A new leader does so first of all. Raises ApiError."""
        if self._epochs.assign(epoch, start_offset):
            try:
                self._write_epochs()
            except OSError as error:
                raise self._go_offline("write the leader epochs of", error) from error

    def _write_epochs(self) -> None:
        # The records carry their epochs, so recovery could rebuild this file: no need to wait for the disk.
        path = f"{self.directory}/{LEADER_EPOCH_FILE}"
        self.storage.write_atomic(path, encode_epoch_checkpoint(self._epochs.entries), durable=False)

    def _go_offline(self, action: str, error: OSError) -> ApiError:
        self.offline_reason = f"cannot {action} {self.directory}: {error.strerror or error}"
        _log.error("Log %s goes offline: %s", self.name, self.offline_reason)
        return self._offline_error()

    def _offline_error(self) -> ApiError:
        return ApiError(ErrorCode.KAFKA_STORAGE_ERROR, self.offline_reason or "")

    # Reading

    def read(
        self, fetch_offset: int, max_bytes: int, *, upper_bound_offset: int | None = None, min_one_batch: bool = True
    ) -> LogRead:
        """Return whole batches from the one that holds `fetch_offset`, none that begins at or after the upper bound.

        The upper bound is the high watermark unless given. Raises ApiError OFFSET_OUT_OF_RANGE, KAFKA_STORAGE_ERROR.
        """
        end_offset = self._log_end_offset
        upper_bound = self._high_watermark if upper_bound_offset is None else min(upper_bound_offset, end_offset)
        if not self._log_start_offset <= fetch_offset <= end_offset:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.name} holds offsets {self._log_start_offset} to {end_offset}, not {fetch_offset}",
            )
        if fetch_offset >= upper_bound:
            return LogRead([], 0)
        try:
            data = self._read(fetch_offset, max_bytes, upper_bound, min_one_batch)
        except OSError as error:
            raise self._go_offline("read", error) from error
        except CorruptBatchError as error:
            raise ApiError(ErrorCode.CORRUPT_MESSAGE, f"{self.directory}: {error}") from error
        return LogRead([data], len(data)) if data else LogRead([], 0)

    def _read(self, fetch_offset: int, max_bytes: int, upper_bound: int, min_one_batch: bool) -> bytes:
        index = search.segment_index(self._segments, fetch_offset)
        while index < len(self._segments):
            segment = self._segments[index]
            position = segment.locate(fetch_offset)
            size_bytes = segment.size_bytes
            if position < size_bytes:
                holds_bound = segment is not self._active and self._segments[index + 1].base_offset > upper_bound
                is_bounded = holds_bound or (segment is self._active and upper_bound < self._log_end_offset)
                end = segment.locate(upper_bound) if is_bounded else size_bytes
                data = segment.read(position, max_bytes, end, min_one_batch) if end > position else b""
                if segment is self._active and position + len(data) == size_bytes:
                    segment.remember(self._log_end_offset, size_bytes)
                return data
            index += 1  # compaction may have emptied the rest of this one
        return b""

    # Epochs and timestamps

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Return (largest epoch <= `epoch`, its end offset), (-1, -1) if unknown (KIP-101)."""
        return self._epochs.end_offset_for(epoch, self._log_end_offset)

    def epoch_for_offset(self, offset: int) -> int:
        """Return the leader epoch that wrote `offset`, -1 if unknown."""
        return self._epochs.epoch_for_offset(offset)

    def offset_for_timestamp(self, target: int) -> tuple[int, int, int] | None:
        """Return (timestamp, offset, leader epoch) of the first committed record at or after the timestamp `target`."""
        return search.offset_for_timestamp(
            self._segments, target, start_offset=self._log_start_offset, end_offset=self._high_watermark
        )

    def max_timestamp_offset(self) -> tuple[int, int, int] | None:
        """Return (timestamp, offset, leader epoch) of the first record with the largest timestamp, None when empty."""
        return search.max_timestamp_offset(self._segments)

    def list_offset(self, target: int, *, is_read_committed: bool = False) -> tuple[int, int, int] | None:
        """Answer ListOffsets: a timestamp, or one of its special targets (-1 latest, -2 earliest, -3 largest timestamp,
        -4 earliest local, -5 last tiered, -6 first not tiered yet). None when nothing is found."""
        if target == search.LATEST:
            offset = self.last_stable_offset if is_read_committed else self._high_watermark
            return NO_TIMESTAMP, offset, self.latest_epoch
        if target in (search.EARLIEST, search.EARLIEST_LOCAL):
            return NO_TIMESTAMP, self._log_start_offset, self.epoch_for_offset(self._log_start_offset)
        if target == search.MAX_TIMESTAMP:
            return self.max_timestamp_offset()
        if target < 0:
            return None  # tiered storage: nothing is tiered
        return self.offset_for_timestamp(target)

    # Segments

    def roll(self, now_ms: int, next_offset: int | None = None) -> None:
        """Close the active segment and begin a new one; an empty active segment stays. Raises ApiError."""
        base_offset = self._log_end_offset if next_offset is None else next_offset
        active = self._active
        if active.size_bytes == 0 and active.base_offset == base_offset:
            return
        try:
            active.finish()
            self.write_producer_snapshot()
            segment = loader.new_segment(
                self.storage,
                self.directory,
                base_offset,
                self.config,
                now_ms=now_ms,
                open_segments=self._open_segments,
                roll_jitter_ms=self._next_jitter_ms(self.config.segment_jitter_ms),
            )
        except OSError as error:
            raise self._go_offline("roll", error) from error
        active.is_active = False
        self._segments.append(segment)
        self._active = segment

    def write_producer_snapshot(self) -> None:
        """Write what is known of producers at the log end offset. Raises OSError."""
        path = f"{self.directory}/{file_name(self._log_end_offset, SNAPSHOT_SUFFIX)}"
        self.storage.write(path, self._producers.encode_snapshot())

    def flush(self, now_ms: int) -> None:
        """Return once every record would survive a power failure. Raises ApiError; a failed fsync is not repeated."""
        try:
            for segment in self._segments[search.segment_index(self._segments, self.recovery_point) : -1]:
                segment.flush()
            self._active.flush()
        except OSError as error:
            raise self._go_offline("flush", error) from error
        self.recovery_point = self._log_end_offset
        self.last_flush_ms = now_ms

    def unflushed_files(self) -> tuple[list[str], int]:
        """Return (files of rolled segments behind the recovery point, the offset they reach), for a flush elsewhere."""
        first = search.segment_index(self._segments, self.recovery_point)
        rolled = self._segments[first:-1]
        suffixes = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX)
        return [segment.path(suffix) for segment in rolled for suffix in suffixes], self._active.base_offset

    def rolled_flushed(self, end_offset: int, error: OSError | None) -> None:
        """Take the result of a flush of rolled segments: all before `end_offset` is on disk now, or it failed."""
        if error is not None:
            self._go_offline("flush", error)
        else:
            self.recovery_point = max(self.recovery_point, min(end_offset, self._log_end_offset))

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
            try:
                self._write_epochs()
            except OSError as error:
                raise self._go_offline("write the leader epochs of", error) from error

    def apply_retention(self, now_ms: int) -> int:
        """Delete the segments that have served their time and return how many. Raises ApiError."""
        count = count_expired(
            self._segment_facts(),
            self.config,
            now_ms=now_ms,
            high_watermark=self._high_watermark,
            log_start_offset=self._log_start_offset,
        )
        if not count or self.offline_reason is not None:
            return 0
        if count == len(self._segments):
            self.roll(now_ms)
        expired = self._segments[:count]
        del self._segments[:count]
        self.advance_log_start(self._segments[0].base_offset)
        first_kept = self._segments[0].base_offset
        _log.info("Deleting %d segments of %s up to offset %d", count, self.name, first_kept)
        self._delete(expired, now_ms)
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

    # Truncation and the end

    def truncate_to(self, offset: int, now_ms: int) -> None:
        """Drop every batch that reaches `offset`, with what was known from them. Raises ApiError."""
        if offset >= self._log_end_offset:
            return
        try:
            index = search.segment_index(self._segments, offset)
            segment = self._segments[index]
            position = segment.locate(offset)
            if position < segment.size_bytes:
                offset = min(offset, segment.read_header(position).base_offset)
            if offset < max(self._log_start_offset, self._segments[0].base_offset):
                self.truncate_fully_and_start_at(max(offset, self._log_start_offset), now_ms)
                return
            self._delete(self._segments[index + 1 :], now_ms)
            del self._segments[index + 1 :]
            segment.is_active = True
            segment.truncate_to_position(position, offset)
            self._active = segment
            self._end_at(offset)
            loader.remove_snapshots_after(self.storage, self.directory, self._log_end_offset)
            self._producers = loader.load_producers(self.storage, self.directory, self._segments, self._log_end_offset)
        except OSError as error:
            raise self._go_offline("truncate", error) from error

    def truncate_fully_and_start_at(self, offset: int, now_ms: int) -> None:
        """Drop every record and go on at `offset`. Raises ApiError."""
        try:
            self._delete(self._segments, now_ms)
            loader.remove_snapshots_after(self.storage, self.directory, -1)
            segment = loader.new_segment(
                self.storage, self.directory, offset, self.config, now_ms=now_ms, open_segments=self._open_segments
            )
            self._segments[:] = [segment]
            self._active = segment
            self._log_start_offset = offset
            self._end_at(offset)
            self._producers.clear(offset)
        except OSError as error:
            raise self._go_offline("truncate", error) from error

    def _end_at(self, offset: int) -> None:
        self._log_end_offset = offset
        self._high_watermark = min(self._high_watermark, offset)
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
                self._active.finish()
                if self._log_end_offset > self._log_start_offset:
                    self.write_producer_snapshot()
            except OSError as error:
                raise self._go_offline("close", error) from error
            if self._log_end_offset > self.recovery_point:
                self.flush(now_ms)
        self.release()
