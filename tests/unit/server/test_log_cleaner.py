"""Tests of LogCleaner: selection of logs, segment swap, crashes at every step, uncleanable logs."""

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
from support.mortal_storage import Killed, MortalStorage

NOW = 1_700_000_000_000
COMPACT = LogConfig(cleanup_compact=True, cleanup_delete=False, segment_bytes=500)
BOTH = LogConfig(cleanup_compact=True, cleanup_delete=True, retention_ms=1000)


class Watched(InlineCleaner):
    """A cleaner that records its jobs, and calls `between` after each report."""

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


class Setting:
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
        self.executor = Watched(self.storage)
        self.cleaner = LogCleaner(self.manager, self.storage, config(), self.executor, lambda: self.now)

    def clean(self) -> int:
        return asyncio.run(self.cleaner.clean_all())

    def write(self, topic: str, keys: bytes, *, rolls: bool = True) -> PartitionLog:
        """Append one record per key, in segments of a few records; if `rolls`, roll the last segment and flush."""
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
    setting = Setting()
    setting.write("half", b"aabb")
    setting.clean()
    half = setting.write("half", b"aaaabbbbccccddddeeee")
    whole = setting.write("whole", b"abababab")
    setting.write("active", b"abab", rolls=False)
    setting.executor.jobs.clear()
    assert setting.clean() == 2
    assert [job.directory for job in setting.executor.jobs] == ["/data/whole-0", "/data/half-0"]
    assert offsets(whole) == [6, 7]
    assert len(offsets(half)) == 5
    assert setting.clean() == 0
    setting.manager.checkpoints.write(CLEANER_FILE)
    assert setting.storage.read("/data/cleaner-offset-checkpoint") == b"0\n2\nhalf 0 24\nwhole 0 8\n"


def test_topics_without_compaction_are_not_cleaned() -> None:
    setting = Setting(log_config=LogConfig(segment_bytes=500))
    setting.write("deleted", b"aaaa")
    assert setting.clean() == 0


def test_cleaner_offset_survives_a_restart() -> None:
    setting = Setting()
    setting.write("t", b"aabb")
    setting.clean()
    setting.manager.close(now_ms=NOW)
    again = Setting(setting.storage)
    assert again.manager.get("t", 0).cleaner_offset == 4
    assert again.clean() == 0
    assert offsets(again.manager.get("t", 0)) == [1, 3]


def test_leader_epochs_are_synced_before_records_are_removed() -> None:
    """R2: a power failure would make unsynced epochs start too late, and followers would truncate too little."""
    synced: list[str] = []

    class Watching(MemoryStorage):
        def sync(self, path: str) -> None:
            synced.append(path)

    setting = Setting(Watching())
    log = setting.write("t", b"aabb")
    log.assign_epoch(1, log.log_end_offset)
    synced.clear()
    setting.executor.between = lambda: synced.append("cleaned")
    setting.clean()
    assert "/data/t-0/leader-epoch-checkpoint" in synced[: synced.index("cleaned")]


@pytest.mark.parametrize("seed", range(8))
def test_unsynced_record_does_not_replace_an_older_record(seed: int) -> None:
    """If the older record were removed before the newer record is synced, a power failure could lose both."""
    disk = SimulatedDisk(Random(seed))
    setting = Setting(disk.mount())
    log = setting.write("t", b"abcdefgh")
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

    setting.executor.between = fail_after_the_first
    with contextlib.suppress(Killed):
        setting.clean()
    disk.lose_power()
    assert len(table_of(Setting(disk.mount()).manager.logs["t", 0])) == 8


def test_truncation_below_the_cleaner_offset_lowers_the_cleaner_offset() -> None:
    setting = Setting()
    log = setting.write("t", b"aabbcc")
    setting.clean()
    assert (log.cleaner_offset, offsets(log)) == (6, [1, 3, 5])
    log.truncate_to(4, NOW)
    after_truncation = log.cleaner_offset
    assert after_truncation == log.segments[-1].base_offset <= 4
    log.truncate_fully_and_start_at(9, NOW)
    assert log.cleaner_offset == after_truncation
    assert setting.cleaner._dirty_range(log).first_dirty_offset == 9


