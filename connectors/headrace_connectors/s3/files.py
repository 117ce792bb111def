"""The open and completed files of one topic partition: which records share a file, and when files are completed.

The decisions depend only on records and the given time, so the same records always become the same objects, unless the
configuration uses the wall clock.
"""

from __future__ import annotations

import datetime as dt
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.api.errors import RecordErrors
from headrace.data.schema import Schema
from headrace_connectors.s3.schema_compatibility import ValueProjector
from headrace_connectors.s3.sink_config import S3SinkConfig
from headrace_connectors.s3.stored_records import ObjectRange, StoredRecords, checksum


class Encoded:
    """Encoded records of one topic partition, ready to be written to files."""

    __slots__ = ("is_tombstone", "offsets", "projector", "schema", "schemas", "sides")

    def __init__(
        self,
        schema: Schema | None,
        offsets: Sequence[int],
        is_tombstone: bool,
        sides: Sequence[tuple[Schema | None, Sequence[Any]]],
        projector: ValueProjector | None = None,
        schemas: Sequence[Schema | None] = (),
    ) -> None:
        """Create the records. `schema` is the schema of the values.

        `sides` has one pair (schema, encoded items) for each of the files with values, keys and headers. If the schema
        is not None, all records of the file must have this schema. There is one encoded item per record.

        `projector` projects the values to the schema of an open file. None: the values are never projected.
        """
        self.schema = schema
        self.offsets = offsets
        self.is_tombstone = is_tombstone
        self.sides = sides
        self.projector = projector
        self.schemas = schemas or [schema, *(each for each, _ in sides)]
        """The schema of the records' values, followed by the schemas in `sides`.

        If any of these schemas changes, new files are started.
        """

    def __len__(self) -> int:
        return len(self.offsets)

    def part(self, start: int, end: int) -> Encoded:
        """Return the records from index `start` up to, but not including, index `end`."""
        if start == 0 and end == len(self):
            return self
        sides = [(schema, items[start:end]) for schema, items in self.sides]
        return Encoded(self.schema, self.offsets[start:end], self.is_tombstone, sides, schemas=self.schemas)

    def fits(self, schemas: Sequence[Schema | None]) -> bool:
        """Whether files with these schemas accept the records as they are, or after a projection of the values."""
        if schemas is self.schemas or schemas == self.schemas:
            return True
        file_schema = schemas[0]
        if self.projector is None or file_schema is None or schemas[2:] != self.schemas[2:]:
            return False
        return self.projector.is_compatible(file_schema)

    def part_for(self, schemas: Sequence[Schema | None], start: int, end: int) -> Encoded:
        """Return a part as `part` does, with values projected to `schemas[0]`. `fits(schemas)` must be true.

        Raises RecordErrors with the errors of rejected records. The indexes are relative to `start`.
        """
        part = self.part(start, end)
        file_schema = schemas[0]
        if schemas is self.schemas or schemas == self.schemas or self.projector is None or file_schema is None:
            return part
        values = self.projector.project(file_schema, start, end)
        return Encoded(file_schema, part.offsets, part.is_tombstone, [values, *part.sides[1:]])


class Files(Protocol):
    """The files for the records of one directory: the values and, if configured, the keys and headers."""

    def append(self, records: Encoded) -> None: ...
    def discard(self) -> None: ...


@dataclass(slots=True)
class OpenFiles:
    """The files of one directory that are being written."""

    directory: str
    first_offset: int
    schemas: Sequence[Schema | None]
    files: Files
    last_offset: int = 0
    records: int = 0
    first_crc: int | None = None
    """The checksum of the first record, if the sink keeps existing objects."""
    last_item: Sequence[Any] | None = None
    """The last encoded record, in a sequence of length 1, if the sink keeps existing objects."""

    def range_of(self, key: str) -> ObjectRange:
        """Return the range of the object with this key, which contains the records."""
        last_crc = None if self.last_item is None else checksum(self.last_item)
        return ObjectRange(key, self.first_offset, self.last_offset, self.first_crc, last_crc)


@dataclass(slots=True)
class Completed:
    """Files that receive no more records and are uploaded together."""

    files: list[OpenFiles]


