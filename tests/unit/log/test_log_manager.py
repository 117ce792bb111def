"""LogManager: directories, locks, restarts clean and unclean, deletion, checkpoints, housekeeping."""

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
    log.high_watermark = log.log_end_offset


def test_a_clean_restart_finds_everything_without_recovery(caplog: pytest.LogCaptureFixture) -> None:
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


def test_an_unclean_restart_recovers(caplog: pytest.LogCaptureFixture) -> None:
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


@pytest.mark.parametrize("is_restarted_between", [False, True])
def test_what_is_new_by_an_old_name_has_nothing_of_the_old_ones_checkpoints(is_restarted_between: bool) -> None:
    """After a kill -9 a log start offset of the deleted topic, beyond the new one's end, would empty the new one."""
    storage = MemoryStorage()
    manager = start(storage)
    for number in range(10):
        append(manager, "t", 0, b"%d" % number)
    manager.get("t", 0).delete_records_before(9)
    manager.checkpoints.write(LOG_START_FILE, durable=False)
    manager.checkpoints.write(HIGH_WATERMARK_FILE)
    manager.checkpoints.write(RECOVERY_POINT_FILE)
    manager.delete("t", 0, NOW)
    if is_restarted_between:
        manager.directories[0].release()
        manager = start(storage)
    append(manager, "t", 0, b"new")
    append(manager, "t", 0, b"newer")
    manager.get("t", 0)._high_watermark = 1
    manager.directories[0].release()
    log = start(storage).get("t", 0)
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (0, 2, 0)


def test_a_directory_in_use_is_refused_in_one_line() -> None:
    storage = MemoryStorage()
    manager = start(storage)
    with pytest.raises(LogDirectoryError, match=r"/data is in use by another process"):
        start(storage)
    directory = manager.directories[0]
    assert not directory.is_formatted
    directory.format("cluster", 1, "directory")
    assert directory.is_formatted


def test_another_process_is_kept_out_of_a_directory_on_disk(tmp_path: Path) -> None:
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


def test_partitions_spread_over_directories_and_are_found_again() -> None:
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
    with pytest.raises(LogDirectoryError, match="lies in both"):
        start(storage, "/one", "/two")


def test_a_deleted_partition_goes_after_its_delay_and_can_be_made_again() -> None:
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


def test_housekeeping_leaves_a_partition_alone_that_was_deleted() -> None:
    """What is due when is noted by directory, and a deleted one would stay noted for ever."""
    manager = start(MemoryStorage())
    append(manager, "t", 0, b"old")
    manager.maintain(NOW)
    manager.maintain(NOW)  # another round begins
    noted = dict(manager._due_ms)
    append(manager, "u", 0, b"gone by the time of its turn")
    for _ in range(3):
        manager.maintain(NOW, logs_max=1)
    manager.delete("u", 0, NOW)
    for _ in range(3):
        manager.maintain(NOW, logs_max=1)
    assert manager._due_ms == noted


def test_housekeeping_flushes_rolled_segments_retains_and_writes_checkpoints() -> None:
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


def test_a_directory_that_fails_is_offline_and_never_marked_clean() -> None:
    """R14: the others stay."""
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


def test_a_directory_that_is_removed_is_offline(caplog: pytest.LogCaptureFixture) -> None:
    """R14: what is written into files that have lost their names is lost with the process."""
    storage = MemoryStorage()
    manager = start(storage, "/one", "/two")
    append(manager, "t", 0, b"x")
    manager.maintain(NOW)
    gone = manager.directory_of("t", 0)
    storage.remove_tree(gone.path)
    manager.maintain(NOW)
    with pytest.raises(ApiError, match=f"{gone.path} is gone"):
        append(manager, "t", 0, b"y")
    append(manager, "t", 1, b"on the other directory")
    manager.maintain(NOW)
    manager.maintain(NOW)
    assert gone.offline_reason is not None
    assert caplog.text.count("is offline") == 1
    manager.close(now_ms=NOW)
    assert not storage.exists(f"{gone.path}/.kafka_cleanshutdown")


