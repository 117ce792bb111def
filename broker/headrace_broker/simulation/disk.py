"""A simulated disk: a power failure keeps synced data, and a random part of the unsynced data.

A killed process loses no written data, because the operating system's page cache survives. A
`SimulatedDisk` outlives the processes of its node. Each process gets a new `SimulatedStorage`, which
rejects all calls once the process is dead. As on ext4, a sync of a new file also makes its directory
entry durable. A rename or removal is durable only after `sync_directory`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from random import Random
from typing import Any

from headrace_broker.log.storage import Buffer, MemoryStorage

_SECTOR_BYTES = 512
_ALLOCATED_BYTES_MAX = 8 * 1024


class ProcessIsDeadError(Exception):
    """The code of a killed process tried to access the disk."""


class SimulatedDisk:
    """One node's files: their current contents, and the contents that a power failure would keep."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.files = MemoryStorage()
        self.synced: dict[str, bytes] = {}
        self.free_bytes: int | None = None
        self.sync_error: OSError | None = None
        self.write_error: OSError | None = None
        self.on_append: Callable[[str], None] | None = None
        """A callback for the next append. It is called once, when only a prefix of the data is written."""
        self.may_tear: Callable[[], bool] = lambda: True
        """A function that returns whether the current append may be interrupted.

        If not, `on_append` is not called.
        """
        self.on_appended: Callable[[str], None] | None = None
        """A callback that is called after each append."""
        self.on_write: Callable[[str], None] | None = None
        """A callback that is called after a whole file was written or replaced."""
        self._overwritten: dict[str, None] = {}  # files in which bytes were overwritten after the last sync
        self._truncated_to: dict[str, int] = {}  # the smallest size of files that were truncated after the last sync
        # Maps a directory entry that was changed to the contents that it has if the change is lost.
        self._unsynced_names: dict[str, bytes | None] = {}

    def mount(self) -> SimulatedStorage:
        """Return the disk's storage for a new process."""
        self.files._locks.clear()
        return SimulatedStorage(self)

    def lose_power(self) -> None:
        """Lose unsynced data. Each file keeps its synced bytes, and a random part of the bytes that follow them."""
        for path, before in self._unsynced_names.items():
            if self.rng.random() < 0.5:
                continue
            self.files._files.pop(path, None)
            self.synced.pop(path, None)
            if before is not None:
                self.files._files[path] = bytearray(before)
                self.synced[path] = before
        self._unsynced_names.clear()
        self._lose_unsynced_files()
        for path, data in list(self.files._files.items()):
            surviving = self._surviving_bytes_of_overwritten if path in self._overwritten else self._surviving_bytes
            self.files._files[path] = bytearray(
                surviving(self.synced.get(path, b""), bytes(data), self._truncated_to.get(path))
            )
        self._overwritten.clear()
        self._truncated_to.clear()
        self.synced = {path: bytes(data) for path, data in self.files._files.items()}

    def _lose_unsynced_files(self) -> None:
        """Remove a random number of never-synced files, the newest first.

        The file system's journal preserves the order in which files were created.
        """
        unsynced = [path for path in self.files._files if path not in self.synced]
        for path in unsynced[self.rng.randint(0, len(unsynced)) :]:
            del self.files._files[path]

    def _surviving_bytes_of_overwritten(self, synced: bytes, data: bytes, truncated_to: int | None) -> bytes:
        """Return an overwritten file's contents after a power failure.

        `synced` is the content at the last sync, and `data` is the current content. `truncated_to` is the smallest size
        to which the file was truncated since the sync, if any. Each sector contains either its old bytes or its new
        bytes. A truncation is lost completely or not at all.
        """
        if truncated_to is not None and truncated_to < len(synced):
            if self.rng.random() < 0.5:
                return synced
            synced = synced[:truncated_to]
        kept = bytearray(synced)
        for position in range(0, len(synced), _SECTOR_BYTES):
            new = data[position : min(position + _SECTOR_BYTES, len(synced))]
            if new != synced[position : position + _SECTOR_BYTES] and self.rng.random() < 0.5:
                kept[position : position + len(new)] = new
        return bytes(kept) + self._surviving_bytes(data[: len(synced)], data)[len(synced) :]

    def _surviving_bytes(self, synced: bytes, data: bytes, truncated_to: int | None = None) -> bytes:
        if data[: len(synced)] != synced:  # a file that was rewritten after its sync has its old or its new contents
            return data if self.rng.random() < 0.5 else synced
        size = self.rng.randint(len(synced), len(data))
        # In one of four cases, the power fails after the new size and before the last pages are written.
        if size > len(synced) and self.rng.random() < 0.25:
            written = self.rng.randint(len(synced), size)
            return data[:written] + bytes(size - written)
        return data[:size]

    def note_written(self, path: str, position: int, size_before: int) -> None:
        """Track a write at `position` to a file that had `size_before` bytes. The write may overwrite earlier bytes."""
        if position < size_before:
            self._overwritten[path] = None

    def note_truncated(self, path: str, size: int) -> None:
        """Track a truncation to `size` bytes. The truncation is not durable until the file is synced."""
        self._truncated_to[path] = min(size, self._truncated_to.get(path, size))

    def note_synced(self, path: str) -> None:
        """Track a sync of a file: its contents are now durable, and so is the directory entry of a new file."""
        self._overwritten.pop(path, None)
        self._truncated_to.pop(path, None)
        data = self.files._files.get(path)
        if data is not None:
            self.synced[path] = bytes(data)

    def note_renamed(self, path: str, before: bytes | None) -> None:
        """Track a changed directory entry, which is not durable until the directory is synced.

        If the change is lost, the file at `path` has the content `before`, or does not exist if `before` is None.
        """
        self._unsynced_names.setdefault(path, before)

    def note_directory_synced(self, directory: str) -> None:
        """Track a sync of a directory: its entries are now durable."""
        for path in [path for path in self._unsynced_names if path.rpartition("/")[0] == directory]:
            del self._unsynced_names[path]

    def note_removed(self, path: str) -> None:
        """Track the removal of a file, or of a directory with its contents."""
        prefix = path + "/"
        for names in (self.synced, self._unsynced_names):
            for name in [name for name in names if name == path or name.startswith(prefix)]:
                del names[name]


