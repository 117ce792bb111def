"""Tests of PartitionLog: appends, reads, rolls, leader epochs, producers, timestamps, truncation, and retention."""

from __future__ import annotations

import contextlib
import errno
import os
from dataclasses import replace
from random import Random

import pytest

from headrace_broker.log import producer_files
from headrace_broker.log.config import LogConfig
from headrace_broker.log.log import PartitionLog
from headrace_broker.log.open_segments import OpenSegments
from headrace_broker.log.producer_files import load_producers
from headrace_broker.log.segment import LogSegment
from headrace_broker.log.storage import MemoryFile, MemoryStorage
from headrace_broker.log.validator import AppendOrigin, RecordsCheck, RecordsRejectedError
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.records.batch import iter_batches, patch_crc, patch_timestamps, read_header
from headrace_broker.records.builder import build_batch, finish_batch
from headrace_broker.records.columns import RecordColumns
from headrace_broker.records.compression import Compression
from headrace_broker.records.control import ControlType, build_control_batch, end_transaction_value
from headrace_broker.records.reader import read_columns
from headrace_broker.simulation.disk import SimulatedDisk

NOW = 1_700_000_000_000
DIRECTORY = "/data/t-0"


def open_log(storage: MemoryStorage | None = None, config: LogConfig | None = None, **options) -> PartitionLog:
    storage = storage or MemoryStorage()
    return PartitionLog.open(storage, DIRECTORY, "t", 0, config or LogConfig(), NOW, **options)


def batch(*values: bytes, timestamp: int = NOW, **options) -> bytearray:
    return build_batch(RecordColumns(values=list(values), timestamps=timestamp), **options)


def append(log: PartitionLog, *values: bytes, timestamp: int = NOW, epoch: int = 0, now_ms: int = NOW, **options):
    info = log.append_as_leader(batch(*values, timestamp=timestamp, **options), leader_epoch=epoch, now_ms=now_ms)
    log.advance_high_watermark(log.log_end_offset)
    return info


def values_from(log: PartitionLog, offset: int = 0) -> list[bytes | None]:
    values: list[bytes | None] = []
    while offset < log.log_end_offset:
        read = log.read(offset, 1 << 20, upper_bound_offset=log.log_end_offset)
        columns = read_columns(b"".join(read.buffers), offset)
        assert len(columns), offset
        values += columns.values
        offset = columns.next_offset or 0
    return values


def error_of(call) -> ErrorCode:
    with pytest.raises(ApiError) as raised:
        call()
    return raised.value.code


def test_append_sets_offsets_and_leader_epoch_in_batch() -> None:
    log = open_log()
    first = append(log, b"a", b"b")
    second = append(log, b"c", epoch=4)
    assert (first.base_offset, first.last_offset) == (0, 1)
    assert (second.base_offset, second.last_offset, second.log_append_time_ms) == (2, 2, -1)
    data = b"".join(log.read(0, 1 << 20).buffers)
    assert [(h.base_offset, h.partition_leader_epoch) for _, h in iter_batches(data)] == [(0, 0), (2, 4)]
    assert values_from(log) == [b"a", b"b", b"c"]


def test_read_starts_at_the_batch_that_contains_the_offset_and_ends_at_the_upper_bound_offset() -> None:
    log = open_log()
    for number in range(10):
        append(log, b"x%d" % number, b"y%d" % number)
    data = b"".join(log.read(5, 1 << 20, upper_bound_offset=8).buffers)
    assert [header.base_offset for _, header in iter_batches(data)] == [4, 6]
    assert log.read(20, 100).size_bytes == 0
    assert error_of(lambda: log.read(21, 100)) == ErrorCode.OFFSET_OUT_OF_RANGE


def test_read_ends_at_the_high_watermark_by_default() -> None:
    """Rule R3 in docs/broker.md: a read between the high watermark and the log end offset returns no records."""
    log = open_log()
    log.append_as_leader(batch(b"a"), leader_epoch=0, now_ms=NOW)
    assert log.read(0, 100).size_bytes == 0
    assert log.read(1, 100).size_bytes == 0
    assert log.read(0, 100, upper_bound_offset=log.log_end_offset).size_bytes > 0


def test_read_returns_the_first_batch_even_if_it_is_larger_than_max_bytes() -> None:
    log = open_log()
    append(log, b"x" * 5000)
    append(log, b"y" * 5000)
    assert log.read(0, 100, min_one_batch=False).size_bytes == 0
    assert values_of(log.read(0, 100)) == [b"x" * 5000]


def values_of(read) -> list[bytes | None]:
    return read_columns(b"".join(read.buffers)).values


def test_read_returns_complete_batches_within_max_bytes() -> None:
    log = open_log()
    for number in range(50):
        append(log, b"%04d" % number * 500)
    read = log.read(3, 9000)
    data = b"".join(read.buffers)
    batches = list(iter_batches(data))
    assert sum(header.size_bytes for _, header in batches) == len(data) <= 9000
    assert batches[0][1].base_offset == 3


def test_log_rolls_segments_by_size_and_reads_across_segments() -> None:
    log = open_log(config=LogConfig(segment_bytes=400))
    for number in range(30):
        append(log, b"value %d" % number)
    assert len(log.segments) > 5
    assert all(segment.size_bytes <= 400 for segment in log.segments)
    assert values_from(log) == [b"value %d" % number for number in range(30)]
    assert values_from(log, 17) == [b"value %d" % number for number in range(17, 30)]


