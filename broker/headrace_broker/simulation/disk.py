"""A disk that forgets: after a power failure only what was synced is sure to be there, and the rest in any part.

Killing a process loses nothing, for the system still has its pages.  `SimulatedDisk` outlives the processes of its
node; each gets a `SimulatedStorage`, which is void once the process is dead.  As on ext4, a file that was synced has
its name, too; that a file was replaced or removed is sure only after `sync_directory`.
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
    """Remains of a killed process tried to touch its disk."""


class SimulatedDisk:
    """One node's files: their contents now, and how much of each would survive."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.files = MemoryStorage()
        self.synced: dict[str, bytes] = {}
        self.free_bytes: int | None = None
        self.sync_error: OSError | None = None
        self.write_error: OSError | None = None
        self.on_append: Callable[[str], None] | None = None
        """Called once, in the middle of the next append: what comes before is written, what comes after is not."""
        self.may_tear: Callable[[], bool] = lambda: True
        """Whether `on_append` may be called by now."""
        self.on_appended: Callable[[str], None] | None = None
        """Called after each append."""
        self.on_write: Callable[[str], None] | None = None
        """Called after each replacement of a whole file."""
        self._overwritten: dict[str, None] = {}  # files that were written before their end since they were synced
        self._cut: dict[str, int] = {}  # files that were shortened since, and how far
        self._unsure: dict[str, bytes | None] = {}  # changed names: what stands there if the change is lost

    def mount(self) -> SimulatedStorage:
        """The disk as a new process sees it."""
        self.files._locks.clear()
        return SimulatedStorage(self)

    def lose_power(self) -> None:
        """Each file keeps what was synced, and of what was appended since any part, perhaps torn."""
        for path, before in self._unsure.items():
            if self.rng.random() < 0.5:
                continue
            self.files._files.pop(path, None)
            self.synced.pop(path, None)
            if before is not None:
                self.files._files[path] = bytearray(before)
                self.synced[path] = before
        self._unsure.clear()
        self._lose_names()
        for path, data in list(self.files._files.items()):
            remains = self._remains_of_overwritten if path in self._overwritten else self._remains
            self.files._files[path] = bytearray(remains(self.synced.get(path, b""), bytes(data), self._cut.get(path)))
        self._overwritten.clear()
        self._cut.clear()
        self.synced = {path: bytes(data) for path, data in self.files._files.items()}

    def _lose_names(self) -> None:
        """Of files that were never synced the newest are gone: a journal keeps the order in which they were made."""
        unsynced = [path for path in self.files._files if path not in self.synced]
        for path in unsynced[self.rng.randint(0, len(unsynced)) :]:
            del self.files._files[path]

    def _remains_of_overwritten(self, sure: bytes, data: bytes, cut: int | None) -> bytes:
        """A preallocated file: each of its sectors is the old one or the new one, if it was not cut before."""
        if cut is not None and cut < len(sure):
            if self.rng.random() < 0.5:
                return sure
            sure = sure[:cut]
        kept = bytearray(sure)
        for at in range(0, len(sure), _SECTOR_BYTES):
            new = data[at : min(at + _SECTOR_BYTES, len(sure))]
            if new != sure[at : at + _SECTOR_BYTES] and self.rng.random() < 0.5:
                kept[at : at + len(new)] = new
        return bytes(kept) + self._remains(data[: len(sure)], data)[len(sure) :]

    def _remains(self, sure: bytes, data: bytes, cut: int | None = None) -> bytes:
        if data[: len(sure)] != sure:  # it was rewritten or cut since: old or new
            return data if self.rng.random() < 0.5 else sure
        size = self.rng.randint(len(sure), len(data))
        if size > len(sure) and self.rng.random() < 0.25:  # the file's size got there, its last pages did not
            written = self.rng.randint(len(sure), size)
            return data[:written] + bytes(size - written)
        return data[:size]

    def note_written(self, path: str, position: int, size_before: int) -> None:
        """Bytes were written, perhaps where others had been."""
        if position < size_before:
            self._overwritten[path] = None

    def note_cut(self, path: str, size: int) -> None:
        """The file was shortened."""
        self._cut[path] = min(size, self._cut.get(path, size))

    def note_synced(self, path: str) -> None:
        """The contents are safe, and a name that was never there before."""
        self._overwritten.pop(path, None)
        self._cut.pop(path, None)
        data = self.files._files.get(path)
        if data is not None:
            self.synced[path] = bytes(data)

    def note_renamed(self, path: str, before: bytes | None) -> None:
        """Another file stands at this name, until the directory is synced perhaps only for now."""
        self._unsure.setdefault(path, before)

    def note_directory_synced(self, directory: str) -> None:
        """The names in the directory are safe."""
        for path in [path for path in self._unsure if path.rpartition("/")[0] == directory]:
            del self._unsure[path]

    def forget(self, path: str) -> None:
        """The file, or the directory with all in it, is gone."""
        inside = path + "/"
        for known in (self.synced, self._unsure):
            for name in [name for name in known if name == path or name.startswith(inside)]:
                del known[name]


class SimulatedStorage:
    """The log's storage port over a `SimulatedDisk`."""

    def __init__(self, disk: SimulatedDisk) -> None:
        self.disk = disk
        self.is_dead = False

    def _files(self) -> MemoryStorage:
        if self.is_dead:
            raise ProcessIsDeadError
        return self.disk.files

    def _take_room(self, size: int) -> None:
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
        self._take_room(len(data))
        files.write(path, data)
        self._written(path)

    def write_atomic(self, path: str, data: Buffer, *, durable: bool = True) -> None:
        files = self._files()
        self._take_room(len(data))
        disk = self.disk
        if durable and disk.sync_error is not None:
            raise disk.sync_error
        before = disk.synced.get(path)
        files.write(path, data)
        if durable:
            disk.note_renamed(path, before)
            disk.note_synced(path)
        self._written(path)

    def _written(self, path: str) -> None:
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
        # Sorted: a set keeps them, and two runs of one seed must see the same order.
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
        self.disk.forget(path)
        if before is not None:
            self.disk.note_renamed(path, before)

    def remove_tree(self, path: str) -> None:
        self._files().remove_tree(path)
        self.disk.forget(path)

    def lock(self, path: str) -> Any:
        return self._files().lock(path)


class _SimulatedFile:
    """An open file; it follows a rename as a descriptor does, by sharing its bytes."""

    __slots__ = ("_file", "_path", "_storage")

    def __init__(self, storage: SimulatedStorage, file: Any, path: str) -> None:
        self._storage = storage
        self._file = file
        self._path = path

    def write(self, data: Buffer, position: int) -> None:
        storage = self._storage
        storage._files()
        storage._take_room(len(data))
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
        self._storage.disk.note_cut(self._path, size)
        self._file.truncate(size)

    def allocate(self, size: int) -> None:
        """A little of what is asked for, so that files outgrow it; it takes no room, for there are only zeros."""
        self._storage._files()
        self._file.truncate(max(self._file.size(), min(size, self._file.size() + _ALLOCATED_BYTES_MAX)))

    def sync(self) -> None:
        files = self._storage._files()._files
        if files.get(self._path) is not self._file._data:  # renamed since it was opened
            self._path = next((path for path, data in files.items() if data is self._file._data), self._path)
        self._storage._sync(self._path)

    def close(self) -> None:
        """Nothing to do."""