class SmallStorage(MemoryStorage):
    """A disk that is full while somebody says so."""

    is_full = False

    def write(self, path: str, data: bytes | bytearray | memoryview) -> None:
        if not path.endswith(".lock"):
            self.refuse_when_full()
        super().write(path, data)

    def open(self, path: str) -> MemoryFile:
        file = super().open(path)
        refuse_when_full = self.refuse_when_full

        class File(MemoryFile):
            def write(self, data: bytes | bytearray | memoryview, position: int) -> None:
                super().write(data[: len(data) // 2], position)  # a part of it may be there
                refuse_when_full()
                super().write(data, position)

        return File(file._data)

    def refuse_when_full(self) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_directory_without_room_is_back_when_it_has_some() -> None:
    storage = SmallStorage()
    manager = start(storage)
    append(manager, "t", 0, b"before")
    storage.is_full = True
    with pytest.raises(ApiError, match="cannot append to /data/t-0: No space left"):
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


def test_what_is_too_old_makes_room_on_a_full_disk() -> None:
    """Where there is none left even for the leader epochs: they begin with the first record."""
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
        manager.maintain(NOW + 1000 * seconds)  # a round ends
    assert not storage.exists(first)
    assert not [name for name in storage.listdir("/data/t-0") if name.endswith(".deleted")]
    storage.is_full = False
    manager.maintain(NOW + 305_000)
    append(manager, "t", 0, b"after")
    assert log.log_start_offset == log.segments[0].base_offset > 0


def test_a_full_disk_keeps_no_log_from_being_opened() -> None:
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


def test_names_that_are_no_partition_are_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    storage = MemoryStorage()
    for name in ("lost+found", "t-0", "__cluster_metadata-0", "t-1.0123-delete", "t-x"):
        storage.makedirs(f"/data/{name}")
    manager = start(storage)
    assert list(manager.logs) == [("t", 0)]
    assert "t-x" in caplog.text


def test_records_older_than_flush_ms_are_synced_in_the_background() -> None:
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
        assert len(due) == (now >= NOW + 5_000)  # and not a second time while one is under way
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


def test_housekeeping_writes_no_checkpoint_by_itself() -> None:
    """Syncing one takes as long as the disk likes, and everybody would wait for it."""
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


def test_a_checkpoint_that_comes_late_tells_nothing() -> None:
    storage = MemoryStorage()
    manager = start(storage)
    directory, name = manager.directories[0], "recovery-point-offset-checkpoint"
    early, late = (directory.checkpoint(name, {("t", 0): offset}) for offset in (20, 5))
    late()
    early()
    assert storage.read(f"/data/{name}") == b"0\n1\nt 0 5\n"
    left_over = directory.checkpoint(name, {("t", 0): 6})
    manager.close(clean=False, now_ms=NOW)
    left_over()  # another process may have the directory by now
    assert storage.read(f"/data/{name}") == b"0\n1\nt 0 5\n"


def test_what_was_flushed_side_by_side_is_not_flushed_again_when_the_logs_are_closed() -> None:
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
    manager.get_or_create("t", 3, CONFIG, NOW)  # nothing in it, nothing to do
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


@pytest.mark.parametrize("outcome", ["in time", "late", "cut again", "failed"])
def test_a_cut_is_synced_in_the_background_and_nothing_is_written_behind_it_before(outcome: str) -> None:
    synced: list[str] = []

    class Storage(MemoryStorage):
        def sync(self, path: str) -> None:
            synced.append(path)

    due: list[tuple[Work, Done]] = []
    told: list[bool] = []
    manager = LogManager(Storage(), ("/data",), background=lambda work, done: due.append((work, done)))
    manager.open_directories()
    for _ in range(4):
        append(manager, "t", 0, b"one")
    log = manager.logs["t", 0]
    log.truncate_to(3, NOW)
    assert synced == []
    manager.make_cut_safe(log, lambda: told.append(True))
    (work, done), path = due[0], log.segments[0].path(".log")
    if outcome == "cut again":
        log.truncate_to(2, NOW)
    if outcome != "late":
        work()
        done(OSError(errno.EIO, os.strerror(errno.EIO)) if outcome == "failed" else None)
        assert told == [True]
    if outcome == "failed":
        with pytest.raises(ApiError, match="cannot truncate"):
            append(manager, "t", 0, b"two")
        return
    append(manager, "t", 0, b"two")
    assert synced == [path] * (2 if outcome == "cut again" else 1)


def test_epochs_of_many_partitions_are_written_a_few_at_a_time_and_before_they_are_needed() -> None:
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


def test_epochs_of_deleted_partitions_wait_for_no_turn() -> None:
    """Topics may come and go faster than epochs are written, and what waits holds a whole log."""
    manager = start(MemoryStorage())
    for partition in range(100):
        append(manager, "t", partition, b"value")
        manager.delete("t", partition, NOW)
    append(manager, "u", 0, b"value")
    manager.maintain(NOW)
    assert not manager._epochs_to_write


def test_a_flush_that_failed_leaves_no_mark_of_a_clean_stop() -> None:
    due: list[tuple[Work, Done]] = []
    storage = MemoryStorage()
    manager = LogManager(storage, ("/data",), background=lambda work, done: due.append((work, done)))
    manager.open_directories()
    append(manager, "t", 0, b"one")
    manager.flush_all(NOW)
    due[0][1](OSError(errno.EIO, os.strerror(errno.EIO)))
    manager.close(now_ms=NOW)
    assert not storage.exists("/data/.kafka_cleanshutdown")


def test_partitions_set_aside_are_told_of_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    storage = MemoryStorage()
    manager = start(storage)
    append(manager, "t", 0, b"x")
    append(manager, "u", 0, b"x")
    manager.set_aside("t", 0)
    manager.set_aside("u", 0)
    manager.close(now_ms=NOW)
    caplog.clear()
    assert start(storage).logs == {}
    assert [record.getMessage().partition(" (")[0] for record in caplog.records] == [
        "/data holds 2 partitions set aside"
    ]


class UnrenamedStorage(MemoryStorage):
    """A file system that renames no directory while somebody says so."""

    refuses = False

    def rename(self, source: str, target: str) -> None:
        if self.refuses and source in self._directories:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))
        super().rename(source, target)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_log_that_could_not_be_deleted_serves_no_topic_of_its_name(is_restarted: bool) -> None:
    storage, other = UnrenamedStorage(), bytes(16)
    manager = start(storage, "/one", "/two")
    append(manager, "t", 0, b"old")
    old = manager.directory_of("t", 0)
    storage.refuses = True
    with pytest.raises(ApiError, match="cannot delete /one/t-0"):
        manager.delete("t", 0, NOW)
    manager.maintain(NOW)
    with pytest.raises(ApiError, match="Permission denied"):  # nor is it made elsewhere: the next start would find two
        manager.get_or_create("t", 0, CONFIG, NOW, topic_id=other)
    storage.refuses = False
    if is_restarted:
        manager.close(now_ms=NOW)
        manager = start(storage, "/one", "/two")
        manager.delete("t", 0, NOW)
    log = manager.get_or_create("t", 0, CONFIG, NOW, topic_id=other)
    assert (log.topic_id, log.log_end_offset) == (other, 0)
    manager.maintain(NOW + 60_000)
    assert [name for name in storage.list_directories(old.path) if name.endswith("-delete")] == []