def test_log_rolls_a_segment_when_its_record_timestamps_span_more_than_segment_ms() -> None:
    log = open_log(config=LogConfig(segment_ms=1000, message_timestamp_after_max_ms=10**9))
    append(log, b"a", timestamp=NOW)
    append(log, b"b", timestamp=NOW + 1000)
    assert len(log.segments) == 1
    append(log, b"c", timestamp=NOW + 1001)
    assert [segment.base_offset for segment in log.segments] == [0, 2]


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda b: b[:40], ErrorCode.CORRUPT_MESSAGE),
        (lambda b: b[:-1], ErrorCode.CORRUPT_MESSAGE),
        (lambda b: b[:16] + b"\x01" + b[17:], ErrorCode.INVALID_RECORD),
        (lambda b: b[:-1] + b"\x01", ErrorCode.CORRUPT_MESSAGE),
        (lambda b: b + b, ErrorCode.INVALID_RECORD),
        (lambda b: b"\0\0\0\0\0\0\0\1" + b[8:], ErrorCode.INVALID_RECORD),
    ],
)
def test_invalid_batches_are_rejected_and_not_written(change, code: ErrorCode) -> None:
    log = open_log()
    append(log, b"before")
    size = log.size_bytes
    records = bytearray(change(batch(b"a", b"b")))
    assert error_of(lambda: log.append_as_leader(records, leader_epoch=0, now_ms=NOW)) == code
    assert (log.size_bytes, log.log_end_offset) == (size, 1)


def test_batch_larger_than_max_message_bytes_is_rejected() -> None:
    log = open_log(config=LogConfig(max_message_bytes=200))
    with pytest.raises(ApiError, match=r"max\.message\.bytes=200") as raised:
        append(log, b"x" * 200)
    assert raised.value.code == ErrorCode.MESSAGE_TOO_LARGE


def test_timestamps_outside_limits_are_rejected() -> None:
    log = open_log(config=LogConfig(message_timestamp_before_max_ms=1000))
    assert error_of(lambda: append(log, b"a", timestamp=NOW + 3_600_001)) == ErrorCode.INVALID_TIMESTAMP
    assert error_of(lambda: append(log, b"a", timestamp=NOW - 1001)) == ErrorCode.INVALID_TIMESTAMP
    append(log, b"a", timestamp=NOW - 1000)
    append(log, b"a", timestamp=-1)


def test_log_append_time_sets_timestamp_of_every_record() -> None:
    log = open_log(config=LogConfig(is_log_append_time=True))
    assert append(log, b"a", b"b", timestamp=5, now_ms=NOW + 7).log_append_time_ms == NOW + 7
    columns = read_columns(b"".join(log.read(0, 1000).buffers))
    assert (columns.timestamps, columns.timestamp_type) == (NOW + 7, 1)


def with_log_append_time(timestamp: int) -> bytearray:
    records = batch(b"a", b"b", timestamp=timestamp)
    patch_timestamps(records, 0, read_header(records), timestamp_type=1, max_timestamp=timestamp)
    return records


def test_create_time_topic_stores_batch_with_log_append_time_as_create_time() -> None:
    log = open_log()
    log.append_as_leader(with_log_append_time(NOW - 5), leader_epoch=0, now_ms=NOW)
    columns = read_columns(b"".join(log.read(0, 1000, upper_bound_offset=2).buffers))
    assert (columns.timestamps, columns.timestamp_type) == (NOW - 5, 0)


def test_batch_with_log_append_time_is_rejected_without_timestamp_and_in_log_append_time_topics() -> None:
    for config, timestamp in ((LogConfig(), -1), (LogConfig(is_log_append_time=True), NOW)):
        log = open_log(config=config)
        records = with_log_append_time(timestamp)
        code = error_of(lambda log=log, records=records: log.append_as_leader(records, leader_epoch=0, now_ms=NOW))
        assert code == ErrorCode.INVALID_TIMESTAMP


def test_recompressed_batch_of_create_time_topic_has_create_time() -> None:
    log = open_log(config=LogConfig(compression_type="gzip"))
    log.append_as_leader(with_log_append_time(NOW), leader_epoch=0, now_ms=NOW)
    header = read_header(b"".join(log.read(0, 1000, upper_bound_offset=2).buffers))
    assert (header.compression, header.timestamp_type) == (Compression.GZIP, 0)


def test_uncompressed_batch_with_a_wrong_record_count_is_rejected_if_the_topic_recompresses_it() -> None:
    log = open_log(config=LogConfig(compression_type="gzip"))
    records = batch(b"a" * 20, b"b" * 20)
    records[23:27], records[57:61] = (2).to_bytes(4, "big"), (3).to_bytes(4, "big")
    patch_crc(records, 0, read_header(records))
    assert error_of(lambda: log.append_as_leader(records, leader_epoch=0, now_ms=NOW)) == ErrorCode.INVALID_RECORD


def test_result_of_an_earlier_check_of_the_records_rejects_the_batch() -> None:
    log = open_log()
    check = RecordsCheck(ApiError(ErrorCode.INVALID_RECORD, "record 3: its length is -1"))
    with pytest.raises(ApiError, match="record 3") as raised:
        log.append_as_leader(batch(b"a"), leader_epoch=0, now_ms=NOW, check=check)
    assert raised.value.code == ErrorCode.INVALID_RECORD
    assert log.log_end_offset == 0


def test_compacted_topic_rejects_records_without_key() -> None:
    log = open_log(config=LogConfig(cleanup_compact=True, cleanup_delete=False))
    columns = RecordColumns(values=[b"1", b"2", b"3"], keys=[b"k", None, b"k"], timestamps=NOW)
    with pytest.raises(RecordsRejectedError) as raised:
        log.append_as_leader(build_batch(columns), leader_epoch=0, now_ms=NOW)
    assert raised.value.code == ErrorCode.INVALID_RECORD
    assert [index for index, _ in raised.value.record_errors] == [1]
    assert log.log_end_offset == 0


