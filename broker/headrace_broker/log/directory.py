"""One log directory: `meta.properties`, the lock file, and the offset checkpoints of all partitions in the directory.

The lock is held from `open` to `close`. The clean shutdown marker is read by `open`, removed by `mark_in_use` before
anything is written, and written by `close` as the last step.
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
_IN_USE_FILE = CLEAN_SHUTDOWN_FILE + ".begun"
_PROBE_BYTES = 1024 * 1024
_PARTITION_DIRECTORY = re.compile(r"(?P<topic>[A-Za-z0-9._-]{1,249})-(?P<partition>[0-9]{1,10})")


class LogDirectoryError(Exception):
    """This broker cannot use a log directory. The message is one line for the operator who starts the broker."""


class LogDirectory:
    """One of the directories in `log.dirs`."""

    def __init__(self, storage: Storage, path: str) -> None:
        self.path = path.rstrip("/") or "/"
        self.offline_reason: str | None = None
        self.was_closed_cleanly = False
        self.clean_broker_epoch = -1
        self.checkpoint_time_ns = 0
        """Modification time of the clean shutdown marker.

        If there is no marker, this is the modification time of the recovery point checkpoint. If there is no checkpoint
        either, it is 0. At this time, all records before the recovery points were synced to disk.
        """
        self.meta: dict[str, str] = {}
        self._is_in_use = False
        self._storage = storage
        self._lock: StorageLock | None = None
        self._written: dict[str, tuple[bytes, bool]] = {}
        self._write_lock = Lock()
        self._last_sequence = 0
        # checkpoint name -> sequence number of the newest write that has started
        self._started_sequences: dict[str, int] = {}

    def open(self) -> None:
        """Acquire the lock, then read `meta.properties` and the clean shutdown marker. Raises LogDirectoryError."""
        try:
            self._storage.makedirs(self.path)
            self._lock = self._storage.lock(self._path_of(LOCK_FILE))
        except BlockingIOError:
            raise LogDirectoryError(
                f"log directory {self.path} is in use by another process, which holds the lock "
                f"{self._path_of(LOCK_FILE)}"
            ) from None
        except OSError as error:
            raise LogDirectoryError(f"cannot use log directory {self.path}: {error.strerror or error}") from error
        try:
            self.meta = self._read_meta()
            if self._storage.exists(self._path_of(RECOVERY_POINT_FILE)):
                self.checkpoint_time_ns = self._storage.modified_ns(self._path_of(RECOVERY_POINT_FILE))
            if self._storage.exists(self._path_of(CLEAN_SHUTDOWN_FILE)):
                self.checkpoint_time_ns = self._storage.modified_ns(self._path_of(CLEAN_SHUTDOWN_FILE))
                self.clean_broker_epoch = decode_clean_shutdown(self._storage.read(self._path_of(CLEAN_SHUTDOWN_FILE)))
                self.was_closed_cleanly = True
        except (OSError, LogDirectoryError):
            self.release()
            raise

    def mark_in_use(self) -> None:
        """Remove the clean shutdown marker. Call this method before any log is written. Raises OSError.

        A process that only reads the directory, or that fails to start, must not call this method, so that the clean
        shutdown marker remains. This method syncs the directory, so that a power failure cannot restore the old
        versions of replaced checkpoint files.
        """
        if self._is_in_use:
            return
        if self.was_closed_cleanly:
            self._storage.rename(self._path_of(CLEAN_SHUTDOWN_FILE), self._path_of(_IN_USE_FILE))
        self._storage.sync_directory(self.path)
        self._is_in_use = True

    def undo_mark_in_use(self) -> None:
        """Restore the clean shutdown marker, if every change since `mark_in_use` is synced. Raises OSError.

        The marker keeps its modification time. A segment that another program has modified since the shutdown is
        therefore still newer than the marker.
        """
        if self.was_closed_cleanly and self._is_in_use:
            self._storage.rename(self._path_of(_IN_USE_FILE), self._path_of(CLEAN_SHUTDOWN_FILE))
            self._storage.sync_directory(self.path)
            self._is_in_use = False

    def _read_meta(self) -> dict[str, str]:
        if not self._storage.exists(self._path_of(META_PROPERTIES_FILE)):
            return {}
        try:
            return decode_meta_properties(self._storage.read(self._path_of(META_PROPERTIES_FILE)))
        except MalformedFileError as error:
            remedy = "restore it from a copy, or write version=1, cluster.id and node.id into it"
            raise LogDirectoryError(f"{self._path_of(META_PROPERTIES_FILE)}: {error}: {remedy}") from error

    @property
    def is_formatted(self) -> bool:
        return bool(self.meta)

    def format(self, cluster_id: str, node_id: int, directory_id: str) -> None:
        """Write `meta.properties` into a new directory. Raises OSError."""
        data = encode_meta_properties(cluster_id, node_id, directory_id)
        self._storage.write_atomic(self._path_of(META_PROPERTIES_FILE), data)
        self.meta = decode_meta_properties(data)

    def _path_of(self, name: str) -> str:
        return f"{self.path}/{name}"

    # Partitions

    def partition_path(self, topic: str, partition: int) -> str:
        return self._path_of(f"{topic}-{partition}")

    def partitions(self) -> list[TopicPartition]:
        """Return the (topic, partition) of each partition directory.

        Directories whose names end with `-delete`, `-stray` or `-future` are skipped.
        """
        found = []
        for name in self._storage.list_directories(self.path):
            is_served = not name.endswith(_NOT_SERVED_SUFFIXES)
            match = _PARTITION_DIRECTORY.fullmatch(name) if is_served else None
            if match is None:
                if is_served:
                    _log.warning(
                        "Ignoring directory %s/%s: its name does not have the form topic-partition", self.path, name
                    )
                continue
            if match["topic"] != CLUSTER_METADATA_TOPIC:
                found.append((match["topic"], int(match["partition"])))
        return sorted(found)

    def interrupted_deletions(self) -> list[str]:
        """Return the directories of partitions whose deletion was interrupted by a shutdown or crash."""
        return self._ending_with(DELETE_SUFFIX)

    def strays(self) -> list[str]:
        """Return the directories of partitions that were marked stray earlier."""
        return self._ending_with(STRAY_SUFFIX)

    def _ending_with(self, suffix: str) -> list[str]:
        return [self._path_of(name) for name in self._storage.list_directories(self.path) if name.endswith(suffix)]

    # Checkpoints

    def read_checkpoint(self, name: str) -> dict[TopicPartition, int]:
        """Return the offsets in the checkpoint file `name` by (topic, partition).

        Return an empty dict if the file is missing or malformed.
        """
        path = self._path_of(name)
        if not self._storage.exists(path):
            return {}
        try:
            return decode_offset_checkpoint(self._storage.read(path))
        except MalformedFileError as error:
            _log.warning("Ignoring unreadable checkpoint %s: %s", path, error)
            return {}

    def checkpoint_task(
        self, name: str, offsets: Mapping[TopicPartition, int], *, durable: bool = True
    ) -> Callable[[], None]:
        """Return a function that writes `offsets` to the checkpoint file `name` and can run in any thread.

        The function raises OSError. If `durable` is set, the function also syncs the file. The function writes nothing
        if the file already contains these offsets, if a newer task for the same file has started, or if the directory
        is closed.
        """
        self._last_sequence += 1
        return partial(self._write_checkpoint, self._last_sequence, name, offsets, durable)

    def _write_checkpoint(self, sequence: int, name: str, offsets: Mapping[TopicPartition, int], durable: bool) -> None:
        with self._write_lock:
            if sequence < self._started_sequences.get(name, 0) or self._lock is None:
                return
            self._started_sequences[name] = sequence
            data = encode_offset_checkpoint(offsets)
            is_written = self._written.get(name) in ((data, durable), (data, True))
            if not is_written or not self._storage.exists(self._path_of(name)):
                self._storage.write_atomic(self._path_of(name), data, durable=durable)
                self._written[name] = data, durable

    def sync(self) -> None:
        """Sync the directory, so that a power failure cannot restore old versions of replaced files. Raises OSError."""
        self._storage.sync_directory(self.path)

    def has_free_space(self) -> bool:
        """Return whether the directory's disk has space for a file of 1 MiB."""
        path = self._path_of(_PROBE_FILE)
        try:
            self._storage.write(path, bytes(_PROBE_BYTES))
            return True
        except OSError:
            return False
        finally:
            with suppress(OSError):
                self._storage.remove(path)

    def close(self, *, clean: bool, broker_epoch: int = -1) -> None:
        """Release the lock. If `clean` is set and the directory is online, write the clean shutdown marker first.

        The marker contains `broker_epoch`. Raises OSError.
        """
        try:
            if clean and self.offline_reason is None:
                self._storage.write_atomic(self._path_of(CLEAN_SHUTDOWN_FILE), encode_clean_shutdown(broker_epoch))
                self._storage.sync_directory(self.path)
        finally:
            self.release()

    def release(self) -> None:
        with self._write_lock:
            if self._lock is not None:
                self._lock.release()
                self._lock = None
