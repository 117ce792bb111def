"""Tests of crashes after truncations: old checkpoints must not be applied to records that were written later."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from headrace_broker.log.checkpoints import (
    CLEANER_FILE,
    HIGH_WATERMARK_FILE,
    LEADER_EPOCH_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
)
from headrace_broker.log.config import LogConfig
from headrace_broker.log.log import PartitionLog
from headrace_broker.log.manager import LogManager
from headrace_broker.log.segment import LOG_SUFFIX
from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns
from headrace_broker.records.reader import read_columns
from headrace_broker.simulation.disk import SimulatedDisk

NOW = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=300)


def start(disk: SimulatedDisk) -> LogManager:
    manager = LogManager(disk.mount(), ("/data",))
    manager.open_directories()
    manager.load(lambda topic: CONFIG, NOW, has_other_replicas=lambda topic, partition: True)
    return manager


def append(log: PartitionLog, value: bytes, epoch: int) -> None:
    batch = build_batch(RecordColumns(values=[value], timestamps=NOW))
    log.append_as_leader(batch, leader_epoch=epoch, now_ms=NOW)


def with_flushed_records(seed: int) -> tuple[SimulatedDisk, LogManager, PartitionLog, list[bytes]]:
    """Create a log with twenty flushed records. Return the disk, the manager, the log and the records' values."""
    disk = SimulatedDisk(Random(seed))
    manager = start(disk)
    log = manager.get_or_create("t", 0, CONFIG, NOW)
    old = [b"old %d" % number for number in range(20)]
    for value in old:
        append(log, value, 0)
    log.flush(NOW)
    return disk, manager, log, old


def values_of(log: PartitionLog) -> list[bytes | None]:
    values: list[bytes | None] = []
    while log.log_start_offset + len(values) < log.log_end_offset:
        offset = log.log_start_offset + len(values)
        data = b"".join(log.read(offset, 1 << 20, upper_bound_offset=log.log_end_offset).buffers)
        read = read_columns(data, offset).values
        assert read, f"no record at offset {offset}"
        values += read
    return values


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("is_written_late", [False, True])
def test_records_appended_after_a_truncation_are_recovered_after_power_failure(
    seed: int, is_written_late: bool
) -> None:
    """Recovery does not check records below the recovery point.

    If the checkpoint kept the recovery point from before the truncation, recovery would not check records that were
    appended after the truncation. With `is_written_late`, a background thread writes the old recovery point to the
    checkpoint after the truncation.
    """
    disk, manager, log, old = with_flushed_records(seed)
    write_tasks = manager.checkpoints.write_tasks(RECOVERY_POINT_FILE)
    if not is_written_late:
        write_tasks.pop()()
        disk.note_directory_synced("/data")
    log.truncate_to(5, NOW)
    new = [b"new %d" % number for number in range(30)]
    for value in new:
        append(log, value, 1)
    for write in write_tasks:
        write()
    disk.lose_power()
    log = start(disk).logs["t", 0]
    found = values_of(log)
    assert len(found) >= 5
    assert found == [*old[:5], *new][: len(found)]


@pytest.mark.parametrize("loses_power", [False, True])
def test_log_that_was_reset_to_a_lower_start_offset_keeps_its_records_despite_an_outdated_checkpoint(
    loses_power: bool,
) -> None:
    """The checkpoint contains the old log start offset, which is beyond the new log end offset."""
    disk = SimulatedDisk(Random(0))
    manager = start(disk)
    log = manager.get_or_create("t", 0, CONFIG, NOW)
    for number in range(20):
        append(log, b"old %d" % number, 0)
    log.advance_high_watermark(20)
    log.delete_records_before(19)
    manager.checkpoints.write(LOG_START_FILE)
    manager.checkpoints.write(HIGH_WATERMARK_FILE)
    log.truncate_fully_and_start_at(3, NOW)
    for number in range(4):
        append(log, b"new %d" % number, 1)
    if loses_power:
        log.flush(NOW)
        disk.lose_power()
    log = start(disk).logs["t", 0]
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (3, 7, 3)
    assert values_of(log) == [b"new %d" % number for number in range(4)]


