"""What a log must forget to be a sound replica: an epoch in which nothing was written, and whatever follows a gap."""

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


def test_an_epoch_that_begins_at_the_logs_end_goes_with_a_truncation_there() -> None:
    """R10."""
    storage = MemoryStorage()
    storage.makedirs("/d")
    log = PartitionLog.open(storage, "/d/t-0", "t", 0, LogConfig(), 0)
    batch = memoryview(build_batch(RecordColumns(values=[b"a"], timestamps=0)))
    log.append_as_leader(batch, leader_epoch=1, now_ms=0)
    log.assign_epoch(2, 1)
    assert log.latest_epoch == 2
    log.truncate_to(1, 0)
    assert (log.latest_epoch, log.log_end_offset) == (1, 1)


class Busy(MemoryStorage):
    """Has no descriptor left for a while."""

    descriptors = 1

    def open(self, path: str) -> MemoryFile:
        if not self.descriptors:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)
        return super().open(path)


def test_a_log_that_was_half_cut_is_not_gone_on_with() -> None:
    """Its segments are gone, and it still ends behind them: what was appended there would follow a hole."""
    storage = Busy()
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


def test_an_epoch_whose_records_could_not_be_written_has_not_begun() -> None:
    """R10: the records that are fetched again, of the epoch before, would pass for its beginning."""
    storage = Busy()
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
def test_epochs_that_begin_behind_the_logs_end_are_dropped_at_the_start(was_closed_cleanly: bool) -> None:
    """R10: such an entry would answer later where an epoch ended that never was."""
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
def test_a_replicas_log_ends_where_a_power_failure_has_left_a_gap(is_compacted: bool) -> None:
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
    assert open_log().log_end_offset == 4  # the only copy keeps what it has
    assert open_log(may_have_gaps=False, cleaner_offset=3).log_end_offset == 4
    cut = open_log(may_have_gaps=False)
    assert (cut.log_end_offset, len(cut.segments)) == (1, 1)


