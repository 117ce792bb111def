"""One partition's log: append and read, by offset or by timestamp.

A log belongs to the event loop of its broker; nothing here locks or waits. Records below the high watermark are what
consumers see, records up to the log end offset what followers fetch.
Order of an append (as Kafka's): admit, producer check, epoch entry, roll, write, then the state in memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace_broker.log import loader, search
from headrace_broker.log.admission import AppendOrigin, admit, recompress
from headrace_broker.log.checkpoints import PARTITION_METADATA_FILE, encode_partition_metadata
from headrace_broker.log.config import LogConfig
from headrace_broker.log.open_segments import OpenSegments
from headrace_broker.log.producer_files import replay_producer
from headrace_broker.log.producer_state import ProducerBatch
from headrace_broker.log.segment import RELATIVE_OFFSET_MAX, LogSegment
from headrace_broker.log.segmented_log import SegmentedLog
from headrace_broker.log.storage import Storage
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.records.batch import (
    NO_TIMESTAMP,
    BatchHeader,
    CorruptBatchError,
    iter_batches,
    patch_offset_and_epoch,
    patch_timestamps,
    read_header,
    verify_crc,
)

_log = logging.getLogger(__name__)


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


class PartitionLog(SegmentedLog):
    """The log of one partition, in one directory."""

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
        cleaner_offset: int | None = None,
        vouched_ns: int = 0,
        may_have_gaps: bool = True,
        is_only_copy: bool = True,
    ) -> PartitionLog:
        """Open or make the log in `directory`, recovering it unless it was closed cleanly (`recovery.recover`).

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
            cleaner_offset=cleaner_offset or 0,
            vouched_ns=vouched_ns,
            may_have_gaps=may_have_gaps,
            is_only_copy=is_only_copy,
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
        if cleaner_offset is not None:  # what was cut away has to be cleaned when it comes back
            log.cleaner_offset = (
                cleaner_offset if cleaner_offset <= log.log_end_offset else log.segments[-1].base_offset
            )
        if topic_id is not None:
            log.belongs_to(topic_id)
        if loaded.epochs_changed:
            try:
                log._write_epochs()
            except OSError as error:  # they can be had from the records again
                _log.warning("Keeping the leader epochs of %s in memory: %s", directory, error.strerror or error)
        return log

    def belongs_to(self, topic_id: bytes) -> None:
        """Have the directory say whose it is, if it does not.  Raises OSError."""
        if self.topic_id is None:
            # The metadata log knows the id as well; one fsync per partition would hold up the event loop.
            path = f"{self.directory}/{PARTITION_METADATA_FILE}"
            self.storage.write_atomic(path, encode_partition_metadata(topic_id), durable=False)
            self.topic_id = topic_id

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

    def append_as_follower(
        self, records: bytes | bytearray | memoryview, *, now_ms: int, leader_epoch_max: int | None = None
    ) -> AppendInfo | None:
        """Append the leader's batches as they are, offsets and epochs included; a cut one at the end is left out.

        Batches of an epoch above `leader_epoch_max` are left out too: the leader that was asked had lost its office.
        An empty log that begins inside the first batch begins with it: the leader's log starts there since records were
        deleted. Returns None when no whole batch is there. Raises ApiError for offsets that do not follow on, or broken
        bytes.
        """
        if self.offline_reason is not None:
            raise self._offline_error()
        view = memoryview(records)
        headers: list[BatchHeader] = []
        next_offset = self._log_end_offset
        is_empty = self._log_start_offset == next_offset
        size_bytes = 0
        try:
            for position, header in iter_batches(view):
                if leader_epoch_max is not None and header.partition_leader_epoch > leader_epoch_max:
                    break
                verify_crc(view, position, header)
                if is_empty and not headers and header.base_offset < next_offset < header.next_offset:
                    next_offset = header.base_offset
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
        start = self._log_start_offset
        if headers[0].base_offset < start:
            self.make_cut_safe()
            self.truncate_fully_and_start_at(headers[0].base_offset, now_ms)
            self.unsafe_cut, self.is_overtold = None, False  # what is told of `start` holds: the batch has it
        try:
            self._write(view[:size_bytes], headers, now_ms)
        except ApiError:
            if self._epochs.truncate_from_end(self._log_end_offset + 1):  # of batches that did not get there
                self._write_epochs_soon()
            raise
        self.advance_log_start(start)
        return AppendInfo(headers[0].base_offset, next_offset - 1, NO_TIMESTAMP, self._log_start_offset)

    def _check_producer(self, header: BatchHeader, origin: AppendOrigin) -> ProducerBatch | None:
        if origin is AppendOrigin.CLIENT:
            return self._producers.check(header)
        self._producers.check_epoch(header)
        return None

    def _write(self, data: bytearray | memoryview, headers: Sequence[BatchHeader], now_ms: int) -> None:
        if self.unsafe_cut is not None:
            self.make_cut_safe()
        last = headers[-1]
        config = self.config
        for header in headers:
            if header.partition_leader_epoch != self._epochs.latest_epoch:
                self.assign_epoch(header.partition_leader_epoch, header.base_offset)
        segment = self._active
        has_room = segment.has_room(len(data), last.last_offset, config.segment_bytes, config.segment_index_bytes)
        try:
            is_due = not has_room or self._is_aged(segment, now_ms, last.max_timestamp)
        except OSError as error:
            raise self._go_offline("read", error) from error
        if is_due:
            # From the end on: segments follow each other also where the leader has compacted away what lies between.
            is_near = last.last_offset - self._log_end_offset <= RELATIVE_OFFSET_MAX
            self.roll(now_ms, None if is_near else headers[0].base_offset)
            segment = self._active
        try:
            segment.append(data, headers, config.index_interval_bytes)
        except OSError as error:
            raise self._no_room_to("append to", error) from error
        self._log_end_offset = last.base_offset + last.last_offset_delta + 1
        position = 0
        for header in headers:
            if header.producer_id >= 0:
                replay_producer(self._producers, header, memoryview(data)[position:])
            position += header.size_bytes
        self._producers.end_offset = self._log_end_offset
        self._kept_snapshots.appended(len(headers), self._producers, self._high_watermark)
        if config.flush_messages <= self._log_end_offset - self.recovery_point:
            self.flush(now_ms)

    def _is_aged(self, segment: LogSegment, now_ms: int, timestamp: int) -> bool:
        if not segment.size_bytes:
            return False
        return segment.age_ms(now_ms, timestamp) > self.config.segment_age_ms_max - segment.roll_jitter_ms

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
            raise self._corrupt(error) from error
        return LogRead([data], len(data)) if data else LogRead([], 0)

    def _corrupt(self, error: CorruptBatchError) -> ApiError:
        return ApiError(ErrorCode.CORRUPT_MESSAGE, f"{self.directory}: {error}")

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
        try:
            return search.offset_for_timestamp(
                self._segments, target, start_offset=self._log_start_offset, end_offset=self._high_watermark
            )
        except OSError as error:
            raise self._go_offline("read", error) from error
        except CorruptBatchError as error:
            raise self._corrupt(error) from error

    def max_timestamp_offset(self) -> tuple[int, int, int] | None:
        """Return (timestamp, offset, leader epoch) of the first record with the largest timestamp, None when empty."""
        try:
            return search.max_timestamp_offset(self._segments)
        except OSError as error:
            raise self._go_offline("read", error) from error
        except CorruptBatchError as error:
            raise self._corrupt(error) from error