@pytest.mark.parametrize("seed", range(20))
def test_recovery_point_does_not_advance_if_the_log_is_truncated_during_a_flush(seed: int) -> None:
    """The flush has synced the truncated records, but not the new records that are appended at the same offsets.

    If the recovery point advanced, recovery would not check the new records.
    """
    disk, manager, log, old = with_flushed_records(seed)
    for value in old:
        append(log, value, 0)
    started: list[tuple[Callable[[], None], Callable[[OSError | None], None]]] = []
    manager._background = lambda work, done: started.append((work, done))
    manager._flush(log, NOW, with_active=True)
    for work, _ in started:
        work()
    log.truncate_to(25, NOW)
    new = [b"new %d" % number for number in range(30)]
    for value in new:
        append(log, value, 1)
    for _, done in started:
        done(None)
    manager.checkpoints.write(RECOVERY_POINT_FILE)
    disk.lose_power()
    found = values_of(start(disk).logs["t", 0])
    assert len(found) >= 25
    assert found == [*old, *old[:5], *new][: len(found)]


@pytest.mark.parametrize("seed", range(20))
def test_recovery_checks_the_records_appended_after_an_earlier_recovery(seed: int) -> None:
    """A segment below the recovery point is lost, and the first recovery truncates the log there.

    If the first recovery did not lower the recovery point, the second recovery would not check the new records.
    """
    disk, manager, log, old = with_flushed_records(seed)
    manager.checkpoints.write(RECOVERY_POINT_FILE)
    disk.note_directory_synced("/data")
    disk.files.remove(log.segments[2].path(LOG_SUFFIX))
    disk.lose_power()
    log = start(disk).logs["t", 0]
    end_offset = log.log_end_offset
    assert end_offset < 20
    new = [b"new %d" % number for number in range(30)]
    for value in new:
        append(log, value, 1)
    disk.lose_power()
    found = values_of(start(disk).logs["t", 0])
    assert len(found) >= end_offset
    assert found == [*old[:end_offset], *new][: len(found)]


@pytest.mark.parametrize("seed", range(5))
def test_checkpointed_high_watermark_does_not_cover_records_that_were_written_after_data_loss(seed: int) -> None:
    """The checkpointed high watermark is above the offsets of the lost records.

    If it were not lowered, consumers would read uncommitted records at these offsets.
    """
    disk, manager, log, _ = with_flushed_records(seed)
    for number in range(20):
        append(log, b"unsynced %d" % number, 0)
    log.advance_high_watermark(40)
    manager.checkpoints.write(HIGH_WATERMARK_FILE, durable=True)
    disk.note_directory_synced("/data")
    disk.lose_power()
    log = start(disk).logs["t", 0]
    end_offset = log.log_end_offset
    assert end_offset < 40
    for number in range(30):
        append(log, b"new %d" % number, 1)
    assert start(disk).logs["t", 0].high_watermark == end_offset


def test_recovery_that_truncates_records_lowers_the_cleaner_offset() -> None:
    """With the old cleaner offset, compaction could remove a tombstone before the older values of its key."""
    disk, manager, log, old = with_flushed_records(0)
    log.cleaner_offset = 15
    for name in (RECOVERY_POINT_FILE, CLEANER_FILE):
        manager.checkpoints.write(name, durable=True)
    disk.note_directory_synced("/data")
    disk.files.remove(log.segments[1].path(LOG_SUFFIX))
    disk.lose_power()
    log = start(disk).logs["t", 0]
    base_offset = log.segments[-1].base_offset
    assert base_offset <= log.log_end_offset < 15
    for _ in range(2):
        assert log.cleaner_offset == base_offset
        for value in old:
            append(log, value, 1)
        log = start(disk).logs["t", 0]
    assert log.log_end_offset > 15


def test_checkpoints_of_a_log_directory_are_rewritten_when_the_directory_is_online_again() -> None:
    disk = SimulatedDisk(Random(0))
    manager = LogManager(disk.mount(), ("/a", "/b"))
    manager.open_directories()
    logs = [manager.get_or_create("t", index, CONFIG, NOW) for index in range(2)]
    manager.get_or_create("deleted", 0, CONFIG, NOW)
    manager.delete("deleted", 0, NOW)
    for log in logs:
        append(log, b"old", 0)
        log.flush(NOW)
        log.truncate_to(0, NOW)
    offline = manager.directory_of("t", 0)
    assert offline is not None
    offline.offline_reason = "full"
    append(logs[1], b"new", 1)
    assert [log.checkpoint_ahead_of_log for log in logs] == [True, False]
    assert manager.checkpoints.stale_partitions
    offline.offline_reason = None
    append(logs[0], b"new", 1)
    assert not logs[0].checkpoint_ahead_of_log
    assert not manager.checkpoints.stale_partitions


