"""Tests of LogCleaner: selection of logs, swaps of segments, crashes at every step, and uncleanable logs."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import errno
import logging
from collections.abc import AsyncGenerator, Callable
from random import Random

import pytest

from headrace_broker.log.checkpoints import CLEANER_FILE
from headrace_broker.log.compaction.job import CleanerReport, CleaningFailed, CleaningJob
from headrace_broker.log.config import LogConfig
from headrace_broker.log.log import PartitionLog
from headrace_broker.log.manager import LogManager
from headrace_broker.log.storage import MemoryStorage, Storage
from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns
from headrace_broker.records.reader import read_batch
from headrace_broker.server.cleaning.cleaner import LogCleaner
from headrace_broker.server.cleaning.cleaning_executor import InlineCleaner
from headrace_broker.server.config import BrokerConfig
from headrace_broker.simulation.disk import SimulatedDisk
from support.killed_storage import Killed, KilledStorage

NOW = 1_700_000_000_000
COMPACT = LogConfig(cleanup_compact=True, cleanup_delete=False, segment_bytes=500)
BOTH = LogConfig(cleanup_compact=True, cleanup_delete=True, retention_ms=1000)


class RecordingCleaner(InlineCleaner):
    """Stores the cleaning jobs. Calls `between` after each cleaned segment and at the end of each job."""

    def __init__(self, storage: Storage, between: Callable[[], None] = lambda: None) -> None:
        super().__init__(storage)
        self.jobs: list[CleaningJob] = []
        self.between = between

    async def clean(self, job: CleaningJob, is_wanted: Callable[[], bool]) -> AsyncGenerator[CleanerReport, None]:
        self.jobs.append(job)
        async for report in super().clean(job, is_wanted):
            self.between()
            yield report


def config(**properties: str) -> BrokerConfig:
    return BrokerConfig.from_properties({"node.id": "1", **properties})


class CleanerFixture:
    """A log manager, a log cleaner and a clock."""

    def __init__(self, storage: Storage | None = None, log_config: LogConfig = COMPACT) -> None:
        self.storage = storage or MemoryStorage()
        self.now = NOW
        self.log_config = log_config
        self.manager = LogManager(self.storage, ["/data"])
        self.manager.open_directories()
        self.manager.load(lambda topic: log_config, NOW)
        for log in self.manager.logs.values():  # each log is the partition's sole replica
            log.advance_high_watermark(log.log_end_offset)
            log.flush(NOW)
        self.executor = RecordingCleaner(self.storage)
        self.cleaner = LogCleaner(self.manager, self.storage, config(), self.executor, lambda: self.now)

    def clean(self) -> int:
        return asyncio.run(self.cleaner.clean_all())

    def write(self, topic: str, keys: bytes, *, rolls: bool = True) -> PartitionLog:
        """Append one record for each byte of `keys`, with the byte as key, in segments of a few records.

        If `rolls` is true, roll the last segment and flush the log.
        """
        log = self.manager.get_or_create(topic, 0, self.log_config, NOW)
        for number, key in enumerate(keys):
            columns = RecordColumns(keys=[bytes([key])], values=[b"%d" % number * 50], timestamps=NOW)
            log.append_as_leader(build_batch(columns), leader_epoch=0, now_ms=NOW)
        if rolls:
            log.roll(NOW)
            log.flush(NOW)
        log.advance_high_watermark(log.log_end_offset)
        return log


def offsets(log: PartitionLog) -> list[int]:
    found: list[int] = []
    for segment in log.segments:
        for _, header, batch in segment.iter_checked_batches(0):
            found += read_batch(batch, 0, header).offsets or ()
    return found


def cleaned_files(storage: MemoryStorage, directory: str) -> list[str]:
    return [name for name in storage.listdir(directory) if name.endswith((".cleaned", ".swap"))]


def test_dirtiest_log_is_cleaned_first_and_clean_logs_are_skipped() -> None:
    fixture = CleanerFixture()
    fixture.write("half", b"aabb")
    fixture.clean()
    half = fixture.write("half", b"aaaabbbbccccddddeeee")
    whole = fixture.write("whole", b"abababab")
    fixture.write("active", b"abab", rolls=False)
    fixture.executor.jobs.clear()
    assert fixture.clean() == 2
    assert [job.directory for job in fixture.executor.jobs] == ["/data/whole-0", "/data/half-0"]
    assert offsets(whole) == [6, 7]
    assert len(offsets(half)) == 5
    assert fixture.clean() == 0
    fixture.manager.checkpoints.write(CLEANER_FILE)
    assert fixture.storage.read("/data/cleaner-offset-checkpoint") == b"0\n2\nhalf 0 24\nwhole 0 8\n"


def test_topics_without_compaction_are_not_cleaned() -> None:
    fixture = CleanerFixture(log_config=LogConfig(segment_bytes=500))
    fixture.write("deleted", b"aaaa")
    assert fixture.clean() == 0


def test_cleaner_offset_survives_a_restart() -> None:
    fixture = CleanerFixture()
    fixture.write("t", b"aabb")
    fixture.clean()
    fixture.manager.close(now_ms=NOW)
    again = CleanerFixture(fixture.storage)
    assert again.manager.get("t", 0).cleaner_offset == 4
    assert again.clean() == 0
    assert offsets(again.manager.get("t", 0)) == [1, 3]


def test_leader_epochs_are_synced_before_the_cleaner_removes_records() -> None:
    """Test rule R2 in docs/broker.md.

    A power failure would undo unsynced leader epochs, and followers would then truncate too few records.
    """
    synced: list[str] = []

    class SyncRecordingStorage(MemoryStorage):
        def sync(self, path: str) -> None:
            synced.append(path)

    fixture = CleanerFixture(SyncRecordingStorage())
    log = fixture.write("t", b"aabb")
    log.assign_epoch(1, log.log_end_offset)
    synced.clear()
    fixture.executor.between = lambda: synced.append("cleaned")
    fixture.clean()
    assert "/data/t-0/leader-epoch-checkpoint" in synced[: synced.index("cleaned")]


@pytest.mark.parametrize("seed", range(8))
def test_cleaner_keeps_an_older_record_until_the_newer_record_with_the_same_key_is_synced(seed: int) -> None:
    """If the older record were removed before the newer record is synced, a power failure could lose both."""
    disk = SimulatedDisk(Random(seed))
    fixture = CleanerFixture(disk.mount())
    log = fixture.write("t", b"abcdefgh")
    for number in range(8):
        columns = RecordColumns(keys=[b"abcdefgh"[number : number + 1]], values=[b"new" * 20], timestamps=NOW)
        log.append_as_leader(build_batch(columns), leader_epoch=0, now_ms=NOW)
    log.roll(NOW)
    log.advance_high_watermark(log.log_end_offset)
    reports = 0

    def fail_after_the_first() -> None:
        nonlocal reports
        reports += 1
        if reports > 1:
            raise Killed

    fixture.executor.between = fail_after_the_first
    with contextlib.suppress(Killed):
        fixture.clean()
    disk.lose_power()
    assert len(table_of(CleanerFixture(disk.mount()).manager.logs["t", 0])) == 8


def test_truncation_below_the_cleaner_offset_lowers_the_cleaner_offset() -> None:
    fixture = CleanerFixture()
    log = fixture.write("t", b"aabbcc")
    fixture.clean()
    assert (log.cleaner_offset, offsets(log)) == (6, [1, 3, 5])
    log.truncate_to(4, NOW)
    after_truncation = log.cleaner_offset
    assert after_truncation == log.segments[-1].base_offset <= 4
    log.truncate_fully_and_start_at(9, NOW)
    assert log.cleaner_offset == after_truncation
    assert fixture.cleaner._dirty_range(log).first_dirty_offset == 9


@pytest.mark.parametrize("change", ["truncated", "emptied", "deleted", "new leader epoch", "compaction disabled"])
def test_cleaning_is_abandoned_when_the_log_changes(change: str) -> None:
    fixture = CleanerFixture()
    log = fixture.write("t", b"abcabcabcabc")
    other = fixture.write("u", b"aaaa")
    before = offsets(log)
    apply_change = {
        "truncated": lambda: log.truncate_to(10, NOW),
        "emptied": lambda: log.truncate_fully_and_start_at(3, NOW),
        "deleted": lambda: fixture.manager.delete("t", 0, NOW),
        "new leader epoch": lambda: log.assign_epoch(1, log.log_end_offset),
        "compaction disabled": lambda: setattr(log, "config", LogConfig()),
    }[change]
    changed: list[bool] = []

    def between() -> None:
        if not changed and fixture.executor.jobs[-1].directory == "/data/t-0":
            changed.append(True)
            apply_change()

    fixture.executor.between = between
    assert fixture.clean() == 2
    assert changed
    assert offsets(other) == [3]
    assert not log.is_being_cleaned
    assert cleaned_files(fixture.storage, log.directory) == []
    if change in ("new leader epoch", "compaction disabled"):
        assert offsets(log) == before
    elif change == "truncated":
        assert offsets(log) == before[:10]
    assert log.cleaner_offset in (None, 0)


def test_retention_deletes_no_segment_while_the_log_is_cleaned() -> None:
    fixture = CleanerFixture(log_config=BOTH)
    log = fixture.write("t", b"abab")
    fixture.now += 10_000_000
    counts: list[int] = []

    def between() -> None:
        fixture.manager.maintain(fixture.now)
        fixture.manager.maintain(fixture.now + 300_000)
        counts.append(len(log.segments))

    fixture.executor.between = between
    fixture.clean()
    assert counts[0] == 2
    fixture.manager.maintain(fixture.now + 600_000)
    fixture.manager.maintain(fixture.now + 900_000)
    assert len(log.segments) == 1


def test_corrupt_log_is_marked_uncleanable_once_and_other_logs_are_cleaned(caplog: pytest.LogCaptureFixture) -> None:
    fixture = CleanerFixture()
    broken = fixture.write("broken", b"aaaa")
    valid = fixture.write("valid", b"bbbbc")
    path = broken.segments[0].path(".log")
    data = bytearray(fixture.storage.read(path))
    data[-1] ^= 1
    fixture.storage.write(path, data)
    broken.release()
    with caplog.at_level(logging.ERROR):
        fixture.clean()
        fixture.clean()
    assert offsets(valid) == [3, 4]
    (line,) = caplog.messages
    assert line.startswith(f"Log broken-0: marked uncleanable: {path}: record batch at byte ")
    assert fixture.clean() == 0
    broken.truncate_fully_and_start_at(0, NOW)
    fixture.write("broken", b"aa")
    assert fixture.clean() == 1
    assert offsets(broken) == [1]


def test_recreated_topic_is_cleaned_even_if_the_log_of_the_deleted_topic_was_uncleanable() -> None:
    fixture = CleanerFixture()
    broken = fixture.write("t", b"aaaa")
    path = broken.segments[0].path(".log")
    fixture.storage.write(path, bytes(fixture.storage.size(path)))
    broken.release()
    assert (fixture.clean(), fixture.clean()) == (1, 0)
    fixture.manager.delete("t", 0, NOW)
    again = fixture.write("t", b"aaaa")
    assert fixture.clean() == 1
    assert offsets(again) == [3]


def test_unfinished_cleaner_files_are_removed_from_the_directory_of_a_recreated_topic() -> None:
    """The cleaner process writes to a directory by name, and the recreated topic's log has the same directory name."""
    fixture = CleanerFixture()
    fixture.write("t", b"aaaa")

    def recreate_topic() -> None:
        fixture.manager.delete("t", 0, NOW)
        fixture.manager.get_or_create("t", 0, COMPACT, NOW)
        fixture.storage.write(f"/data/t-0/{0:020d}.log.cleaned", b"of the deleted log")

    fixture.executor.between = recreate_topic
    fixture.clean()
    assert cleaned_files(fixture.storage, "/data/t-0") == []


