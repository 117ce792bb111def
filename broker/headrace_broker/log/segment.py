"""One segment of a partition's log: a file of record batches, its offset and time indexes, and its timestamps.

A segment opens its file on first use. If more files are open than `OpenSegments` allows, `OpenSegments` closes the
files that were opened first. A broker with many partitions thus needs few file descriptors. Records are appended only
to the active segment.
"""

from __future__ import annotations

import errno
import logging
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from headrace_broker.log.index import OFFSET_ENTRY_SIZE, TIME_ENTRY, TIME_ENTRY_SIZE, OffsetIndex, TimeIndex
from headrace_broker.log.open_segments import OpenSegments
from headrace_broker.records.batch import (
    HEADER_SIZE,
    MAGIC,
    NO_TIMESTAMP,
    OVERHEAD_SIZE,
    BatchHeader,
    Buffer,
    CorruptBatchError,
    IncompleteBatchError,
    read_header,
    verify_crc,
)

if TYPE_CHECKING:
    from headrace_broker.log.storage import Storage, StorageFile

_log = logging.getLogger(__name__)

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TRANSACTION_INDEX_SUFFIX = ".txnindex"
SNAPSHOT_SUFFIX = ".snapshot"
DELETED_SUFFIX = ".deleted"
CLEANED_SUFFIX = ".cleaned"
SWAP_SUFFIX = ".swap"
INDEX_SUFFIXES = (INDEX_SUFFIX, TIME_INDEX_SUFFIX, TRANSACTION_INDEX_SUFFIX)
RELATIVE_OFFSET_MAX = 2**31 - 1
_SCAN_SIZE = 8192
_CHUNK_SIZE = 1024 * 1024
_PREALLOCATED_BYTES = 4 * 1024 * 1024
_MAGIC_OFFSET = 16
_LOCATOR = struct.Struct(">qi11xi")  # base offset, batch length, last offset delta
_CURSORS_MAX = 8


def file_name(offset: int, suffix: str) -> str:
    """Return the name of a segment's file: `offset` in 20 digits, followed by `suffix`."""
    return f"{offset:020d}{suffix}"


def offset_of(name: str) -> int:
    """Return the offset that the name of a segment's file contains."""
    return int(name.partition(".")[0])