class SimulatedStorage:
    """Implements the log's storage interface on a `SimulatedDisk`."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.is_dead = False

    def _files(self) -> MemoryStorage:
        if self.is_dead:
            raise ProcessIsDeadError
        return self.disk.files

    def _use_space(self, size: int) -> None:
        if self.disk.write_error is not None:
            raise self.disk.write_error
        free = self.disk.free_bytes
        if free is not None:
            if size > free:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.disk.free_bytes = free - size

    def _sync(self, path: str) -> None:
        if self.disk.sync_error is not None:
            raise self.disk.sync_error
        self.disk.note_synced(path)

    def open(self, path: str) -> _SimulatedFile:
        return _SimulatedFile(self, self._files().open(path), path)

    def read(self, path: str) -> bytes:
        return self._files().read(path)

    def write(self, path: str, data: Buffer) -> None:
        files = self._files()
        self._use_space(len(data))
        files.write(path, data)
        self._notify_written(path)

    def write_atomic(self, path: str, data: Buffer, *, durable: bool = True) -> None:
        files = self._files()
        self._use_space(len(data))
        disk = self.disk
        if durable and disk.sync_error is not None:
            raise disk.sync_error
        before = disk.synced.get(path)
        files.write(path, data)
        if durable:
            disk.note_renamed(path, before)
            disk.note_synced(path)
        self._notify_written(path)

    def _notify_written(self, path: str) -> None:
        if self.disk.on_write is not None:
            self.disk.on_write(path)

    def sync(self, path: str) -> None:
        self._files()
        self._sync(path)

    def sync_directory(self, path: str) -> None:
        self._files()
        if self.disk.sync_error is not None:
            raise self.disk.sync_error
        self.disk.note_directory_synced(path)

    def exists(self, path: str) -> bool:
        return self._files().exists(path)

    def size(self, path: str) -> int:
        return self._files().size(path)

    def modified_ns(self, path: str) -> int:
        return self._files().modified_ns(path)

    def listdir(self, path: str) -> list[str]:
        return self._files().listdir(path)

    def list_directories(self, path: str) -> list[str]:
        # The names are stored in a set; sort them, because two runs of one seed must see the same order.
        return sorted(self._files().list_directories(path))

    def makedirs(self, path: str) -> None:
        self._files().makedirs(path)

    def rename(self, source: str, target: str) -> None:
        self._files().rename(source, target)
        synced = self.disk.synced
        for path in [path for path in synced if path == source or path.startswith(source + "/")]:
            synced[target + path[len(source) :]] = synced.pop(path)

    def remove(self, path: str) -> None:
        self._files().remove(path)
        before = self.disk.synced.get(path)
        self.disk.note_removed(path)
        if before is not None:
            self.disk.note_renamed(path, before)

    def remove_tree(self, path: str) -> None:
        self._files().remove_tree(path)
        self.disk.note_removed(path)

    def lock(self, path: str) -> Any:
        return self._files().lock(path)


class _SimulatedFile:
    """An open file, which keeps access to its bytes after a rename, as a file descriptor does."""

    __slots__ = ("_file", "_path", "_storage")

    def __init__(self, storage: SimulatedStorage, file: Any, path: str) -> None:
        self._storage = storage
        self._file = file
        self._path = path

    def write(self, data: Buffer, position: int) -> None:
        storage = self._storage
        storage._files()
        storage._use_space(len(data))
        disk = storage.disk
        disk.note_written(self._path, position, self._file.size())
        if disk.on_append is not None and disk.may_tear():
            torn, disk.on_append = disk.on_append, None
            self._file.write(bytes(data)[: disk.rng.randint(0, len(data))], position)
            torn(self._path)
            storage._files()
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._file.write(data, position)
        if disk.on_appended is not None:
            disk.on_appended(self._path)

    def pread(self, size: int, position: int) -> bytes:
        self._storage._files()
        data: bytes = self._file.pread(size, position)
        return data

    def size(self) -> int:
        size: int = self._file.size()
        return size

    def truncate(self, size: int) -> None:
        self._storage._files()
        self._storage.disk.note_truncated(self._path, size)
        self._file.truncate(size)

    def allocate(self, size: int) -> None:
        """Extend the file with zeros up to `size`, but by at most 8 KiB.

        With this limit, the simulation also covers writes beyond the allocated space. The zeros do not count as used
        disk space.
        """
        self._storage._files()
        self._file.truncate(max(self._file.size(), min(size, self._file.size() + _ALLOCATED_BYTES_MAX)))

    def sync(self) -> None:
        files = self._storage._files()._files
        if files.get(self._path) is not self._file._data:  # the file was renamed after it was opened
            self._path = next((path for path, data in files.items() if data is self._file._data), self._path)
        self._storage._sync(self._path)

    def close(self) -> None:
        """Do nothing: an open file holds no resources."""
