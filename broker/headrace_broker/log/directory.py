"""One log directory: whose it is, that no other process uses it, and the checkpoints over all its partitions.

The lock is held from `open` to `close`. The clean shutdown marker is read on opening, put away by `begin`, before
anything is written, and written last of all on closing.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from threading import Lock

from headrace_broker.log.checkpoints import (
    CLEAN_SHUTDOWN_FILE,
    LOCK_FILE,
    META_PROPERTIES_FILE,
    RECOVERY_POINT_FILE,
    MalformedFileError,
    decode_clean_shutdown,
    decode_meta_properties,
    decode_offset_checkpoint,
    encode_clean_shutdown,
    encode_meta_properties,
    encode_offset_checkpoint,
)
from headrace_broker.log.storage import Storage, StorageLock
from headrace_broker.protocol.topic_names import CLUSTER_METADATA_TOPIC, TopicPartition

_log = logging.getLogger(__name__)
DELETE_SUFFIX = "-delete"
STRAY_SUFFIX = "-stray"
_NOT_SERVED_SUFFIXES = (DELETE_SUFFIX, STRAY_SUFFIX, "-future")
_PROBE_FILE = ".room.tmp"
_BEGUN_FILE = CLEAN_SHUTDOWN_FILE + ".begun"
_ROOM_BYTES = 1024 * 1024
_PARTITION_DIRECTORY = re.compile(r"(?P<topic>[A-Za-z0-9._-]{1,249})-(?P<partition>[0-9]{1,10})")


class LogDirectoryError(Exception):
    """A log directory that this broker cannot use; the message is one line for whoever starts it."""


class LogDirectory:
    """A directory of `log.dirs`."""

    def __init__(self, storage: Storage, path: str) -> None:
        self.path = path.rstrip("/") or "/"
        self.offline_reason: str | None = None
        self.was_closed_cleanly = False
        self.clean_broker_epoch = -1
        self.vouched_ns = 0
        """When the last stop, or after a crash the last checkpoint, told what is safe on disk (0 = nobody knows)."""
        self.meta: dict[str, str] = {}
        self._has_begun = False
        self._storage = storage
        self._lock: StorageLock | None = None
        self._written: dict[str, tuple[bytes, bool]] = {}
        self._writing = Lock()
        self._checkpoints = 0
        self._newest: dict[str, int] = {}  # the number of the last one of each name that was begun

    def open(self) -> None:
        """Take the lock, read `meta.properties`, and note whether the last stop was clean. Raises LogDirectoryError."""
        try:
            self._storage.makedirs(self.path)
            self._lock = self._storage.lock(self._file(LOCK_FILE))
        except BlockingIOError:
            raise LogDirectoryError(
                f"log directory {self.path} is in use by another process, which holds the lock {self._file(LOCK_FILE)}"
            ) from None
        except OSError as error:
            raise LogDirectoryError(f"cannot use log directory {self.path}: {error.strerror or error}") from error
        try:
            self.meta = self._read_meta()
            if self._storage.exists(self._file(RECOVERY_POINT_FILE)):
                self.vouched_ns = self._storage.modified_ns(self._file(RECOVERY_POINT_FILE))
            if self._storage.exists(self._file(CLEAN_SHUTDOWN_FILE)):
                self.vouched_ns = self._storage.modified_ns(self._file(CLEAN_SHUTDOWN_FILE))
                self.clean_broker_epoch = decode_clean_shutdown(self._storage.read(self._file(CLEAN_SHUTDOWN_FILE)))
                self.was_closed_cleanly = True
        except (OSError, LogDirectoryError):
            self.release()
            raise

    def begin(self) -> None:
        """Have the directory count as in use from now on: logs will be written to. Raises OSError.

        Who looks only, or may not start on it, leaves it closed cleanly.  No power failure brings back, from then on,
        checkpoints that were replaced before.
        """
        if self._has_begun:
            return
        if self.was_closed_cleanly:
            self._storage.rename(self._file(CLEAN_SHUTDOWN_FILE), self._file(_BEGUN_FILE))
        self._storage.sync_directory(self.path)
        self._has_begun = True

    def undo_begin(self) -> None:
        """Have it closed as cleanly as it was: nothing in it has changed that is not safe on disk. Raises OSError.

        The marker is the same as before: what others have changed since is found by its time.
        """
        if self.was_closed_cleanly and self._has_begun:
            self._storage.rename(self._file(_BEGUN_FILE), self._file(CLEAN_SHUTDOWN_FILE))
            self._storage.sync_directory(self.path)
            self._has_begun = False

    def _read_meta(self) -> dict[str, str]:
        if not self._storage.exists(self._file(META_PROPERTIES_FILE)):
            return {}
        try:
            return decode_meta_properties(self._storage.read(self._file(META_PROPERTIES_FILE)))
        except MalformedFileError as error:
            mend = "put back a copy of it, or write version=1, cluster.id and node.id into it"
            raise LogDirectoryError(f"{self._file(META_PROPERTIES_FILE)}: {error}: {mend}") from error

    @property
    def is_formatted(self) -> bool:
        return bool(self.meta)

    def format(self, cluster_id: str, node_id: int, directory_id: str) -> None:
        """Write `meta.properties`, once. Raises OSError."""
        data = encode_meta_properties(cluster_id, node_id, directory_id)
        self._storage.write_atomic(self._file(META_PROPERTIES_FILE), data)
        self.meta = decode_meta_properties(data)

    def _file(self, name: str) -> str:
        return f"{self.path}/{name}"

    # Partitions

    def partition_path(self, topic: str, partition: int) -> str:
        return self._file(f"{topic}-{partition}")

    def partitions(self) -> list[TopicPartition]:
        """Return the (topic, partition) of every partition's directory that is not marked for deletion."""
        found = []
        for name in self._storage.list_directories(self.path):
            is_served = not name.endswith(_NOT_SERVED_SUFFIXES)
            match = _PARTITION_DIRECTORY.fullmatch(name) if is_served else None
            if match is None:
                if is_served:
                    _log.warning("Ignoring the directory %s/%s: its name is not topic-partition", self.path, name)
                continue
            if match["topic"] != CLUSTER_METADATA_TOPIC:
                found.append((match["topic"], int(match["partition"])))
        return sorted(found)

    def left_over_deletions(self) -> list[str]:
        """Return the paths of partitions whose deletion a stop interrupted."""
        return self._ending_with(DELETE_SUFFIX)

    def strays(self) -> list[str]:
        """Return the paths of partitions that an earlier start has set aside."""
        return self._ending_with(STRAY_SUFFIX)

    def _ending_with(self, suffix: str) -> list[str]:
        return [self._file(name) for name in self._storage.list_directories(self.path) if name.endswith(suffix)]

    # Checkpoints

    def read_checkpoint(self, name: str) -> dict[TopicPartition, int]:
        """Return (topic, partition) -> offset; empty when the file is missing or cannot be read."""
        path = self._file(name)
        if not self._storage.exists(path):
            return {}
        try:
            return decode_offset_checkpoint(self._storage.read(path))
        except MalformedFileError as error:
            _log.warning("Ignoring %s: %s", path, error)
            return {}

    def checkpoint(
        self, name: str, offsets: Mapping[TopicPartition, int], *, durable: bool = True
    ) -> Callable[[], None]:
        """What writes the file unless it holds just that already, as safely; for any thread. Raises OSError.

        Called when a later one of that name has begun, or when the directory was given back, it does nothing: what it
        would tell is not so any more.
        """
        self._checkpoints += 1
        return partial(self._write_checkpoint, self._checkpoints, name, offsets, durable)

    def _write_checkpoint(self, number: int, name: str, offsets: Mapping[TopicPartition, int], durable: bool) -> None:
        with self._writing:
            if number < self._newest.get(name, 0) or self._lock is None:
                return
            self._newest[name] = number
            data = encode_offset_checkpoint(offsets)
            is_known = self._written.get(name) in ((data, durable), (data, True))
            if not is_known or not self._storage.exists(self._file(name)):
                self._storage.write_atomic(self._file(name), data, durable=durable)
                self._written[name] = data, durable

    def sync_names(self) -> None:
        """Return once no power failure would bring back a file that was replaced. Raises OSError."""
        self._storage.sync_directory(self.path)

    def has_room(self) -> bool:
        """Whether more than a last few bytes can be written."""
        path = self._file(_PROBE_FILE)
        try:
            self._storage.write(path, bytes(_ROOM_BYTES))
            return True
        except OSError:
            return False
        finally:
            with suppress(OSError):
                self._storage.remove(path)

    def close(self, *, clean: bool, broker_epoch: int = -1) -> None:
        """Write the clean shutdown marker if everything is safe on disk, and give back the lock. Raises OSError."""
        try:
            if clean and self.offline_reason is None:
                self._storage.write_atomic(self._file(CLEAN_SHUTDOWN_FILE), encode_clean_shutdown(broker_epoch))
                self._storage.sync_directory(self.path)
        finally:
            self.release()

    def release(self) -> None:
        with self._writing:
            if self._lock is not None:
                self._lock.release()
                self._lock = None
