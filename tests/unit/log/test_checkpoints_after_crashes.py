"""What checkpoints say of a log that was cut since: after a power failure they would hold for other records."""

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
    """(disk, manager, log, the values of the twenty records that are safe in it)."""
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
        assert read, f"nothing at offset {offset}"
        values += read
    return values


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("is_late", [False, True])
def test_what_is_written_behind_a_cut_is_checked_after_a_power_failure(seed: int, is_late: bool) -> None:
    """The recovery point of before the cut would have it trusted, though it was never synced; also where a thread
    writes it only after the cut."""
    disk, manager, log, old = with_flushed_records(seed)
    writes = manager.checkpoints.work(RECOVERY_POINT_FILE)
    if not is_late:
        writes.pop()()
        disk.note_directory_synced("/data")
    log.truncate_to(5, NOW)
    new = [b"new %d" % number for number in range(30)]
    for value in new:
        append(log, value, 1)
    for write in writes:
        write()
    disk.lose_power()
    log = start(disk).logs["t", 0]
    found = values_of(log)
    assert len(found) >= 5
    assert found == [*old[:5], *new][: len(found)]


@pytest.mark.parametrize("loses_power", [False, True])
def test_a_log_that_began_anew_before_its_former_start_is_not_emptied(loses_power: bool) -> None:
    """The log start offset of before is beyond its end."""
    disk = SimulatedDisk(Random(0))
    manager = start(disk)
    log = manager.get_or_create("t", 0, CONFIG, NOW)
    for number in range(20):
        append(log, b"old %d" % number, 0)
    log.high_watermark = 20
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
def test_a_flush_that_a_cut_has_overtaken_tells_nothing_of_what_is_written_behind_it(seed: int) -> None:
    """It synced other records, those that were cut: the new ones, rolled since, would be trusted unsynced."""
    disk, manager, log, old = with_flushed_records(seed)
    for value in old:
        append(log, value, 0)
    begun: list[tuple[Callable[[], None], Callable[[OSError | None], None]]] = []
    manager._background = lambda work, done: begun.append((work, done))
    manager._flush(log, NOW, with_active=True)
    for work, _ in begun:
        work()
    log.truncate_to(25, NOW)
    new = [b"new %d" % number for number in range(30)]
    for value in new:
        append(log, value, 1)
    for _, done in begun:
        done(None)
    manager.checkpoints.write(RECOVERY_POINT_FILE)
    disk.lose_power()
    found = values_of(start(disk).logs["t", 0])
    assert len(found) >= 25
    assert found == [*old, *old[:5], *new][: len(found)]


@pytest.mark.parametrize("seed", range(20))
def test_what_is_written_behind_what_recovery_has_cut_is_checked_after_a_power_failure(seed: int) -> None:
    """The disk had lost records below the recovery point; that of before would have those trusted that follow."""
    disk, manager, log, old = with_flushed_records(seed)
    manager.checkpoints.write(RECOVERY_POINT_FILE)
    disk.note_directory_synced("/data")
    disk.files.remove(log.segments[2].path(LOG_SUFFIX))
    disk.lose_power()
    log = start(disk).logs["t", 0]
    kept = log.log_end_offset
    assert kept < 20
    new = [b"new %d" % number for number in range(30)]
    for value in new:
        append(log, value, 1)
    disk.lose_power()
    found = values_of(start(disk).logs["t", 0])
    assert len(found) >= kept
    assert found == [*old[:kept], *new][: len(found)]


@pytest.mark.parametrize("seed", range(5))
def test_a_high_watermark_holds_for_no_other_records_than_those_that_a_power_failure_took(seed: int) -> None:
    """Readers of this replica would be given what is written there since and not committed."""
    disk, manager, log, _ = with_flushed_records(seed)
    for number in range(20):
        append(log, b"unsynced %d" % number, 0)
    log.high_watermark = 40
    manager.checkpoints.write(HIGH_WATERMARK_FILE, durable=True)
    disk.note_directory_synced("/data")
    disk.lose_power()
    log = start(disk).logs["t", 0]
    kept = log.log_end_offset
    assert kept < 40
    for number in range(30):
        append(log, b"new %d" % number, 1)
    assert start(disk).logs["t", 0].high_watermark == kept


