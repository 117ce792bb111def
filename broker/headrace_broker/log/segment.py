"""One segment of a partition's log: a file of record batches, its two indexes, and what is known of its timestamps.

A segment opens its file when it is first used and gives it back when the `OpenSegments` it belongs to holds too many,
so that a broker of many partitions needs few descriptors. Only the active segment is appended to.
"""

from __future__ import annotations

import errno
import logging
import struct
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress

from headrace_broker.log.index import OFFSET_ENTRY_SIZE, TIME_ENTRY, TIME_ENTRY_SIZE, OffsetIndex, TimeIndex
from headrace_broker.log.open_segments import OpenSegments
from headrace_broker.log.storage import Storage, StorageFile
from headrace_broker.records.batch import (
    HEADER_SIZE,
    MAGIC,
    NO_TIMESTAMP,
    OVERHEAD_SIZE,
    BatchHeader,
    Buffer,
    CorruptBatchError,
    read_header,
    verify_crc,
)

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
    """Return the name of a segment's file: the offset in 20 digits."""
    return f"{offset:020d}{suffix}"


def offset_of(name: str) -> int:
    """Return the offset in a segment file's name."""
    return int(name.partition(".")[0])


class LogSegment:
    """A segment; `size_bytes` is the truth about how much of its file counts."""

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
        """`name_suffix` is `.cleaned` or `.swap` for a segment that does not stand in its place yet."""
        self._storage = storage
        self._directory = directory
        self._name_suffix = name_suffix
        self._open_segments = open_segments
        self._file: StorageFile | None = None
        self._index: OffsetIndex | None = OffsetIndex() if is_new else None
        self._time_index: TimeIndex | None = TimeIndex() if is_new else None
        self._index_bytes = 0
        self._allocated_bytes: int | None = None  # how long the file is, when it is longer than its records
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

    def move(self, directory: str) -> None:
        """Take note that the partition's directory was renamed."""
        self._directory = directory

    @property
    def file(self) -> StorageFile:
        file = self._file
        if file is None:
            path = self.path(LOG_SUFFIX)
            if self.size_bytes and self._storage.size(path) < self.size_bytes:  # it would be made if it were missing
                raise OSError(errno.EIO, f"it is shorter than its {self.size_bytes} bytes of records", path)
            file = self._file = self._storage.open(path)
            self._open_segments.add(self)
        return file

    def _pread(self, size_bytes: int, position: int) -> bytes:
        """Read as far as there are records. Raises OSError when the file was cut by somebody else."""
        size_bytes = min(size_bytes, self.size_bytes - position)
        data = self.file.pread(size_bytes, position)
        if len(data) < size_bytes:
            reason = f"it ends at byte {position + len(data)} of its {self.size_bytes} bytes of records"
            raise OSError(errno.EIO, reason, self.path(LOG_SUFFIX))
        return data

    def release(self) -> None:
        """Close the file; forget indexes that are safe on disk."""
        self._open_segments.discard(self)
        if self._file is not None:
            self._file.close()
            self._file = None
        self.forget_indexes()

    def forget_indexes(self) -> None:
        """Give back the indexes' memory, where they are safe on disk and do not grow."""
        if not self._indexes_dirty and not self.is_active:
            self._index = None
            self._time_index = None

    @property
    def holds_indexes(self) -> bool:
        """Whether any of the indexes is in memory."""
        return self._index is not None or self._time_index is not None

    def note_indexes(self) -> None:
        """Have the indexes counted, now that the segment is not active any more."""
        entries = len(self._index or ()), len(self._time_index or ())
        self._open_segments.indexed(self, OFFSET_ENTRY_SIZE * entries[0] + TIME_ENTRY_SIZE * entries[1])

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
        """Read an index file; when it is missing or senseless, both are built anew from the records."""
        try:
            load()
        except (ValueError, FileNotFoundError) as error:
            _log.warning("Rebuilding the indexes of %s: %s", self.path(LOG_SUFFIX), error)
            self.rebuild_indexes()
        if not self.is_active:
            self.note_indexes()

    def _load_index(self) -> None:
        index = OffsetIndex.decode(self._storage.read(self.path(INDEX_SUFFIX)))
        if len(index) and index.positions[-1] >= self.size_bytes:
            raise ValueError("the last entry points behind the end of the log")
        self._index_bytes = max(OFFSET_ENTRY_SIZE * len(index), self._storage.size(self.path(TIME_INDEX_SUFFIX)))
        self._index = index

    def _load_time_index(self) -> None:
        self._time_index = TimeIndex.decode(self._storage.read(self.path(TIME_INDEX_SUFFIX)))

    def _larger_index_size(self) -> int:
        return max(OFFSET_ENTRY_SIZE * len(self.index), TIME_ENTRY_SIZE * len(self.time_index))

    def rebuild_indexes(self, index_interval_bytes: int = 4096) -> None:
        """Make both indexes and the largest timestamp anew from the batch headers."""
        self.reset_indexes()
        next_offset = self.base_offset
        for position, header in self.iter_headers(0):
            if not next_offset <= header.base_offset <= header.last_offset <= self.base_offset + RELATIVE_OFFSET_MAX:
                reason = f"offsets {header.base_offset} to {header.last_offset} where {next_offset} is next"
                raise CorruptBatchError(position, reason)
            self.note(header, position, index_interval_bytes)
            next_offset = header.next_offset
        self.finish()

    def reset_indexes(self) -> None:
        """Forget everything that `note` gathers, before the records are walked again."""
        self._index, self._time_index = OffsetIndex(), TimeIndex()
        self._index_bytes = 0
        self._indexes_dirty = True
        self._bytes_since_index_entry = 0
        self._max_timestamp = NO_TIMESTAMP
        self._max_timestamp_offset = self.base_offset
        self.first_timestamp = None

    def write_indexes(self) -> bool:
        """Write the index files if memory is ahead of them; whether it was."""
        if not self._indexes_dirty:
            return False
        self._storage.write(self.path(INDEX_SUFFIX), self.index.encode())
        self._storage.write(self.path(TIME_INDEX_SUFFIX), self.time_index.encode())
        self._indexes_dirty = False
        return True

    def finish(self) -> bool:
        """Close the time index with the largest timestamp of all and write both, as on a roll; whether that was due."""
        if self.max_timestamp > NO_TIMESTAMP:
            entries = len(self.time_index)
            self.time_index.maybe_append(self.max_timestamp, self._max_timestamp_offset - self.base_offset)
            self._indexes_dirty = self._indexes_dirty or len(self.time_index) > entries
        return self.write_indexes()

    def mark_deleted(self, *, with_snapshot: bool = True) -> list[str]:
        """Rename the files to their `.deleted` names and return these.

        The records go last: where a stop comes between, they are there without their indexes, never the other way.
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
        """Remove the files, the records last, as for `mark_deleted`.  Raises OSError."""
        self.release()
        for suffix in (*INDEX_SUFFIXES, LOG_SUFFIX):
            self._storage.remove(self.path(suffix))

    # Timestamps

    @property
    def max_timestamp(self) -> int:
        """The largest timestamp of the segment, -1 when it has none; read from the time index of a closed segment."""
        if self._max_timestamp is None:
            self._max_timestamp, relative_offset = self._last_time_entry()
            self._max_timestamp_offset = self.base_offset + relative_offset
        return self._max_timestamp

    def _last_time_entry(self) -> tuple[int, int]:
        """The end of the time index: of a closed segment by its file alone, retention asks every segment for it."""
        if self._time_index is None:
            last = self._read_last_time_entry()
            if last is not None:
                return last
        times = self.time_index
        return (times.timestamps[-1], times.offsets[-1]) if len(times) else (NO_TIMESTAMP, 0)

    def _read_last_time_entry(self) -> tuple[int, int] | None:
        """None when the file is missing, empty or of another shape than a closed segment's."""
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
        """Return how long the segment has waited to be rolled, by its records' clock where they have one."""
        first_timestamp = self.first_batch_timestamp
        return timestamp - first_timestamp if first_timestamp >= 0 else now_ms - self.started_ms

    @property
    def first_batch_timestamp(self) -> int:
        """The largest timestamp of the first batch, -1 when there is none; read from the file once."""
        if self.first_timestamp is None and self.size_bytes:
            self.first_timestamp = self.read_header(0).max_timestamp
        return NO_TIMESTAMP if self.first_timestamp is None else self.first_timestamp

    # Writing

    def append(self, data: Buffer, batches: Iterable[BatchHeader], index_interval_bytes: int) -> None:
        """Write whole batches at the end and index them. Raises OSError with the segment as it was before."""
        if self._index is None or self._time_index is None:  # `note` must not fail for want of a descriptor
            self._index_bytes = self._larger_index_size()
        position = self.size_bytes
        try:
            if self._allocated_bytes is not None and position + len(data) > self._allocated_bytes:
                self.preallocate(len(data))
            (self._file or self.file).write(data, position)
        except OSError:
            with suppress(OSError):  # the log goes offline for the first failure
                self.cut_torn_tail()
            raise
        self.size_bytes = position + len(data)
        for header in batches:
            self.note(header, position, index_interval_bytes)
            position += header.batch_length + OVERHEAD_SIZE

    def cut_torn_tail(self) -> None:
        """Cut away what a failed append may have left. Raises OSError."""
        self.cut(self.size_bytes)

    def preallocate(self, size_bytes: int = 0) -> None:
        """Make the file longer than its records, at once and whenever they get there. Raises OSError.

        Up to there an fdatasync need not wait for a change of the file's size.
        """
        allocated_bytes = self.size_bytes + max(size_bytes, _PREALLOCATED_BYTES)
        self.file.allocate(allocated_bytes)
        self._allocated_bytes = allocated_bytes

    def trim(self) -> bool:
        """Let the file end where its records do, for good; False when it does. Raises OSError."""
        if self._allocated_bytes is None:
            return False
        self.cut(self.size_bytes)
        self._allocated_bytes = None
        return True

    def cut(self, size_bytes: int) -> None:
        """Let the file end there; the indexes are the caller's affair. Raises OSError."""
        self.file.truncate(size_bytes)
        self.size_bytes = size_bytes
        if self._allocated_bytes is not None:
            self._allocated_bytes = size_bytes

    def is_unwritten_from(self, position: int) -> bool:
        """Whether there is nothing but zeros: the end of a preallocated file, or what a power failure left."""
        while position < self.size_bytes:
            chunk = self._pread(min(_CHUNK_SIZE, self.size_bytes - position), position)
            if any(chunk):
                return False
            position += len(chunk)
        return True

    def note(self, header: BatchHeader, position: int, index_interval_bytes: int) -> None:
        """Take in a batch that lies at `position`: timestamps, and an index entry when one is due."""
        timestamp = header.max_timestamp
        if self.first_timestamp is None and position == 0:
            self.first_timestamp = timestamp
        if timestamp > self.max_timestamp and header.records_count:  # an emptied batch has no record of that time
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
        """Return whether a batch fits: by bytes, by 32-bit relative offsets, and by what the indexes may hold."""
        return (
            self.size_bytes + size_bytes <= segment_bytes
            and last_offset - self.base_offset <= RELATIVE_OFFSET_MAX
            and self._index_bytes + TIME_ENTRY_SIZE <= segment_index_bytes
        )

    def truncate_to_position(self, size_bytes: int, next_offset: int) -> None:
        """Cut the file behind `size_bytes`; no record at or after `next_offset` is left."""
        self.cut(size_bytes)
        self._cursors.clear()
        self.index.truncate(size_bytes)
        times = self.time_index
        times.truncate(next_offset - self.base_offset)
        self._index_bytes = self._larger_index_size()
        self._indexes_dirty = True
        self._max_timestamp = times.timestamps[-1] if len(times) else NO_TIMESTAMP
        self._max_timestamp_offset = self.base_offset + (times.offsets[-1] if len(times) else 0)
        # An entry of the index is made together with one of the time index: what comes before the last is known.
        for _, header in self.iter_headers(self.index.floor_position(size_bytes)):
            if header.max_timestamp > self._max_timestamp and header.records_count:
                self._max_timestamp = header.max_timestamp
                self._max_timestamp_offset = header.last_offset
        if size_bytes == 0:
            self.first_timestamp = None

    def flush(self) -> None:
        """Return once records and indexes would survive a power failure."""
        self.file.sync()
        self.write_indexes()
        self._storage.sync(self.path(INDEX_SUFFIX))
        self._storage.sync(self.path(TIME_INDEX_SUFFIX))

    # Reading

    def locate(self, offset: int) -> int:
        """Return the position of the batch that holds `offset`, or of the next one; the size when there is none."""
        known = self._cursors.get(offset)
        if known is not None:
            return known
        position = self.index.lookup(offset - self.base_offset)
        size_bytes = self.size_bytes
        chunk, chunk_start = self._pread(min(_SCAN_SIZE, size_bytes - position), position), position
        if position and not self._may_begin_here(chunk, offset):
            _log.warning("Rebuilding the indexes of %s: there is no batch at byte %d", self.path(LOG_SUFFIX), position)
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
                raise CorruptBatchError(position, f"length {length} is smaller than a batch header")
            position += length + OVERHEAD_SIZE
        return size_bytes

    def _may_begin_here(self, chunk: bytes, offset: int) -> bool:
        """Return whether `chunk` looks like a batch from which a search for `offset` may begin."""
        if len(chunk) < HEADER_SIZE or chunk[_MAGIC_OFFSET] != MAGIC:
            return False
        return self.base_offset <= int.from_bytes(chunk[:8], "big", signed=True) <= offset

    def read(self, position: int, max_bytes: int, end: int, min_one_batch: bool) -> bytes:
        """Return records from the batch at `position` on: whole batches as far as the index knows their borders.

        The last batch may be cut where the index has no entry near. A first batch larger than `max_bytes` is returned
        whole if `min_one_batch`, else nothing is.
        """
        available = end - position
        if max_bytes >= available:
            return self._pread(available, position)
        border = self.index.floor_position(position + max_bytes)
        size = border - position if border > position else max_bytes
        data = self._pread(max(size, OVERHEAD_SIZE), position)
        first_size = int.from_bytes(data[8:12], "big") + OVERHEAD_SIZE
        if first_size <= size:
            return data
        return self._pread(first_size, position) if min_one_batch else b""

    def remember(self, offset: int, position: int) -> None:
        """Keep where a reader will go on, so that its next read needs no search."""
        cursors = self._cursors
        if len(cursors) >= _CURSORS_MAX:
            cursors.pop(next(iter(cursors)))
        cursors[offset] = position

    def read_header(self, position: int) -> BatchHeader:
        return read_header(self._pread(HEADER_SIZE, position))

    def read_whole_batch(self, position: int, header: BatchHeader) -> bytes:
        return self._pread(header.size_bytes, position)

    def iter_checked_batches(self, position: int) -> Iterator[tuple[int, BatchHeader, memoryview]]:
        """Yield (position, header, whole batch) from `position` on, checksums compared. Raises CorruptBatchError."""
        chunk, chunk_start = memoryview(b""), 0
        for at, header in self.iter_headers(position):
            size = header.size_bytes
            if at + size > chunk_start + len(chunk):
                wanted = min(max(size, _CHUNK_SIZE), self.size_bytes - at)
                chunk, chunk_start = memoryview(self.file.pread(wanted, at)), at
            start = at - chunk_start
            if len(chunk) - start < size:
                raise CorruptBatchError(at, "the file ends inside it")
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
                raise CorruptBatchError(position, f"{size_bytes - position} bytes left of a {HEADER_SIZE}-byte header")
            header = read_header(chunk, position - chunk_start)
            problem = _implausible(header, position, size_bytes)
            if problem:
                raise CorruptBatchError(position, problem)
            yield position, header
            position += header.size_bytes


def _implausible(header: BatchHeader, position: int, size_bytes: int) -> str | None:
    if header.size_bytes < HEADER_SIZE:
        return f"length {header.batch_length} is smaller than a batch header"
    if header.magic != MAGIC:
        return f"magic {header.magic} is not {MAGIC}"
    if position + header.size_bytes > size_bytes:
        return f"{header.size_bytes} bytes long where {size_bytes - position} are left"
    return None
