"""The log of one partition: append, and read by offset or by timestamp.

Only the event loop of the broker uses a log, so a log needs no lock. Consumers read records below the high watermark.
Followers read records up to the log end offset. An append has the same steps as in Kafka: validate the batch, check the
producer, store the leader epoch, roll the segment, write the batch, and update the state in memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace_broker.log import loader, search
from headrace_broker.log.checkpoints import PARTITION_METADATA_FILE, encode_partition_metadata
from headrace_broker.log.config import LogConfig
from headrace_broker.log.open_segments import OpenSegments
from headrace_broker.log.producer_files import replay_producer
from headrace_broker.log.producer_state import ProducerBatch
from headrace_broker.log.segment import RELATIVE_OFFSET_MAX, LogSegment
from headrace_broker.log.segmented_log import SegmentedLog
from headrace_broker.log.storage import Storage
from headrace_broker.log.validator import AppendOrigin, RecordsCheck, recompress, validate_batch
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.records.batch import (
    NO_TIMESTAMP,
    TIMESTAMP_TYPE_MASK,
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
    """The offsets of an append. `log_append_time_ms` is -1 unless the topic uses LogAppendTime."""

    base_offset: int
    last_offset: int
    log_append_time_ms: int
    log_start_offset: int
    is_duplicate: bool = False


@dataclass(slots=True)
class LogRead:
    """Record batches as they are stored in the segment files. The last batch may be incomplete."""

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
        checkpoint_time_ns: int = 0,
        may_have_gaps: bool = True,
        is_only_replica: bool = True,
    ) -> PartitionLog:
        """Open the log in `directory`, or create it. Recover the log unless it was closed cleanly. Raises OSError.

        `next_jitter_ms(bound)` returns a random number in [0, bound), for segment.jitter.ms. `loader.load` describes
        the parameters of the recovery.
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
            checkpoint_time_ns=checkpoint_time_ns,
            may_have_gaps=may_have_gaps,
            is_only_replica=is_only_replica,
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
        if cleaner_offset is not None:  # records that were truncated and fetched again must be cleaned again
            log.cleaner_offset = (
                cleaner_offset if cleaner_offset <= log.log_end_offset else log.segments[-1].base_offset
            )
        if topic_id is not None:
            log.assign_topic_id(topic_id)
        if loaded.epochs_changed:
            try:
                log._write_epochs()
            except OSError as error:  # the next start can rebuild the leader epochs from the records
                _log.warning(
                    "Log %s: cannot write the leader epoch checkpoint, keeping the epochs in memory: %s",
                    directory,
                    error.strerror or error,
                )
        return log

    def assign_topic_id(self, topic_id: bytes) -> None:
        """Write the topic id to `partition.metadata` unless the file contains an id. Raises OSError."""
        if self.topic_id is None:
            # Do not sync the file. The metadata log also contains the id, and one fsync per partition would block the
            # event loop.
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
        check: RecordsCheck | None = None,
    ) -> AppendInfo:
        """Append one batch, after setting the batch's offsets and leader epoch in `records` in place.

        `check` is the result of an earlier check of the records. If the topic uses LogAppendTime, this method also sets
        the timestamps. If the topic uses CreateTime, it sets the batch's timestamp type to CreateTime. A duplicate
        batch of an idempotent producer is not appended again. The result then contains the offsets of the first append.
        If the batch is rejected or cannot be written, this method raises ApiError and does not change the log.
        """
        if self.offline_reason is not None:
            raise self._offline_error()
        config = self.config
        header = validate_batch(records, config, origin, now_ms, check)
        if header.producer_id >= 0:
            duplicate = self._check_producer(header, origin)
            if duplicate is not None:
                append_time = duplicate.timestamp if config.is_log_append_time else NO_TIMESTAMP
                offsets = (duplicate.base_offset, duplicate.last_offset)
                return AppendInfo(*offsets, append_time, self._log_start_offset, is_duplicate=True)
        if config.compression_type != "producer":
            recompressed = recompress(records, header, config)
            if recompressed is not None:
                records, header = recompressed, read_header(recompressed)
        base_offset = self._log_end_offset
        header.base_offset = base_offset
        header.partition_leader_epoch = leader_epoch
        patch_offset_and_epoch(records, 0, base_offset, leader_epoch)
        if config.is_log_append_time:
            patch_timestamps(records, 0, header, timestamp_type=1, max_timestamp=now_ms)
        elif header.attributes & TIMESTAMP_TYPE_MASK:
            patch_timestamps(records, 0, header, timestamp_type=0, max_timestamp=header.max_timestamp)
        self._write(records, (header,), now_ms)
        append_time = now_ms if config.is_log_append_time else NO_TIMESTAMP
        return AppendInfo(base_offset, self._log_end_offset - 1, append_time, self._log_start_offset)

    def append_as_follower(
        self, records: bytes | bytearray | memoryview, *, now_ms: int, leader_epoch_max: int | None = None
    ) -> AppendInfo | None:
        """Append the leader's batches unchanged, with their offsets and leader epochs.

        An incomplete last batch is ignored. Batches with a leader epoch above `leader_epoch_max` are ignored too,
        because they come from a broker that is no longer the leader.

        After DeleteRecords, the leader's log start offset may be inside a batch. If the log of a follower is empty and
        starts at such an offset, the whole batch is appended.

        Returns None if no complete batch is appended. Raises ApiError for offsets below the log end offset and for
        corrupt batches.
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
                        f"{self.name}: the fetched batch has base offset {header.base_offset}, which is below "
                        f"the expected offset {next_offset}",
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
            self.sync_truncation()
            self.truncate_fully_and_start_at(headers[0].base_offset, now_ms)
            # The batch includes offset `start`, so the checkpointed log start offset is valid again.
            self.unsynced_truncation, self.checkpoint_ahead_of_log = None, False
        try:
            self._write(view[:size_bytes], headers, now_ms)
        except ApiError:
            # Remove the leader epochs of the batches that could not be written.
            if self._epochs.truncate_from_end(self._log_end_offset + 1):
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
        if self.unsynced_truncation is not None:
            self.sync_truncation()
        last = headers[-1]
        config = self.config
        for header in headers:
            if header.partition_leader_epoch != self._epochs.latest_epoch:
                self.assign_epoch(header.partition_leader_epoch, header.base_offset)
        segment = self._active
        has_room = segment.has_room(len(data), last.last_offset, config.segment_bytes, config.segment_index_bytes)
        try:
            should_roll = not has_room or self._is_older_than_segment_ms(segment, now_ms, last.max_timestamp)
        except OSError as error:
            raise self._go_offline("cannot read the log", error) from error
        if should_roll:
            # Start the segment at the log end offset, so that segments are contiguous even if compaction on the leader
            # has removed the records before the batch. But if the difference between the batch's offsets and the log
            # end offset exceeds 31 bits, start the segment at the batch's base offset.
            fits_relative = last.last_offset - self._log_end_offset <= RELATIVE_OFFSET_MAX
            self.roll(now_ms, None if fits_relative else headers[0].base_offset)
            segment = self._active
        try:
            segment.append(data, headers, config.index_interval_bytes)
        except OSError as error:
            raise self._go_offline_unchanged("cannot append to the log", error) from error
        self._log_end_offset = last.base_offset + last.last_offset_delta + 1
        position = 0
        for header in headers:
            if header.producer_id >= 0:
                replay_producer(self._producers, header, memoryview(data)[position:])
            position += header.size_bytes
        self._producers.end_offset = self._log_end_offset
        self._recent_snapshots.on_append(len(headers), self._producers, self._high_watermark)
        if config.flush_messages <= self._log_end_offset - self.recovery_point:
            self.flush(now_ms)

    def _is_older_than_segment_ms(self, segment: LogSegment, now_ms: int, timestamp: int) -> bool:
        if not segment.size_bytes:
            return False
        return segment.age_ms(now_ms, timestamp) > self.config.segment_age_ms_max - segment.roll_jitter_ms

    # Reading

    def read(
        self, fetch_offset: int, max_bytes: int, *, upper_bound_offset: int | None = None, min_one_batch: bool = True
    ) -> LogRead:
        """Return batches, starting with the batch that contains `fetch_offset`.

        Batches that begin at or after `upper_bound_offset` are not returned. The default upper bound is the high
        watermark. Raises ApiError OFFSET_OUT_OF_RANGE, KAFKA_STORAGE_ERROR or CORRUPT_MESSAGE.
        """
        end_offset = self._log_end_offset
        upper_bound = self._high_watermark if upper_bound_offset is None else min(upper_bound_offset, end_offset)
        if not self._log_start_offset <= fetch_offset <= end_offset:
            raise ApiError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"{self.name}: offset {fetch_offset} is not in the log, which has offsets {self._log_start_offset} to "
                f"{end_offset}",
            )
        if fetch_offset >= upper_bound:
            return LogRead([], 0)
        try:
            data = self._read(fetch_offset, max_bytes, upper_bound, min_one_batch)
        except OSError as error:
            raise self._go_offline("cannot read the log", error) from error
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
                contains_bound = segment is not self._active and self._segments[index + 1].base_offset > upper_bound
                is_bounded = contains_bound or (segment is self._active and upper_bound < self._log_end_offset)
                end = segment.locate(upper_bound) if is_bounded else size_bytes
                data = segment.read(position, max_bytes, end, min_one_batch) if end > position else b""
                if segment is self._active and position + len(data) == size_bytes:
                    segment.cache_position(self._log_end_offset, size_bytes)
                return data
            index += 1  # compaction may have removed the remaining records of this segment
        return b""

    # Leader epochs and timestamps

    def end_offset_for_epoch(self, epoch: int) -> tuple[int, int]:
        """Return (the largest known leader epoch that is at most `epoch`, the end offset of that leader epoch).

        Return (-1, -1) if no such leader epoch is known (KIP-101).
        """
        return self._epochs.end_offset_for(epoch, self._log_end_offset)

    def epoch_for_offset(self, offset: int) -> int:
        """Return the leader epoch of the record at `offset`, or -1 if it is unknown."""
        return self._epochs.epoch_for_offset(offset)

    def offset_for_timestamp(self, target: int) -> tuple[int, int, int] | None:
        """Return (timestamp, offset, leader epoch) of the first committed record at or after the timestamp `target`."""
        try:
            return search.offset_for_timestamp(
                self._segments, target, start_offset=self._log_start_offset, end_offset=self._high_watermark
            )
        except OSError as error:
            raise self._go_offline("cannot read the log", error) from error
        except CorruptBatchError as error:
            raise self._corrupt(error) from error

    def max_timestamp_offset(self) -> tuple[int, int, int] | None:
        """Return (timestamp, offset, leader epoch) of the first record with the largest timestamp.

        Return None if the log is empty.
        """
        try:
            return search.max_timestamp_offset(self._segments)
        except OSError as error:
            raise self._go_offline("cannot read the log", error) from error
        except CorruptBatchError as error:
            raise self._corrupt(error) from error