@pytest.mark.parametrize("change", ["truncated", "emptied", "deleted", "new leader epoch", "compaction disabled"])
def test_cleaning_is_abandoned_when_the_log_changes(change: str) -> None:
    setting = Setting()
    log = setting.write("t", b"abcabcabcabc")
    other = setting.write("u", b"aaaa")
    before = offsets(log)
    apply_change = {
        "truncated": lambda: log.truncate_to(10, NOW),
        "emptied": lambda: log.truncate_fully_and_start_at(3, NOW),
        "deleted": lambda: setting.manager.delete("t", 0, NOW),
        "new leader epoch": lambda: log.assign_epoch(1, log.log_end_offset),
        "compaction disabled": lambda: setattr(log, "config", LogConfig()),
    }[change]
    changed: list[bool] = []

    def between() -> None:
        if not changed and setting.executor.jobs[-1].directory == "/data/t-0":
            changed.append(True)
            apply_change()

    setting.executor.between = between
    assert setting.clean() == 2
    assert changed
    assert offsets(other) == [3]
    assert not log.is_being_cleaned
    assert cleaned_files(setting.storage, log.directory) == []
    if change in ("new leader epoch", "compaction disabled"):
        assert offsets(log) == before
    elif change == "truncated":
        assert offsets(log) == before[:10]
    assert log.cleaner_offset in (None, 0)


def test_retention_waits_until_cleaning_is_done() -> None:
    setting = Setting(log_config=BOTH)
    log = setting.write("t", b"abab")
    setting.now += 10_000_000
    counts: list[int] = []

    def between() -> None:
        setting.manager.maintain(setting.now)
        setting.manager.maintain(setting.now + 300_000)
        counts.append(len(log.segments))

    setting.executor.between = between
    setting.clean()
    assert counts[0] == 2
    setting.manager.maintain(setting.now + 600_000)
    setting.manager.maintain(setting.now + 900_000)
    assert len(log.segments) == 1


def test_corrupt_log_is_marked_uncleanable_once_and_other_logs_are_cleaned(caplog: pytest.LogCaptureFixture) -> None:
    setting = Setting()
    broken = setting.write("broken", b"aaaa")
    valid = setting.write("valid", b"bbbbc")
    path = broken.segments[0].path(".log")
    data = bytearray(setting.storage.read(path))
    data[-1] ^= 1
    setting.storage.write(path, data)
    broken.release()
    with caplog.at_level(logging.ERROR):
        setting.clean()
        setting.clean()
    assert offsets(valid) == [3, 4]
    (line,) = caplog.messages
    assert line.startswith(f"Log broken-0: marked uncleanable: {path}: record batch at byte ")
    assert setting.clean() == 0
    broken.truncate_fully_and_start_at(0, NOW)
    setting.write("broken", b"aa")
    assert setting.clean() == 1
    assert offsets(broken) == [1]


def test_recreated_topic_of_an_uncleanable_log_is_cleaned() -> None:
    setting = Setting()
    broken = setting.write("t", b"aaaa")
    path = broken.segments[0].path(".log")
    setting.storage.write(path, bytes(setting.storage.size(path)))
    broken.release()
    assert (setting.clean(), setting.clean()) == (1, 0)
    setting.manager.delete("t", 0, NOW)
    again = setting.write("t", b"aaaa")
    assert setting.clean() == 1
    assert offsets(again) == [3]


def test_cleaned_files_of_a_deleted_log_are_removed_from_the_recreated_topic() -> None:
    """The cleaner process writes to a directory by name, and the recreated topic's log has the same directory name."""
    setting = Setting()
    setting.write("t", b"aaaa")

    def recreate_topic() -> None:
        setting.manager.delete("t", 0, NOW)
        setting.manager.get_or_create("t", 0, COMPACT, NOW)
        setting.storage.write(f"/data/t-0/{0:020d}.log.cleaned", b"of the deleted log")

    setting.executor.between = recreate_topic
    setting.clean()
    assert cleaned_files(setting.storage, "/data/t-0") == []