@pytest.mark.parametrize("seed", range(8))
def test_index_files_that_recovery_removed_do_not_return_after_power_failure(seed: int) -> None:
    """Recovery removes the index files of a segment whose `.log` file is missing.

    If these index files returned, the next recovery would drop the flushed records after the segment.
    """
    disk = SimulatedDisk(Random(seed))
    manager = start(disk)
    log = manager.get_or_create("t", 0, CONFIG, NOW)
    append(log, b"kept", 0)
    log.roll(NOW)
    append(log, b"removed", 0)
    manager.close(now_ms=NOW)
    disk.files.remove(log.segments[1].path(LOG_SUFFIX))
    manager = start(disk)
    log = manager.logs["t", 0]
    assert log.log_end_offset == 1
    for number in range(20):
        append(log, b"new %d" % number, 1)
    log.flush(NOW)
    disk.lose_power()
    assert values_of(start(disk).logs["t", 0]) == [b"kept", *(b"new %d" % number for number in range(20))]


@pytest.mark.parametrize("seed", range(8))
def test_truncation_before_clean_shutdown_survives_power_failure(seed: int) -> None:
    disk, manager, log, old = with_flushed_records(seed)
    log.truncate_to(log.segments[-1].base_offset + 1, NOW)
    end_offset = log.log_end_offset
    assert 0 < end_offset < 20
    manager.close(now_ms=NOW)
    disk.lose_power()
    log = start(disk).logs["t", 0]
    assert values_of(log) == old[:end_offset]


def test_cleanly_closed_log_that_ends_before_its_recovery_point_is_recovered() -> None:
    """The offset of the last batch was overwritten with 0, so the computed log end offset is below the recovery point.

    If the log opened without recovery, a later recovery would truncate the log at this batch, and would also remove the
    records that were appended in the meantime.
    """
    disk, manager, log, old = with_flushed_records(0)
    segment, last = log.segments[-1], log.log_end_offset - 1
    position = segment.locate(last)
    manager.close(now_ms=NOW)
    disk.files.open(segment.path(LOG_SUFFIX)).write(bytes(8), position)
    manager = start(disk)
    assert manager.is_corrupt
    log = manager.logs["t", 0]
    append(log, b"new", 1)
    assert values_of(start(disk).logs["t", 0]) == [*old[:last], b"new"]


@pytest.mark.parametrize("seed", range(8))
def test_truncation_before_a_segment_roll_survives_power_failure(seed: int) -> None:
    """After the roll, the truncated segment ends at the recovery point, so recovery does not check this segment.

    Therefore, the roll must sync the truncation. If a power failure undid the truncation, consumers would read the
    records that it had removed.
    """
    disk, manager, log, old = with_flushed_records(seed)
    end_offset = log.segments[-1].base_offset + 1
    log.truncate_to(end_offset, NOW)
    log.roll(NOW)
    disk.note_synced(log.segments[-1].path(LOG_SUFFIX))
    manager.checkpoints.write(RECOVERY_POINT_FILE)
    disk.note_directory_synced("/data")
    disk.lose_power()
    log = start(disk).logs["t", 0]
    append(log, b"new", 1)
    assert values_of(log) == [*old[:end_offset], b"new"]


@pytest.mark.parametrize("seed", range(8))
def test_checkpoint_that_was_read_at_startup_is_not_replaced_by_an_older_checkpoint_after_power_failure(
    seed: int,
) -> None:
    """The older checkpoint has a larger recovery point, because it was written before a truncation of the log.

    With the larger recovery point, recovery would not check unsynced records that were appended after the truncation.
    """
    disk, manager, log, _ = with_flushed_records(seed)
    manager.checkpoints.write(RECOVERY_POINT_FILE)
    disk.note_directory_synced("/data")
    log.truncate_to(5, NOW)
    manager.checkpoints.write(RECOVERY_POINT_FILE)
    start(disk)
    disk.lose_power()
    assert start(disk).directories[0].read_checkpoint(RECOVERY_POINT_FILE) == {("t", 0): 5}


@pytest.mark.parametrize("seed", range(8))
def test_leader_epochs_that_a_killed_process_wrote_are_synced_by_the_next_flush(seed: int) -> None:
    """If the epochs were outdated after a power failure, followers would truncate their logs at wrong offsets."""
    disk, manager, log, _ = with_flushed_records(seed)
    append(log, b"new", 1)
    manager = start(disk)
    manager.logs["t", 0].flush(NOW)
    manager.close(now_ms=NOW)
    disk.lose_power()
    assert start(disk).logs["t", 0].end_offset_for_epoch(1) == (1, 21)


