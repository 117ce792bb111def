"""Tests of LogManager: directories, locks, clean and unclean restarts, deletion, checkpoints, and maintenance."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from headrace_broker.log.checkpoints import HIGH_WATERMARK_FILE, LOG_START_FILE, RECOVERY_POINT_FILE
from headrace_broker.log.config import LogConfig
from headrace_broker.log.directory import LogDirectoryError
from headrace_broker.log.manager import Done, LogManager, Work
from headrace_broker.log.storage import DiskStorage, MemoryFile, MemoryStorage
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns

NOW = 1_700_000_000_000
CONFIG = LogConfig(segment_bytes=300)


def start(storage: MemoryStorage, *paths: str, config: LogConfig = CONFIG) -> LogManager:
    manager = LogManager(storage, paths or ("/data",))
    manager.open_directories()
    manager.load(lambda topic: config, NOW)
    return manager


def append(manager: LogManager, topic: str, partition: int, *values: bytes) -> None:
    log = manager.get(topic, partition)
    log = log or manager.get_or_create(topic, partition, CONFIG, NOW, topic_id=bytes(range(16)))
    batch = build_batch(RecordColumns(values=list(values), timestamps=NOW))
    log.append_as_leader(batch, leader_epoch=0, now_ms=NOW)
    log.advance_high_watermark(log.log_end_offset)


def test_logs_are_loaded_without_recovery_after_a_clean_shutdown(caplog: pytest.LogCaptureFixture) -> None:
    storage = MemoryStorage()
    manager = start(storage)
    for number in range(10):
        append(manager, "a-b.c", 3, b"%d" % number)
    manager.get("a-b.c", 3).delete_records_before(4)
    manager.close(now_ms=NOW, broker_epoch=6)
    assert storage.read("/data/.kafka_cleanshutdown") == b'{"version":0,"brokerEpoch":6}'
    assert storage.read("/data/recovery-point-offset-checkpoint") == b"0\n1\na-b.c 3 10\n"
    manager = start(storage)
    log = manager.get("a-b.c", 3)
    assert manager.was_closed_cleanly
    assert manager.directories[0].clean_broker_epoch == 6
    assert not storage.exists("/data/.kafka_cleanshutdown")
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (4, 10, 10)
    assert log.topic_id == bytes(range(16))
    assert caplog.text == ""


def test_logs_are_recovered_after_an_unclean_shutdown(caplog: pytest.LogCaptureFixture) -> None:
    storage = MemoryStorage()
    manager = start(storage)
    for number in range(10):
        append(manager, "t", 0, b"%d" % number)
    path = manager.get("t", 0).segments[-1].path(".log")
    storage._files[path] += b"torn"
    manager.directories[0].release()
    manager = start(storage)
    assert not manager.was_closed_cleanly
    assert manager.get("t", 0).log_end_offset == 10
    assert path in caplog.text


@pytest.mark.parametrize("restarts_before_recreation", [False, True])
def test_recreated_partition_does_not_use_checkpoints_of_deleted_partition(restarts_before_recreation: bool) -> None:
    """After a kill -9, a checkpoint still has the log start offset of the deleted log.

    The new log ends before this offset.
    """
    storage = MemoryStorage()
    manager = start(storage)
    for number in range(10):
        append(manager, "t", 0, b"%d" % number)
    manager.get("t", 0).delete_records_before(9)
    manager.checkpoints.write(LOG_START_FILE, durable=False)
    manager.checkpoints.write(HIGH_WATERMARK_FILE)
    manager.checkpoints.write(RECOVERY_POINT_FILE)
    manager.delete("t", 0, NOW)
    if restarts_before_recreation:
        manager.directories[0].release()
        manager = start(storage)
    append(manager, "t", 0, b"new")
    append(manager, "t", 0, b"newer")
    manager.get("t", 0)._high_watermark = 1
    manager.directories[0].release()
    log = start(storage).get("t", 0)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (0, 2, 0)


def test_locked_log_directory_is_rejected_with_a_one_line_error() -> None:
    storage = MemoryStorage()
    manager = start(storage)
    with pytest.raises(LogDirectoryError, match=r"/data is in use by another process"):
        start(storage)
    directory = manager.directories[0]
    assert not directory.is_formatted
    directory.format("cluster", 1, "directory")
    assert directory.is_formatted


def test_log_directory_lock_excludes_other_processes(tmp_path: Path) -> None:
    manager = LogManager(DiskStorage(), [str(tmp_path)])
    manager.open_directories()
    code = (
        "import sys; from headrace_broker.log.manager import Done, LogManager, Work; "
        "from headrace_broker.log.storage import DiskStorage; "
        "LogManager(DiskStorage(), [sys.argv[1]]).open_directories()"
    )
    result = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert "is in use by another process" in result.stderr.splitlines()[-1]
    manager.close(now_ms=NOW)
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)


def test_partitions_are_distributed_over_log_directories_and_loaded_from_them_after_a_restart() -> None:
    storage = MemoryStorage()
    manager = start(storage, "/one", "/two")
    for partition in range(4):
        append(manager, "t", partition, b"x")
    assert {manager.directory_of("t", partition).path for partition in range(4)} == {"/one", "/two"}
    manager.close(now_ms=NOW)
    manager = start(storage, "/one", "/two")
    assert sorted(manager.logs) == [("t", partition) for partition in range(4)]
    storage.makedirs("/one/t-1")
    storage.makedirs("/two/t-1")
    manager.close(now_ms=NOW)
    with pytest.raises(LogDirectoryError, match="is in two log directories"):
        start(storage, "/one", "/two")


def test_deleted_partition_is_removed_after_delay_and_can_be_recreated() -> None:
    storage = MemoryStorage()
    manager = start(storage)
    append(manager, "t", 0, b"old")
    manager.delete("t", 0, NOW)
    assert manager.get("t", 0) is None
    renamed = [name for name in storage.list_directories("/data") if name.endswith("-delete")]
    assert len(renamed) == 1
    append(manager, "t", 0, b"new", b"er")
    assert manager.get("t", 0).log_end_offset == 2
    manager.maintain(NOW + 59_999)
    assert storage.exists(f"/data/{renamed[0]}")
    manager.maintain(NOW + 60_000)
    assert not storage.exists(f"/data/{renamed[0]}")
    manager.delete("t", 0, NOW)
    manager.close(now_ms=NOW)
    assert start(storage).logs == {}
    assert storage.list_directories("/data") == []


def test_maintenance_schedule_contains_no_deleted_partitions() -> None:
    """LogManager stores when the maintenance of each log is due, and must remove these times for deleted logs."""
    manager = start(MemoryStorage())
    append(manager, "t", 0, b"old")
    manager.maintain(NOW)
    manager.maintain(NOW)  # this call starts another maintenance round
    due_ms = dict(manager._due_ms)
    append(manager, "u", 0, b"deleted before its maintenance")
    for _ in range(3):
        manager.maintain(NOW, logs_max=1)
    manager.delete("u", 0, NOW)
    for _ in range(3):
        manager.maintain(NOW, logs_max=1)
    assert manager._due_ms == due_ms


def test_maintenance_flushes_logs_and_applies_retention_and_writes_checkpoints() -> None:
    storage = MemoryStorage()
    manager = start(storage)
    for number in range(20):
        append(manager, "t", 0, b"value %d" % number)
    log = manager.get("t", 0)
    log.config = LogConfig(segment_bytes=300, retention_bytes=0, file_delete_delay_ms=0)
    manager.maintain(NOW)
    manager.maintain(NOW)
    assert log.recovery_point == log.segments[-1].base_offset > 0
    for now in (NOW + 300_000, NOW + 300_001):
        manager.maintain(now)
        manager.maintain(now)
    assert log.log_start_offset > 0
    assert storage.read("/data/replication-offset-checkpoint") == b"0\n1\nt 0 20\n"
    names = storage.listdir("/data/t-0")
    assert not any(name.endswith(".deleted") for name in names)
    assert f"{0:020d}.log" not in names


def test_failed_log_directory_is_offline_and_contains_no_clean_shutdown_marker() -> None:
    """Rule R14 in docs/broker.md: an error in one log directory leaves the other log directories online."""
    storage = MemoryStorage()
    manager = start(storage, "/one", "/two")
    append(manager, "t", 0, b"x")
    failed = manager.directory_of("t", 0)
    log = manager.get("t", 0)

    def fail(data: object, position: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    broken = type("Broken", (), {"write": staticmethod(fail), "truncate": lambda self, size: None, "close": id})()
    log.segments[-1]._file = broken
    with pytest.raises(ApiError) as raised:
        append(manager, "t", 0, b"y")
    assert raised.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    manager.maintain(NOW)
    assert failed.offline_reason is not None
    append(manager, "t", 1, b"on the other directory")
    assert manager.directory_of("t", 1) is not failed
    log.segments[-1]._file = None
    manager.close(now_ms=NOW)
    assert not storage.exists(f"{failed.path}/.kafka_cleanshutdown")


def test_log_directory_goes_offline_after_it_is_deleted(caplog: pytest.LogCaptureFixture) -> None:
    """Test rule R14 in docs/broker.md.

    A process can still write records to deleted files, but the records are lost when the process ends. The broker must
    therefore reject appends to a deleted directory.
    """
    storage = MemoryStorage()
    manager = start(storage, "/one", "/two")
    append(manager, "t", 0, b"x")
    manager.maintain(NOW)
    deleted = manager.directory_of("t", 0)
    storage.remove_tree(deleted.path)
    manager.maintain(NOW)
    with pytest.raises(ApiError, match=f"{deleted.path} was deleted"):
        append(manager, "t", 0, b"y")
    append(manager, "t", 1, b"on the other directory")
    manager.maintain(NOW)
    manager.maintain(NOW)
    assert deleted.offline_reason is not None
    assert caplog.text.count("is offline") == 1
    manager.close(now_ms=NOW)
    assert not storage.exists(f"{deleted.path}/.kafka_cleanshutdown")


class SmallStorage(MemoryStorage):
    """Storage on a disk that is full while `is_full` is set."""

    is_full = False

    def write(self, path: str, data: bytes | bytearray | memoryview) -> None:
        if not path.endswith(".lock"):
            self.raise_if_full()
        super().write(path, data)

    def open(self, path: str) -> MemoryFile:
        file = super().open(path)
        raise_if_full = self.raise_if_full

        class File(MemoryFile):
            def write(self, data: bytes | bytearray | memoryview, position: int) -> None:
                super().write(data[: len(data) // 2], position)  # a failed write may leave some bytes
                raise_if_full()
                super().write(data, position)

        return File(file._data)

    def raise_if_full(self) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_log_directory_on_full_disk_is_online_again_after_space_is_freed() -> None:
    storage = SmallStorage()
    manager = start(storage)
    append(manager, "t", 0, b"before")
    storage.is_full = True
    with pytest.raises(ApiError, match=r"cannot append to the log \(/data/t-0\): No space left"):
        append(manager, "t", 0, b"lost")
    manager.maintain(NOW)
    assert manager.directories[0].offline_reason is not None
    with pytest.raises(ApiError):
        append(manager, "t", 0, b"lost")
    storage.is_full = False
    manager.maintain(NOW)
    assert manager.directories[0].offline_reason is None
    append(manager, "t", 0, b"after")
    log = manager.get("t", 0)
    assert log.log_end_offset == 2
    assert storage.size("/data/t-0/00000000000000000000.log") == log.size_bytes
    manager.close(now_ms=NOW)
    assert storage.exists("/data/.kafka_cleanshutdown")


def test_error_of_a_log_that_cannot_be_closed_names_the_log(caplog: pytest.LogCaptureFixture) -> None:
    storage = SmallStorage()
    manager = start(storage)
    append(manager, "t", 0, b"x")
    storage.is_full = True
    manager.close(now_ms=NOW)
    assert "Log t-0: it was not closed cleanly: cannot close the log (/data/t-0): No space left" in caplog.text


def test_retention_deletes_segments_on_full_disk() -> None:
    """The disk is so full that even the leader epoch checkpoint cannot be written."""
    storage = SmallStorage()
    config = LogConfig(segment_bytes=300, retention_bytes=300, file_delete_delay_ms=1000)
    manager = start(storage, config=config)
    manager.get_or_create("t", 0, config, NOW)
    for number in range(20):
        append(manager, "t", 0, b"%d" % number * 20)
    log = manager.get("t", 0)
    first = log.segments[0].path(".log")
    storage.is_full = True
    with pytest.raises(ApiError):
        append(manager, "t", 0, b"lost")
    for seconds in (0, 301, 303, 304):
        manager.maintain(NOW + 1000 * seconds)
        manager.maintain(NOW + 1000 * seconds)  # the second call completes the maintenance round
    assert not storage.exists(first)
    assert not [name for name in storage.listdir("/data/t-0") if name.endswith(".deleted")]
    storage.is_full = False
    manager.maintain(NOW + 305_000)
    append(manager, "t", 0, b"after")
    assert log.log_start_offset == log.segments[0].base_offset > 0


def test_logs_can_be_opened_on_full_disk() -> None:
    storage = SmallStorage()
    manager = start(storage)
    append(manager, "t", 0, b"x")
    append(manager, "u", 0, b"y")
    manager.close(clean=False, now_ms=NOW)
    for name in ("t-0/leader-epoch-checkpoint", *(f"u-0/{0:020d}.{kind}" for kind in ("log", "index", "timeindex"))):
        storage.remove(f"/data/{name}")
    storage.is_full = True
    manager = start(storage)
    assert [manager.get(topic, 0).log_end_offset for topic in "tu"] == [1, 0]
    assert manager.get("t", 0).latest_epoch == 0
    storage.is_full = False
    append(manager, "u", 0, b"z")
    manager.close(now_ms=NOW)
    assert storage.exists("/data/t-0/leader-epoch-checkpoint")
    assert start(storage).get("u", 0).log_end_offset == 1


def test_directories_that_are_not_partitions_are_ignored(caplog: pytest.LogCaptureFixture) -> None:
    storage = MemoryStorage()
    for name in ("lost+found", "t-0", "__cluster_metadata-0", "t-1.0123-delete", "t-x"):
        storage.makedirs(f"/data/{name}")
    manager = start(storage)
    assert list(manager.logs) == [("t", 0)]
    assert "t-x" in caplog.text


def test_active_segment_is_flushed_in_background_after_flush_ms() -> None:
    storage = MemoryStorage()
    due: list[tuple[Work, Done]] = []

    def background(work: Work, done: Done) -> None:
        if "_write_checkpoint" not in repr(work):
            due.append((work, done))

    manager = LogManager(storage, ("/data",), background=background)
    manager.open_directories()
    manager.load(lambda topic: CONFIG, NOW)
    append(manager, "t", 0, b"one")
    log = manager.get("t", 0)
    log.config = LogConfig(flush_ms=5_000)
    for now in (NOW + 4_999, NOW + 5_000, NOW + 5_001):
        manager.maintain(now)
        manager.maintain(now)
        assert len(due) == (now >= NOW + 5_000)  # only one flush of a log is in progress
    append(manager, "t", 0, b"two")
    assert log.recovery_point == 0
    work, done = due.pop()
    work()
    done(None)
    assert log.recovery_point == 1
    manager.maintain(NOW + 9_000)
    manager.maintain(NOW + 9_000)
    assert due == []
    manager.maintain(NOW + 10_001)
    manager.maintain(NOW + 10_001)
    assert len(due) == 1


def test_maintenance_writes_checkpoints_only_in_background() -> None:
    """The event loop must not sync checkpoint files, because a sync would block the event loop."""
    storage = MemoryStorage()
    due: list[tuple[Work, Done]] = []
    manager = LogManager(storage, ("/data",), background=lambda work, done: due.append((work, done)))
    manager.open_directories()
    manager.load(lambda topic: CONFIG, NOW)
    append(manager, "t", 0, b"one")
    manager.maintain(NOW)
    manager.maintain(NOW + 60_000)
    names = [name for name in storage.listdir("/data") if name.endswith("-checkpoint")]
    assert names == []
    for work, done in due:
        work()
        done(None)
    assert len([name for name in storage.listdir("/data") if name.endswith("-checkpoint")]) == 4


def test_checkpoint_task_writes_nothing_if_a_task_created_later_has_already_run_or_the_manager_is_closed() -> None:
    storage = MemoryStorage()
    manager = start(storage)
    directory, name = manager.directories[0], "recovery-point-offset-checkpoint"
    older, newer = (directory.checkpoint_task(name, {("t", 0): offset}) for offset in (20, 5))
    newer()
    older()
    assert storage.read(f"/data/{name}") == b"0\n1\nt 0 5\n"
    unfinished = directory.checkpoint_task(name, {("t", 0): 6})
    manager.close(clean=False, now_ms=NOW)
    unfinished()  # another process may have locked the directory
    assert storage.read(f"/data/{name}") == b"0\n1\nt 0 5\n"


def test_logs_that_were_flushed_in_background_are_not_flushed_again_on_close() -> None:
    synced: list[str] = []

    class Storage(MemoryStorage):
        def sync(self, path: str) -> None:
            synced.append(path)

    due: list[tuple[Work, Done]] = []
    storage = Storage()
    manager = LogManager(storage, ("/data",), background=lambda work, done: due.append((work, done)))
    manager.open_directories()
    for partition in range(3):
        append(manager, "t", partition, b"one")
    manager.get_or_create("t", 3, CONFIG, NOW)  # an empty log needs no flush
    manager.flush_all(NOW)
    assert len(due) == 3
    assert synced == []
    for work, done in due:
        work()
        done(None)
    name = "0" * 20
    files = [f"{name}.log", f"{name}.index", f"{name}.timeindex", "leader-epoch-checkpoint"]
    assert sorted(synced) == sorted(f"/data/t-{partition}/{file}" for partition in range(3) for file in files)
    assert len(storage.read(f"/data/t-0/{name}.timeindex")) == 12
    synced.clear()
    manager.close(now_ms=NOW)
    assert synced == []
    assert storage.read("/data/recovery-point-offset-checkpoint") == b"0\n4\nt 0 1\nt 1 1\nt 2 1\nt 3 0\n"


@pytest.mark.parametrize("outcome", ["in time", "late", "truncated again", "failed"])
def test_append_after_a_truncation_waits_until_the_truncation_is_synced(outcome: str) -> None:
    synced: list[str] = []

    class Storage(MemoryStorage):
        def sync(self, path: str) -> None:
            synced.append(path)

    due: list[tuple[Work, Done]] = []
    done_calls: list[bool] = []
    manager = LogManager(Storage(), ("/data",), background=lambda work, done: due.append((work, done)))
    manager.open_directories()
    for _ in range(4):
        append(manager, "t", 0, b"one")
    log = manager.logs["t", 0]
    log.truncate_to(3, NOW)
    assert synced == []
    manager.sync_truncation(log, lambda: done_calls.append(True))
    (work, done), path = due[0], log.segments[0].path(".log")
    if outcome == "truncated again":
        log.truncate_to(2, NOW)
    if outcome != "late":
        work()
        done(OSError(errno.EIO, os.strerror(errno.EIO)) if outcome == "failed" else None)
        assert done_calls == [True]
    if outcome == "failed":
        with pytest.raises(ApiError, match="cannot truncate"):
            append(manager, "t", 0, b"two")
        return
    append(manager, "t", 0, b"two")
    assert synced == [path] * (2 if outcome == "truncated again" else 1)


def test_maintenance_writes_a_limited_number_of_missing_leader_epoch_checkpoints_per_run() -> None:
    storage = MemoryStorage()
    due: list[tuple[Work, Done]] = []
    manager = LogManager(storage, ("/data",), background=lambda work, done: due.append((work, done)))
    manager.open_directories()
    for partition in range(40):
        manager.get_or_create("t", partition, CONFIG, NOW).assign_epoch(0, 0)

    def written() -> int:
        return sum(storage.exists(f"/data/t-{partition}/leader-epoch-checkpoint") for partition in range(40))

    assert written() == 0
    append(manager, "t", 39, b"one")
    manager.logs["t", 39].roll(NOW)
    append(manager, "t", 38, b"one")
    manager.logs["t", 38].flush(NOW)
    assert storage.read("/data/t-39/leader-epoch-checkpoint") == b"0\n1\n0 0\n"
    assert storage.read("/data/t-38/leader-epoch-checkpoint") == b"0\n1\n0 0\n"
    counts = []
    for _ in range(3):
        manager.maintain(NOW, logs_max=0)
        counts.append(written())
    assert counts == [18, 34, 40]


def test_pending_leader_epoch_checkpoint_writes_of_deleted_partitions_are_dropped() -> None:
    """Topics may be created and deleted faster than leader epochs are written.

    As long as a write is pending, the log of its partition stays in memory.
    """
    manager = start(MemoryStorage())
    for partition in range(100):
        append(manager, "t", partition, b"value")
        manager.delete("t", partition, NOW)
    append(manager, "u", 0, b"value")
    manager.maintain(NOW)
    assert not manager._epochs_to_write


def test_failed_flush_prevents_clean_shutdown_marker() -> None:
    due: list[tuple[Work, Done]] = []
    storage = MemoryStorage()
    manager = LogManager(storage, ("/data",), background=lambda work, done: due.append((work, done)))
    manager.open_directories()
    append(manager, "t", 0, b"one")
    manager.flush_all(NOW)
    due[0][1](OSError(errno.EIO, os.strerror(errno.EIO)))
    manager.close(now_ms=NOW)
    assert not storage.exists("/data/.kafka_cleanshutdown")


def test_stray_partitions_of_a_log_directory_are_logged_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    storage = MemoryStorage()
    manager = start(storage)
    append(manager, "t", 0, b"x")
    append(manager, "u", 0, b"x")
    manager.mark_stray("t", 0)
    manager.mark_stray("u", 0)
    manager.close(now_ms=NOW)
    caplog.clear()
    assert start(storage).logs == {}
    assert [record.getMessage().partition(" (")[0] for record in caplog.records] == [
        "Log directory /data has 2 stray partitions"
    ]


class RenameFailingStorage(MemoryStorage):
    """A file system on which renames of directories fail while `fails` is set."""

    fails = False

    def rename(self, source: str, target: str) -> None:
        if self.fails and source in self._directories:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        super().rename(source, target)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_log_that_could_not_be_deleted_is_not_used_for_the_recreated_topic(is_restarted: bool) -> None:
    storage, other = RenameFailingStorage(), bytes(16)
    manager = start(storage, "/one", "/two")
    append(manager, "t", 0, b"old")
    old = manager.directory_of("t", 0)
    storage.fails = True
    with pytest.raises(ApiError, match="cannot delete /one/t-0"):
        manager.delete("t", 0, NOW)
    manager.maintain(NOW)
    # The log must not be created in the other directory, because the next start would find the partition in both.
    with pytest.raises(ApiError, match="Permission denied"):
        manager.get_or_create("t", 0, CONFIG, NOW, topic_id=other)
    storage.fails = False
    if is_restarted:
        manager.close(now_ms=NOW)
        manager = start(storage, "/one", "/two")
        manager.delete("t", 0, NOW)
    log = manager.get_or_create("t", 0, CONFIG, NOW, topic_id=other)
    assert (log.topic_id, log.log_end_offset) == (other, 0)
    manager.maintain(NOW + 60_000)
    assert [name for name in storage.list_directories(old.path) if name.endswith("-delete")] == []


def test_failed_deletion_of_a_log_is_retried() -> None:
    storage = RenameFailingStorage()
    manager = start(storage)
    append(manager, "t", 0, b"old")
    storage.fails = True
    with pytest.raises(ApiError):
        manager.delete("t", 0, NOW)
    storage.fails = False
    manager.maintain(NOW)
    assert not storage.exists("/data/t-0")
    manager.maintain(NOW + 60_000)
    assert storage.list_directories("/data") == []


def test_log_with_missing_directory_can_be_deleted() -> None:
    storage = MemoryStorage()
    manager = start(storage)
    append(manager, "t", 0, b"old")
    storage.remove_tree("/data/t-0")
    manager.delete("t", 0, NOW)
    assert manager.get("t", 0) is None


@pytest.mark.parametrize("has_topic_id", [False, True])
def test_partition_directory_of_a_different_topic_with_the_same_name_is_marked_stray(
    has_topic_id: bool, caplog: pytest.LogCaptureFixture
) -> None:
    storage = MemoryStorage()
    manager = start(storage)
    append(manager, "t", 0, b"old")
    storage._files.update({path.replace("/t-", "/u-"): data for path, data in storage._files.items()})
    storage.makedirs("/data/u-0")
    if not has_topic_id:
        storage.remove("/data/u-0/partition.metadata")
    log = manager.get_or_create("u", 0, CONFIG, NOW, topic_id=bytes(16))
    assert (log.topic_id, log.log_end_offset) == (bytes(16), 0)
    (stray,) = [name for name in storage.list_directories("/data") if name.endswith("-stray")]
    message = f"/data/u-0 belongs to a different topic of the same name; renamed the directory to /data/{stray}"
    assert message in caplog.text
    assert storage.size(f"/data/{stray}/{0:020d}.log") > 0


def test_partition_directory_with_an_empty_log_and_no_metadata_file_is_used_for_the_new_log() -> None:
    storage = MemoryStorage()
    manager = start(storage)
    storage.makedirs("/data/t-0")
    storage.write(f"/data/t-0/{0:020d}.log", b"")
    assert manager.get_or_create("t", 0, CONFIG, NOW, topic_id=bytes(16)).topic_id == bytes(16)
    assert storage.list_directories("/data") == ["t-0"]


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_log_that_is_shorter_than_at_its_clean_shutdown_is_treated_as_corrupt(has_checkpoint: bool) -> None:
    storage = MemoryStorage()
    manager = start(storage)
    append(manager, "t", 0, b"one")
    path = manager.get("t", 0).segments[-1].path(".log")
    manager.close(now_ms=NOW)
    manager = start(storage)
    assert not manager.is_corrupt
    manager.close(now_ms=NOW)
    del storage._files[path][-3:]
    if not has_checkpoint:
        storage.remove("/data/recovery-point-offset-checkpoint")
    assert start(storage).is_corrupt


def test_cleanly_closed_log_without_a_checkpointed_recovery_point_is_treated_as_corrupt() -> None:
    storage = MemoryStorage()
    manager = start(storage)
    append(manager, "t", 0, b"one")
    manager.close(now_ms=NOW)
    storage.remove("/data/recovery-point-offset-checkpoint")
    manager = start(storage)
    assert manager.is_corrupt
    manager.close(now_ms=NOW)
    assert not start(storage).is_corrupt


def test_missing_partition_metadata_file_is_rewritten() -> None:
    storage = MemoryStorage()
    manager = start(storage)
    append(manager, "t", 0, b"x")
    manager.close(now_ms=NOW)
    written = storage.read("/data/t-0/partition.metadata")
    storage.remove("/data/t-0/partition.metadata")
    manager = start(storage)
    assert manager.get_or_create("t", 0, CONFIG, NOW, topic_id=bytes(range(16))).log_end_offset == 1
    assert storage.read("/data/t-0/partition.metadata") == written