def test_temporary_failure_is_retried_with_growing_backoff(caplog: pytest.LogCaptureFixture) -> None:
    setting = Setting()
    log = setting.write("t", b"aa")

    class Full(InlineCleaner):
        async def clean(self, job: CleaningJob, is_wanted: Callable[[], bool]) -> AsyncGenerator[CleanerReport, None]:
            yield CleaningFailed("No space left on device", is_lasting=False)

    executor = setting.executor
    setting.cleaner._executor = Full(setting.storage)
    assert setting.clean() == 1
    assert setting.clean() == 0
    setting.now += 1000
    assert setting.clean() == 1
    setting.now += 1000
    assert setting.clean() == 0
    assert caplog.messages == [
        "Log t-0: cleaning failed, retrying in 1 s: No space left on device",
        "Log t-0: cleaning failed, retrying in 2 s: No space left on device",
    ]
    setting.now += 1000
    setting.cleaner._executor = executor
    assert setting.clean() == 1
    assert offsets(log) == [1]


def test_crash_at_any_rename_loses_no_record() -> None:
    """The swap is a sequence of renames; after a crash between any two of them the next start finds a valid log."""
    setting = Setting(MortalStorage())
    log = setting.write("t", b"abcabcdabcabc")
    setting.write("t", b"xyz", rolls=False)
    assert len(log.segments) > 3
    untouched = copy.deepcopy(setting.storage)
    total = count_renames(copy.deepcopy(untouched))
    assert total > 12
    for count in range(total + 1):
        storage = copy.deepcopy(untouched)
        storage.renames_left = count
        run_until_killed(storage)
        storage.renames_left = 1 << 30
        storage._locks.clear()
        again = Setting(storage)
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


def count_renames(storage: MortalStorage) -> int:
    storage.renames_left = 1 << 30
    run_until_killed(storage)
    return (1 << 30) - storage.renames_left


def run_until_killed(storage: MortalStorage) -> None:
    storage._locks.clear()
    setting = Setting(storage)
    with contextlib.suppress(Killed):
        setting.clean()


def table_of(log: PartitionLog) -> dict[bytes, list[int]]:
    """Return the offsets of each key's records; check that the index locates each batch."""
    table: dict[bytes, list[int]] = {}
    for segment in log.segments:
        for position, header, batch in segment.iter_checked_batches(0):
            assert segment.locate(header.last_offset) == position
            columns = read_batch(batch, 0, header)
            for key, offset in zip(columns.keys or (), columns.offsets or (), strict=True):
                assert key is not None
                table.setdefault(key, []).append(offset)
    return table


def test_disabled_cleaner_does_not_start() -> None:
    setting = Setting()
    off = LogCleaner(setting.manager, setting.storage, config(**{"log.cleaner.enable": "false"}), setting.executor, int)

    async def start() -> None:
        off.start()
        await off.close()

    asyncio.run(start())
    assert off._task is None


def test_log_is_cleaned_again_when_its_directory_cannot_be_synced(caplog: pytest.LogCaptureFixture) -> None:
    """The cleaner offset must not advance before the renames are synced."""

    class Storage(MemoryStorage):
        fails = False

        def sync_directory(self, path: str) -> None:
            if self.fails:
                raise OSError(5, "Input/output error")

    storage = Storage()
    setting = Setting(storage)
    log = setting.write("t", b"aaaabbbb")
    storage.fails = True
    setting.clean()
    assert log.cleaner_offset is None
    assert [record.message for record in caplog.records if record.levelno == logging.ERROR] == [
        "Log t-0: cleaning failed, retrying in 1 s: syncing /data/t-0 failed: Input/output error"
    ]
    storage.fails = False
    setting.now += 1_000
    setting.clean()
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

    async def run(setting: Setting) -> None:
        setting.cleaner.start()
        async with asyncio.timeout(20):
            await tried.wait()
        await setting.cleaner.close()

    asyncio.run(run(Setting(Full())))
    (record,) = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert (
        record.getMessage()
        == "Log cleaner: cannot write the cleaner offset checkpoint, retrying: No space left on device"
    )
