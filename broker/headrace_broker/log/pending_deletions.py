"""Renames the directories of deleted partitions to `-delete` and of stray partitions to `-stray`, as Kafka does.

When a partition is deleted, its directory is renamed immediately. The renamed directory is removed from the disk after
file.delete.delay.ms. A failed rename is retried. Until the rename succeeds, no log of the same topic and partition is
created, because the new log would load the files of the deleted log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from headrace_broker.log.directory import DELETE_SUFFIX, STRAY_SUFFIX, LogDirectory
from headrace_broker.log.loader import read_topic_id
from headrace_broker.log.log import PartitionLog
from headrace_broker.log.segment import LOG_SUFFIX
from headrace_broker.log.storage import Storage
from headrace_broker.protocol.topic_names import TopicPartition

_log = logging.getLogger(__name__)
DIRECTORY_NAME_SIZE_MAX = 255


class PendingDeletions:
    """Renames and removes partition directories for the log manager."""

    def __init__(
        self, storage: Storage, remove: Callable[[str, Callable[[], None]], None], next_random: Callable[[int], int]
    ) -> None:
        """`remove(path, work)` must call `work` in the background; `work` removes the directory `path`.

        `next_random(bound)` returns a random integer in [0, bound), for unique directory names.
        """
        self._storage = storage
        self._remove = remove
        self._next_random = next_random
        self._not_renamed: dict[TopicPartition, tuple[LogDirectory, PartitionLog]] = {}
        self._renamed: list[tuple[int, str]] = []  # (time from which the directory may be removed, path)

    def delete(self, directory: LogDirectory, log: PartitionLog, now_ms: int) -> None:
        """Rename the directory of a log that the log manager no longer serves. `maintain` deletes it later.

        Raises OSError if the rename fails; `maintain` then retries it.
        """
        key = (log.topic, log.partition)
        self._not_renamed[key] = directory, log
        self.rename_pending(key, now_ms)

    def rename_pending(self, key: TopicPartition, now_ms: int) -> None:
        """Retry the rename of a deleted partition's directory if it has not succeeded yet. Raises OSError."""
        if key in self._not_renamed:
            directory, log = self._not_renamed[key]
            target = self._rename(directory, key, DELETE_SUFFIX)
            del self._not_renamed[key]
            log.update_directory(target)
            self._renamed.append((now_ms + log.config.file_delete_delay_ms, target))

    def mark_stray(self, directory: LogDirectory, key: TopicPartition) -> str:
        """Rename the directory of the partition `key` to a `-stray` name and return the new path. Raises OSError.

        `directory` is the log directory that contains the partition's directory.
        """
        return self._rename(directory, key, STRAY_SUFFIX)

    def mark_other_topic_stray(self, directory: LogDirectory, key: TopicPartition, topic_id: bytes) -> None:
        """Mark the partition's directory as stray if it does not belong to the topic with the id `topic_id`.

        For example, the directory may belong to a deleted topic of the same name. Raises OSError.
        """
        path = directory.partition_path(*key)
        if not self._storage.exists(path):
            return
        found = read_topic_id(self._storage, path)
        # An empty directory without a topic id belongs to this topic: a crash interrupted the creation of the log.
        if found == topic_id or (found is None and not self._has_records(path)):
            return
        _log.warning(
            "Directory %s belongs to a different topic of the same name; renamed the directory to %s",
            path,
            self.mark_stray(directory, key),
        )

    def _has_records(self, path: str) -> bool:
        names = self._storage.listdir(path)
        return any(name.endswith(LOG_SUFFIX) and self._storage.size(f"{path}/{name}") for name in names)

    def _rename(self, directory: LogDirectory, key: TopicPartition, suffix: str) -> str:
        topic, partition = key
        tail = f"-{partition}.{self._next_random(1 << 128):032x}{suffix}"
        target = f"{directory.path}/{topic[: DIRECTORY_NAME_SIZE_MAX - len(tail)]}{tail}"
        with suppress(FileNotFoundError):  # another program has removed the directory
            self._storage.rename(directory.partition_path(*key), target)
        return target

    def maintain(self, now_ms: int) -> None:
        """Retry failed renames, and remove the directories whose file.delete.delay.ms has passed."""
        for key in list(self._not_renamed):
            with suppress(OSError):  # the first failure was logged
                self.rename_pending(key, now_ms)
                _log.info(
                    "Partition %s-%d: renamed the directory of the deleted log after an earlier attempt failed", *key
                )
        due = [path for due_ms, path in self._renamed if due_ms <= now_ms]
        self._renamed = [entry for entry in self._renamed if entry[0] > now_ms]
        for path in due:
            self._remove(path, partial(self._storage.remove_tree, path))
