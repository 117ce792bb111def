"""A disk that forgets: after a power failure only what was synced is sure to be there, and the rest in any part.

Killing a process loses nothing, for the system still has its pages.  `SimulatedDisk` outlives the processes of its
node; each gets a `SimulatedStorage`, which is void once the process is dead.
"""

from __future__ import annotations

import errno
import os
from random import Random
from typing import Any

from headrace_broker.log.storage import Buffer, MemoryStorage


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

    def mount(self) -> SimulatedStorage:
        """The disk as a new process sees it."""
        self.files._locks.clear()
        return SimulatedStorage(self)

    def lose_power(self) -> None:
        """Each file keeps what was synced, and of what was appended since any part, perhaps torn."""
        for path, data in list(self.files._files.items()):
            synced = self.synced.get(path)
            if synced is None and self.rng.random() < 0.5:
                del self.files._files[path]  # even its name was never synced
                continue
            sure = synced or b""
            if bytes(data[: len(sure)]) != sure:  # it was rewritten since: old or new
                kept = bytes(data) if self.rng.random() < 0.5 else sure
            else:
                kept = bytes(data[: self.rng.randint(len(sure), len(data))]) if len(data) > len(sure) else bytes(data)
            self.files._files[path] = bytearray(kept)
        self.synced = {path: bytes(data) for path, data in self.files._files.items()}


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
        free = self.disk.free_bytes
        if free is not None:
            if size > free:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.disk.free_bytes = free - size

    def _note_synced(self, path: str) -> None:
        if self.disk.sync_error is not None:
            raise self.disk.sync_error
        data = self.disk.files._files.get(path)
        if data is not None:
            self.disk.synced[path] = bytes(data)

    def open(self, path: str) -> _SimulatedFile:
        return _SimulatedFile(self, self._files().open(path), path)

    def read(self, path: str) -> bytes:
        return self._files().read(path)

    def write(self, path: str, data: Buffer) -> None:
        self._take_room(len(data))
        self._files().write(path, data)

    def write_atomic(self, path: str, data: Buffer, *, durable: bool = True) -> None:
        self._take_room(len(data))
        self._files().write(path, data)
        if durable:
            self._note_synced(path)

    def sync(self, path: str) -> None:
        self._files()
        self._note_synced(path)

    def sync_directory(self, path: str) -> None:
        self._files()

    def exists(self, path: str) -> bool:
        return self._files().exists(path)

    def size(self, path: str) -> int:
        return self._files().size(path)

    def listdir(self, path: str) -> list[str]:
        return self._files().listdir(path)

    def list_directories(self, path: str) -> list[str]:
        return self._files().list_directories(path)

    def makedirs(self, path: str) -> None:
        self._files().makedirs(path)

    def rename(self, source: str, target: str) -> None:
        self._files().rename(source, target)
        synced = self.disk.synced
        for path in [path for path in synced if path == source or path.startswith(source + "/")]:
            synced[target + path[len(source) :]] = synced.pop(path)

    def remove(self, path: str) -> None:
        self._files().remove(path)
        self.disk.synced.pop(path, None)

    def remove_tree(self, path: str) -> None:
        self._files().remove_tree(path)
        for name in [name for name in self.disk.synced if name.startswith(path + "/")]:
            del self.disk.synced[name]

    def lock(self, path: str) -> Any:
        return self._files().lock(path)


class _SimulatedFile:
    """An open file; it follows a rename as a descriptor does, by sharing its bytes."""

    __slots__ = ("_file", "_path", "_storage")

    def __init__(self, storage: SimulatedStorage, file: Any, path: str) -> None:
        self._storage = storage
        self._file = file
        self._path = path

    def append(self, data: Buffer) -> None:
        self._storage._files()
        self._storage._take_room(len(data))
        self._file.append(data)

    def pread(self, size: int, position: int) -> bytes:
        self._storage._files()
        data: bytes = self._file.pread(size, position)
        return data

    def size(self) -> int:
        size: int = self._file.size()
        return size

    def truncate(self, size: int) -> None:
        self._storage._files()
        self._file.truncate(size)

    def allocate(self, size: int) -> None:
        """Room is what `free_bytes` says."""

    def sync(self) -> None:
        files = self._storage._files()._files
        if files.get(self._path) is not self._file._data:  # renamed since it was opened
            self._path = next((path for path, data in files.items() if data is self._file._data), self._path)
        self._storage._note_synced(self._path)

    def close(self) -> None:
        """Nothing to do."""
