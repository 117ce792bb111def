"""Holds the data of open files in memory, and moves the largest files to disk if a limit is exceeded.

The limit is common to all files of a task. Several threads may use spools with the same limit at the same time. One
lock protects all these spools, because a spool that grows may move another spool to disk. A thread never waits for the
network while it holds the lock.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterator
from typing import IO


class MemoryLimit:
    """Counts the bytes that spools hold in memory. If the total exceeds the limit, moves the largest spools to disk."""

    def __init__(self, limit: int) -> None:
        self.lock = threading.RLock()
        self._limit = limit
        self._spools: set[Spool] = set()
        self._used = 0

    def changed(self, spool: Spool, difference: int) -> None:
        """Record that the memory of a spool has grown by `difference` bytes.

        It has shrunk if `difference` is negative.
        """
        self._used += difference
        self._spools.add(spool)
        while self._used > self._limit:
            largest = max(self._spools, key=lambda each: each.in_memory)
            if not largest.in_memory:
                return
            largest.move_to_disk()

    def removed(self, spool: Spool) -> None:
        """Stop counting the bytes of a spool."""
        self._used -= spool.in_memory
        self._spools.discard(spool)

    @property
    def used(self) -> int:
        """The number of bytes that all spools hold in memory."""
        return self._used


class Spool:
    """A queue of bytes: data is appended at the end and, after its upload, removed from the beginning."""

    def __init__(self, limit: MemoryLimit) -> None:
        self._limit = limit
        self._chunks: list[bytes] = []
        self._file: IO[bytes] | None = None
        self._start = 0
        """The position in the file of the first byte that is still needed."""
        self.in_memory = 0
        self.size = 0

    def another(self) -> Spool:
        """Return an empty spool with the same memory limit."""
        return Spool(self._limit)

    def append(self, data: bytes) -> None:
        """Append data."""
        with self._limit.lock:
            if not data:
                return
            self._chunks.append(data)
            self.size += len(data)
            self.in_memory += len(data)
            self._limit.changed(self, len(data))

    def move_to_disk(self) -> None:
        """Write the data in memory to a temporary file, which has no name."""
        with self._limit.lock:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="headrace-s3-")  # noqa: SIM115 - open until `close`
            self._file.seek(0, 2)
            self._file.writelines(self._chunks)
            self._file.flush()  # `read` does not use the buffer of the file object
            self._chunks.clear()
            released, self.in_memory = self.in_memory, 0
            self._limit.changed(self, -released)

    def read(self, position: int, size: int) -> bytes:
        """Return the `size` bytes that begin at `position`, or fewer at the end of the data."""
        with self._limit.lock:
            parts: list[bytes | memoryview] = []
            if self._file is not None:
                found = os.pread(self._file.fileno(), size, self._start + position)
                on_disk = self.size - self.in_memory
                parts.append(found)
                size -= len(found)
                position = max(0, position - on_disk)
            for chunk in self._chunks:
                if size <= 0:
                    break
                if position >= len(chunk):
                    position -= len(chunk)
                    continue
                parts.append(memoryview(chunk)[position : position + size])
                size -= len(parts[-1])
                position = 0
            return bytes(parts[0]) if len(parts) == 1 else b"".join(parts)

    def remove(self, size: int) -> None:
        """Remove the first `size` bytes."""
        with self._limit.lock:
            self.size -= size
            if self._file is not None:
                on_disk = self._file.seek(0, 2) - self._start
                taken = min(on_disk, size)
                self._start += taken
                size -= taken
                if taken == on_disk:
                    self._file.seek(0)
                    self._file.truncate()
                    self._start = 0
            before = self.in_memory
            removed = 0
            while size:
                first = self._chunks[removed]
                taken = min(len(first), size)
                if taken == len(first):
                    removed += 1
                else:
                    self._chunks[removed] = first[taken:]
                size -= taken
                self.in_memory -= taken
            del self._chunks[:removed]
            self._limit.changed(self, self.in_memory - before)

    def parts(self, size: int) -> Iterator[bytes]:
        """Yield and remove all data in parts of at most `size` bytes."""
        while self.size:
            data = self.read(0, size)
            yield data
            self.remove(len(data))

    def close(self) -> None:
        """Discard the data."""
        with self._limit.lock:
            self._limit.removed(self)
            self._chunks.clear()
            if self._file is not None:
                self._file.close()
                self._file = None
            self.in_memory = self.size = 0


class SpoolReader:
    """The first `size` bytes of a spool as a file that can be read and rewound, so that an upload needs no copy.

    The spool may grow and move to disk while it is read. Only the owner of the reader may remove bytes.
    """

    def __init__(self, spool: Spool, size: int) -> None:
        self._spool = spool
        self._size = size
        self._position = 0

    def __len__(self) -> int:
        return self._size

    def read(self, size: int = -1) -> bytes:
        """Return up to `size` bytes, or all remaining bytes if `size` is negative."""
        remaining = self._size - self._position
        data = self._spool.read(self._position, remaining if size < 0 else min(size, remaining))
        self._position += len(data)
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set the position of the next `read`, and return it."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def tell(self) -> int:
        """Return the position of the next `read`."""
        return self._position
