"""The file system interface of all modules in this package.

`DiskStorage` accesses the file system. `MemoryStorage` keeps files in memory with the same semantics: an open file
remains usable after it is renamed or removed. Paths are strings with "/" separators. Every failure is an `OSError`; the
caller decides how to handle it.
"""

from __future__ import annotations

import errno
import fcntl
import os
from contextlib import suppress
from typing import Protocol

Buffer = bytes | bytearray | memoryview


def is_out_of_file_descriptors(error: OSError) -> bool:
    """Return whether `error` means that no file descriptor is free.

    In this case, the failed operation changed no file, and a retry may succeed.
    """
    return error.errno in (errno.EMFILE, errno.ENFILE)


def is_disk_full_error(error: OSError) -> bool:
    """Return whether `error` means that the disk is full or a disk quota is used up. A retry may succeed later."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


class StorageFile(Protocol):
    """An open file that is read and written at any position."""

    def write(self, data: Buffer, position: int) -> None:
        """Write all of `data` at `position`. After an OSError, any part of `data` may have been written."""

    def pread(self, size: int, position: int) -> bytes:
        """Return `size` bytes from `position` on, or fewer at the end of the file."""

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def allocate(self, size: int) -> None:
        """Extend the file with zeros to `size`, so that writes up to `size` do not change the file's size."""

    def sync(self) -> None:
        """Write the contents to the disk (fdatasync), so that a power failure does not lose them."""

    def close(self) -> None: ...


class Storage(Protocol):
    """The file system operations that the log uses."""

    def open(self, path: str) -> StorageFile:
        """Open a file for reading and writing. A missing file is created."""

    def read(self, path: str) -> bytes:
        """Return the contents of a file. Raises FileNotFoundError."""

    def write(self, path: str, data: Buffer) -> None:
        """Replace a file's contents.

        The write is not atomic: after a crash, the file may contain parts of the old and the new contents.
        """

    def write_atomic(self, path: str, data: Buffer, *, durable: bool = True) -> None:
        """Replace a file by a rename, so that a crash leaves either the old or the new file.

        If `durable` is set, sync the new file before the rename.
        """

    def sync(self, path: str) -> None:
        """Sync a file to disk (fdatasync) if it exists. Thread-safe."""

    def sync_directory(self, path: str) -> None: ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def modified_ns(self, path: str) -> int:
        """Return the modification time of a file, or 0 if the storage has no modification times."""

    def listdir(self, path: str) -> list[str]: ...

    def list_directories(self, path: str) -> list[str]: ...

    def makedirs(self, path: str) -> None: ...

    def rename(self, source: str, target: str) -> None: ...

    def remove(self, path: str) -> None:
        """Remove a file, if it exists. Thread-safe."""

    def remove_tree(self, path: str) -> None:
        """Remove a directory with its contents, if it exists. Thread-safe."""

    def lock(self, path: str) -> StorageLock:
        """Acquire the exclusive lock on a file. Raises BlockingIOError if another process holds the lock."""


class StorageLock(Protocol):
    def release(self) -> None: ...


class DiskFile:
    """An open file of `DiskStorage`."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def write(self, data: Buffer, position: int) -> None:
        written = os.pwrite(self._fd, data, position)
        while written != len(data):  # a nearly full disk accepts some of the bytes, then returns ENOSPC
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
        # The file is sparse, as in Kafka: allocating the disk blocks in advance did not make fdatasync any faster.
        if size > os.fstat(self._fd).st_size:
            os.ftruncate(self._fd, size)

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        os.close(self._fd)


def _write_all(fd: int, data: Buffer) -> None:
    view = memoryview(data)
    while view:  # a nearly full disk accepts some of the bytes, then returns ENOSPC
        view = view[os.write(fd, view) :]


class DiskLock:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        os.close(self._fd)


class DiskStorage:
    """Implements the storage interface with the file system."""

    def open(self, path: str) -> DiskFile:
        return DiskFile(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))

    def read(self, path: str) -> bytes:
        with open(path, "rb") as file:
            return file.read()

    def write(self, path: str, data: Buffer) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _write_all(fd, data)
            # Truncate afterwards: ext4 flushes a file on close if it was truncated to 0 and then written.
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
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the JVM's FileChannel acquires the same kind of lock
        except OSError:
            os.close(fd)
            raise
        return DiskLock(fd)


class MemoryFile:
    """An open file of MemoryStorage. If a file is opened several times, the MemoryFile objects share `data`."""

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
        """Do nothing: preallocation only speeds up fdatasync."""

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
    """A file system in memory, for tests and for brokers whose data need not survive a restart."""

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
