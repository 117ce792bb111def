"""Tests of recovery and truncation of a replica's log: leader epochs, gaps, corruption, and missing files."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection
from contextlib import suppress

import pytest

from headrace_broker.log.config import LogConfig
from headrace_broker.log.log import PartitionLog
from headrace_broker.log.storage import MemoryFile, MemoryStorage
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.records.batch import patch_offset_and_epoch
from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns


def test_truncation_to_the_log_end_offset_removes_a_leader_epoch_that_has_no_records() -> None:
    """The last epoch that the follower reports to the leader must have records in the follower's log."""
    storage = MemoryStorage()
    storage.makedirs("/d")
    log = PartitionLog.open(storage, "/d/t-0", "t", 0, LogConfig(), 0)
    batch = memoryview(build_batch(RecordColumns(values=[b"a"], timestamps=0)))
    log.append_as_leader(batch, leader_epoch=1, now_ms=0)
    log.assign_epoch(2, 1)
    assert log.latest_epoch == 2
    log.truncate_to(1, 0)
    assert (log.latest_epoch, log.log_end_offset) == (1, 1)


class FewDescriptorsStorage(MemoryStorage):
    """Storage that has no free file descriptors while `descriptors` is 0."""

    descriptors = 1

    def open(self, path: str) -> MemoryFile:
        if not self.descriptors:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return super().open(path)


def test_log_goes_offline_if_its_truncation_fails_after_some_segments_were_deleted() -> None:
    """The failed truncation has deleted segments but did not lower the log end offset.

    If the log stayed online, an append would leave a gap of offsets.
    """
    storage = FewDescriptorsStorage()
    storage.makedirs("/d")
    log = PartitionLog.open(storage, "/d/t-0", "t", 0, LogConfig(), 0)
    for _ in range(3):
        log.append_as_leader(build_batch(RecordColumns(values=[b"a"], timestamps=0)), leader_epoch=1, now_ms=0)
        log.roll(0)
    for segment in log.segments:
        segment.release()
    storage.descriptors = 0
    with pytest.raises(ApiError):
        log.truncate_to(1, 0)
    assert log.offline_reason is not None
    storage.descriptors = 1
    assert PartitionLog.open(storage, "/d/t-0", "t", 0, LogConfig(), 0).log_end_offset <= 2


def test_failed_follower_append_does_not_add_leader_epoch() -> None:
    """The log has a record of epoch 2, and an append of records of epochs 2 and 3 fails.

    If epoch 3 stayed in the checkpoint, the next record of epoch 2 would seem to start a new epoch, and
    its offset would replace the start offset of epoch 2.
    """
    storage = FewDescriptorsStorage()
    storage.makedirs("/d")
    log = PartitionLog.open(storage, "/d/t-0", "t", 0, LogConfig(), 0)
    records = [
        bytes(build_batch(RecordColumns(values=[b"a"], timestamps=0), base_offset=offset, partition_leader_epoch=epoch))
        for offset, epoch in enumerate((1, 2, 2, 3))
    ]
    log.append_as_follower(b"".join(records[:2]), now_ms=0)
    log.segments[-1].release()
    storage.descriptors = 0
    with pytest.raises(ApiError):
        log.append_as_follower(b"".join(records[2:]), now_ms=0)
    storage.descriptors = 1
    assert log.latest_epoch == 2
    log.append_as_follower(records[2], now_ms=0)
    assert log.end_offset_for_epoch(1) == (1, 1)
    assert storage.read("/d/t-0/leader-epoch-checkpoint") == b"0\n2\n1 0\n2 1\n"


@pytest.mark.parametrize("was_closed_cleanly", [False, True])
def test_leader_epochs_that_start_after_the_log_end_offset_are_removed_on_load(was_closed_cleanly: bool) -> None:
    """In the checkpoint, epoch 2 starts at offset 1 and epoch 7 starts at offset 40, but the log ends at offset 1.

    If epoch 7 were kept, a leader would return 40 as the end offset of epoch 2.
    """
    storage = MemoryStorage()
    storage.makedirs("/d")
    log = PartitionLog.open(storage, "/d/t-0", "t", 0, LogConfig(), 0)
    log.append_as_leader(memoryview(build_batch(RecordColumns(values=[b"a"], timestamps=0))), leader_epoch=1, now_ms=0)
    log.close(clean=was_closed_cleanly, now_ms=0)
    storage.write("/d/t-0/leader-epoch-checkpoint", b"0\n3\n1 0\n2 1\n7 40\n")
    log = PartitionLog.open(storage, "/d/t-0", "t", 0, LogConfig(), 0, was_closed_cleanly=was_closed_cleanly)
    assert log.latest_epoch == 1
    assert storage.read("/d/t-0/leader-epoch-checkpoint") == b"0\n1\n1 0\n"


