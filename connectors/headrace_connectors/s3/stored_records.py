"""Which records of a topic partition are already stored in objects that existed before their upload.

With enable.conditional.writes, the sink does not overwrite an object that exists. It counts the records of the object,
reads the partition again, and writes only the records that the object does not contain.

This is possible because an object contains consecutive records of its directory, and its name contains the offset of
the first one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(slots=True)
class _StoredObject:
    first_offset: int
    count: int
    uncounted: int
    """The number of records in the object whose offsets are not known yet."""
    last_counted: int = -1
    """The offset of the last record in the object whose offset is known."""

    def contains(self, offset: int) -> bool:
        """Whether the object contains this record of its directory.

        The first calls must pass the directory's offsets from `first_offset` on in ascending order, without a gap.
        """
        if self.first_offset <= offset <= self.last_counted:
            return True
        if offset < self.first_offset or not self.uncounted:
            return False
        self.uncounted -= 1
        self.last_counted = offset
        return True


class StoredRecords:
    """The records of one topic partition that existing objects contain, by directory."""

    def __init__(self) -> None:
        self._objects: dict[str, dict[int, _StoredObject]] = {}

    def add(self, directory: str, first_offset: int, count: int) -> None:
        """Add an object: it contains at least the first `count` records of the directory from `first_offset` on."""
        objects = self._objects.setdefault(directory, {})
        if first_offset not in objects or objects[first_offset].count < count:
            objects[first_offset] = _StoredObject(first_offset, count, count)

    def missing(self, directory: str, offsets: Sequence[int], start: int, end: int) -> Sequence[tuple[int, int]]:
        """Return the ranges of indexes from `start` up to `end` whose records no object contains.

        `offsets` are the offsets of records of the directory. A range (first, last) does not include `last`.
        """
        objects = self._objects.get(directory)
        if objects is None:
            return ((start, end),)
        ranges: list[tuple[int, int]] = []
        for index in range(start, end):
            is_contained = [each.contains(offsets[index]) for each in objects.values()]  # each must count its records
            if any(is_contained):
                continue
            if ranges and ranges[-1][1] == index:
                ranges[-1] = (ranges[-1][0], index + 1)
            else:
                ranges.append((index, index + 1))
        return ranges
