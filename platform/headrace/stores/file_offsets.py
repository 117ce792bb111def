"""The standalone worker's offset store: one file in Kafka Connect's format, which Kafka Connect can also read.

The file on disk is always complete. A write creates a new file next to the old one, syncs it, and renames it over the
old file, so after kill -9 or a power failure the file contains either the old or the new offsets. The worker process
locks the file.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from headrace.stores import java_hashmap
from headrace.stores.offset_keys import Offset, Partition, canonical, decode_key, decode_value, encode_key, encode_value


class OffsetFileError(Exception):
    """The offsets file cannot be read or written. The message names the file and the reason."""


class FileOffsetStore:
    """The offsets of source connectors, cached in memory. Entries with an unknown format stay in the file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: BinaryIO | None = None
        self._entries: dict[bytes | None, bytes | None] = {}
        self._keys: dict[tuple[str, str], bytes] = {}  # (connector, canonical partition) -> the key bytes in use
        self._write_lock = asyncio.Lock()

    def lock(self) -> None:
        """Lock the file against other workers until `close` or the end of this process. Raises OffsetFileError."""
        beside = self.path.with_name(self.path.name + ".lock")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = open(beside, "ab")  # noqa: SIM115 - held until the process ends
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise OffsetFileError(
                f"offset.storage.file.filename: {self.path} is in use by another worker, which has locked "
                f"{beside}: stop that worker, or set another file"
            ) from None
        except OSError as error:
            raise OffsetFileError(f"offset.storage.file.filename: cannot write {beside}: {error.strerror}") from error

    def close(self) -> None:
        """Unlock the file for other workers."""
        if self._lock is not None:
            self._lock.close()

    def load(self) -> None:
        """Read the file. A missing or empty file contains no offsets. Raises OffsetFileError."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return
        except OSError as error:
            raise OffsetFileError(f"offset.storage.file.filename: cannot read {self.path}: {error.strerror}") from error
        if content:
            self._parse(content)

    async def read(self, connector: str, partitions: Sequence[Partition]) -> list[dict[str, Any] | None]:
        """Return the offsets of these source partitions, or None for each partition without an offset."""
        return [self._read_one(connector, partition) for partition in partitions]

    async def read_all(self, connector: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Return all (partition, offset) pairs of a connector."""
        found = []
        for (owner, _), key in self._keys.items():
            if owner == connector and (offset := decode_value(self._entries.get(key))) is not None:
                found.append((decode_key(key)[1], offset))
        return found

    async def write(self, connector: str, offsets: Sequence[tuple[Partition, Offset | None]]) -> None:
        """Set offsets (None removes an offset), and wait until the file is on disk. Raises OffsetFileError."""
        async with self._write_lock:
            for partition, offset in offsets:
                self._set(connector, partition, offset)
            await asyncio.to_thread(self._save, dict(self._entries))

    def _parse(self, content: bytes) -> None:
        try:
            self._entries = java_hashmap.load(content)
        except java_hashmap.JavaStreamError as error:
            raise OffsetFileError(
                f"offset.storage.file.filename: {self.path} is not a valid offsets file: {error}. "
                "Move or delete it to start without offsets."
            ) from error
        for key in self._entries:
            try:
                connector, partition = decode_key(key or b"null")
            except ValueError:
                continue  # an entry of another format stays in the file, but is never looked up
            self._keys[connector, canonical(partition)] = key or b""

    def _read_one(self, connector: str, partition: Partition) -> dict[str, Any] | None:
        key = self._keys.get((connector, canonical(partition)))
        return None if key is None else decode_value(self._entries.get(key))

    def _set(self, connector: str, partition: Partition, offset: Offset | None) -> None:
        name = (connector, canonical(partition))
        key = self._keys.get(name) or encode_key(connector, partition)
        if offset is None:
            self._entries.pop(key, None)
            self._keys.pop(name, None)
            return
        self._keys[name] = key
        self._entries[key] = encode_value(offset)

    def _save(self, entries: dict[bytes | None, bytes | None]) -> None:
        content = java_hashmap.dump(entries)
        beside = self.path.with_name(self.path.name + ".tmp")
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with open(beside, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, self.path)
            _sync_directory(self.path.parent)
        except OSError as error:
            raise OffsetFileError(f"cannot write the offsets file {self.path}: {error.strerror or error}") from error


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