def test_what_recovery_has_cut_away_has_to_be_cleaned_when_it_comes_back() -> None:
    """Else a tombstone in it would go in its time, and a value from before it would be the newest of its key again."""
    disk, manager, log, old = with_flushed_records(0)
    log.cleaner_offset = 15
    for name in (RECOVERY_POINT_FILE, CLEANER_FILE):
        manager.checkpoints.write(name, durable=True)
    disk.note_directory_synced("/data")
    disk.files.remove(log.segments[1].path(LOG_SUFFIX))
    disk.lose_power()
    log = start(disk).logs["t", 0]
    begins = log.segments[-1].base_offset
    assert begins <= log.log_end_offset < 15
    for _ in range(2):
        assert log.cleaner_offset == begins
        for value in old:
            append(log, value, 1)
        log = start(disk).logs["t", 0]
    assert log.log_end_offset > 15


def test_checkpoints_of_a_directory_that_is_offline_are_corrected_when_it_is_back() -> None:
    disk = SimulatedDisk(Random(0))
    manager = LogManager(disk.mount(), ("/a", "/b"))
    manager.open_directories()
    logs = [manager.get_or_create("t", index, CONFIG, NOW) for index in range(2)]
    manager.get_or_create("gone", 0, CONFIG, NOW)
    manager.delete("gone", 0, NOW)
    for log in logs:
        append(log, b"old", 0)
        log.flush(NOW)
        log.truncate_to(0, NOW)
    offline = manager.directory_of("t", 0)
    assert offline is not None
    offline.offline_reason = "full"
    append(logs[1], b"new", 1)
    assert [log.is_overtold for log in logs] == [True, False]
    assert manager.checkpoints.gone
    offline.offline_reason = None
    append(logs[0], b"new", 1)
    assert not logs[0].is_overtold
    assert not manager.checkpoints.gone


@pytest.mark.parametrize("seed", range(8))
def test_indexes_without_records_tell_nothing_of_what_is_written_in_their_place(seed: int) -> None:
    """Back after a power failure, they would have all dropped that is flushed behind them."""
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
def test_what_was_cut_before_a_clean_stop_is_not_back_after_it(seed: int) -> None:
    disk, manager, log, old = with_flushed_records(seed)
    log.truncate_to(log.segments[-1].base_offset + 1, NOW)
    kept = log.log_end_offset
    assert 0 < kept < 20
    manager.close(now_ms=NOW)
    disk.lose_power()
    log = start(disk).logs["t", 0]
    assert values_of(log) == old[:kept]


def test_a_log_that_was_closed_cleanly_and_ends_before_that_is_checked() -> None:
    """Recovery would cut away, later, all that is written behind a batch that has another offset than its own."""
    disk, manager, log, old = with_flushed_records(0)
    segment, last = log.segments[-1], log.log_end_offset - 1
    position = segment.locate(last)
    manager.close(now_ms=NOW)
    disk.files.open(segment.path(LOG_SUFFIX)).write(bytes(8), position)
    manager = start(disk)
    assert manager.is_damaged
    log = manager.logs["t", 0]
    append(log, b"new", 1)
    assert values_of(start(disk).logs["t", 0]) == [*old[:last], b"new"]


@pytest.mark.parametrize("seed", range(8))
def test_what_was_cut_before_a_new_segment_began_is_not_back_before_it(seed: int) -> None:
    """It ends at the recovery point: nobody would look, and readers be given what was cut for what stands behind."""
    disk, manager, log, old = with_flushed_records(seed)
    kept = log.segments[-1].base_offset + 1
    log.truncate_to(kept, NOW)
    log.roll(NOW)
    disk.note_synced(log.segments[-1].path(LOG_SUFFIX))
    manager.checkpoints.write(RECOVERY_POINT_FILE)
    disk.note_directory_synced("/data")
    disk.lose_power()
    log = start(disk).logs["t", 0]
    append(log, b"new", 1)
    assert values_of(log) == [*old[:kept], b"new"]