@pytest.mark.parametrize("codec", list(Compression))
def test_batches_are_recompressed_with_the_codec_of_the_topic(codec: Compression) -> None:
    log = open_log(config=LogConfig(compression_type="zstd", compression_level=3))
    append(log, b"a" * 100, b"b" * 100, compression=codec)
    data = b"".join(log.read(0, 1000).buffers)
    assert [header.compression for _, header in iter_batches(data)] == [Compression.ZSTD]
    assert values_from(log) == [b"a" * 100, b"b" * 100]


# Producers


def producer(log: PartitionLog, sequence: int, count: int = 1, *, epoch: int = 0, producer_id: int = 7):
    options = {"producer_id": producer_id, "producer_epoch": epoch, "base_sequence": sequence}
    return append(log, *[b"v"] * count, **options)


def test_retries_of_the_last_five_batches_of_a_producer_are_recognized_as_duplicates() -> None:
    log = open_log()
    for sequence in range(0, 14, 2):
        producer(log, sequence, 2)
    for sequence in range(4, 14, 2):
        info = producer(log, sequence, 2)
        assert info.is_duplicate
        assert (info.base_offset, info.last_offset) == (sequence, sequence + 1)
    assert log.log_end_offset == 14
    assert error_of(lambda: producer(log, 2, 2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_sequence_that_wraps_to_0_is_accepted_but_a_sequence_gap_or_an_old_producer_epoch_is_rejected() -> None:
    log = open_log()
    producer(log, 2**31 - 2, 2)
    producer(log, 0, 1)
    assert error_of(lambda: producer(log, 2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    producer(log, 1)
    assert error_of(lambda: producer(log, 5, epoch=1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    producer(log, 0, epoch=1)
    assert error_of(lambda: producer(log, 2)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert log.log_end_offset == 5


@pytest.mark.parametrize("clean", [True, False])
def test_producer_state_survives_restart(clean: bool) -> None:
    storage = MemoryStorage()
    log = open_log(storage, LogConfig(segment_bytes=300))
    for sequence in range(12):
        producer(log, sequence)
    if clean:
        log.close(clean=True, now_ms=NOW)
    log = open_log(storage, LogConfig(segment_bytes=300), was_closed_cleanly=clean)
    assert producer(log, 11).is_duplicate
    assert producer(log, 12).base_offset == 12


def test_state_of_an_active_producer_does_not_expire_if_its_records_have_old_timestamps() -> None:
    """A producer that copies last year's records is active, although the timestamps of its records are old.

    If the producer's state expired, a retried batch would be appended twice.
    """
    day_ms = 86_400_000
    log = open_log()
    sent = {"timestamp": NOW - 365 * day_ms, "producer_id": 7, "producer_epoch": 0}
    append(log, b"a", base_sequence=0, **sent)
    log.producers.expire(NOW, day_ms)
    assert append(log, b"a", base_sequence=0, **sent).is_duplicate
    append(log, b"b", base_sequence=1, **sent)
    log.producers.expire(NOW + day_ms, day_ms)
    assert append(log, b"b", base_sequence=1, **sent).is_duplicate
    log.producers.expire(NOW + 2 * day_ms, day_ms)
    assert not log.producers.producers


def test_truncation_restores_the_producer_sequence_at_the_truncation_offset() -> None:
    log = open_log()
    for sequence in range(6):
        producer(log, sequence)
    log.truncate_to(3, NOW)
    assert producer(log, 3).base_offset == 3


# Epochs, truncation, retention


def test_leader_epoch_ends_where_the_next_epoch_starts_and_truncation_removes_later_epochs() -> None:
    """The leader epoch checkpoint contains the start offset of each epoch."""
    log = open_log()
    append(log, b"a", b"b", epoch=1)
    append(log, b"c", epoch=3)
    assert log.end_offset_for_epoch(1) == (1, 2)
    assert log.end_offset_for_epoch(2) == (1, 2)
    assert log.end_offset_for_epoch(3) == (3, 3)
    assert log.end_offset_for_epoch(4) == (-1, -1)
    assert log.storage.read(f"{DIRECTORY}/leader-epoch-checkpoint") == b"0\n2\n1 0\n3 2\n"
    log.truncate_to(2, NOW)
    assert log.storage.read(f"{DIRECTORY}/leader-epoch-checkpoint") == b"0\n1\n1 0\n"


def test_unreadable_leader_epoch_checkpoint_of_a_cleanly_closed_log_is_rebuilt() -> None:
    storage = MemoryStorage()
    log = open_log(storage, LogConfig(segment_bytes=200))
    for epoch in (1, 1, 3, 4):
        append(log, b"value", epoch=epoch)
    log.close(clean=True, now_ms=NOW)
    path = f"{DIRECTORY}/leader-epoch-checkpoint"
    written = storage.read(path)
    storage.write(path, b"\xff")
    log = open_log(storage, was_closed_cleanly=True)
    assert log.end_offset_for_epoch(1) == (1, 2)
    assert storage.read(path) == written
    assert not log.is_corrupt


def test_cleanly_closed_log_with_an_incomplete_batch_is_treated_as_corrupt() -> None:
    storage = MemoryStorage()
    log = open_log(storage)
    append(log, b"a")
    append(log, b"b")
    log.close(clean=True, now_ms=NOW)
    path = log.segments[0].path(".log")
    storage.write(path, storage.read(path)[:-1])
    reopened = open_log(storage, was_closed_cleanly=True)
    assert (reopened.log_end_offset, reopened.is_corrupt) == (1, True)


def test_truncation_removes_later_segments_and_truncates_the_last_remaining_segment() -> None:
    storage = MemoryStorage()
    log = open_log(storage, LogConfig(segment_bytes=400))
    for number in range(30):
        append(log, b"value %d" % number)
    log.truncate_to(11, NOW)
    assert (log.log_end_offset, log.high_watermark) == (11, 11)
    assert values_from(log) == [b"value %d" % number for number in range(11)]
    append(log, b"new")
    log.close(clean=True, now_ms=NOW)
    log = open_log(storage, LogConfig(segment_bytes=400), was_closed_cleanly=True)
    assert values_from(log) == [*(b"value %d" % number for number in range(11)), b"new"]


def test_truncation_before_log_start_offset_lowers_log_start_offset() -> None:
    """If the log start offset were not lowered, the log would still end after the leader's log.

    The follower would then truncate its log again and again.
    """
    log = open_log()
    for number in range(10):
        append(log, b"value %d" % number)
    log.delete_records_before(8)
    log.truncate_to(5, NOW)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (5, 5, 5)
    log.truncate_fully_and_start_at(20, NOW)
    assert (log.log_start_offset, log.high_watermark, log.log_end_offset) == (20, 20, 20)


def test_follower_append_keeps_leader_offsets_and_ignores_incomplete_batch() -> None:
    leader, follower = open_log(), open_log()
    for number in range(3):
        append(leader, b"%d" % number, epoch=2)
    data = b"".join(leader.read(0, 1 << 20).buffers)
    info = follower.append_as_follower(data[:-1], now_ms=NOW)
    assert info is not None
    assert (info.base_offset, info.last_offset) == (0, 1)
    assert follower.latest_epoch == 2
    code = error_of(lambda: follower.append_as_follower(data, now_ms=NOW))
    assert code == ErrorCode.UNKNOWN_SERVER_ERROR
    assert follower.append_as_follower(b"", now_ms=NOW) is None


def test_empty_follower_appends_batch_containing_leader_log_start_offset() -> None:
    """After DeleteRecords, the leader's log starts inside a batch, and the leader sends the whole batch."""
    leader = open_log()
    batches = [build_batch(RecordColumns(values=[b"x"] * 5, timestamps=NOW)) for _ in range(3)]
    for batch in batches:
        leader.append_as_leader(batch, leader_epoch=2, now_ms=NOW)
    leader.advance_high_watermark(15)
    leader.advance_log_start(7)
    data = b"".join(leader.read(7, 1 << 20).buffers)
    storage = MemoryStorage()
    follower = open_log(storage)
    follower.truncate_fully_and_start_at(7, NOW)
    info = follower.append_as_follower(data, now_ms=NOW)
    assert info is not None
    assert (info.base_offset, info.last_offset) == (5, 14)
    assert (follower.log_start_offset, follower.log_end_offset) == (7, 15)
    assert follower.end_offset_for_epoch(2) == (2, 15)
    assert error_of(lambda: follower.append_as_follower(data, now_ms=NOW)) == ErrorCode.UNKNOWN_SERVER_ERROR
    reopened = open_log(storage)
    reopened.advance_high_watermark(15)
    assert (reopened.log_end_offset, b"".join(reopened.read(7, 1 << 20).buffers)) == (15, data)


def test_retention_bytes_keeps_newest_segments() -> None:
    storage = MemoryStorage()
    log = open_log(storage, LogConfig(segment_bytes=400, retention_bytes=900, file_delete_delay_ms=10))
    for number in range(40):
        append(log, b"value %d" % number)
    assert log.apply_retention(NOW) > 0
    assert 900 <= log.size_bytes <= 900 + 400
    assert log.log_start_offset == log.segments[0].base_offset
    assert values_from(log, log.log_start_offset)[-1] == b"value 39"
    assert error_of(lambda: log.read(0, 10)) == ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.pop_expired_files(NOW + 9) == []
    deleted = log.pop_expired_files(NOW + 10)
    assert any(path.endswith(f"{0:020d}.log.deleted") for path in deleted)


def test_retention_rolls_and_deletes_an_active_segment_older_than_retention_ms() -> None:
    log = open_log(config=LogConfig(retention_ms=1000))
    append(log, b"a")
    assert log.apply_retention(NOW + 1000) == 0
    assert log.apply_retention(NOW + 1001) == 1
    assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (1, 1, 0)
    assert append(log, b"b", now_ms=NOW + 2000).base_offset == 1


def test_retention_does_not_delete_beyond_high_watermark() -> None:
    log = open_log(config=LogConfig(segment_bytes=200, retention_bytes=0))
    for number in range(5):
        log.append_as_leader(batch(b"value %d" % number), leader_epoch=0, now_ms=NOW)
    assert log.apply_retention(NOW) == 0
    log.advance_high_watermark(3)
    log.apply_retention(NOW)
    assert log.log_start_offset <= 3


def test_deleting_records_advances_the_log_start_offset_and_retention_deletes_the_segments_before_it() -> None:
    config = LogConfig(segment_bytes=200, cleanup_delete=False, cleanup_compact=False)
    log = open_log(config=config)
    for number in range(8):
        append(log, b"value %d" % number)
    assert log.delete_records_before(5) == 5
    assert error_of(lambda: log.read(4, 100)) == ErrorCode.OFFSET_OUT_OF_RANGE
    assert error_of(lambda: log.delete_records_before(9)) == ErrorCode.OFFSET_OUT_OF_RANGE
    assert log.apply_retention(NOW) > 0
    assert log.segments[0].base_offset <= 5
    assert log.log_start_offset == 5
    assert values_from(log, 5) == [b"value 5", b"value 6", b"value 7"]
    assert log.delete_records_before(-1) == 8


# Timestamps


def test_offset_for_a_timestamp_is_the_offset_of_the_first_record_at_or_after_the_timestamp() -> None:
    log = open_log(config=LogConfig(segment_bytes=600, index_interval_bytes=50))
    for number in range(20):
        columns = RecordColumns(values=[b"a", b"b"], timestamps=[NOW + 20 * number, NOW + 20 * number + 10])
        log.append_as_leader(build_batch(columns), leader_epoch=number // 10, now_ms=NOW)
    assert log.offset_for_timestamp(0) is None
    log.advance_high_watermark(40)
    for target in range(NOW - 5, NOW + 391):
        offset = max(0, -(-(target - NOW) // 10))
        assert log.offset_for_timestamp(target) == (NOW + 10 * offset, offset, offset // 20)
    assert log.offset_for_timestamp(NOW + 391) is None
    assert log.max_timestamp_offset() == (NOW + 390, 39, 1)
    log.delete_records_before(7)
    assert log.offset_for_timestamp(0) == (NOW + 70, 7, 0)


def test_max_timestamp_offset_is_first_offset_with_largest_timestamp() -> None:
    log = open_log()
    assert log.max_timestamp_offset() is None
    for number in (5, 9, 7):
        append(log, b"a", timestamp=NOW + number, epoch=2)
    log.delete_records_before(1)
    assert log.max_timestamp_offset() == (NOW + 9, 1, 2)
    assert log.offset_for_timestamp(NOW + 6) == (NOW + 9, 1, 2)


# Failure


class FailingFile(MemoryFile):
    """A file in which a write stores half of the data and then fails with `error`."""

    __slots__ = ("error",)

    def write(self, data, position) -> None:
        if self.error:
            super().write(memoryview(data)[: len(data) // 2], position)
            raise OSError(self.error, os.strerror(self.error))
        super().write(data, position)


class FailingStorage(MemoryStorage):
    error = 0

    def open(self, path: str) -> MemoryFile:
        plain = super().open(path)
        file = FailingFile(plain._data)
        file.error = self.error
        return file


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_failed_write_takes_log_offline_and_keeps_acknowledged_records(error: int) -> None:
    """Rule R14 in docs/broker.md: on a full or failed disk, appends fail and acknowledged records remain readable."""
    storage = FailingStorage()
    log = open_log(storage)
    append(log, b"acknowledged")
    size = log.size_bytes
    log.release()
    storage.error = error
    with pytest.raises(ApiError, match=os.strerror(error)) as raised:
        append(log, b"lost")
    assert raised.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    assert storage.size(f"{DIRECTORY}/{0:020d}.log") == size
    storage.error = 0
    log.release()
    assert error_of(lambda: append(log, b"refused")) == ErrorCode.KAFKA_STORAGE_ERROR
    assert values_from(log) == [b"acknowledged"]
    assert values_from(open_log(storage)) == [b"acknowledged"]


@pytest.mark.parametrize("was_closed_cleanly", [True, False])
@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EMFILE])
def test_failed_roll_leaves_no_files_of_the_new_segment(error: int, was_closed_cleanly: bool) -> None:
    """If an empty segment stayed at an offset inside another segment, the next start would skip or drop records."""

    class TimeIndexFailingStorage(MemoryStorage):
        error = 0

        def write(self, path: str, data: bytes | bytearray | memoryview) -> None:
            if self.error and path.endswith("2.timeindex"):
                raise OSError(self.error, os.strerror(self.error), path)
            super().write(path, data)

    storage, config = TimeIndexFailingStorage(), LogConfig(segment_bytes=300)
    log = open_log(storage, config)
    append(log, b"0")
    append(log, b"1")
    storage.error = error
    assert error_of(lambda: append(log, b"too large for this segment" * 6)) == ErrorCode.KAFKA_STORAGE_ERROR
    storage.error = 0
    assert log.offline_reason is None or log.try_go_online()
    for number in range(2, 12):
        append(log, b"%d" % number)
    log.close(clean=was_closed_cleanly, now_ms=NOW)
    log = open_log(storage, config, was_closed_cleanly=was_closed_cleanly)
    assert values_from(log, 2) == [b"%d" % number for number in range(2, 12)]


@pytest.mark.parametrize(("suffix", "is_empty"), [(".timeindex", False), (".timeindex", True), (".index", True)])
def test_append_writes_no_records_if_the_indexes_cannot_be_loaded(suffix: str, is_empty: bool) -> None:
    """An append loads the indexes before it writes, because loading fails if no file descriptor is free.

    If the append wrote the records first, a retry would write them twice. Recovery would truncate the log at the
    second copy.
    """

    class FewDescriptorsStorage(MemoryStorage):
        is_out_of_descriptors = False

        def _check(self, path: str) -> None:
            if self.is_out_of_descriptors and path.endswith(suffix):
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

        def open(self, path: str) -> MemoryFile:
            self._check(path)
            return super().open(path)

        def read(self, path: str) -> bytes:
            self._check(path)
            return super().read(path)

    storage, values = FewDescriptorsStorage(), [] if is_empty else [b"before"]
    log = open_log(storage)
    for value in values:
        append(log, value)
    log.close(clean=True, now_ms=NOW)
    log = open_log(storage, was_closed_cleanly=True)
    for number in range(40):
        value = b"%d" % number * 100
        storage.is_out_of_descriptors = True
        with contextlib.suppress(ApiError):
            append(log, value)
            values.append(value)
        storage.is_out_of_descriptors = False
    append(log, b"after")
    values.append(b"after")
    assert values_from(log) == values
    assert values_from(open_log(storage)) == values


def test_recovery_truncates_at_corrupt_batch_and_deletes_later_segments(caplog: pytest.LogCaptureFixture) -> None:
    storage = MemoryStorage()
    log = open_log(storage, LogConfig(segment_bytes=400))
    for number in range(20):
        append(log, b"value %d" % number)
    broken = log.segments[1]
    position = broken.locate(broken.base_offset + 2)
    storage._files[broken.path(".log")][position + 70] ^= 1
    log = open_log(storage, LogConfig(segment_bytes=400), recovery_point=0)
    assert log.log_end_offset == broken.base_offset + 2
    assert len(log.segments) == 2
    assert f"{broken.base_offset:020d}.log to {position} bytes" in caplog.text
    assert values_from(log) == [b"value %d" % number for number in range(log.log_end_offset)]
    assert append(log, b"next").base_offset == broken.base_offset + 2


def test_missing_or_corrupt_indexes_of_a_cleanly_closed_log_are_rebuilt() -> None:
    storage = MemoryStorage()
    log = open_log(storage, LogConfig(segment_bytes=2000, index_interval_bytes=100))
    for number in range(60):
        append(log, b"value %d" % number, timestamp=NOW + number)
    log.close(clean=True, now_ms=NOW)
    before = {name: storage.read(f"{DIRECTORY}/{name}") for name in storage.listdir(DIRECTORY) if "index" in name}
    for name in before:
        storage.write(f"{DIRECTORY}/{name}", b"\0\1\2" if name.endswith("timeindex") else b"")
    log = open_log(storage, LogConfig(segment_bytes=2000, index_interval_bytes=100), was_closed_cleanly=True)
    log.advance_high_watermark(log.log_end_offset)
    assert values_from(log, 7) == [b"value %d" % number for number in range(7, 60)]
    assert log.offset_for_timestamp(NOW + 33) == (NOW + 33, 33, 0)


def test_timestamp_limits_do_not_apply_to_appends_of_the_group_coordinator() -> None:
    log = open_log()
    late = batch(b"a", timestamp=NOW + 10**9)
    log.append_as_leader(late, leader_epoch=0, now_ms=NOW, origin=AppendOrigin.COORDINATOR)
    assert log.log_end_offset == 1


def test_log_is_flushed_and_recovery_point_advances_when_flush_messages_is_reached() -> None:
    log = open_log(config=replace(LogConfig(), flush_messages=3))
    append(log, b"a", b"b")
    assert log.recovery_point == 0
    append(log, b"c")
    assert log.recovery_point == 3


def test_log_rolls_a_segment_whose_index_is_full() -> None:
    log = open_log(config=LogConfig(index_interval_bytes=0, segment_index_bytes=120))
    for number in range(30):
        append(log, b"x", timestamp=NOW + number)
    assert len(log.segments) > 2
    for segment in log.segments:
        assert log.storage.size(segment.path(".timeindex")) <= 120
    assert values_from(log) == [b"x"] * 30


def test_batch_larger_than_segment_bytes_is_rejected() -> None:
    log = open_log(config=LogConfig(segment_bytes=300))
    assert error_of(lambda: append(log, b"x" * 300)) == ErrorCode.RECORD_LIST_TOO_LARGE


def test_segment_swap_is_completed_if_it_was_interrupted_after_all_files_were_renamed_to_swap_files() -> None:
    storage = MemoryStorage()
    config = LogConfig(segment_bytes=300)
    log = open_log(storage, config)
    for number in range(12):
        append(log, b"value %d" % number)
    bases = [segment.base_offset for segment in log.segments]
    replaced = [segment for segment in log.segments if segment.base_offset < bases[2]]
    compacted = build_batch(RecordColumns(values=[b"compacted"], timestamps=NOW), base_offset=bases[2] - 1)
    storage.write(f"{DIRECTORY}/{0:020d}.log.swap", compacted)
    storage.write(f"{DIRECTORY}/{0:020d}.index.swap", b"")
    storage.remove(replaced[0].path(".log"))
    log = open_log(storage, config)
    assert [segment.base_offset for segment in log.segments] == [0, *bases[2:]]
    assert values_from(log) == [b"compacted", *[b"value %d" % number for number in range(bases[2], 12)]]
    assert not any(name.endswith(".swap") for name in storage.listdir(DIRECTORY))


@pytest.mark.parametrize("has_first_segment", [True, False])
def test_log_with_a_corrupt_swap_segment_opens_with_the_valid_records(has_first_segment: bool) -> None:
    storage = MemoryStorage()
    config = LogConfig(segment_bytes=300)
    log = open_log(storage, config)
    for number in range(12):
        append(log, b"value %d" % number)
    first = log.segments[0]
    compacted = build_batch(RecordColumns(values=[b"compacted"], timestamps=NOW))
    storage.write(f"{DIRECTORY}/{0:020d}.log.swap", bytes(compacted) + b"corrupt")
    storage.write(f"{DIRECTORY}/{0:020d}.index.swap", b"")
    if not has_first_segment:
        storage.remove(first.path(".log"))
    log = open_log(storage, config, recovery_point=12, is_only_replica=False, may_have_gaps=False)
    if has_first_segment:
        assert values_from(log) == [b"value %d" % number for number in range(12)]
    else:  # the other replicas have the remaining records
        assert values_from(log) == [b"compacted"]
    assert not any(name.endswith(".swap") for name in storage.listdir(DIRECTORY))


def test_segment_swap_is_undone_if_it_was_interrupted_before_all_files_were_renamed_to_swap_files() -> None:
    storage = MemoryStorage()
    config = LogConfig(segment_bytes=300)
    log = open_log(storage, config)
    for number in range(6):
        append(log, b"value %d" % number)
    half = build_batch(RecordColumns(values=[b"half"], timestamps=NOW), base_offset=1)
    storage.write(f"{DIRECTORY}/{0:020d}.log.cleaned", half)
    storage.write(f"{DIRECTORY}/{1:020d}.log.swap", half)
    storage.write(f"{DIRECTORY}/{1:020d}.index.swap", b"")
    log = open_log(storage, config)
    assert values_from(log) == [b"value %d" % number for number in range(6)]
    assert not [name for name in storage.listdir(DIRECTORY) if name.endswith((".swap", ".cleaned"))]


def test_last_stable_offset_is_the_first_offset_of_an_open_transaction_until_its_marker_is_written() -> None:
    storage = MemoryStorage()
    log = open_log(storage)
    append(log, b"plain")
    producer = {"producer_id": 3, "producer_epoch": 0, "base_sequence": 0}
    append(log, b"a", b"b", is_transactional=True, **producer)
    assert (log.last_stable_offset, log.high_watermark) == (1, 3)
    log.close(clean=True, now_ms=NOW)
    log = open_log(storage, was_closed_cleanly=True)
    log.advance_high_watermark(3)
    assert log.last_stable_offset == 1
    marker = build_control_batch(
        ControlType.COMMIT, end_transaction_value(0), timestamp=NOW, producer_id=3, producer_epoch=0
    )
    log.append_as_leader(marker, leader_epoch=0, now_ms=NOW, origin=AppendOrigin.COORDINATOR)
    log.advance_high_watermark(4)
    assert log.last_stable_offset == 4
    assert open_log(storage).last_stable_offset == 0


def test_log_on_full_disk_opens_and_is_readable() -> None:
    class FullStorage(MemoryStorage):
        def write(self, path: str, data: bytes | bytearray | memoryview) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    storage = MemoryStorage()
    log = open_log(storage, LogConfig(segment_bytes=300))
    for number in range(12):
        append(log, b"value %d" % number)
    full = FullStorage()
    full._files, full._directories = storage._files, storage._directories
    log = open_log(full, LogConfig(segment_bytes=300))
    assert values_from(log, 5) == [b"value %d" % number for number in range(5, 12)]


def unchecked(payload: bytes, *, compression: Compression, count: int, timestamp: int = NOW) -> bytearray:
    """Build a batch with a valid CRC, even if `count` does not match the payload."""
    return finish_batch(
        payload,
        attributes=compression,
        records_count=count,
        last_offset_delta=count - 1,
        base_offset=0,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        partition_leader_epoch=-1,
    )


@pytest.mark.parametrize(
    ("compression", "count", "payload"),
    [
        (Compression.NONE, 2**31 - 1, b""),
        (Compression.NONE, 1, b""),
        (Compression.NONE, 11, bytes(76)),
        (Compression.ZSTD, 1, b""),
        (Compression.ZSTD, 2**31 - 1, bytes(100)),
    ],
)
def test_batch_with_more_records_than_its_bytes_can_contain_is_rejected(
    compression: Compression, count: int, payload: bytes
) -> None:
    log = open_log()
    invalid = unchecked(payload, compression=compression, count=count)
    assert error_of(lambda: log.append_as_leader(invalid, leader_epoch=0, now_ms=NOW)) == ErrorCode.INVALID_RECORD
    assert log.log_end_offset == 0


def test_timestamp_search_finds_records_after_batch_that_cannot_be_decompressed() -> None:
    log = open_log()
    append(log, b"a", timestamp=NOW - 10)
    broken = unchecked(b"not zstd", compression=Compression.ZSTD, count=2, timestamp=NOW - 5)
    log.append_as_leader(broken, leader_epoch=0, now_ms=NOW)
    append(log, b"b", timestamp=NOW)
    assert log.offset_for_timestamp(NOW - 10) == (NOW - 10, 0, 0)
    assert log.offset_for_timestamp(NOW - 7) == (NOW - 5, 1, 0)
    assert log.offset_for_timestamp(NOW - 4) == (NOW, 3, 0)


def test_small_batch_that_decompresses_to_gigabytes_is_rejected_on_append() -> None:
    columns = RecordColumns(values=[bytes(100_000_000)], keys=[b"k"], timestamps=NOW)
    bomb = build_batch(columns, compression=Compression.ZSTD)
    assert len(bomb) < 10_000
    for config in (LogConfig(cleanup_compact=True), LogConfig(compression_type="lz4")):
        log = open_log(config=config)
        code = error_of(lambda log=log: log.append_as_leader(bytearray(bomb), leader_epoch=0, now_ms=NOW))
        assert code == ErrorCode.INVALID_RECORD


def test_index_memory_of_inactive_segments_is_limited() -> None:
    config = LogConfig(segment_bytes=2000, index_interval_bytes=1)
    open_segments = OpenSegments(index_bytes_max=500)
    log = open_log(config=config, open_segments=open_segments)
    for number in range(200):
        append(log, b"%d" % number, timestamp=NOW + number)
    assert len(log.segments) > 5
    for _ in range(2):
        assert values_from(log) == [b"%d" % number for number in range(200)]
        assert log.offset_for_timestamp(NOW + 150) == (NOW + 150, 150, 0)
        with_indexes = [segment for segment in log.segments[:-1] if segment.holds_indexes]
        assert len(with_indexes) < 4


def test_max_timestamp_of_inactive_segments_is_read_without_loading_indexes() -> None:
    storage, config = MemoryStorage(), LogConfig(segment_bytes=2000, index_interval_bytes=1)
    log = open_log(storage, config)
    for number in range(100):
        append(log, b"%d" % number, timestamp=NOW + number)
    log.close(clean=True, now_ms=NOW)
    log = open_log(storage, config, was_closed_cleanly=True, recovery_point=100)
    found = [(segment.max_timestamp, segment.max_timestamp_offset) for segment in log.segments[:-1]]
    ends = [segment.base_offset - 1 for segment in log.segments[1:]]
    assert found == [(NOW + end, end) for end in ends]
    assert not any(segment.holds_indexes for segment in log.segments[:-1])


@pytest.mark.parametrize("seed", range(10))
def test_truncated_records_do_not_return_after_power_failure(seed: int) -> None:
    """The high watermark may already cover the records that replaced the truncated records.

    If the truncated records returned, consumers would therefore read them.
    """
    disk = SimulatedDisk(Random(seed))
    log = PartitionLog.open(disk.mount(), DIRECTORY, "t", 0, LogConfig(), NOW)
    for number in range(6):
        append(log, b"old %d" % number)
    log.flush(NOW)
    log.truncate_to(3, NOW)
    for number in range(3, 6):
        append(log, b"new %d" % number, epoch=1)
    disk.lose_power()
    found = values_from(PartitionLog.open(disk.mount(), DIRECTORY, "t", 0, LogConfig(), NOW, recovery_point=0))
    wanted = [b"old 0", b"old 1", b"old 2", b"new 3", b"new 4", b"new 5"]
    assert len(found) >= 3
    assert found == wanted[: len(found)]


EPOCH_A_SEGMENT = LogConfig(segment_bytes=100)


@pytest.mark.parametrize("seed", range(8))
def test_producer_state_after_truncation_equals_the_state_rebuilt_from_the_remaining_batches(
    seed: int, monkeypatch
) -> None:
    monkeypatch.setattr(producer_files, "_BATCHES_PER_SNAPSHOT_MIN", 4)
    monkeypatch.setattr(producer_files, "_BATCHES_PER_PRODUCER", 1)
    rng = Random(seed)
    log = open_log()
    next_sequence: dict[int, int] = {}
    for _ in range(12):
        for _ in range(rng.randrange(12)):
            producer_id = rng.randrange(3)
            identity = {"producer_id": producer_id, "producer_epoch": 0}
            records = batch(b"x", base_sequence=next_sequence.get(producer_id, 0), **identity)
            log.append_as_leader(records, leader_epoch=0, now_ms=NOW)
            next_sequence[producer_id] = next_sequence.get(producer_id, 0) + 1
        log.advance_high_watermark(rng.randint(log.high_watermark, log.log_end_offset))
        log.truncate_to(rng.randint(log.high_watermark, log.log_end_offset), NOW)
        replayed = load_producers(log.storage, DIRECTORY, log.segments, log.log_end_offset)
        assert log.producers.producers == replayed.producers
        next_sequence = {key: entry.last_sequence + 1 for key, entry in log.producers.producers.items()}


def test_truncation_does_not_read_whole_segment(monkeypatch) -> None:
    """A truncation runs on the event loop, and reading a whole segment can take a second."""
    log = open_log()
    for number in range(5000):
        records = batch(b"x", producer_id=7, producer_epoch=0, base_sequence=number)
        log.append_as_leader(records, leader_epoch=0, now_ms=NOW)
        log.advance_high_watermark(number - 5)
    headers_read = 0
    iter_headers = LogSegment.iter_headers

    def counted(segment: LogSegment, position: int):
        nonlocal headers_read
        for item in iter_headers(segment, position):
            headers_read += 1
            yield item

    monkeypatch.setattr(LogSegment, "iter_headers", counted)
    log.truncate_to(4996, NOW)
    assert headers_read < 2500
    assert log.max_timestamp_offset() == (NOW, 0, 0)
    assert log.producers.producers[7].last_sequence == 4995
    assert len(log.producers.producers[7].batches) == 5
    log.producers.expire(NOW + 86_400_000, 86_400_000)  # the producer is active, although its records are a day old
    assert 7 in log.producers.producers


@pytest.mark.parametrize("seed", range(8))
def test_leader_epoch_of_every_record_is_known_after_power_failure(seed: int) -> None:
    """The leader epoch checkpoint is flushed together with the records.

    Later writes of the checkpoint may be lost or incomplete.
    """
    disk = SimulatedDisk(Random(seed))
    log = PartitionLog.open(disk.mount(), DIRECTORY, "t", 0, EPOCH_A_SEGMENT, NOW)
    for epoch in range(6):
        append(log, b"of epoch %d" % epoch, epoch=epoch)
        if epoch in (1, 3):
            log.flush(NOW)
            recovery_point = log.recovery_point
    disk.lose_power()
    log = PartitionLog.open(disk.mount(), DIRECTORY, "t", 0, EPOCH_A_SEGMENT, NOW, recovery_point=recovery_point)
    assert log.log_end_offset >= 4
    assert [log.epoch_for_offset(offset) for offset in range(log.log_end_offset)] == list(range(log.log_end_offset))


@pytest.mark.parametrize("exists", [True, False])
def test_lost_leader_epoch_checkpoint_is_rebuilt_from_records(*, exists: bool) -> None:
    storage = MemoryStorage()
    log = open_log(storage, EPOCH_A_SEGMENT)
    for epoch in range(6):
        append(log, b"of epoch %d" % epoch, epoch=epoch)
    path = f"{DIRECTORY}/leader-epoch-checkpoint"
    storage.write(path, b"") if exists else storage.remove(path)
    log = open_log(storage, EPOCH_A_SEGMENT, recovery_point=3)
    assert [log.epoch_for_offset(offset) for offset in range(6)] == list(range(6))
    assert storage.read(path).startswith(b"0\n6\n")