class LogSegment:
    """A log segment. Only the first `size_bytes` of the `.log` file are records; the file may be longer."""

    __slots__ = (
        "_allocated_bytes",
        "_bytes_since_index_entry",
        "_cursors",
        "_directory",
        "_file",
        "_index",
        "_index_bytes",
        "_indexes_dirty",
        "_max_timestamp",
        "_max_timestamp_offset",
        "_name_suffix",
        "_open_segments",
        "_storage",
        "_time_index",
        "base_offset",
        "first_timestamp",
        "is_active",
        "roll_jitter_ms",
        "size_bytes",
        "started_ms",
    )

    def __init__(
        self,
        storage: Storage,
        directory: str,
        base_offset: int,
        *,
        open_segments: OpenSegments,
        size_bytes: int,
        started_ms: int,
        is_new: bool = False,
        roll_jitter_ms: int = 0,
        name_suffix: str = "",
    ) -> None:
        """`name_suffix` is `.cleaned` or `.swap` for a compacted segment, until its files have their final names."""
        self._storage = storage
        self._directory = directory
        self._name_suffix = name_suffix
        self._open_segments = open_segments
        self._file: StorageFile | None = None
        self._index: OffsetIndex | None = OffsetIndex() if is_new else None
        self._time_index: TimeIndex | None = TimeIndex() if is_new else None
        self._index_bytes = 0
        self._allocated_bytes: int | None = None  # length of a preallocated file in bytes
        self._indexes_dirty = is_new
        self._bytes_since_index_entry = 0
        self._cursors: dict[int, int] = {}
        self._max_timestamp: int | None = NO_TIMESTAMP if is_new else None
        self._max_timestamp_offset = base_offset
        self.base_offset = base_offset
        self.size_bytes = size_bytes
        self.started_ms = started_ms
        self.roll_jitter_ms = roll_jitter_ms
        self.first_timestamp: int | None = None
        self.is_active = is_new

    # Files

    def path(self, suffix: str) -> str:
        return f"{self._directory}/{file_name(self.base_offset, suffix)}{self._name_suffix}"

    def update_directory(self, directory: str) -> None:
        """Set the new path of the partition's directory after it was renamed."""
        self._directory = directory

    @property
    def file(self) -> StorageFile:
        file = self._file
        if file is None:
            path = self.path(LOG_SUFFIX)
            # `open` creates a missing file; `size` raises FileNotFoundError.
            if self.size_bytes and self._storage.size(path) < self.size_bytes:
                raise OSError(
                    errno.EIO,
                    f"the file is shorter than {self.size_bytes} bytes, the expected size of the segment",
                    path,
                )
            file = self._file = self._storage.open(path)
            self._open_segments.add(self)
        return file

    def _pread(self, size_bytes: int, position: int) -> bytes:
        """Read `size_bytes` from `position` on, but not beyond the end of the records.

        Raises OSError if another program has truncated the file.
        """
        size_bytes = min(size_bytes, self.size_bytes - position)
        data = self.file.pread(size_bytes, position)
        if len(data) < size_bytes:
            reason = f"the file ends at byte {position + len(data)}, but must have {self.size_bytes} bytes of records"
            raise OSError(errno.EIO, reason, self.path(LOG_SUFFIX))
        return data

    def release(self) -> None:
        """Close the `.log` file. Remove the indexes from memory unless they have changes that are not written yet."""
        self._open_segments.discard(self)
        if self._file is not None:
            self._file.close()
            self._file = None
        self.forget_indexes()

    def forget_indexes(self) -> None:
        """Remove an inactive segment's indexes from memory unless they have changes that are not written yet."""
        if not self._indexes_dirty and not self.is_active:
            self._index = None
            self._time_index = None

    @property
    def holds_indexes(self) -> bool:
        """Whether any of the indexes is in memory."""
        return self._index is not None or self._time_index is not None

    def account_indexes(self) -> None:
        """Add the size of this inactive segment's indexes to the total that `OpenSegments` limits."""
        entries = len(self._index or ()), len(self._time_index or ())
        self._open_segments.account_indexes(self, OFFSET_ENTRY_SIZE * entries[0] + TIME_ENTRY_SIZE * entries[1])

    @property
    def index(self) -> OffsetIndex:
        if self._index is None:
            self._load(self._load_index)
        assert self._index is not None
        return self._index

    @property
    def time_index(self) -> TimeIndex:
        if self._time_index is None:
            self._load(self._load_time_index)
        assert self._time_index is not None
        return self._time_index

    def _load(self, load: Callable[[], None]) -> None:
        """Read an index file with `load`. If the file is missing or invalid, rebuild both indexes from the records."""
        try:
            load()
        except (ValueError, FileNotFoundError) as error:
            _log.warning("Rebuilding the indexes of segment %s: %s", self.path(LOG_SUFFIX), error)
            self.rebuild_indexes()
        if not self.is_active:
            self.account_indexes()

    def _load_index(self) -> None:
        index = OffsetIndex.decode(self._storage.read(self.path(INDEX_SUFFIX)))
        if len(index) and index.positions[-1] >= self.size_bytes:
            raise ValueError("the last index entry points beyond the end of the segment")
        self._index_bytes = max(OFFSET_ENTRY_SIZE * len(index), self._storage.size(self.path(TIME_INDEX_SUFFIX)))
        self._index = index

    def _load_time_index(self) -> None:
        self._time_index = TimeIndex.decode(self._storage.read(self.path(TIME_INDEX_SUFFIX)))

    def _larger_index_size(self) -> int:
        return max(OFFSET_ENTRY_SIZE * len(self.index), TIME_ENTRY_SIZE * len(self.time_index))

    def rebuild_indexes(self, index_interval_bytes: int = 4096) -> None:
        """Rebuild both indexes and the largest timestamp from the batch headers. Raises CorruptBatchError."""
        self.reset_indexes()
        next_offset = self.base_offset
        for position, header in self.iter_headers(0):
            if not next_offset <= header.base_offset <= header.last_offset <= self.base_offset + RELATIVE_OFFSET_MAX:
                reason = (
                    f"the batch has offsets {header.base_offset} to {header.last_offset}, but they must be at least "
                    f"{next_offset} and within the segment's range"
                )
                raise CorruptBatchError(position, reason)
            self.track_batch(header, position, index_interval_bytes)
            next_offset = header.next_offset
        self.finish()

    def reset_indexes(self) -> None:
        """Clear the indexes and timestamps before a rebuild. `track_batch` then updates them for each batch."""
        self._index, self._time_index = OffsetIndex(), TimeIndex()
        self._index_bytes = 0
        self._indexes_dirty = True
        self._bytes_since_index_entry = 0
        self._max_timestamp = NO_TIMESTAMP
        self._max_timestamp_offset = self.base_offset
        self.first_timestamp = None

    def write_indexes(self) -> bool:
        """Write the index files if the indexes changed in memory; return whether the files were written."""
        if not self._indexes_dirty:
            return False
        self._storage.write(self.path(INDEX_SUFFIX), self.index.encode())
        self._storage.write(self.path(TIME_INDEX_SUFFIX), self.time_index.encode())
        self._indexes_dirty = False
        return True

    def finish(self) -> bool:
        """Add the segment's largest timestamp to the time index, and write the index files if the indexes have changed.

        Returns whether the index files were written.
        """
        if self.max_timestamp > NO_TIMESTAMP:
            entries = len(self.time_index)
            self.time_index.maybe_append(self.max_timestamp, self._max_timestamp_offset - self.base_offset)
            self._indexes_dirty = self._indexes_dirty or len(self.time_index) > entries
        return self.write_indexes()

    def mark_deleted(self, *, with_snapshot: bool = True) -> list[str]:
        """Rename the segment's files to `.deleted` names and return the new paths.

        If `with_snapshot` is set, the producer snapshot at the segment's base offset is renamed too. The `.log` file is
        renamed last: a crash between two renames may leave records without indexes, but never indexes without records.
        """
        self.release()
        deleted = []
        for suffix in (*INDEX_SUFFIXES, *((SNAPSHOT_SUFFIX,) if with_snapshot else ()), LOG_SUFFIX):
            path = self.path(suffix)
            if self._storage.exists(path):
                self._storage.rename(path, path + DELETED_SUFFIX)
                deleted.append(path + DELETED_SUFFIX)
        return deleted

    def remove(self) -> None:
        """Remove the segment's files, the `.log` file last. Raises OSError."""
        self.release()
        for suffix in (*INDEX_SUFFIXES, LOG_SUFFIX):
            self._storage.remove(self.path(suffix))

    # Timestamps

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp of the segment, or -1 if the segment is empty.

        After a restart, this timestamp is read from the time index.
        """
        if self._max_timestamp is None:
            self._max_timestamp, relative_offset = self._last_time_entry()
            self._max_timestamp_offset = self.base_offset + relative_offset
        return self._max_timestamp

    def _last_time_entry(self) -> tuple[int, int]:
        """Return the last entry of the time index as (timestamp, relative offset).

        If the index is not in memory, this method reads only the last entry from the file, because retention needs the
        last entry of every segment.
        """
        if self._time_index is None:
            last = self._read_last_time_entry()
            if last is not None:
                return last
        times = self.time_index
        return (times.timestamps[-1], times.offsets[-1]) if len(times) else (NO_TIMESTAMP, 0)

    def _read_last_time_entry(self) -> tuple[int, int] | None:
        """Return the last entry of the time index file, or None if the file is missing, empty or invalid."""
        path = self.path(TIME_INDEX_SUFFIX)
        size_bytes = self._storage.size(path) if self._storage.exists(path) else 0
        if not size_bytes or size_bytes % TIME_ENTRY_SIZE:
            return None
        file = self._storage.open(path)
        try:
            timestamp, relative_offset = TIME_ENTRY.unpack(file.pread(TIME_ENTRY_SIZE, size_bytes - TIME_ENTRY_SIZE))
        finally:
            file.close()
        return (timestamp, relative_offset) if timestamp > 0 and relative_offset >= 0 else None

    @property
    def max_timestamp_offset(self) -> int:
        """The last offset of the first batch that has the largest timestamp."""
        return self._max_timestamp_offset if self.max_timestamp > NO_TIMESTAMP else self.base_offset

    def age_ms(self, now_ms: int, timestamp: int) -> int:
        """Return the segment's age: the time from its first batch's timestamp to `timestamp`.

        If the first batch has no timestamp, the age is the time from the creation of the segment to `now_ms`.
        """
        first_timestamp = self.first_batch_timestamp
        return timestamp - first_timestamp if first_timestamp >= 0 else now_ms - self.started_ms

    @property
    def first_batch_timestamp(self) -> int:
        """The largest timestamp of the first batch, or -1 if the segment is empty.

        The timestamp is read from the file only once.
        """
        if self.first_timestamp is None and self.size_bytes:
            self.first_timestamp = self.read_header(0).max_timestamp
        return NO_TIMESTAMP if self.first_timestamp is None else self.first_timestamp

    # Writing

    def append(self, data: Buffer, batches: Iterable[BatchHeader], index_interval_bytes: int) -> None:
        """Append complete batches and index them. If the write raises OSError, the segment is unchanged."""
        # Load the indexes before the write. Otherwise `track_batch` could fail after the write if the process has no
        # free file descriptor for the index file.
        if self._index is None or self._time_index is None:
            self._index_bytes = self._larger_index_size()
        position = self.size_bytes
        try:
            if self._allocated_bytes is not None and position + len(data) > self._allocated_bytes:
                self.preallocate(len(data))
            (self._file or self.file).write(data, position)
        except OSError:
            with suppress(OSError):  # the caller takes the log offline after the failed write
                self.truncate_torn_tail()
            raise
        self.size_bytes = position + len(data)
        for header in batches:
            self.track_batch(header, position, index_interval_bytes)
            position += header.batch_length + OVERHEAD_SIZE

    def truncate_torn_tail(self) -> None:
        """Remove the bytes that a failed append may have written. Raises OSError."""
        self.truncate(self.size_bytes)

    def preallocate(self, size_bytes: int = 0) -> None:
        """Extend the file beyond its records. When the records reach the end of the file, `append` extends it again.

        Raises OSError. If a write is within the preallocated size, fdatasync does not have to update the file size.
        """
        allocated_bytes = self.size_bytes + max(size_bytes, _PREALLOCATED_BYTES)
        self.file.allocate(allocated_bytes)
        self._allocated_bytes = allocated_bytes

    def trim(self) -> bool:
        """Truncate a preallocated file to its records and stop preallocating. Raises OSError.

        Returns whether the file was preallocated.
        """
        if self._allocated_bytes is None:
            return False
        self.truncate(self.size_bytes)
        self._allocated_bytes = None
        return True

    def truncate(self, size_bytes: int) -> None:
        """Truncate the file. The caller updates the indexes. Raises OSError."""
        self.file.truncate(size_bytes)
        self.size_bytes = size_bytes
        if self._allocated_bytes is not None:
            self._allocated_bytes = size_bytes

    def is_unwritten_from(self, position: int) -> bool:
        """Return whether the file has only zeros from `position` on.

        Preallocation writes such zeros, and a power failure can leave them.
        """
        while position < self.size_bytes:
            chunk = self._pread(min(_CHUNK_SIZE, self.size_bytes - position), position)
            if any(chunk):
                return False
            position += len(chunk)
        return True

    def track_batch(self, header: BatchHeader, position: int, index_interval_bytes: int) -> None:
        """Update timestamps for the batch at `position`, and add index entries every `index_interval_bytes`."""
        timestamp = header.max_timestamp
        if self.first_timestamp is None and position == 0:
            self.first_timestamp = timestamp
        if timestamp > self.max_timestamp and header.records_count:  # ignore batches that compaction has emptied
            self._max_timestamp = timestamp
            self._max_timestamp_offset = header.base_offset + header.last_offset_delta
        if self._bytes_since_index_entry > index_interval_bytes:
            self.index.append(header.base_offset + header.last_offset_delta - self.base_offset, position)
            self.time_index.maybe_append(self.max_timestamp, self._max_timestamp_offset - self.base_offset)
            self._index_bytes = self._larger_index_size()
            self._indexes_dirty = True
            self._bytes_since_index_entry = 0
        self._bytes_since_index_entry += header.batch_length + OVERHEAD_SIZE

    def has_room(self, size_bytes: int, last_offset: int, segment_bytes: int, segment_index_bytes: int) -> bool:
        """Return whether a batch fits within segment.bytes, segment.index.bytes and the relative offset range."""
        return (
            self.size_bytes + size_bytes <= segment_bytes
            and last_offset - self.base_offset <= RELATIVE_OFFSET_MAX
            and self._index_bytes + TIME_ENTRY_SIZE <= segment_index_bytes
        )

    def truncate_to_position(self, size_bytes: int, next_offset: int) -> None:
        """Truncate the file to `size_bytes`, and its indexes to the records before `next_offset`. Raises OSError."""
        self.truncate(size_bytes)
        self._cursors.clear()
        self.index.truncate(size_bytes)
        times = self.time_index
        times.truncate(next_offset - self.base_offset)
        self._index_bytes = self._larger_index_size()
        self._indexes_dirty = True
        self._max_timestamp = times.timestamps[-1] if len(times) else NO_TIMESTAMP
        self._max_timestamp_offset = self.base_offset + (times.offsets[-1] if len(times) else 0)
        # Each call that adds an entry to the offset index also updates the time index. So the time index includes all
        # batches before the last entry of the offset index.
        for _, header in self.iter_headers(self.index.floor_position(size_bytes)):
            if header.max_timestamp > self._max_timestamp and header.records_count:
                self._max_timestamp = header.max_timestamp
                self._max_timestamp_offset = header.last_offset
        if size_bytes == 0:
            self.first_timestamp = None

    def flush(self) -> None:
        """Sync records and indexes to disk."""
        self.file.sync()
        self.write_indexes()
        self._storage.sync(self.path(INDEX_SUFFIX))
        self._storage.sync(self.path(TIME_INDEX_SUFFIX))

    # Reading

    def locate(self, offset: int) -> int:
        """Return the file position of the batch that contains `offset`.

        If no batch contains `offset`, return the position of the next batch. If there is no next batch, return
        `size_bytes`.
        """
        cached = self._cursors.get(offset)
        if cached is not None:
            return cached
        position = self.index.lookup(offset - self.base_offset)
        size_bytes = self.size_bytes
        chunk, chunk_start = self._pread(min(_SCAN_SIZE, size_bytes - position), position), position
        if position and not self._may_begin_here(chunk, offset):
            _log.warning(
                "Rebuilding the indexes of segment %s: an index entry points to byte %d, where no batch begins",
                self.path(LOG_SUFFIX),
                position,
            )
            self.rebuild_indexes()
            position = self.index.lookup(offset - self.base_offset)
            chunk, chunk_start = b"", position
        while position + HEADER_SIZE <= size_bytes:
            if position + HEADER_SIZE > chunk_start + len(chunk):
                chunk, chunk_start = self._pread(min(_SCAN_SIZE, size_bytes - position), position), position
            base_offset, length, last_offset_delta = _LOCATOR.unpack_from(chunk, position - chunk_start)
            if base_offset + last_offset_delta >= offset:
                return position
            if length < HEADER_SIZE - OVERHEAD_SIZE:
                raise CorruptBatchError(position, f"the batch length {length} is smaller than a batch header")
            position += length + OVERHEAD_SIZE
        return size_bytes

    def _may_begin_here(self, chunk: bytes, offset: int) -> bool:
        """Return whether `chunk` looks like the start of a batch whose base offset is at most `offset`."""
        if len(chunk) < HEADER_SIZE or chunk[_MAGIC_OFFSET] != MAGIC:
            return False
        return self.base_offset <= int.from_bytes(chunk[:8], "big", signed=True) <= offset

    def read(self, position: int, max_bytes: int, end: int, min_one_batch: bool) -> bytes:
        """Return about `max_bytes` of batches, starting with the batch at `position`.

        The result ends at position `end` if this is within `max_bytes`. Otherwise it ends at the last position within
        `max_bytes` that the offset index contains. If the index has no such position, the last batch of the result may
        be incomplete. If the first batch is larger than `max_bytes`, the result is this complete batch if
        `min_one_batch` is set, otherwise empty.
        """
        available = end - position
        if max_bytes >= available:
            return self._pread(available, position)
        boundary = self.index.floor_position(position + max_bytes)
        size = boundary - position if boundary > position else max_bytes
        data = self._pread(max(size, OVERHEAD_SIZE), position)
        first_size = int.from_bytes(data[8:12], "big") + OVERHEAD_SIZE
        if first_size <= size:
            return data
        return self._pread(first_size, position) if min_one_batch else b""

    def cache_position(self, offset: int, position: int) -> None:
        """Cache the file position of `offset`, so that the next read at `offset` needs no index lookup."""
        cursors = self._cursors
        if len(cursors) >= _CURSORS_MAX:
            cursors.pop(next(iter(cursors)))
        cursors[offset] = position

    def read_header(self, position: int) -> BatchHeader:
        return read_header(self._pread(HEADER_SIZE, position))

    def read_whole_batch(self, position: int, header: BatchHeader) -> bytes:
        return self._pread(header.size_bytes, position)

    def iter_checked_batches(self, position: int) -> Iterator[tuple[int, BatchHeader, memoryview]]:
        """Yield (position, header, batch) for each batch from `position` on, after checking its CRC.

        Raises CorruptBatchError if a CRC is wrong.
        """
        chunk, chunk_start = memoryview(b""), 0
        for at, header in self.iter_headers(position):
            size = header.size_bytes
            if at + size > chunk_start + len(chunk):
                wanted = min(max(size, _CHUNK_SIZE), self.size_bytes - at)
                chunk, chunk_start = memoryview(self.file.pread(wanted, at)), at
            start = at - chunk_start
            if len(chunk) - start < size:
                raise IncompleteBatchError(at, "the file ends inside the batch")
            batch = chunk[start : start + size]
            try:
                verify_crc(batch, 0, header)
            except CorruptBatchError as error:
                raise CorruptBatchError(at, error.reason) from None
            yield at, header, batch

    def iter_headers(self, position: int) -> Iterator[tuple[int, BatchHeader]]:
        """Yield (position, header) of each batch from `position` on. Raises CorruptBatchError."""
        size_bytes = self.size_bytes
        chunk, chunk_start = b"", position
        while position < size_bytes:
            if position + HEADER_SIZE > chunk_start + len(chunk):
                chunk, chunk_start = self._pread(min(_SCAN_SIZE, size_bytes - position), position), position
            if position + HEADER_SIZE > chunk_start + len(chunk):
                raise IncompleteBatchError(
                    position,
                    f"the file ends after {size_bytes - position} of the {HEADER_SIZE} bytes of the batch header",
                )
            header = read_header(chunk, position - chunk_start)
            problem = _find_header_problem(header)
            if problem:
                raise CorruptBatchError(position, problem)
            if position + header.size_bytes > size_bytes:
                raise IncompleteBatchError(
                    position,
                    f"the file ends after {size_bytes - position} of the {header.size_bytes} bytes of the batch",
                )
            yield position, header
            position += header.size_bytes


def _find_header_problem(header: BatchHeader) -> str | None:
    """Return an error message if the header of a batch is invalid, else None."""
    if header.size_bytes < HEADER_SIZE:
        return f"the batch length {header.batch_length} is smaller than a batch header"
    if header.magic != MAGIC:
        return f"magic {header.magic} is not {MAGIC}"
    return None
