"""Tests the compaction of single batches, and the two passes of the cleaner over the segments of a log."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from headrace_broker.log.compaction.batch_filter import BatchFilter
from headrace_broker.log.compaction.cleaning import clean
from headrace_broker.log.compaction.job import CleanedSegment, CleaningDone, CleaningFailed, CleaningJob, LastRecord
from headrace_broker.log.compaction.offset_map import OffsetMap
from headrace_broker.log.compaction.transactions import TransactionTracker
from headrace_broker.log.config import LogConfig
from headrace_broker.log.log import PartitionLog
from headrace_broker.log.storage import MemoryStorage
from headrace_broker.log.transaction_index import (
    AbortedTxn,
    decode_transaction_index,
    encode_transaction_index,
)
from headrace_broker.log.validator import AppendOrigin
from headrace_broker.records.batch import (
    HEADER_SIZE,
    BatchHeader,
    patch_offset_and_epoch,
    patch_timestamps,
    read_header,
    verify_crc,
)
from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns
from headrace_broker.records.compression import Compression
from headrace_broker.records.control import ControlType, build_control_batch, end_transaction_value
from headrace_broker.records.reader import read_batch

NOW = 1_700_000_000_000
RETENTION_MS = 1000
DIRECTORY = "/data/t-0"
Pair = tuple[bytes | None, bytes | None]


def batch(base_offset: int, *records: Pair, timestamp: int = NOW - 5000, **options: int) -> bytearray:
    columns = RecordColumns(
        keys=[key for key, _ in records],
        values=[value for _, value in records],
        timestamps=[timestamp + 10 * index for index in range(len(records))],
        headers=[[("h", b"%d" % index)] for index in range(len(records))],
    )
    built = build_batch(columns, base_offset=base_offset, **options)
    patch_offset_and_epoch(built, 0, base_offset, 4)
    return built


def marker(kind: ControlType, base_offset: int, producer_id: int = 7, producer_epoch: int = 2) -> bytearray:
    return build_control_batch(
        kind,
        end_transaction_value(3),
        timestamp=NOW - 5000,
        base_offset=base_offset,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
    )


def filter_of(
    newest: dict[bytes, int],
    *,
    end: int = 1000,
    now_ms: int = NOW,
    high_watermark: int = 10_000,
    last: Iterable[LastRecord] = (),
    aborted: Iterable[AbortedTxn] = (),
) -> BatchFilter:
    keys = OffsetMap(1 << 20)
    keys.add(list(newest), list(newest.values()))
    return BatchFilter(
        keys,
        TransactionTracker(aborted),
        map_end_offset=end,
        now_ms=now_ms,
        delete_retention_ms=RETENTION_MS,
        high_watermark=high_watermark,
        last_records=last,
    )


def retained(batches: BatchFilter, data: bytearray) -> tuple[BatchHeader, RecordColumns] | None:
    result = batches.filter_batch(read_header(data), memoryview(data))
    if result is None:
        return None
    header = read_header(result)
    verify_crc(result, 0, header)
    assert len(result) == header.size_bytes
    return header, read_batch(memoryview(result), 0, header)


def offsets(found: tuple[BatchHeader, RecordColumns] | None) -> list[int]:
    return [] if found is None else list(found[1].offsets or ())


def test_compaction_does_not_change_a_batch_that_contains_only_the_newest_record_of_each_key() -> None:
    data = batch(10, (b"a", b"1"), (b"b", b"2"), compression=Compression.LZ4)
    assert filter_of({b"a": 10, b"b": 11}).filter_batch(read_header(data), memoryview(data)) == data


@pytest.mark.parametrize("codec", list(Compression))
def test_compaction_removes_superseded_records_and_preserves_batch_fields(codec: Compression) -> None:
    records: list[Pair] = [(b"a", b"1"), (b"b", b"2" * 100), (b"a", b"3"), (b"c", b"4")]
    producer = {"producer_id": 5, "producer_epoch": 1, "base_sequence": 40}
    data = batch(10, *records, compression=codec, **producer)
    found = retained(filter_of({b"a": 12, b"b": 11, b"c": 30}), data)
    assert found is not None
    header, columns = found
    before = read_header(data)
    assert (header.base_offset, header.last_offset, header.last_sequence) == (10, 13, 43)
    assert (header.partition_leader_epoch, header.attributes) == (4, before.attributes)
    assert (list(columns.offsets or ()), columns.keys, columns.values) == ([11, 12], [b"b", b"a"], [b"2" * 100, b"3"])
    assert columns.timestamp_list() == [NOW - 4990, NOW - 4980]
    assert columns.headers == [[("h", b"1")], [("h", b"2")]]
    assert header.max_timestamp == NOW - 4980


def test_compaction_removes_a_batch_with_only_superseded_records() -> None:
    assert retained(filter_of({b"a": 99}), batch(10, (b"a", b"1"))) is None


def test_compaction_retains_records_whose_keys_are_not_in_the_offset_map() -> None:
    assert offsets(retained(filter_of({}), batch(10, (b"a", b"1")))) == [10]


def test_compaction_retains_all_records_after_the_end_offset_of_the_offset_map() -> None:
    data = batch(10, (b"a", b"1"), (None, b"2"), (b"a", None))
    assert offsets(retained(filter_of({b"a": 99}, end=11), data)) == [11, 12]
    expired = retained(filter_of({}, end=5, now_ms=NOW), data)
    assert expired is not None
    cleaned = bytearray(filter_of({}).filter_batch(read_header(data), memoryview(data)) or b"")
    assert read_header(cleaned).has_delete_horizon
    assert offsets(retained(filter_of({}, end=5, now_ms=NOW + 2 * RETENTION_MS), cleaned)) == [10, 12]


def test_compaction_removes_records_without_a_key() -> None:
    assert retained(filter_of({}), batch(10, (None, b"1"))) is None
    assert offsets(retained(filter_of({b"a": 11}), batch(10, (None, b"1"), (b"a", b"2")))) == [11]


@pytest.mark.parametrize("codec", [Compression.NONE, Compression.GZIP])
def test_compaction_retains_a_tombstone_until_the_delete_horizon_that_the_first_cleaning_has_set(
    codec: Compression,
) -> None:
    data = batch(10, (b"a", None), (b"b", b"2"), timestamp=NOW - 10**9, compression=codec)
    newest = {b"a": 10, b"b": 11}
    first = retained(filter_of(newest), data)
    assert first is not None
    header, columns = first
    assert header.has_delete_horizon
    assert (header.base_timestamp, header.max_timestamp) == (NOW + RETENTION_MS, NOW - 10**9 + 10)
    assert columns.timestamp_list() == [NOW - 10**9, NOW - 10**9 + 10]
    assert (columns.keys, columns.values) == ([b"a", b"b"], [None, b"2"])
    cleaned = bytearray(filter_of(newest).filter_batch(read_header(data), memoryview(data)) or b"")
    later = filter_of(newest, now_ms=NOW + RETENTION_MS - 1)
    assert later.filter_batch(read_header(cleaned), memoryview(cleaned)) == cleaned  # the horizon is unchanged
    at_last = retained(filter_of(newest, now_ms=NOW + RETENTION_MS), cleaned)
    assert at_last is not None
    assert (offsets(at_last), at_last[1].timestamp_list()) == ([11], [NOW - 10**9 + 10])


def test_compaction_preserves_log_append_time() -> None:
    data = batch(10, (b"a", None), (b"b", b"1"))
    header = read_header(data)
    patch_timestamps(data, 0, header, timestamp_type=1, max_timestamp=NOW - 3)
    found = retained(filter_of({b"a": 10, b"b": 20}), data)
    assert found is not None
    assert (found[0].max_timestamp, found[0].timestamp_type, found[1].timestamp_list()) == (NOW - 3, 1, [NOW - 3])


def test_compaction_retains_the_last_batch_of_a_producer_as_an_empty_batch() -> None:
    data = batch(10, (b"a", b"1"), (b"a", b"2"), producer_id=5, producer_epoch=1, base_sequence=40, compression=1)
    newest = {b"a": 99}
    assert retained(filter_of(newest, last=[LastRecord(5, 12, 1), LastRecord(6, 11, 1)]), data) is None
    found = retained(filter_of(newest, last=[LastRecord(5, 11, 1)]), data)
    assert found is not None
    header = found[0]
    assert (header.size_bytes, header.records_count, header.compression) == (HEADER_SIZE, 0, 0)
    assert (header.base_offset, header.last_offset, header.base_sequence, header.last_sequence) == (10, 11, 40, 41)
    assert (header.base_timestamp, header.max_timestamp) == (-1, NOW - 4990)
    emptied = bytearray(
        filter_of(newest, last=[LastRecord(5, 11, 1)]).filter_batch(read_header(data), memoryview(data)) or b""
    )
    assert retained(filter_of({}, last=[LastRecord(5, 11, 1)]), emptied) is not None
    assert retained(filter_of({}), emptied) is None  # the producer has a later batch, or has expired


def test_compaction_retains_the_batch_before_the_high_watermark_as_an_empty_batch() -> None:
    data = batch(10, (None, b"1"), (None, b"2"))
    assert retained(filter_of({}, high_watermark=11), data) is None
    found = retained(filter_of({}, high_watermark=12), data)
    assert found is not None
    assert (found[0].records_count, found[0].next_offset) == (0, 12)


# -- transactions ----------------------------------------------------------------------------------------------------


def transactional(base_offset: int, key: bytes) -> bytearray:
    producer = {"producer_id": 7, "producer_epoch": 2, "base_sequence": 0}
    return batch(base_offset, (key, b"1"), is_transactional=True, **producer)


def test_records_of_an_aborted_transaction_are_removed_at_once_and_its_marker_after_the_delete_horizon() -> None:
    aborted = [AbortedTxn(7, 10, 11, 10)]
    batches = filter_of({}, aborted=aborted)
    assert retained(batches, transactional(10, b"a")) is None
    end = marker(ControlType.ABORT, 11)
    assert batches.filter_batch(read_header(end), memoryview(end)) == end  # the log had transaction data until now
    batches = filter_of({}, aborted=[])
    found = retained(batches, end)
    assert found is not None
    assert (found[0].has_delete_horizon, found[0].base_timestamp) == (True, NOW + RETENTION_MS)
    assert (found[0].records_count, found[0].max_timestamp) == (1, NOW - 5000)
    marked = bytearray(filter_of({}).filter_batch(read_header(end), memoryview(end)) or b"")
    assert retained(filter_of({}, now_ms=NOW + RETENTION_MS - 1), marked) is not None
    assert retained(filter_of({}, now_ms=NOW + RETENTION_MS), marked) is None


def test_transaction_index_keeps_an_aborted_transaction_while_the_log_has_records_of_the_transaction() -> None:
    aborted = [AbortedTxn(7, 10, 11, 10), AbortedTxn(8, 5, 12, 5)]
    tracker = TransactionTracker(aborted)
    assert tracker.process_batch(read_header(data := transactional(10, b"a")), memoryview(data))
    assert not tracker.process_batch(read_header(end := marker(ControlType.ABORT, 11)), memoryview(end))
    assert tracker.process_batch(read_header(end := marker(ControlType.ABORT, 12, 8)), memoryview(end))
    assert tracker.retained == aborted[:1]


def test_compaction_retains_a_commit_marker_while_its_transaction_has_records_in_the_log() -> None:
    batches = filter_of({b"a": 10})
    assert offsets(retained(batches, transactional(10, b"a"))) == [10]
    end = marker(ControlType.COMMIT, 11)
    assert batches.filter_batch(read_header(end), memoryview(end)) == end
    assert retained(filter_of({}), end)[0].has_delete_horizon  # type: ignore[index]


def test_records_of_a_transaction_that_follows_an_aborted_transaction_are_retained() -> None:
    batches = filter_of({b"a": 12}, aborted=[AbortedTxn(7, 10, 11, 10)])
    assert retained(batches, transactional(10, b"a")) is None
    end = marker(ControlType.ABORT, 11)
    assert retained(batches, end) is not None
    assert offsets(retained(batches, transactional(12, b"a"))) == [12]


def test_last_transaction_marker_of_a_producer_is_retained_because_it_contains_the_producer_epoch() -> None:
    end = marker(ControlType.COMMIT, 11)
    marked = bytearray(filter_of({}).filter_batch(read_header(end), memoryview(end)) or b"")
    later = NOW + RETENTION_MS
    found = retained(filter_of({}, now_ms=later, last=[LastRecord(7, -1, 2)]), marked)
    assert found is not None
    assert (found[0].is_control, found[0].records_count) == (True, 0)
    assert retained(filter_of({}, now_ms=later, last=[LastRecord(7, -1, 3)]), marked) is None


# -- both passes over segments ---------------------------------------------------------------------------------------


def log_of(storage: MemoryStorage, *batches: list[Pair], **config: int) -> PartitionLog:
    """Create a log with one segment for each batch, and an empty active segment. `config` sets fields of LogConfig."""
    log = PartitionLog.open(storage, DIRECTORY, "t", 0, LogConfig(cleanup_compact=True, **config), NOW)
    for records in batches:
        log.append_as_leader(batch(0, *records), leader_epoch=0, now_ms=NOW)
        log.roll(NOW)
    log.advance_high_watermark(log.log_end_offset)
    return log


def job_of(log: PartitionLog, **changes: int) -> CleaningJob:
    segments = tuple((segment.base_offset, segment.size_bytes) for segment in log.segments[:-1])
    given = {
        "first_dirty_offset": 0,
        "end_offset": log.segments[-1].base_offset,
        "now_ms": NOW,
        "high_watermark": log.high_watermark,
        "delete_retention_ms": RETENTION_MS,
        "segment_bytes": 1 << 20,
        "segment_index_bytes": 1 << 20,
        "index_interval_bytes": 0,
        "offset_map_bytes_max": 1 << 20,
        **changes,
    }
    return CleaningJob(directory=DIRECTORY, segments=segments, io_bytes_per_second=1e300, **given)


def values(log: PartitionLog) -> list[tuple[int, bytes | None]]:
    found = []
    for segment in log.segments:
        for _, header, data in segment.iter_checked_batches(0):
            columns = read_batch(data, 0, header)
            found += list(zip(columns.offsets or (), columns.values, strict=True))
    return found


def test_compaction_merges_small_segments_and_rebuilds_their_indexes() -> None:
    storage = MemoryStorage()
    log = log_of(storage, [(b"a", b"0"), (b"b", b"1")], [(b"a", b"2")], [(b"c", b"3")])
    *cleaned, done = clean(storage, job_of(log), lambda size: None)
    assert cleaned == [CleanedSegment(0, storage.size(f"{DIRECTORY}/{0:020d}.log.cleaned"), (0, 2, 3))]
    assert isinstance(done, CleaningDone)
    assert (done.end_offset, done.records_before, done.records_after, done.keys) == (4, 4, 3, 3)
    assert (done.bytes_before, done.bytes_after) == (log.size_bytes, cleaned[0].size_bytes)
    log.replace_segments(cleaned[0], NOW)
    assert [segment.base_offset for segment in log.segments] == [0, 4]
    assert values(log) == [(1, b"1"), (2, b"2"), (3, b"3")]
    assert log.segments[0].index.positions.tolist() == [log.segments[0].locate(2), log.segments[0].locate(3)]
    assert log.offset_for_timestamp(NOW - 5000) == (NOW - 4990, 1, 0)
    assert log.max_timestamp_offset() == (NOW - 4990, 1, 0)
    deleted = log.pop_expired_files(NOW + 60_000)
    assert sorted(path.rpartition("/")[2] for path in deleted if ".log." in path) == [
        f"{base:020d}.log.deleted" for base in (0, 2, 3)
    ]
    assert storage.exists(f"{DIRECTORY}/{4:020d}.snapshot")
    assert not storage.exists(f"{DIRECTORY}/{2:020d}.snapshot")


def test_cleaning_ends_when_the_offset_map_is_full() -> None:
    """The next cleaning continues at the offset where this cleaning ended."""
    storage = MemoryStorage()
    log = log_of(storage, [(b"a", b"0")], [(b"b", b"1")], [(b"a", b"2")], [(b"b", b"3")], segment_bytes=300)
    *cleaned, done = clean(storage, job_of(log, offset_map_bytes_max=300, segment_bytes=1), lambda size: None)
    assert isinstance(done, CleaningDone)
    assert (done.end_offset, [segment.replaced for segment in cleaned]) == (2, [(0,), (1,)])
    for segment in cleaned:
        log.replace_segments(segment, NOW)
    assert values(log) == [(0, b"0"), (1, b"1"), (2, b"2"), (3, b"3")]
    *cleaned, done = clean(storage, job_of(log, first_dirty_offset=2), lambda size: None)
    log.replace_segments(cleaned[0], NOW)
    assert values(log) == [(2, b"2"), (3, b"3")]


def test_cleaned_segment_ends_at_base_offset_of_next_segment() -> None:
    """If a gap were left between two segments, recovery would assume a power failure and truncate the log."""
    storage = MemoryStorage()
    log = log_of(storage, [(b"a", b"0"), (b"b", b"1")], [(b"a", b"2")], [(b"b", b"3")])
    *cleaned, _ = clean(storage, job_of(log, segment_bytes=1), lambda size: None)
    for segment in cleaned:
        assert isinstance(segment, CleanedSegment)
        log.replace_segments(segment, NOW)
    assert values(log) == [(2, b"2"), (3, b"3")]
    ends = [header.next_offset for segment in log.segments for _, header in segment.iter_headers(0)]
    assert ends == [segment.base_offset for segment in log.segments[1:]]
    log = PartitionLog.open(storage, DIRECTORY, "t", 0, log.config, NOW, may_have_gaps=False)
    assert (log.log_end_offset, values(log)) == (4, [(2, b"2"), (3, b"3")])


def test_cleaned_segment_has_a_transaction_index_of_its_aborted_transactions() -> None:
    storage = MemoryStorage()
    log = log_of(storage, [(b"x", b"0")])
    log.append_as_leader(transactional(0, b"a"), leader_epoch=0, now_ms=NOW)
    end = marker(ControlType.ABORT, 0)
    log.append_as_leader(end, leader_epoch=0, now_ms=NOW, origin=AppendOrigin.COORDINATOR)
    index = encode_transaction_index([AbortedTxn(7, 1, 2, 1)])
    storage.write(log.segments[-1].path(".txnindex"), index)
    log.roll(NOW)
    log.advance_high_watermark(log.log_end_offset)
    cleaned, done = clean(storage, job_of(log), lambda size: None)
    assert isinstance(done, CleaningDone)
    log.replace_segments(cleaned, NOW)  # type: ignore[arg-type]
    assert values(log) == [(0, b"0"), (2, end_transaction_value(3))]
    path = log.segments[0].path(".txnindex")
    assert decode_transaction_index(storage.read(path)) == [AbortedTxn(7, 1, 2, 1)]
    cleaned, done = clean(storage, job_of(log), lambda size: None)
    log.replace_segments(cleaned, NOW)  # type: ignore[arg-type]
    assert not storage.exists(path)


def test_cleaning_reports_the_position_of_a_corrupt_batch_and_leaves_no_cleaned_files() -> None:
    storage = MemoryStorage()
    log = log_of(storage, [(b"a", b"0")], [(b"b", b"1")])
    broken = log.segments[1].path(".log")
    data = bytearray(storage.read(broken))
    data[-1] ^= 1
    storage.write(broken, data)
    (failed,) = clean(storage, job_of(log), lambda size: None)
    assert isinstance(failed, CleaningFailed)
    assert failed.is_lasting
    assert failed.reason.startswith(f"{broken}: record batch at byte 0: the CRC in the batch header is ")
    assert not [name for name in storage.listdir(DIRECTORY) if "cleaned" in name]


def test_exception_in_the_io_throttle_stops_the_cleaning_and_leaves_no_cleaned_files() -> None:
    storage = MemoryStorage()
    log = log_of(storage, [(b"a", b"0")], [(b"b", b"1")])
    sizes: list[int] = []

    def maybe_throttle(size_bytes: int) -> None:
        sizes.append(size_bytes)
        if len(sizes) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(clean(storage, job_of(log), maybe_throttle))
    assert not [name for name in storage.listdir(DIRECTORY) if "cleaned" in name]
