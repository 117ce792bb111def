"""Tracks the records of a topic partition that existing objects contain.

With enable.conditional.writes, the sink does not overwrite an object that exists. It counts the records of the object,
reads the partition again, and writes only the records that the object does not contain.

This is possible because an object contains consecutive records of its directory, and its name contains the offset of
the first one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.api.errors import ConnectError
from headrace_connectors.s3.existing_objects import ExistingRecords


@dataclass(slots=True)
class _StoredObject:
    first_offset: int
    records: ExistingRecords
    counted: int = 0
    """The number of records in the object whose offsets are known."""
    last_counted: int = -1
    """The offset of the last record in the object whose offset is known."""

    def count(self, offset: int, record: Sequence[Any]) -> bool:
        """Return whether the object contains the record with this offset, and count the record if so.

        Until all records are counted, the caller must pass every offset of the directory from `first_offset` on, in
        ascending order. `record` is the encoded record, in a sequence of length 1. Raises ConnectError if the object
        contains another record at this position.
        """
        if self.first_offset <= offset <= self.last_counted:
            return True
        if offset < self.first_offset or self.counted == self.records.count:
            return False
        if not self.records.matches(self.counted, record):
            raise ConnectError(
                f"The object {self.records.key} exists, but its record number {self.counted + 1} differs from the "
                f"record with offset {offset}, so it may belong to a deleted topic of the same name. Move the objects "
                "of this topic, set another topics.dir, or set enable.conditional.writes=false to overwrite the objects"
            )
        self.counted += 1
        self.last_counted = offset
        return True


class StoredRecords:
    """The records of one topic partition that existing objects contain, by directory."""

    def __init__(self) -> None:
        self._objects: dict[str, dict[int, _StoredObject]] = {}

    def add(self, directory: str, first_offset: int, records: ExistingRecords) -> None:
        """Add an object: it contains the first records of the directory from `first_offset` on."""
        objects = self._objects.setdefault(directory, {})
        if first_offset not in objects or objects[first_offset].records.count < records.count:
            objects[first_offset] = _StoredObject(first_offset, records)

    def missing(
        self, directory: str, offsets: Sequence[int], items: Sequence[Any], start: int, end: int
    ) -> Sequence[tuple[int, int]]:
        """Return the ranges of indexes from `start` up to `end` whose records no object contains.

        `offsets` are the offsets of records of the directory, and `items` are the encoded records. A range
        (first, last) does not include `last`. Raises ConnectError if an object contains other records.
        """
        objects = self._objects.get(directory)
        if objects is None:
            return ((start, end),)
        ranges: list[tuple[int, int]] = []
        for index in range(start, end):
            record = items[index : index + 1]
            is_contained = [each.count(offsets[index], record) for each in objects.values()]  # each counts its records
            if any(is_contained):
                continue
            if ranges and ranges[-1][1] == index:
                ranges[-1] = (ranges[-1][0], index + 1)
            else:
                ranges.append((index, index + 1))
        return ranges
