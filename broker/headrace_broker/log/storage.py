"""The storage port of the log: every byte the log keeps goes through it.

`DiskStorage` is the file system, `MemoryStorage` a dictionary with the same semantics: an open file outlives its rename
and its removal. Paths are strings with "/" between the parts. Every failure is an `OSError`; the caller decides what it
means.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from typing import Protocol

Buffer = bytes | bytearray | memoryview


def is_passing(error: OSError) -> bool:
    """Whether the failure touched no file and will pass: the process or the system has no descriptor left for it."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


def is_lack_of_room(error: OSError) -> bool:
    """Whether the disk, or a quota on it, is full: nothing is broken, and somebody may make room."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


class StorageFile(Protocol):
    """An open file that is read and written at any position."""

    def write(self, data: Buffer, position: int) -> None:
        """Write all of `data` at `position`; after an OSError any part of it may be there."""

    def pread(self, size: int, position: int) -> bytes:
        """Return up to `size` bytes at `position`, fewer only where the file ends."""

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def allocate(self, size: int) -> None:
        """Have zeros up to `size`, so that a write before it does not change the file's size."""

    def sync(self) -> None:
        """Return once the contents would survive a power failure (fdatasync)."""

    def close(self) -> None: ...


class Storage(Protocol):
    """What the log needs of a file system."""

    def open(self, path: str) -> StorageFile:
        """Open a file for reading and writing, made if missing."""

    def read(self, path: str) -> bytes:
        """Return a whole file. Raises FileNotFoundError."""

    def write(self, path: str, data: Buffer) -> None:
        """Replace a file's contents, with no promise about a crash meanwhile."""

    def write_atomic(self, path: str, data: Buffer, *, durable: bool = True) -> None:
        """Replace a file by a rename: a crash leaves the old or the new one. durable = synced before the rename."""

    def sync(self, path: str) -> None:
        """fdatasync a file by name; a missing one is no error. Safe from another thread."""

    def sync_directory(self, path: str) -> None: ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def modified_ns(self, path: str) -> int:
        """Return when a file was last written, by the clock of its file system; 0 where nobody notes it."""

    def listdir(self, path: str) -> list[str]: ...

    def list_directories(self, path: str) -> list[str]: ...

    def makedirs(self, path: str) -> None: ...

    def rename(self, source: str, target: str) -> None: ...

    def remove(self, path: str) -> None:
        """Remove a file; a missing one is no error. Safe from another thread."""

    def remove_tree(self, path: str) -> None:
        """Remove a directory with everything in it; a missing one is no error. Safe from another thread."""

    def lock(self, path: str) -> StorageLock:
        """Take the exclusive lock on a file. Raises BlockingIOError when another process holds it."""


class StorageLock(Protocol):
    def release(self) -> None: ...


