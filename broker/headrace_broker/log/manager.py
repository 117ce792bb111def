"""Manages all logs of a broker: loading, creation, deletion, periodic maintenance (flush, retention, checkpoints).

The manager runs on the event loop. Slow file operations (fsync of a rolled segment, removal of large files) are passed
to `background(work, done)`. `work` runs in another thread and only accesses files; `done` runs on the event loop.
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
from headrace_broker.log.pending_deletions import PendingDeletions
from headrace_broker.log.segmented_log import SegmentedLog
from headrace_broker.log.storage import Storage
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.topic_names import TopicPartition
from headrace_broker.records.batch import CorruptBatchError

_log = logging.getLogger(__name__)

Work = Callable[[], None]
Done = Callable[[OSError | None], None]
Background = Callable[[Work, Done], None]
FlushListener = Callable[[float], None]
"""A listener that the log manager calls after each flush, with the duration of the flush in seconds."""

RETENTION_CHECK_INTERVAL_MS = 300_000
PRODUCER_CHECK_INTERVAL_MS = 600_000
PRODUCER_ID_EXPIRATION_MS = 86_400_000
_EPOCH_FILES_PER_ROUND = 16


def run_immediately(work: Work, done: Done) -> None:
    """Run `work` and `done` immediately, in the calling thread. For tests and simulations."""
    try:
        work()
    except OSError as error:
        done(error)
    else:
        done(None)


class LogManager:
    """The logs of all log directories, by (topic, partition)."""

    def __init__(
        self,
        storage: Storage,
        log_dirs: Sequence[str],
        *,
        background: Background = run_immediately,
        next_random: Callable[[int], int] = lambda bound: 0,
        retention_check_interval_ms: int = RETENTION_CHECK_INTERVAL_MS,
        producer_id_expiration_ms: int = PRODUCER_ID_EXPIRATION_MS,
        open_segments_max: int = 256,
    ) -> None:
        """`next_random(bound)` returns a random number in [0, bound), for roll jitter and directory names."""
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
        self._pending_deletions = PendingDeletions(storage, self._remove_directory, next_random)
        self._due_ms: dict[str, int] = {}
        self._maintenance_round: Iterator[PartitionLog] = iter(())
        self._flushing: set[TopicPartition] = set()
        self.is_corrupt = False
        """Whether any log that was closed cleanly has missing or corrupt records or files."""
        self.on_flushed: FlushListener | None = None
        """Optional listener. The thread that flushed a log calls it. Set the listener before the logs are opened."""

    # Start

    def open_directories(self) -> None:
        """Lock every directory and read each `meta.properties`.

        If this fails for one directory, release the locks of all directories and raise LogDirectoryError.
        """
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
        """Open every partition's log and return the number of logs. Raises LogDirectoryError.

        `config_of` returns the config of a topic. `has_other_replicas` returns whether this broker can fetch a
        partition's lost records from another replica.
        """
        for _ in self.iter_load(config_of, now_ms, has_other_replicas=has_other_replicas):
            pass
        return len(self.logs)

    def iter_load(
        self,
        config_of: Callable[[str], LogConfig],
        now_ms: int,
        *,
        has_other_replicas: Callable[[str, int], bool],
    ) -> Iterator[None]:
        """Open the logs as `load` does, and yield after each log so that the caller can do other work."""
        clean_end_offsets: dict[TopicPartition, tuple[LogDirectory, int]] = {}
        for directory in self.directories:
            directory.mark_in_use()
            for path in directory.interrupted_deletions():
                self._background(
                    partial(self._storage.remove_tree, path), _warn_on_failure(f"remove the deleted partition {path}")
                )
            strays = directory.strays()
            if strays:
                _log.warning(
                    "Log directory %s has %d stray partitions (first: %s): ignoring them",
                    directory.path,
                    len(strays),
                    strays[0],
                )
            recovery_points = directory.read_checkpoint(RECOVERY_POINT_FILE)
            high_watermarks = directory.read_checkpoint(HIGH_WATERMARK_FILE)
            log_starts = directory.read_checkpoint(LOG_START_FILE)
            cleaner_offsets = directory.read_checkpoint(CLEANER_FILE)
            self.checkpoints.stale_partitions.update(recovery_points, high_watermarks, log_starts, cleaner_offsets)
            for key in directory.partitions():
                if key in self._directory_of:
                    raise LogDirectoryError(
                        f"partition {key[0]}-{key[1]} is in two log directories, {self._directory_of[key].path} and "
                        f"{directory.path}: remove the partition from one of them"
                    )
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
                        is_only_replica=not has_other_replicas(*key),
                    )
                except OSError as error:
                    reason = (
                        f"cannot open {error.filename or directory.partition_path(*key)}: {error.strerror or error}"
                    )
                    raise LogDirectoryError(reason) from error
                self._directory_of[key] = directory
                yield
            if directory.was_closed_cleanly:
                clean_end_offsets.update((key, (directory, end_offset)) for key, end_offset in recovery_points.items())
        self.checkpoints.stale_partitions -= self.logs.keys()
        shortened = [self._check_end_offset(key, *expected) for key, expected in clean_end_offsets.items()]
        self.is_corrupt = any(shortened) or any(
            log.is_corrupt or (self._directory_of[key].was_closed_cleanly and key not in clean_end_offsets)
            for key, log in self.logs.items()
        )

    def _check_end_offset(self, key: TopicPartition, directory: LogDirectory, clean_end_offset: int) -> bool:
        """Log an error and return True if the log ends before `clean_end_offset`.

        `clean_end_offset` is the log end offset at the last clean shutdown.
        """
        log = self.logs.get(key)
        end_offset = 0 if log is None else log.log_end_offset
        if end_offset < clean_end_offset:
            _log.error(
                "Log %s has lost records since its clean shutdown: the log end offset was %d and is %d now",
                directory.partition_path(*key),
                clean_end_offset,
                end_offset,
            )
        return end_offset < clean_end_offset

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
        is_only_replica: bool = True,
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
            checkpoint_time_ns=directory.checkpoint_time_ns,
            may_have_gaps=is_only_replica,
            is_only_replica=is_only_replica,
        )
        log.on_flushed = self.on_flushed
        log.on_epochs_changed = self._epochs_to_write.append
        log.rewrite_checkpoints = self.checkpoints.rewrite
        return log

    def _write_some_epochs(self) -> None:
        """Write a few of the pending leader epoch checkpoints. Each write blocks the event loop for up to 1 ms.

        If the broker crashes before it writes a pending checkpoint, recovery rebuilds the epochs from the records.
        """
        written = 0
        while self._epochs_to_write and written < _EPOCH_FILES_PER_ROUND:
            log = self._epochs_to_write.popleft()
            if self.get(log.topic, log.partition) is log and log.offline_reason is None:
                written += 1
                try:
                    log.write_epochs()
                except ApiError as error:
                    _log.error("Log %s: the write of its leader epochs failed: %s", log.name, error.message)

    # Partitions

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        return self.logs.get((topic, partition))

    def get_or_create(
        self, topic: str, partition: int, config: LogConfig, now_ms: int, *, topic_id: bytes | None = None
    ) -> PartitionLog:
        """Return the partition's log. If it does not exist, create it in the log directory with the fewest partitions.

        Raises ApiError.
        """
        key = (topic, partition)
        log = self.logs.get(key)
        if log is not None:
            log.config = config  # the configuration may have changed since the log was opened
            if topic_id is not None:
                with suppress(OSError):  # the log is usable without the file partition.metadata
                    log.assign_topic_id(topic_id)
            return log
        directory = self._emptiest_directory()
        try:
            self._pending_deletions.rename_pending(key, now_ms)
            if key in self.checkpoints.stale_partitions:
                self.checkpoints.rewrite()
            if topic_id is not None:
                self._pending_deletions.mark_other_topic_stray(directory, key, topic_id)
            log = self._open(directory, key, config, now_ms, topic_id=topic_id)
        except OSError as error:
            path = error.filename or directory.partition_path(topic, partition)
            reason = f"cannot create {path}: {error.strerror or error}"
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, reason) from error
        self.logs[key] = log
        self._directory_of[key] = directory
        return log

    def _emptiest_directory(self) -> LogDirectory:
        usable = [directory for directory in self.directories if directory.offline_reason is None]
        if not usable:
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, "cannot create the log: every log directory is offline")
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
        """Delete a partition's log: rename the directory now, and remove it after file.delete.delay.ms.

        Does nothing for an unknown partition. Raises ApiError KAFKA_STORAGE_ERROR if the rename fails; `maintain`
        retries the rename.
        """
        log = self.logs.get((topic, partition))
        if log is None:
            return
        directory = self._stop_serving(log)
        for task in ("retention", "producers"):
            self._due_ms.pop(f"{task} {log.directory}", None)
        try:
            self._pending_deletions.delete(directory, log, now_ms)
        except OSError as error:
            reason = f"cannot delete {log.directory}, retrying: {error.strerror or error}"
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, reason) from error

    def mark_stray(self, topic: str, partition: int) -> None:
        """Stop serving a partition that is not in the cluster metadata, and rename the partition's directory.

        The directory's new name ends with `-stray`. Raises ApiError KAFKA_STORAGE_ERROR if the rename fails.
        """
        log = self.logs[topic, partition]
        directory = self._stop_serving(log)
        try:
            self._pending_deletions.mark_stray(directory, (topic, partition))
        except OSError as error:
            reason = f"cannot rename stray partition {log.directory}: {error.strerror or error}"
            raise ApiError(ErrorCode.KAFKA_STORAGE_ERROR, reason) from error

    def _stop_serving(self, log: PartitionLog) -> LogDirectory:
        """Remove the log from the manager and close its files; return its log directory."""
        key = (log.topic, log.partition)
        del self.logs[key]
        self.checkpoints.stale_partitions.add(key)
        log.release()
        return self._directory_of.pop(key)

    # Maintenance

    def maintain(self, now_ms: int, *, logs_max: int = 64) -> None:
        """Run the maintenance tasks that are due, for up to `logs_max` logs.

        The broker calls this method about once a second, more often if the broker has many logs.
        """
        self._take_removed_directories_offline()
        self._mark_offline_directories()
        self._bring_directories_online()
        self._write_some_epochs()
        for name, checkpoint in CHECKPOINTS.items():
            if self._start_if_due(name, checkpoint.interval_ms, now_ms):
                for task in self.checkpoints.write_tasks(name):
                    self._background(task, _warn_on_failure(f"write {name}"))
        for _ in range(logs_max):
            log = next(self._maintenance_round, None)
            if log is None:
                self._maintenance_round = iter(list(self.logs.values()))
                break
            is_current = self.get(log.topic, log.partition) is log
            if is_current and (log.offline_reason is None or log.is_disk_full):  # retention may free disk space
                self._maintain_log(log, now_ms)
        self._pending_deletions.maintain(now_ms)

    def _maintain_log(self, log: PartitionLog, now_ms: int) -> None:
        try:
            if not log.is_being_cleaned and self._start_if_due(
                f"retention {log.directory}", self._retention_check_interval_ms, now_ms
            ):
                log.apply_retention(now_ms)
            if self._start_if_due(f"producers {log.directory}", PRODUCER_CHECK_INTERVAL_MS, now_ms):
                log.producers.expire(now_ms, self._producer_id_expiration_ms)
            is_due = log.log_end_offset > log.recovery_point and now_ms - log.last_flush_ms >= log.config.flush_ms
            self._flush(log, now_ms, with_active=is_due)
        except ApiError as error:
            _log.error("Log %s: its maintenance failed: %s", log.name, error.message)
        except CorruptBatchError as error:
            _log.error("Log %s: its maintenance failed: %s", log.directory, error)
        deleted = log.pop_expired_files(now_ms)
        if deleted:
            self._background(
                partial(self._remove_files, deleted), _warn_on_failure(f"remove old segments of {log.name}")
            )

    def _start_if_due(self, name: str, interval_ms: int, now_ms: int) -> bool:
        if now_ms < self._due_ms.setdefault(name, now_ms + interval_ms):
            return False
        self._due_ms[name] = now_ms + interval_ms
        return True

    def _flush(self, log: PartitionLog, now_ms: int, *, with_active: bool, before_close: bool = False) -> None:
        """Flush the log in the background. After a crash, recovery does not have to read flushed segments.

        The rolled segments are flushed. If `with_active` is set, the active segment is flushed too. If `before_close`
        is also set, the indexes of the active segment are flushed too.
        """
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
            log.complete_flush(end_offset, truncations, error, now_ms)

        self._background(partial(self._sync_files, paths), flushed)

    def sync_truncation(self, log: PartitionLog, done: Callable[[], None]) -> None:
        """Sync a log's truncation in the background, then call `done`.

        Without this call, the next append would sync the truncation and block the event loop.
        """
        path, truncations = log.unsynced_truncation, log.truncations
        assert path is not None

        def synced(error: OSError | None) -> None:
            try:
                log.complete_truncation_sync(truncations, error)
            except ApiError as failure:
                _log.error("Log %s: the sync after its truncation failed: %s", log.name, failure.message)
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
        self._background(work, _warn_on_failure(f"remove {path}"))

    def _take_removed_directories_offline(self) -> None:
        """If another program has deleted a log directory, take the directory offline.

        Records that are appended to the open files of a deleted directory would be lost.
        """
        for directory in self.directories:
            if directory.offline_reason is None and not self._storage.exists(directory.path):
                directory.offline_reason = f"{directory.path} was deleted"
                _log.error("Log directory %s is offline: it was deleted", directory.path)
                for key, log in self.logs.items():
                    if self._directory_of[key] is directory:
                        log.offline_reason = directory.offline_reason

    def _mark_offline_directories(self) -> None:
        for key, log in self.logs.items():
            directory = self._directory_of[key]
            if log.offline_reason is not None and directory.offline_reason is None:
                directory.offline_reason = log.offline_reason
                _log.error("Log directory %s is offline: %s", directory.path, log.offline_reason)

    def _bring_directories_online(self) -> None:
        """Bring a log directory online again if its disk was full and now has free space."""
        for directory in self.directories:
            if directory.offline_reason is None:
                continue
            logs = [log for key, log in self.logs.items() if self._directory_of[key] is directory]
            offline = [log for log in logs if log.offline_reason is not None]
            if all(log.is_disk_full for log in offline) and directory.has_free_space():
                for log in offline:
                    log.try_go_online()
                if not any(log.offline_reason for log in offline):
                    directory.offline_reason = None
                    _log.info("Log directory %s is online again", directory.path)

    # Shutdown

    def flush_all(self, now_ms: int) -> None:
        """Flush all logs in parallel in the background. Without this call, `close` flushes one log after another."""
        for log in self.logs.values():
            if log.offline_reason is None and log.log_end_offset > log.recovery_point:
                try:
                    self._flush(log, now_ms, with_active=True, before_close=True)
                except ApiError as error:
                    _log.error("Log %s: its flush before the shutdown failed: %s", log.name, error.message)

    def close(self, *, clean: bool = True, broker_epoch: int = -1, now_ms: int) -> None:
        """Close all logs and release the log directories.

        If `clean` is set, flush the logs first, and write the clean shutdown markers, which contain `broker_epoch`.
        """
        for key, log in self.logs.items():
            try:
                log.close(clean=clean, now_ms=now_ms)
            except ApiError as error:
                _log.error("Log %s: it was not closed cleanly: %s", log.name, error.message)
                self._directory_of[key].offline_reason = error.message
        self._mark_offline_directories()
        if clean:
            try:
                for name in CHECKPOINTS:
                    self.checkpoints.write(name, durable=True)
            except OSError as error:
                _log.error(
                    "Log directories: cannot write the checkpoints, so the next start will recover the logs: %s", error
                )
                clean = False
        for directory in self.directories:
            try:
                directory.close(clean=clean, broker_epoch=broker_epoch)
            except OSError as error:
                _log.error("Log directory %s: cannot write the clean shutdown marker: %s", directory.path, error)
        self.logs.clear()
        self._directory_of.clear()


def _warn_on_failure(action: str) -> Done:
    def done(error: OSError | None) -> None:
        if error is not None:
            _log.warning("Log manager: cannot %s: %s", action, error.strerror or error)

    return done