@pytest.mark.parametrize("is_compacted", [False, True])
def test_replica_log_is_truncated_at_a_gap_that_a_power_failure_has_left(is_compacted: bool) -> None:
    storage, config = MemoryStorage(), LogConfig(cleanup_compact=is_compacted, cleanup_delete=not is_compacted)
    storage.makedirs("/d")

    def open_log(**more: int) -> PartitionLog:
        return PartitionLog.open(storage, "/d/t-0", "t", 0, config, 0, **more)

    log = open_log()
    for number in range(4):
        batch = memoryview(build_batch(RecordColumns(keys=[b"k"], values=[b"a"], timestamps=0)))
        if number == 3:
            end_of_first = log.size_bytes
            log.roll(0)
        log.append_as_leader(batch, leader_epoch=1, now_ms=0)
    storage.open("/d/t-0/00000000000000000000.log").truncate(end_of_first // 3)
    assert open_log().log_end_offset == 4  # the only replica keeps its records
    assert open_log(may_have_gaps=False, cleaner_offset=3).log_end_offset == 4
    truncated = open_log(may_have_gaps=False)
    assert (truncated.log_end_offset, len(truncated.segments)) == (1, 1)


@pytest.mark.parametrize("is_only_replica", [False, True])
@pytest.mark.parametrize("was_closed_cleanly", [False, True])
def test_recovery_without_producer_snapshots_also_finds_corruption_before_the_recovery_point(
    was_closed_cleanly: bool, is_only_replica: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Rule R15 in docs/broker.md: without producer snapshots, recovery also reads the records below the recovery point.

    A crash may destroy the snapshots. If the partition has only one replica, the log is not truncated, because no other
    replica has the records after the corruption. The log then opens without producer state.
    """
    storage = MemoryStorage()
    storage.makedirs("/d")
    log = PartitionLog.open(storage, "/d/t-0", "t", 0, LogConfig(), 0)
    for number in range(6):
        batch = memoryview(build_batch(RecordColumns(values=[b"a"], timestamps=0)))
        log.append_as_leader(batch, leader_epoch=1, now_ms=0)
        if number % 2:
            log.roll(0)
    for name in [name for name in storage.listdir("/d/t-0") if name.endswith(".snapshot")]:
        storage.write(f"/d/t-0/{name}", b"")
    storage.open("/d/t-0/00000000000000000000.log").write(bytes(60), len(batch))
    log = PartitionLog.open(
        storage,
        "/d/t-0",
        "t",
        0,
        LogConfig(),
        0,
        recovery_point=6,
        was_closed_cleanly=was_closed_cleanly,
        is_only_replica=is_only_replica,
        may_have_gaps=is_only_replica,
    )
    end = 6 if is_only_replica else 1
    assert (log.log_end_offset, log.recovery_point, log.checkpoint_ahead_of_log) == (end, end, not is_only_replica)
    assert log.is_corrupt == was_closed_cleanly
    message = "the producer state before offset 6 is lost" if is_only_replica else "recovering all segments"
    assert f"/d/t-0: {message}" in caplog.text


@pytest.mark.parametrize("corrupt", [0, 4, 5])
def test_log_goes_offline_if_a_corrupt_batch_makes_its_truncation_fail(corrupt: int) -> None:
    """After the failed truncation, the producer state still contains the truncated batches.

    If the log stayed online, the leader would acknowledge retries of these batches without appending them. New records
    could overwrite valid records, because the corrupt batch hides where the valid records end.
    """
    storage = MemoryStorage()
    storage.makedirs("/d")
    log = PartitionLog.open(storage, "/d/t-0", "t", 0, LogConfig(index_interval_bytes=160), 0)
    for sequence in range(6):
        batch = build_batch(
            RecordColumns(values=[b"a"], timestamps=0), producer_id=7, producer_epoch=0, base_sequence=sequence
        )
        log.append_as_leader(batch, leader_epoch=1, now_ms=0)
    storage.open("/d/t-0/00000000000000000000.log").write(bytes(12), corrupt * len(batch))
    with pytest.raises(ApiError) as failure:
        log.truncate_to(5, 0)
    assert failure.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert "/d/t-0" in (log.offline_reason or "")


def test_segments_of_a_follower_are_contiguous_even_if_compaction_has_removed_offsets() -> None:
    """If the segments had a gap between them, recovery would assume a power failure and truncate the log."""
    storage = MemoryStorage()
    storage.makedirs("/d")
    config = LogConfig(cleanup_compact=True, segment_bytes=100)
    log = PartitionLog.open(storage, "/d/t-0", "t", 0, config, 0)
    for offset in (0, 7, 9, 2**31 + 20):
        batch = build_batch(RecordColumns(values=[b"a"], keys=[b"k"], timestamps=0))
        patch_offset_and_epoch(batch, 0, offset, 1)
        log.append_as_follower(batch, now_ms=0)
    assert [segment.base_offset for segment in log.segments] == [0, 1, 8, 2**31 + 20]
    log = PartitionLog.open(storage, "/d/t-0", "t", 0, config, 0, cleaner_offset=2**31 + 20, may_have_gaps=False)
    assert log.log_end_offset == 2**31 + 21


def test_recovery_keeps_start_offset_of_epoch_that_starts_before_recovery_point() -> None:
    """Test rule R2 in docs/broker.md.

    Epoch 2 starts before the recovery point. If its start offset were lost, a leader would return too large an end
    offset for epoch 1.
    """
    storage = MemoryStorage()
    storage.makedirs("/d")
    log = PartitionLog.open(storage, "/d/t-0", "t", 0, LogConfig(), 0)
    for epoch in (1, 2, 2, 3):
        batch = memoryview(build_batch(RecordColumns(values=[b"a"], timestamps=0)))
        log.append_as_leader(batch, leader_epoch=epoch, now_ms=0)
        log.roll(0)
    log = PartitionLog.open(storage, "/d/t-0", "t", 0, LogConfig(), 0, recovery_point=2)
    assert log.end_offset_for_epoch(1) == (1, 1)
    assert storage.read("/d/t-0/leader-epoch-checkpoint") == b"0\n3\n1 0\n2 1\n3 3\n"


@pytest.mark.parametrize("rolled", [False, True])
def test_recovery_keeps_start_offsets_of_epochs_with_compacted_records(rolled: bool) -> None:
    """Test rule R2 in docs/broker.md.

    If start offsets were lost, a follower would keep uncommitted records of the previous epoch.
    """
    storage = MemoryStorage()
    storage.makedirs("/d")
    log = PartitionLog.open(storage, "/d/t-0", "t", 0, LogConfig(cleanup_compact=True), 0)
    for offset, epoch in ((0, 1), (2, 1), (9, 4), (10, 4)):
        batch = build_batch(RecordColumns(values=[b"a"], keys=[b"k"], timestamps=0))
        patch_offset_and_epoch(batch, 0, offset, epoch)
        if rolled and offset == 9:
            log.roll(0)
        log.append_as_follower(batch, now_ms=0)
    storage.write("/d/t-0/leader-epoch-checkpoint", b"0\n5\n1 0\n2 3\n3 5\n4 7\n6 9\n")
    log = PartitionLog.open(storage, "/d/t-0", "t", 0, LogConfig(cleanup_compact=True), 0)
    assert [log.end_offset_for_epoch(epoch) for epoch in (1, 2, 3, 4)] == [(1, 3), (2, 5), (3, 7), (4, 11)]
    assert log.latest_epoch == 4


def test_log_that_lost_all_records_has_no_leader_epochs() -> None:
    """Test rule R3 in docs/broker.md.

    The log starts at offset 66 and has no records. The leader epoch checkpoint contains an old epoch. If the log kept
    this epoch, the follower would truncate the log to the end offset of the epoch. This offset can be below the
    leader's high watermark.
    """
    storage = MemoryStorage()
    storage.makedirs("/d/t-0")
    storage.write("/d/t-0/00000000000000000066.log", b"")
    storage.write("/d/t-0/leader-epoch-checkpoint", b"0\n1\n1 2\n")
    log = PartitionLog.open(storage, "/d/t-0", "t", 0, LogConfig(), 0, log_start_offset=66)
    assert (log.log_start_offset, log.log_end_offset, log.latest_epoch) == (66, 66, -1)


@pytest.mark.parametrize("lost", [0, 1, 2])
@pytest.mark.parametrize("is_compacted", [True, False])
@pytest.mark.parametrize("was_closed_cleanly", [True, False])
def test_replica_log_is_truncated_where_segment_file_was_deleted(
    lost: int, is_compacted: bool, was_closed_cleanly: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Index files without a `.log` file prove that the `.log` file was lost.

    Retention and compaction delete the index files of a segment before its `.log` file.
    """
    storage, config = MemoryStorage(), LogConfig(cleanup_compact=is_compacted, cleanup_delete=not is_compacted)
    storage.makedirs("/d")

    def open_log(recovery_point: int = 3, **more: bool) -> PartitionLog:
        return PartitionLog.open(
            storage,
            "/d/t-0",
            "t",
            0,
            config,
            0,
            recovery_point=recovery_point,
            was_closed_cleanly=was_closed_cleanly,
            **more,
        )

    log = open_log()
    for number in range(3):
        batch = memoryview(build_batch(RecordColumns(keys=[b"k"], values=[b"%d" % number], timestamps=0)))
        log.append_as_leader(batch, leader_epoch=1, now_ms=0)
        if number < 2:
            log.roll(0)
    log.close(clean=True, now_ms=0)
    files = dict(storage._files)
    storage.remove(f"/d/t-0/{lost:020d}.log")
    log = open_log(is_only_replica=False, may_have_gaps=is_compacted)
    assert (log.log_end_offset, log.is_corrupt) == (lost, True)
    assert f"/d/t-0/{lost:020d}.index: the segment's .log file is missing" in caplog.text
    assert not open_log(lost, is_only_replica=False, may_have_gaps=is_compacted).is_corrupt
    storage._files = files
    storage.remove(f"/d/t-0/{lost:020d}.log")
    assert open_log().log_end_offset == (2 if lost == 2 else 3)  # the only replica keeps its records


def test_truncation_that_failed_on_corrupt_log_succeeds_after_restart() -> None:
    """After a restart, the leader makes the follower truncate at the same offset again.

    This truncation must succeed.
    """
    storage = MemoryStorage()
    flushed(storage, rolled_after=(1, 3)).release()
    storage.open(f"/d/t-0/{2:020d}.log").write(bytes(12), 0)
    log = reopened(storage)
    with pytest.raises(ApiError) as failure:
        log.truncate_to(3, 0)
    assert failure.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    log = reopened(storage)
    log.truncate_to(3, 0)
    assert (log.offline_reason, log.log_end_offset) == (None, 2)


class CrashingStorage(MemoryStorage):
    """Storage that crashes the process after `steps_left` more renames and removals."""

    steps_left = 1000

    def _step(self) -> None:
        self.steps_left -= 1
        if self.steps_left < 0:
            raise KeyboardInterrupt

    def rename(self, source: str, target: str) -> None:
        self._step()
        super().rename(source, target)

    def remove(self, path: str) -> None:
        self._step()
        super().remove(path)


def flushed(storage: MemoryStorage, rolled_after: Collection[int]) -> PartitionLog:
    """Create a flushed log with five batches of one record each.

    Roll the log after each batch whose number is in `rolled_after`.
    """
    storage.makedirs("/d")
    log = PartitionLog.open(storage, "/d/t-0", "t", 0, LogConfig(), 0)
    for number in range(5):
        batch = memoryview(build_batch(RecordColumns(values=[b"%d" % number], timestamps=0)))
        log.append_as_leader(batch, leader_epoch=1, now_ms=0)
        if number in rolled_after:
            log.roll(0)
    log.flush(0)
    return log


def reopened(storage: MemoryStorage) -> PartitionLog:
    """Open the log after a crash. All records are below the recovery point, and other replicas have all records."""
    return PartitionLog.open(
        storage, "/d/t-0", "t", 0, LogConfig(), 0, recovery_point=5, may_have_gaps=False, is_only_replica=False
    )


@pytest.mark.parametrize("cause", ["truncation", "segment is missing", "segment is corrupt"])
def test_crash_while_segments_are_dropped_leaves_no_gap_in_the_log(cause: str) -> None:
    """The crash must leave no gap, because recovery does not detect gaps below the recovery point."""
    for steps in range(40):
        storage = CrashingStorage()
        log = flushed(storage, rolled_after=range(4))
        log.release()
        if cause == "segment is missing":
            storage.remove(f"/d/t-0/{1:020d}.log")
        elif cause == "segment is corrupt":
            storage.open(f"/d/t-0/{1:020d}.log").write(bytes(60), 0)
            for number in range(1, 5):
                storage.write(f"/d/t-0/{number:020d}.snapshot", b"")
        storage.steps_left = steps
        with suppress(KeyboardInterrupt):
            if cause == "truncation":
                log.truncate_to(1, 0)
            else:
                reopened(storage)
        storage.steps_left = 1000
        log = reopened(storage)
        bases = [segment.base_offset for segment in log.segments if segment.size_bytes]
        assert bases == list(range(log.log_end_offset)), steps
    assert log.log_end_offset == 1