class DiskFile:
    """A file descriptor."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def write(self, data: Buffer, position: int) -> None:
        written = os.pwrite(self._fd, data, position)
        while written != len(data):  # a nearly full disk takes a part, then says ENOSPC
            written += os.pwrite(self._fd, memoryview(data)[written:], position + written)

    def pread(self, size: int, position: int) -> bytes:
        data = os.pread(self._fd, size, position)
        while len(data) < size:
            more = os.pread(self._fd, size - len(data), position + len(data))
            if not more:
                break
            data += more
        return data

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def allocate(self, size: int) -> None:
        # As Kafka does it, without blocks: room that is taken before it is used helped fdatasync no further.
        if size > os.fstat(self._fd).st_size:
            os.ftruncate(self._fd, size)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


def _write_all(fd: int, data: Buffer) -> None:
    view = memoryview(data)
    while view:  # a nearly full disk takes a part, then says ENOSPC
        view = view[os.write(fd, view) :]


class DiskLock:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        os.close(self._fd)


class DiskStorage:
    """The file system."""

    def open(self, path: str) -> DiskFile:
        return DiskFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))

    def read(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def write(self, path: str, data: Buffer) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _write_all(fd, data)
            # Cut afterwards: a file that is emptied before it is written again is flushed when it is closed (ext4).
            os.ftruncate(fd, len(data))
        finally:
            os.close(fd)

    def write_atomic(self, path: str, data: Buffer, *, durable: bool = True) -> None:
        temporary = f"{path}.tmp"
        try:
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
            try:
                _write_all(fd, data)
                if durable:
                    os.fdatasync(fd)
            finally:
                os.close(fd)
            os.rename(temporary, path)
        except OSError:
            with suppress(OSError):
                os.unlink(temporary)
            raise

    def sync(self, path: str) -> None:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            os.fdatasync(fd)
        finally:
            os.close(fd)

    def sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def modified_ns(self, path: str) -> int:
        return os.stat(path).st_mtime_ns

    def listdir(self, path: str) -> list[str]:
        return os.listdir(path)

    def list_directories(self, path: str) -> list[str]:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir()]

    def makedirs(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def remove(self, path: str) -> None:
        with suppress(FileNotFoundError):
            os.unlink(path)

    def remove_tree(self, path: str) -> None:
        import shutil

        with suppress(FileNotFoundError):
            shutil.rmtree(path)

    def lock(self, path: str) -> DiskLock:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kind of lock that a JVM takes
        except OSError:
            os.close(fd)
            raise
        return DiskLock(fd)


class MemoryFile:
    """A file of MemoryStorage; `data` is shared by everyone who has it open."""

    __slots__ = ("_data",)

    def __init__(self, data: bytearray) -> None:
        self._data = data

    def write(self, data: Buffer, position: int) -> None:
        self._extend(position)
        self._data[position : position + len(data)] = data

    def pread(self, size: int, position: int) -> bytes:
        return bytes(memoryview(self._data)[position : position + size])

    def size(self) -> int:
        return len(self._data)

    def truncate(self, size: int) -> None:
        del self._data[size:]
        self._extend(size)

    def allocate(self, size: int) -> None:
        """Nothing: there is nothing that an fdatasync would wait for."""

    def _extend(self, size: int) -> None:
        self._data.extend(bytes(max(0, size - len(self._data))))

    def sync(self) -> None:
        return None

    def close(self) -> None:
        return None


class MemoryLock:
    def __init__(self, locks: set[str], path: str) -> None:
        self._locks = locks
        self._path = path

    def release(self) -> None:
        self._locks.discard(self._path)


class MemoryStorage:
    """A file system in memory, for fixtures and for brokers whose data need not outlive them."""

    def __init__(self) -> None:
        self._files: dict[str, bytearray] = {}
        self._directories: set[str] = set()
        self._locks: set[str] = set()

    def open(self, path: str) -> MemoryFile:
        self._require_directory(path)
        return MemoryFile(self._files.setdefault(path, bytearray()))

    def read(self, path: str) -> bytes:
        return bytes(self._file(path))

    def write(self, path: str, data: Buffer) -> None:
        self._require_directory(path)
        self._files[path] = bytearray(data)

    def write_atomic(self, path: str, data: Buffer, *, durable: bool = True) -> None:
        self.write(path, data)

    def sync(self, path: str) -> None:
        return None

    def sync_directory(self, path: str) -> None:
        return None

    def exists(self, path: str) -> bool:
        return path in self._files or path in self._directories

    def size(self, path: str) -> int:
        return len(self._file(path))

    def modified_ns(self, path: str) -> int:
        return 0

    def listdir(self, path: str) -> list[str]:
        if path not in self._directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        prefix = path + "/"
        names = (name[len(prefix) :] for name in [*self._files, *self._directories] if name.startswith(prefix))
        return [name for name in names if "/" not in name]

    def list_directories(self, path: str) -> list[str]:
        return [name for name in self.listdir(path) if f"{path}/{name}" in self._directories]

    def makedirs(self, path: str) -> None:
        parts = path.split("/")
        self._directories.update("/".join(parts[: count + 1]) for count in range(len(parts)))

    def rename(self, source: str, target: str) -> None:
        self._require_directory(target)
        if source in self._files:
            self._files[target] = self._files.pop(source)
            return
        if source not in self._directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        inside = source + "/"
        for path in [path for path in self._files if path.startswith(inside)]:
            self._files[target + path[len(source) :]] = self._files.pop(path)
        for path in [path for path in self._directories if path == source or path.startswith(inside)]:
            self._directories.discard(path)
            self._directories.add(target + path[len(source) :])

    def remove(self, path: str) -> None:
        self._files.pop(path, None)

    def remove_tree(self, path: str) -> None:
        inside = path + "/"
        for name in [name for name in self._files if name.startswith(inside)]:
            del self._files[name]
        self._directories = {name for name in self._directories if name != path and not name.startswith(inside)}

    def lock(self, path: str) -> MemoryLock:
        if path in self._locks:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN), path)
        self.write(path, b"")
        self._locks.add(path)
        return MemoryLock(self._locks, path)

    def _file(self, path: str) -> bytearray:
        try:
            return self._files[path]
        except KeyError:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None

    def _require_directory(self, path: str) -> None:
        directory = path.rpartition("/")[0]
        if directory and directory not in self._directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