def test_cleaning_that_fails_with_a_temporary_error_is_retried_with_growing_backoff(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fixture = CleanerFixture()
    log = fixture.write("t", b"aa")

    class Full(InlineCleaner):
        async def clean(self, job: CleaningJob, is_wanted: Callable[[], bool]) -> AsyncGenerator[CleanerReport, None]:
            yield CleaningFailed("No space left on device", is_lasting=False)

    executor = fixture.executor
    fixture.cleaner._executor = Full(fixture.storage)
    assert fixture.clean() == 1
    assert fixture.clean() == 0
    fixture.now += 1000
    assert fixture.clean() == 1
    fixture.now += 1000
    assert fixture.clean() == 0
    assert caplog.messages == [
        "Log t-0: cleaning failed, retrying in 1 s: No space left on device",
        "Log t-0: cleaning failed, retrying in 2 s: No space left on device",
    ]
    fixture.now += 1000
    fixture.cleaner._executor = executor
    assert fixture.clean() == 1
    assert offsets(log) == [1]


def test_crash_while_cleaned_segments_replace_old_segments_loses_no_record() -> None:
    """The cleaner replaces segments with a sequence of renames.

    After a crash between two renames, the next start finds a valid log.
    """
    fixture = CleanerFixture(KilledStorage())
    log = fixture.write("t", b"abcabcdabcabc")
    fixture.write("t", b"xyz", rolls=False)
    assert len(log.segments) > 3
    untouched = copy.deepcopy(fixture.storage)
    total = count_renames(copy.deepcopy(untouched))
    assert total > 12
    for count in range(total + 1):
        storage = copy.deepcopy(untouched)
        storage.renames_left = count
        run_until_killed(storage)
        storage.renames_left = 1 << 30
        storage._locks.clear()
        again = CleanerFixture(storage)
        found = again.manager.get("t", 0)
        assert found.log_end_offset == 16
        table = table_of(found)
        assert {key: max(places) for key, places in table.items()} == {
            b"a": 10, b"b": 11, b"c": 12, b"d": 6, b"x": 13, b"y": 14, b"z": 15,
        }, count  # fmt: skip
        assert cleaned_files(storage, found.directory) == []
        while again.clean():
            pass
        assert sum(len(places) for key, places in table_of(found).items()) == 7


def count_renames(storage: KilledStorage) -> int:
    storage.renames_left = 1 << 30
    run_until_killed(storage)
    return (1 << 30) - storage.renames_left


def run_until_killed(storage: KilledStorage) -> None:
    storage._locks.clear()
    fixture = CleanerFixture(storage)
    with contextlib.suppress(Killed):
        fixture.clean()


def table_of(log: PartitionLog) -> dict[bytes, list[int]]:
    """Return the offsets of each key's records. Check that the index locates each batch."""
    table: dict[bytes, list[int]] = {}
    for segment in log.segments:
        for position, header, batch in segment.iter_checked_batches(0):
            assert segment.locate(header.last_offset) == position
            columns = read_batch(batch, 0, header)
            for key, offset in zip(columns.keys or (), columns.offsets or (), strict=True):
                assert key is not None
                table.setdefault(key, []).append(offset)
    return table


def test_log_cleaner_does_not_start_if_log_cleaner_enable_is_false() -> None:
    fixture = CleanerFixture()
    off = LogCleaner(fixture.manager, fixture.storage, config(**{"log.cleaner.enable": "false"}), fixture.executor, int)

    async def start() -> None:
        off.start()
        await off.close()

    asyncio.run(start())
    assert off._task is None


def test_log_is_cleaned_again_after_its_directory_could_not_be_synced(caplog: pytest.LogCaptureFixture) -> None:
    """The cleaner offset must not advance before the renames are synced."""

    class Storage(MemoryStorage):
        fails = False

        def sync_directory(self, path: str) -> None:
            if self.fails:
                raise OSError(5, "Input/output error")

    storage = Storage()
    fixture = CleanerFixture(storage)
    log = fixture.write("t", b"aaaabbbb")
    storage.fails = True
    fixture.clean()
    assert log.cleaner_offset is None
    assert [record.message for record in caplog.records if record.levelno == logging.ERROR] == [
        "Log t-0: cleaning failed, retrying in 1 s: syncing /data/t-0 failed: Input/output error"
    ]
    storage.fails = False
    fixture.now += 1_000
    fixture.clean()
    assert log.cleaner_offset is not None


def test_cleaner_continues_when_the_checkpoint_cannot_be_written(caplog: pytest.LogCaptureFixture) -> None:
    """On a full disk, the cleaner logs one line and keeps running."""
    tried = asyncio.Event()

    class Full(MemoryStorage):
        def write_atomic(self, path: str, data: bytes, *, durable: bool = True) -> None:
            if path.endswith(CLEANER_FILE):
                tried.set()
                raise OSError(errno.ENOSPC, "No space left on device")
            super().write_atomic(path, data, durable=durable)

    async def run(fixture: CleanerFixture) -> None:
        fixture.cleaner.start()
        async with asyncio.timeout(20):
            await tried.wait()
        await fixture.cleaner.close()

    asyncio.run(run(CleanerFixture(Full())))
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert (
        record.getMessage()
        == "Log cleaner: cannot write the cleaner offset checkpoint, retrying: No space left on device"
    )