@dataclass(slots=True)
class PartitionFiles:
    """The files of one topic partition."""

    config: S3SinkConfig
    create: Callable[[str, int, bool], Files]
    """Creates files. Its arguments are the directory, the first offset, and whether the records are tombstones."""
    skips_rejected: bool = True
    """Whether records after a rejected record are written."""
    open: dict[str, OpenFiles] = field(default_factory=dict)
    completed: deque[Completed] = field(default_factory=deque)
    stored: StoredRecords = field(default_factory=StoredRecords)
    """The records that existing objects contain. They are not written again."""
    _read_again_from: int | None = None
    """After a call of `read_again`: the offset that it returned, until the first records arrive again."""
    _next_offset: int | None = None
    """The offset after the last record, or None if the task reads the partition from a new offset."""
    _records: int = 0
    _first_timestamp: int | None = None
    _directory: str | None = None
    _next_rotation_ms: int | None = None
    _keeps_existing: bool = field(init=False)

    def __post_init__(self) -> None:
        self._keeps_existing = self.config.keeps_existing_objects

    def add(
        self, records: Encoded, directories: str | Sequence[str], timestamps: Sequence[int] | None, now_ms: int
    ) -> dict[int, Exception]:
        """Write records to the files of their directories, and complete files when they are due.

        `directories` has one directory per record, or is the directory of all records. `timestamps` has one timestamp
        per record, or is None if they are not needed. Return the errors of records that the files reject, by index.
        """
        self._read_again_from = None
        self.rotate_by_schedule(now_ms)
        if self._next_offset is not None and records.offsets[0] < self._next_offset:
            self._restart()
        self._next_offset = records.offsets[-1] + 1
        errors: dict[int, Exception] = {}
        for directory, start, end in self._slices(records, directories, timestamps):
            for first, last in self.stored.missing(directory, records.offsets, records.sides[0][1], start, end):
                errors |= self._append(directory, records, first, last, timestamps)
                if errors and not self.skips_rejected:
                    return errors
            if self._records >= self.config.flush_size:
                self.complete()
        return errors

    def _restart(self) -> None:
        """Complete the open files, because offsets begin again: the topic was created again, or a put is repeated.

        A file whose offsets do not ascend would have the wrong name, and `first_offset` would be too large.
        """
        self.complete()
        self.stored = StoredRecords()

    def _append(
        self, directory: str, records: Encoded, start: int, end: int, timestamps: Sequence[int] | None
    ) -> dict[int, Exception]:
        """Append the records from index `start` up to, but not including, `end`. Return the errors of rejected ones."""
        found = self.open.get(directory)
        try:
            part = records.part(start, end) if found is None else records.part_for(found.schemas, start, end)
        except RecordErrors as error:
            errors = {start + index: cause for index, cause in error.errors.items()}
            for index in range(start, end if self.skips_rejected else min(errors)):
                if index not in errors:
                    errors |= self._append(directory, records, index, index + 1, timestamps)
            return errors
        if found is None:
            found = self._open(directory, part)
        found.files.append(part)
        if self._keeps_existing:
            items = records.sides[0][1]
            if not found.records:
                found.first_crc = checksum(items[start : start + 1])
            found.last_item = items[end - 1 : end]
        found.last_offset = part.offsets[-1]
        found.records += len(part)
        self._count(start, len(part), timestamps)
        return {}

    def _open(self, directory: str, records: Encoded) -> OpenFiles:
        first = records.offsets[0]
        files = self.create(directory, first, records.is_tombstone)
        found = self.open[directory] = OpenFiles(directory, first, records.schemas, files)
        return found

    def _count(self, start: int, count: int, timestamps: Sequence[int] | None) -> None:
        if self._records == 0 and timestamps is not None:
            self._first_timestamp = timestamps[start]
        self._records += count

    def _slices(
        self, records: Encoded, directories: str | Sequence[str], timestamps: Sequence[int] | None
    ) -> Iterator[tuple[str, int, int]]:
        """Split the records into ranges. Yield (directory, start, end) for each range.

        All records of one range belong to the same files. `start` is the index of the first record, and `end` is the
        index after the last record. If the open files are due or have another schema, this method completes them
        before it yields the next range.
        """
        start, count = 0, len(records)
        while start < count:
            directory = directories if isinstance(directories, str) else directories[start]
            found = self.open.get(directory)
            timestamp = None if timestamps is None else timestamps[start]
            if self._is_due(directory, timestamp) or (found is not None and not records.fits(found.schemas)):
                self.complete()
            self._directory = directory
            end = min(count, start + self.config.flush_size - self._records)
            if not isinstance(directories, str) or self._rotates_by_time:
                end = self._end_of_run(start, end, directory, directories, timestamps)
            yield directory, start, end
            start = end

    def _end_of_run(
        self, start: int, end: int, directory: str, directories: str | Sequence[str], timestamps: Sequence[int] | None
    ) -> int:
        first = self._first_timestamp if self._records else None if timestamps is None else timestamps[start]
        for index in range(start + 1, end):
            if not isinstance(directories, str) and directories[index] != directory:
                return index
            if timestamps is not None and first is not None and self._spans_interval(first, timestamps[index]):
                return index
        return end

    @property
    def _rotates_by_time(self) -> bool:
        return self.config.rotate_interval_ms > 0

    def _spans_interval(self, first: int, timestamp: int) -> bool:
        return self._rotates_by_time and timestamp - first >= self.config.rotate_interval_ms

    def _is_due(self, directory: str, timestamp: int | None) -> bool:
        """Whether the open files must be completed before a record with this directory and timestamp is written."""
        if not self._records or not self._rotates_by_time or timestamp is None or self._first_timestamp is None:
            return False
        if self._spans_interval(self._first_timestamp, timestamp):
            return True
        return self.config.rotate_on_partition_change and directory != self._directory

    def rotate_by_schedule(self, now_ms: int) -> None:
        """Complete the open files if the scheduled time has passed."""
        interval = self.config.rotate_schedule_interval_ms
        if interval <= 0:
            return
        if self._next_rotation_ms is not None and now_ms >= self._next_rotation_ms:
            self.complete()
            self._next_rotation_ms = None
        if self._next_rotation_ms is None:
            self._next_rotation_ms = _next_multiple_in_day(now_ms, interval, self.config.zone)

    def complete(self) -> None:
        """Complete all open files. They are uploaded later."""
        if self.open:
            files = list(self.open.values())
            self.completed.append(Completed(files))
            self.open.clear()
        self._records = 0
        self._first_timestamp = None

    def first_offset(self) -> int | None:
        """Return the offset of the first record that is not uploaded, or None if all records are uploaded.

        If the partition is read again inside an existing object, return an offset that is not after the object's first
        offset. Otherwise, a restarted task would not find the object, and would write some of its records again.
        """
        waiting = [each for completed in self.completed for each in completed.files]
        offsets = [each.first_offset for each in [*waiting, *self.open.values()]]
        around = None if self._next_offset is None else self.stored.first_offset_around(self._next_offset)
        if around is not None:
            offsets.append(around)
        return min(offsets, default=self._read_again_from)

    def read_again(self) -> int | None:
        """Discard all files. Return the offset from which to read again, or None if all records are uploaded."""
        self._read_again_from = self.first_offset()
        self._next_offset = None
        self.discard()
        return self._read_again_from

    def discard(self) -> None:
        """Discard all files that are not uploaded."""
        for files in [each for completed in self.completed for each in completed.files] + list(self.open.values()):
            files.files.discard()
        self.completed.clear()
        self.open.clear()
        self._records = 0
        self._first_timestamp = None


def _next_multiple_in_day(now_ms: int, interval_ms: int, zone: Any) -> int:
    """Return the next time whose distance from midnight in `zone` is a multiple of the interval."""
    now = dt.datetime.fromtimestamp(now_ms / 1000, zone)
    midnight_ms = int(now.replace(hour=0, minute=0, second=0, microsecond=0).timestamp() * 1000)
    return midnight_ms + ((now_ms - midnight_ms) // interval_ms + 1) * interval_ms