@pytest.mark.parametrize("seed", range(8))
def test_leader_epochs_that_recovery_has_rebuilt_are_synced_before_the_recovery_point_advances(seed: int) -> None:
    disk, manager, log, _ = with_flushed_records(seed)
    append(log, b"new", 1)
    log.flush(NOW)
    manager.checkpoints.write(RECOVERY_POINT_FILE)
    path = f"{log.directory}/{LEADER_EPOCH_FILE}"
    disk.mount().write_atomic(path, b"0\n1\n0 0\n")  # an old checkpoint, as after a power failure
    log = start(disk).logs["t", 0]
    log.roll(NOW)
    append(log, b"newer", 1)
    disk.lose_power()
    assert start(disk).logs["t", 0].end_offset_for_epoch(0) == (0, 20)


@pytest.mark.parametrize("seed", range(40))
def test_truncation_by_recovery_survives_a_power_failure_after_a_clean_shutdown(seed: int) -> None:
    """The first power failure can leave an incomplete batch. Recovery then truncates the log at this batch.

    The log has no other batches and no leader epoch checkpoint. A clean shutdown and a second power failure follow.
    Because of the clean shutdown, the last start does not recover the log. The second power failure must therefore not
    undo the truncation.
    """
    disk = SimulatedDisk(Random(seed))
    append(start(disk).get_or_create("t", 0, CONFIG, NOW), b"torn", 1)
    disk.lose_power()
    manager = start(disk)
    ends = [log.log_end_offset for log in manager.logs.values()]
    manager.close(now_ms=NOW)
    disk.lose_power()
    manager = start(disk)
    assert not manager.is_corrupt
    assert [log.log_end_offset for log in manager.logs.values()] == ends


@pytest.mark.parametrize("seed", range(8))
def test_high_watermark_that_was_checkpointed_before_a_truncation_does_not_return_after_clean_shutdown(
    seed: int,
) -> None:
    """If the high watermark returned, consumers would read records that no other replica has."""
    disk, manager, log, _ = with_flushed_records(seed)
    log.advance_high_watermark(20)
    manager.checkpoints.write(HIGH_WATERMARK_FILE, durable=True)
    log.truncate_to(5, NOW)
    manager.close(now_ms=NOW)
    log = start(disk).logs["t", 0]
    for _ in range(20):
        append(log, b"new", 1)
    log.flush(NOW)
    disk.lose_power()
    assert start(disk).logs["t", 0].high_watermark <= 5


@pytest.mark.parametrize("rolls", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_index_entries_of_truncated_records_do_not_return_after_clean_shutdown(seed: int, rolls: bool) -> None:
    """If these entries returned, they would refer to wrong records when the log has its old length again.

    The log would then seem corrupt or have wrong timestamps.
    """
    disk, config = SimulatedDisk(Random(seed)), LogConfig(index_interval_bytes=0)
    manager = start(disk)
    log = manager.get_or_create("t", 0, config, NOW)
    for number in range(20):
        batch = build_batch(RecordColumns(values=[b"old"], timestamps=NOW + number))
        log.append_as_leader(batch, leader_epoch=0, now_ms=NOW)
    log.flush(NOW)
    log.truncate_to(2, NOW)
    if rolls:
        log.roll(NOW)
    manager.close(now_ms=NOW)
    disk.lose_power()
    manager = start(disk)
    log = manager.logs["t", 0]
    assert log.segments[0].max_timestamp == NOW + 1
    for _ in range(8):
        append(log, b"a value of another size", 1)
    manager.close(now_ms=NOW)
    manager = start(disk)
    assert not manager.is_corrupt
    assert len(values_of(manager.logs["t", 0])) == 10


@pytest.mark.parametrize("seed", range(8))
def test_segments_that_were_replaced_at_startup_do_not_return_after_power_failure(seed: int) -> None:
    """Recovery would drop all later segments if a replaced segment, or only its index files, came back."""
    disk, _, log, _ = with_flushed_records(seed)
    swap = f"{log.segments[0].path(LOG_SUFFIX)}.swap"
    following = log.segments[3].base_offset
    batch = build_batch(RecordColumns(values=[b"kept"], timestamps=NOW), base_offset=following - 1)
    storage = disk.mount()
    storage.write(swap, batch)
    storage.sync(swap)
    start(disk)
    disk.lose_power()
    log = start(disk).logs["t", 0]
    assert (log.segments[1].base_offset, log.log_end_offset) == (following, 20)