@pytest.mark.parametrize("is_only_copy", [False, True])
@pytest.mark.parametrize("was_closed_cleanly", [False, True])
def test_a_log_ends_where_it_is_damaged_when_all_of_it_has_to_be_read(
    was_closed_cleanly: bool, is_only_copy: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """R15: without snapshots of producers, which no crash spares for sure, it is read for them where it is trusted.

    An only copy goes on without them: what is sound behind the damage nobody else has.
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
        is_only_copy=is_only_copy,
        may_have_gaps=is_only_copy,
    )
    kept = 6 if is_only_copy else 1
    assert (log.log_end_offset, log.recovery_point, log.is_overtold) == (kept, kept, not is_only_copy)
    assert log.is_damaged == was_closed_cleanly
    words = "no producer from before offset 6 is known" if is_only_copy else "Checking all of"
    assert f"/d/t-0: {words}" in caplog.text or f"{words} /d/t-0" in caplog.text


@pytest.mark.parametrize("damaged", [0, 4, 5])
def test_a_log_is_not_served_when_it_is_too_damaged_to_be_cut(damaged: int) -> None:
    """With the producers of before the cut a batch that was cut away would be acknowledged, when it is sent again; and
    where the damage keeps the end from being known, others would be written over what is there."""
    storage = MemoryStorage()
    storage.makedirs("/d")
    log = PartitionLog.open(storage, "/d/t-0", "t", 0, LogConfig(index_interval_bytes=160), 0)
    for sequence in range(6):
        batch = build_batch(
            RecordColumns(values=[b"a"], timestamps=0), producer_id=7, producer_epoch=0, base_sequence=sequence
        )
        log.append_as_leader(batch, leader_epoch=1, now_ms=0)
    storage.open("/d/t-0/00000000000000000000.log").write(bytes(12), damaged * len(batch))
    with pytest.raises(ApiError) as failure:
        log.truncate_to(5, 0)
    assert failure.value.code is ErrorCode.KAFKA_STORAGE_ERROR
    assert "/d/t-0" in (log.offline_reason or "")


def test_segments_follow_each_other_where_a_leader_has_compacted_away_what_lies_between() -> None:
    """Else a follower could not tell that from what a power failure takes."""
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


def test_an_epoch_begins_where_it_began_though_recovery_looks_only_at_its_later_records() -> None:
    """R2: as a leader it would tell a follower that the epoch before went on until there, and not have it cut."""
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
def test_epochs_whose_first_records_were_compacted_away_begin_where_they_did(rolled: bool) -> None:
    """R2: what a replica wrote in the epoch before, and nobody else, would stand where those records are gone."""
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


def test_a_log_that_a_power_failure_has_left_without_records_knows_no_epoch() -> None:
    """R3: with one from before its start it would be cut to where that ended, far below what was committed here."""
    storage = MemoryStorage()
    storage.makedirs("/d/t-0")
    storage.write("/d/t-0/00000000000000000066.log", b"")
    storage.write("/d/t-0/leader-epoch-checkpoint", b"0\n1\n1 2\n")
    log = PartitionLog.open(storage, "/d/t-0", "t", 0, LogConfig(), 0, log_start_offset=66)
    assert (log.log_start_offset, log.log_end_offset, log.latest_epoch) == (66, 66, -1)


@pytest.mark.parametrize("lost", [0, 1, 2])
@pytest.mark.parametrize("is_compacted", [True, False])
@pytest.mark.parametrize("was_closed_cleanly", [True, False])
def test_a_replica_whose_records_somebody_has_removed_ends_there(
    lost: int, is_compacted: bool, was_closed_cleanly: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Their indexes are still there, which retention and compaction take away first."""
    storage, config = MemoryStorage(), LogConfig(cleanup_compact=is_compacted, cleanup_delete=not is_compacted)
    storage.makedirs("/d")

    def open_log(told: int = 3, **more: bool) -> PartitionLog:
        return PartitionLog.open(
            storage, "/d/t-0", "t", 0, config, 0, recovery_point=told, was_closed_cleanly=was_closed_cleanly, **more
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
    log = open_log(is_only_copy=False, may_have_gaps=is_compacted)
    assert (log.log_end_offset, log.is_damaged) == (lost, True)
    assert f"/d/t-0/{lost:020d}.index has no .log beside it" in caplog.text
    assert not open_log(lost, is_only_copy=False, may_have_gaps=is_compacted).is_damaged
    storage._files = files
    storage.remove(f"/d/t-0/{lost:020d}.log")
    assert open_log().log_end_offset == (2 if lost == 2 else 3)  # the only copy keeps what it has


def test_the_next_start_can_cut_what_was_too_damaged_to_be_cut() -> None:
    """Else the node would leave again each time its leader has it cut there, which is all it does once it is back."""
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
    """Ends the process at the `steps_left`-th rename or removal from now on."""

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
    """A log of five batches of one record, in segments that end with these."""
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
    """After a crash, with others that have the records, all of which had been flushed."""
    return PartitionLog.open(
        storage, "/d/t-0", "t", 0, LogConfig(), 0, recovery_point=5, may_have_gaps=False, is_only_copy=False
    )


@pytest.mark.parametrize("why", ["a truncation", "a segment is gone", "a segment is damaged"])
def test_a_crash_while_segments_are_dropped_leaves_no_hole(why: str) -> None:
    """It would lie below the recovery point, where nobody looks for one."""
    for steps in range(40):
        storage = CrashingStorage()
        log = flushed(storage, rolled_after=range(4))
        log.release()
        if why == "a segment is gone":
            storage.remove(f"/d/t-0/{1:020d}.log")
        elif why == "a segment is damaged":
            storage.open(f"/d/t-0/{1:020d}.log").write(bytes(60), 0)
            for number in range(1, 5):
                storage.write(f"/d/t-0/{number:020d}.snapshot", b"")
        storage.steps_left = steps
        with suppress(KeyboardInterrupt):
            if why == "a truncation":
                log.truncate_to(1, 0)
            else:
                reopened(storage)
        storage.steps_left = 1000
        log = reopened(storage)
        bases = [segment.base_offset for segment in log.segments if segment.size_bytes]
        assert bases == list(range(log.log_end_offset)), steps
    assert log.log_end_offset == 1
