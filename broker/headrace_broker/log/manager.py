"""All the logs of a broker: start-up, creation, deletion, and the housekeeping of every few seconds.

The manager belongs to the event loop. What would block it for long (fsync of a rolled segment, removal of large files)
is handed to `background(work, done)`: `work` runs elsewhere and touches files only, `done` is called back on the loop.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from time import perf_counter

from headrace_broker.log.checkpoints import (
    CLEANER_FILE,
    HIGH_WATERMARK_FILE,
    LOG_START_FILE,
    RECOVERY_POINT_FILE,
)
from headrace_broker.log.config import LogConfig
from headrace_broker.log.directory import LogDirectory, LogDirectoryError
from headrace_broker.log.log import PartitionLog
from headrace_broker.log.offset_checkpoints import CHECKPOINTS, OffsetCheckpoints
from headrace_broker.log.open_segments import OpenSegments
from headrace_broker.log.put_away import PutAway
from headrace_broker.log.segmented_log import SegmentedLog
from headrace_broker.log.storage import Storage
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.topic_names import TopicPartition
from headrace_broker.records.batch import CorruptBatchError

_log = logging.getLogger(__name__)

Work = Callable[[], None]
Done = Callable[[OSError | None], None]
Background = Callable[[Work, Done], None]
Flushed = Callable[[float], None]
"""(how many seconds an fsync of a log took)."""

RETENTION_CHECK_INTERVAL_MS = 300_000
PRODUCER_CHECK_INTERVAL_MS = 600_000
PRODUCER_ID_EXPIRATION_MS = 86_400_000
_EPOCHS_AT_ONCE = 16


def run_at_once(work: Work, done: Done) -> None:
    """Run `work` here and now: the background of tests and simulations."""
    try:
        work()
    except OSError as error:
        done(error)
    else:
        done(None)


class LogManager:
    """(topic, partition) -> PartitionLog, over all log directories."""

    def __init__(
        self,
        storage: Storage,
        log_dirs: Sequence[str],
        *,
        background: Background = run_at_once,
        next_random: Callable[[int], int] = lambda bound: 0,
        retention_check_interval_ms: int = RETENTION_CHECK_INTERVAL_MS,
        producer_id_expiration_ms: int = PRODUCER_ID_EXPIRATION_MS,
        open_segments_max: int = 256,
    ) -> None:
        """`next_random(bound)` draws from [0, bound): for roll jitter and for the names of deleted directories."""
        self.directories = [LogDirectory(storage, path) for path in log_dirs]
        self.logs: dict[TopicPartition, PartitionLog] = {}
        self._directory_of: dict[TopicPartition, LogDirectory] = {}
        self.checkpoints = OffsetCheckpoints(self.directories, self.logs, self._directory_of)
        self._storage = storage
        self._background = background
        self._next_random = next_random
        self._open_segments = OpenSegments(open_segments_max)
        self._retention_check_interval_ms = retention_check_interval_ms
        self._producer_id_expiration_ms = producer_id_expiration_ms
        self._epochs_to_write: deque[SegmentedLog] = deque()
        self._put_away = PutAway(storage, self._remove_directory, next_random)
        self._due_ms: dict[str, int] = {}
        self._round: Iterator[PartitionLog] = iter(())
        self._flushing: set[TopicPartition] = set()
        self.is_damaged = False
        """Whether logs that were closed in order are not whole any more."""
        self.on_flushed: Flushed | None = None
        """Told of each fsync of a log, by whichever thread did it; set it before the logs are opened."""

    # Start

    def open_directories(self) -> None:
        """Lock every directory and read whose it is. Raises LogDirectoryError; then none stays locked."""
        opened: list[LogDirectory] = []
        try:
            for directory in self.directories:
                directory.open()
                opened.append(directory)
        except (OSError, LogDirectoryError):
            for directory in opened:
                directory.release()
            raise

    @property
    def was_closed_cleanly(self) -> bool:
        return all(directory.was_closed_cleanly for directory in self.directories)

    def load(
        self,
        config_of: Callable[[str], LogConfig],
        now_ms: int,
        *,
        has_other_replicas: Callable[[str, int], bool] = lambda topic, partition: False,
    ) -> int:
        """Open the log of every partition found, and return how many there are. Raises LogDirectoryError."""
        for _ in self.loading(config_of, now_ms, has_other_replicas=has_other_replicas):
            pass
        return len(self.logs)

    def loading(
        self,
        config_of: Callable[[str], LogConfig],
        now_ms: int,
        *,
        has_other_replicas: Callable[[str, int], bool],
    ) -> Iterator[None]:
        """The same with a halt after each log."""
        closed_at: dict[TopicPartition, tuple[LogDirectory, int]] = {}
        for directory in self.directories:
            directory.begin()
            for path in directory.left_over_deletions():
                self._background(partial(self._storage.remove_tree, path), _warn("remove a deleted partition"))
            strays = directory.strays()
            if strays:
                _log.warning(
                    "%s holds %d partitions set aside (%s): not served", directory.path, len(strays), strays[0]
                )
            recovery_points = directory.read_checkpoint(RECOVERY_POINT_FILE)
            high_watermarks = directory.read_checkpoint(HIGH_WATERMARK_FILE)
            log_starts = directory.read_checkpoint(LOG_START_FILE)
            cleaner_offsets = directory.read_checkpoint(CLEANER_FILE)
            self.checkpoints.gone.update(recovery_points, high_watermarks, log_starts, cleaner_offsets)
            for key in directory.partitions():
                if key in self._directory_of:
                    both = f"{self._directory_of[key].path} and {directory.path}"
                    raise LogDirectoryError(f"partition {key[0]}-{key[1]} lies in both {both}: remove one of them")
                try:
                    self.logs[key] = self._open(
                        directory,
                        key,
                        config_of(key[0]),
                        now_ms,
                        recovery_point=recovery_points.get(key, 0),
                        high_watermark=high_watermarks.get(key, 0),
                        log_start_offset=log_starts.get(key, 0),
                        cleaner_offset=cleaner_offsets.get(key),
                        is_only_copy=not has_other_replicas(*key),
                    )
                except OSError as error:
                    reason = (
                        f"cannot open {error.filename or directory.partition_path(*key)}: {error.strerror or error}"
                    )
                    raise LogDirectoryError(reason) from error
                self._directory_of[key] = directory
                yield
            if directory.was_closed_cleanly:
                closed_at.update((key, (directory, end_offset)) for key, end_offset in recovery_points.items())
        self.checkpoints.gone -= self.logs.keys()
        shortened = [self._is_shortened(key, *at) for key, at in closed_at.items()]
        self.is_damaged = any(shortened) or any(
            log.is_damaged or (self._directory_of[key].was_closed_cleanly and key not in closed_at)
            for key, log in self.logs.items()
        )

    def _is_shortened(self, key: TopicPartition, directory: LogDirectory, closed_at: int) -> bool:
        log = self.logs.get(key)
        end_offset = 0 if log is None else log.log_end_offset
        if end_offset < closed_at:
            path = directory.partition_path(*key)
            _log.error("%s ended at offset %d when it was closed, and ends at %d now", path, closed_at, end_offset)
        return end_offset < closed_at

    def _open(
        self,
        directory: LogDirectory,
        key: TopicPartition,
        config: LogConfig,
        now_ms: int,
        *,
        topic_id: bytes | None = None,
        recovery_point: int = 0,
        high_watermark: int = 0,
        log_start_offset: int = 0,
        cleaner_offset: int | None = None,
        is_only_copy: bool = True,
    ) -> PartitionLog:
        log = PartitionLog.open(
            self._storage,
            directory.partition_path(*key),
            key[0],
            key[1],
            config,
            now_ms,
            topic_id=topic_id,
            was_closed_cleanly=directory.was_closed_cleanly,
            recovery_point=recovery_point,
            high_watermark=high_watermark,
            log_start_offset=log_start_offset,
            open_segments=self._open_segments,
            next_jitter_ms=self._next_random,
            cleaner_offset=cleaner_offset,
            vouched_ns=directory.vouched_ns,
            may_have_gaps=is_only_copy,
            is_only_copy=is_only_copy,
        )
        log.on_flushed = self.on_flushed
        log.on_epochs = self._epochs_to_write.append
        log.correct_checkpoints = self.checkpoints.correct
        return log

    def _write_some_epochs(self) -> None:
        """One file is a good part of a millisecond, and a lost one is made from the records."""
        written = 0
        while self._epochs_to_write and written < _EPOCHS_AT_ONCE:
            log = self._epochs_to_write.popleft()
            if self.get(log.topic, log.partition) is log and log.offline_reason is None:
                written += 1
                try:
                    log.write_epochs()
                except ApiError as error:
                    _log.error("%s", error.message)

    # Partitions

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        return self.logs.get((topic, partition))

    def get_or_create(
        self, topic: str, partition: int, config: LogConfig, now_ms: int, *, topic_id: bytes | None = None
    ) -> PartitionLog:
        """Return the partition's log, made in the directory that has the fewest. Raises ApiError."""
        key = (topic, partition)
        log = self.logs.get(key)
        if log is not None:
            log.config = config  # it may be another than when the log was opened
            if topic_id is not None:
                with suppress(OSError):  # as before
                    log.belongs_to(topic_id)
            return log
        directory = self._emptiest_directory()
        try:
            self._put_away.finish(key, now_ms)
            if key in self.checkpoints.gone:
                self.checkpoints.correct()
            if topic_id is not None:
                self._put_away.set_stranger_aside(directory, key, topic_id)
            log = self._open(directory, key, config, now_ms, topic_id=topic_id)
        except OSError as error:
            path = error.filename or directory.partition_path(topic, partition)
            reason = f"cannot make {path}: {error.strerror or error}"
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, reason) from error
        self.logs[key] = log
        self._directory_of[key] = directory
        return log

    def _emptiest_directory(self) -> LogDirectory:
        usable = [directory for directory in self.directories if directory.offline_reason is None]
        if not usable:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "every log directory is offline")
        if len(usable) == 1:
            return usable[0]
        counts = dict.fromkeys((directory.path for directory in usable), 0)
        for directory in self._directory_of.values():
            if directory.path in counts:
                counts[directory.path] += 1
        return min(usable, key=lambda directory: counts[directory.path])

    def directory_of(self, topic: str, partition: int) -> LogDirectory | None:
        return self._directory_of.get((topic, partition))

    def delete(self, topic: str, partition: int, now_ms: int) -> None:
        """Take the partition away: its directory is renamed at once and removed after file.delete.delay.ms.

        An unknown partition is no error. Raises ApiError KAFKA_STORAGE_ERROR; then the rename is tried again.
        """
        log = self.logs.get((topic, partition))
        if log is None:
            return
        directory = self._take_out(log)
        for task in ("retention", "producers"):
            self._due_ms.pop(f"{task} {log.directory}", None)
        try:
            self._put_away.delete(directory, log, now_ms)
        except OSError as error:
            reason = f"cannot delete {log.directory}, trying again: {error.strerror or error}"
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, reason) from error

    def set_aside(self, topic: str, partition: int) -> None:
        """Stop serving a partition that the cluster does not know; its directory is kept under a `-stray` name.

        Raises ApiError KAFKA_STORAGE_ERROR.
        """
        log = self.logs[topic, partition]
        directory = self._take_out(log)
        try:
            self._put_away.set_aside(directory, (topic, partition))
        except OSError as error:
            reason = f"cannot set {log.directory} aside: {error.strerror or error}"
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, reason) from error

    def _take_out(self, log: PartitionLog) -> LogDirectory:
        key = (log.topic, log.partition)
        del self.logs[key]
        self.checkpoints.gone.add(key)
        log.release()
        return self._directory_of.pop(key)

    # Housekeeping

    def maintain(self, now_ms: int, *, logs_max: int = 64) -> None:
        """Do what is due for at most `logs_max` logs; call it about once a second, more often with many partitions."""
        self._leave_what_is_gone()
        self._note_offline_directories()
        self._come_back()
        self._write_some_epochs()
        for name, checkpoint in CHECKPOINTS.items():
            if self._is_due(name, checkpoint.interval_ms, now_ms):
                for work in self.checkpoints.work(name):
                    self._background(work, _warn(f"write {name}"))
        for _ in range(logs_max):
            log = next(self._round, None)
            if log is None:
                self._round = iter(list(self.logs.values()))
                break
            is_held = self.get(log.topic, log.partition) is log
            if is_held and (log.offline_reason is None or log.lacks_room):  # what is too old makes room
                self._maintain_log(log, now_ms)
        self._put_away.maintain(now_ms)

    def _maintain_log(self, log: PartitionLog, now_ms: int) -> None:
        try:
            if not log.is_being_cleaned and self._is_due(
                f"retention {log.directory}", self._retention_check_interval_ms, now_ms
            ):
                log.apply_retention(now_ms)
            if self._is_due(f"producers {log.directory}", PRODUCER_CHECK_INTERVAL_MS, now_ms):
                log.producers.expire(now_ms, self._producer_id_expiration_ms)
            is_due = log.log_end_offset > log.recovery_point and now_ms - log.last_flush_ms >= log.config.flush_ms
            self._flush(log, now_ms, with_active=is_due)
        except ApiError as error:
            _log.error("%s", error.message)
        except CorruptBatchError as error:
            _log.error("%s: %s", log.directory, error)
        deleted = log.take_deleted_files(now_ms)
        if deleted:
            self._background(partial(self._remove_files, deleted), _warn(f"remove old segments of {log.name}"))

    def _is_due(self, name: str, interval_ms: int, now_ms: int) -> bool:
        if now_ms < self._due_ms.setdefault(name, now_ms + interval_ms):
            return False
        self._due_ms[name] = now_ms + interval_ms
        return True

    def _flush(self, log: PartitionLog, now_ms: int, *, with_active: bool, before_close: bool = False) -> None:
        """fsync in the background: rolled segments, so that recovery need not read them; the active one by flush.ms."""
        key = (log.topic, log.partition)
        if key in self._flushing:
            return
        paths, end_offset = log.unflushed_files(with_active=with_active, before_close=before_close)
        if not paths:
            return
        self._flushing.add(key)
        truncations = log.truncations

        def flushed(error: OSError | None) -> None:
            self._flushing.discard(key)
            log.flushed_elsewhere(end_offset, truncations, error, now_ms)

        self._background(partial(self._sync_files, paths), flushed)

    def make_cut_safe(self, log: PartitionLog, done: Callable[[], None]) -> None:
        """Sync a log that was cut in the background, where an append would wait for it; then call `done`."""
        path, cut = log.unsafe_cut, log.truncations
        assert path is not None

        def synced(error: OSError | None) -> None:
            try:
                log.cut_synced_elsewhere(cut, error)
            except ApiError as failure:
                _log.error("%s", failure.message)
            done()

        self._background(partial(self._storage.sync, path), synced)

    def _sync_files(self, paths: list[str]) -> None:
        started_s = perf_counter()
        for path in paths:
            self._storage.sync(path)
        if self.on_flushed is not None:
            self.on_flushed(perf_counter() - started_s)

    def _remove_files(self, paths: list[str]) -> None:
        for path in paths:
            self._storage.remove(path)

    def _remove_directory(self, path: str, work: Work) -> None:
        self._background(work, _warn(f"remove {path}"))

    def _leave_what_is_gone(self) -> None:
        """Take no more records into a directory that somebody removed: its open files have no names any more."""
        for directory in self.directories:
            if directory.offline_reason is None and not self._storage.exists(directory.path):
                directory.offline_reason = f"{directory.path} is gone"
                _log.error("Log directory %s is offline: it is gone", directory.path)
                for key, log in self.logs.items():
                    if self._directory_of[key] is directory:
                        log.offline_reason = directory.offline_reason

    def _note_offline_directories(self) -> None:
        for key, log in self.logs.items():
            directory = self._directory_of[key]
            if log.offline_reason is not None and directory.offline_reason is None:
                directory.offline_reason = log.offline_reason
                _log.error("Log directory %s is offline: %s", directory.path, log.offline_reason)

    def _come_back(self) -> None:
        """Have the logs of a full disk go on as soon as there is room."""
        for directory in self.directories:
            if directory.offline_reason is None:
                continue
            logs = [log for key, log in self.logs.items() if self._directory_of[key] is directory]
            offline = [log for log in logs if log.offline_reason is not None]
            if all(log.lacks_room for log in offline) and directory.has_room():
                for log in offline:
                    log.come_back()
                if not any(log.offline_reason for log in offline):
                    directory.offline_reason = None
                    _log.info("Log directory %s is back", directory.path)

    # End

    def flush_all(self, now_ms: int) -> None:
        """Have everything flushed in the background before `close`, which would flush one log after the other."""
        for log in self.logs.values():
            if log.offline_reason is None and log.log_end_offset > log.recovery_point:
                try:
                    self._flush(log, now_ms, with_active=True, before_close=True)
                except ApiError as error:
                    _log.error("%s", error.message)

    def close(self, *, clean: bool = True, broker_epoch: int = -1, now_ms: int) -> None:
        """Close every log and give back the directories; clean: with everything on disk and the marker that says so."""
        for key, log in self.logs.items():
            try:
                log.close(clean=clean, now_ms=now_ms)
            except ApiError as error:
                _log.error("%s", error.message)
                self._directory_of[key].offline_reason = error.message
        self._note_offline_directories()
        if clean:
            try:
                for name in CHECKPOINTS:
                    self.checkpoints.write(name, durable=True)
            except OSError as error:
                _log.error("Cannot write the checkpoints, the next start will check the logs: %s", error)
                clean = False
        for directory in self.directories:
            try:
                directory.close(clean=clean, broker_epoch=broker_epoch)
            except OSError as error:
                _log.error("Cannot mark %s as closed cleanly: %s", directory.path, error)
        self.logs.clear()
        self._directory_of.clear()


def _warn(action: str) -> Done:
    def done(error: OSError | None) -> None:
        if error is not None:
            _log.warning("Cannot %s: %s", action, error.strerror or error)

    return done