def test_a_deletion_that_failed_is_tried_again() -> None:
    storage = UnrenamedStorage()
    manager = start(storage)
    append(manager, "t", 0, b"old")
    storage.refuses = True
    with pytest.raises(ApiError):
        manager.delete("t", 0, NOW)
    storage.refuses = False
    manager.maintain(NOW)
    assert not storage.exists("/data/t-0")
    manager.maintain(NOW + 60_000)
    assert storage.list_directories("/data") == []


def test_a_log_whose_directory_is_gone_can_be_deleted() -> None:
    storage = MemoryStorage()
    manager = start(storage)
    append(manager, "t", 0, b"old")
    storage.remove_tree("/data/t-0")
    manager.delete("t", 0, NOW)
    assert manager.get("t", 0) is None


@pytest.mark.parametrize("says_whose_it_is", [False, True])
def test_a_directory_of_another_topic_is_set_aside(says_whose_it_is: bool, caplog: pytest.LogCaptureFixture) -> None:
    storage = MemoryStorage()
    manager = start(storage)
    append(manager, "t", 0, b"old")
    storage._files.update({path.replace("/t-", "/u-"): data for path, data in storage._files.items()})
    storage.makedirs("/data/u-0")
    if not says_whose_it_is:
        storage.remove("/data/u-0/partition.metadata")
    log = manager.get_or_create("u", 0, CONFIG, NOW, topic_id=bytes(16))
    assert (log.topic_id, log.log_end_offset) == (bytes(16), 0)
    (aside,) = [name for name in storage.list_directories("/data") if name.endswith("-stray")]
    assert f"/data/u-0 is of another topic by that name: set aside as /data/{aside}" in caplog.text
    assert storage.size(f"/data/{aside}/{0:020d}.log") > 0


def test_a_directory_that_was_half_made_is_used() -> None:
    storage = MemoryStorage()
    manager = start(storage)
    storage.makedirs("/data/t-0")
    storage.write(f"/data/t-0/{0:020d}.log", b"")
    assert manager.get_or_create("t", 0, CONFIG, NOW, topic_id=bytes(16)).topic_id == bytes(16)
    assert storage.list_directories("/data") == ["t-0"]


@pytest.mark.parametrize("checkpoint_is_there", [True, False])
def test_a_torn_log_is_known_to_be_damaged_and_what_is_shorter_than_it_was_closed(checkpoint_is_there: bool) -> None:
    storage = MemoryStorage()
    manager = start(storage)
    append(manager, "t", 0, b"one")
    path = manager.get("t", 0).segments[-1].path(".log")
    manager.close(now_ms=NOW)
    manager = start(storage)
    assert not manager.is_damaged
    manager.close(now_ms=NOW)
    del storage._files[path][-3:]
    if not checkpoint_is_there:
        storage.remove("/data/recovery-point-offset-checkpoint")
    assert start(storage).is_damaged


def test_where_nothing_says_how_long_a_log_was_it_may_have_been_longer() -> None:
    storage = MemoryStorage()
    manager = start(storage)
    append(manager, "t", 0, b"one")
    manager.close(now_ms=NOW)
    storage.remove("/data/recovery-point-offset-checkpoint")
    manager = start(storage)
    assert manager.is_damaged
    manager.close(now_ms=NOW)
    assert not start(storage).is_damaged


def test_a_log_says_again_whose_it_is() -> None:
    storage = MemoryStorage()
    manager = start(storage)
    append(manager, "t", 0, b"x")
    manager.close(now_ms=NOW)
    written = storage.read("/data/t-0/partition.metadata")
    storage.remove("/data/t-0/partition.metadata")
    manager = start(storage)
    assert manager.get_or_create("t", 0, CONFIG, NOW, topic_id=bytes(range(16))).log_end_offset == 1
    assert storage.read("/data/t-0/partition.metadata") == written
