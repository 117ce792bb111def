"""Directories of partitions that are not served any more, under names that say so: `-delete`, or `-stray`.

What is deleted is renamed at once and removed after file.delete.delay.ms.  Where the rename fails it is tried again,
and until it has succeeded nothing new is made in that place: the directory would serve as another topic's log.
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


class PutAway:
    """Renames and removes directories; owned by the log manager."""

    def __init__(
        self, storage: Storage, remove: Callable[[str, Callable[[], None]], None], next_random: Callable[[int], int]
    ) -> None:
        """`remove(path, work)` has `work` done in the background; `next_random(bound)` draws from [0, bound)."""
        self._storage = storage
        self._remove = remove
        self._next_random = next_random
        self._not_renamed: dict[TopicPartition, tuple[LogDirectory, PartitionLog]] = {}
        self._renamed: list[tuple[int, str]] = []  # with the time from which they may go

    def delete(self, directory: LogDirectory, log: PartitionLog, now_ms: int) -> None:
        """Begin to delete a log that is not held any more.  Raises OSError; then it is tried again."""
        key = (log.topic, log.partition)
        self._not_renamed[key] = directory, log
        self.finish(key, now_ms)

    def finish(self, key: TopicPartition, now_ms: int) -> None:
        """Rename what of this partition is to be deleted, if it is not renamed.  Raises OSError."""
        if key in self._not_renamed:
            directory, log = self._not_renamed[key]
            target = self._rename(directory, key, DELETE_SUFFIX)
            del self._not_renamed[key]
            log.move(target)
            self._renamed.append((now_ms + log.config.file_delete_delay_ms, target))

    def set_aside(self, directory: LogDirectory, key: TopicPartition) -> str:
        """Keep the directory under a `-stray` name, which is returned.  Raises OSError."""
        return self._rename(directory, key, STRAY_SUFFIX)

    def set_stranger_aside(self, directory: LogDirectory, key: TopicPartition, topic_id: bytes) -> None:
        """The same, if there is a directory of another topic where this one's is to be.  Raises OSError."""
        path = directory.partition_path(*key)
        if not self._storage.exists(path):
            return
        found = read_topic_id(self._storage, path)
        if found == topic_id or (found is None and not self._has_records(path)):  # or one that was half made
            return
        _log.warning("%s is of another topic by that name: set aside as %s", path, self.set_aside(directory, key))

    def _has_records(self, path: str) -> bool:
        names = self._storage.listdir(path)
        return any(name.endswith(LOG_SUFFIX) and self._storage.size(f"{path}/{name}") for name in names)

    def _rename(self, directory: LogDirectory, key: TopicPartition, suffix: str) -> str:
        topic, partition = key
        tail = f"-{partition}.{self._next_random(1 << 128):032x}{suffix}"
        target = f"{directory.path}/{topic[: DIRECTORY_NAME_SIZE_MAX - len(tail)]}{tail}"
        with suppress(FileNotFoundError):  # somebody has removed it
            self._storage.rename(directory.partition_path(*key), target)
        return target

    def maintain(self, now_ms: int) -> None:
        """Try again what could not be renamed, and remove what has waited long enough."""
        for key in list(self._not_renamed):
            with suppress(OSError):  # it was told when it failed first
                self.finish(key, now_ms)
                _log.info("Deleting %s-%d after all", *key)
        due = [path for due_ms, path in self._renamed if due_ms <= now_ms]
        self._renamed = [entry for entry in self._renamed if entry[0] > now_ms]
        for path in due:
            self._remove(path, partial(self._storage.remove_tree, path))