@pytest.mark.parametrize("seed", range(8))
def test_a_checkpoint_that_a_start_has_read_does_not_give_way_to_an_older_one(seed: int) -> None:
    """By the older one, with a later offset, what is written from now on would be trusted, though it was not synced."""
    disk, manager, log, _ = with_flushed_records(seed)
    manager.checkpoints.write(RECOVERY_POINT_FILE)
    disk.note_directory_synced("/data")
    log.truncate_to(5, NOW)
    manager.checkpoints.write(RECOVERY_POINT_FILE)
    start(disk)
    disk.lose_power()
    assert start(disk).directories[0].read_checkpoint(RECOVERY_POINT_FILE) == {("t", 0): 5}


@pytest.mark.parametrize("seed", range(8))
def test_epochs_that_a_killed_process_wrote_are_safe_once_the_records_are(seed: int) -> None:
    """Else the log is trusted after a power failure with epochs of before, by which its replicas would be cut."""
    disk, manager, log, _ = with_flushed_records(seed)
    append(log, b"new", 1)
    manager = start(disk)
    manager.logs["t", 0].flush(NOW)
    manager.close(now_ms=NOW)
    disk.lose_power()
    assert start(disk).logs["t", 0].end_offset_for_epoch(1) == (1, 21)


@pytest.mark.parametrize("seed", range(8))
def test_epochs_that_recovery_has_found_are_safe_before_it_does_not_look_for_them_any_more(seed: int) -> None:
    disk, manager, log, _ = with_flushed_records(seed)
    append(log, b"new", 1)
    log.flush(NOW)
    manager.checkpoints.write(RECOVERY_POINT_FILE)
    path = f"{log.directory}/{LEADER_EPOCH_FILE}"
    disk.mount().write_atomic(path, b"0\n1\n0 0\n")  # what a power failure has left
    log = start(disk).logs["t", 0]
    log.roll(NOW)
    append(log, b"newer", 1)
    disk.lose_power()
    assert start(disk).logs["t", 0].end_offset_for_epoch(0) == (0, 20)


@pytest.mark.parametrize("seed", range(40))
def test_what_recovery_has_cut_is_not_back_after_a_clean_stop(seed: int) -> None:
    """It would be trusted then: the torn end of a log of which nothing was sound, and which has no file of epochs."""
    disk = SimulatedDisk(Random(seed))
    append(start(disk).get_or_create("t", 0, CONFIG, NOW), b"torn", 1)
    disk.lose_power()
    manager = start(disk)
    ends = [log.log_end_offset for log in manager.logs.values()]
    manager.close(now_ms=NOW)
    disk.lose_power()
    manager = start(disk)
    assert not manager.is_damaged
    assert [log.log_end_offset for log in manager.logs.values()] == ends


@pytest.mark.parametrize("seed", range(8))
def test_a_high_watermark_of_what_was_cut_is_not_back_after_a_clean_stop(seed: int) -> None:
    """It would have records committed that no other replica has."""
    disk, manager, log, _ = with_flushed_records(seed)
    log.high_watermark = 20
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
def test_the_indexes_of_what_was_cut_are_not_back_after_a_clean_stop(seed: int, rolls: bool) -> None:
    """They would be trusted as soon as there are as many other records: as damage, or as the times of others."""
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
        append(log, b"of another size", 1)
    manager.close(now_ms=NOW)
    manager = start(disk)
    assert not manager.is_damaged
    assert len(values_of(manager.logs["t", 0])) == 10


@pytest.mark.parametrize("seed", range(8))
def test_segments_that_a_start_has_replaced_by_the_compacted_one_are_not_back_beside_it(seed: int) -> None:
    """Some of them behind it, or their indexes alone, would have all that follows dropped."""
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
