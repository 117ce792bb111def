"""Tracks the records of a topic partition that existing objects already contain.

With enable.conditional.writes, the sink does not overwrite an object that exists. It reads the partition again, and
writes only the records that the object does not contain. An object contains all records of its directory from its first
offset, which is part of its key, to its last offset, which is part of its metadata.

The metadata also contains checksums of the first and the last record, because an object may belong to a deleted topic
of the same name. No offset inside an object is committed, so a restarted task also finds the object.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from zlib import crc32

from headrace.api.errors import ConnectError

_LAST_OFFSET, _FIRST_CRC, _LAST_CRC = "headrace-last-offset", "headrace-first-crc32", "headrace-last-crc32"


@dataclass(frozen=True, slots=True)
class ObjectRange:
    """The records of an object: its first and last offset, and the checksums of these two records, if known."""

    key: str
    first_offset: int
    last_offset: int
    first_crc: int | None = None
    last_crc: int | None = None

    def to_metadata(self) -> dict[str, str]:
        """Return the metadata for the object."""
        return {_LAST_OFFSET: str(self.last_offset), _FIRST_CRC: str(self.first_crc), _LAST_CRC: str(self.last_crc)}

    @classmethod
    def from_metadata(cls, key: str, first_offset: int, metadata: Mapping[str, str]) -> ObjectRange:
        """Return the range of an existing object. Without metadata, only its first record is known."""
        try:
            values = [int(metadata[name]) for name in (_LAST_OFFSET, _FIRST_CRC, _LAST_CRC)]
        except (KeyError, ValueError):
            return cls(key, first_offset, first_offset)
        return cls(key, first_offset, *values)

    def contains(self, offset: int, record: Sequence[Any]) -> bool:
        """Whether the object contains the record of its directory with this offset.

        `record` is the encoded record, in a sequence of length 1. Raises ConnectError if its checksum differs.
        """
        if not self.first_offset <= offset <= self.last_offset:
            return False
        expected = [self.first_crc] if offset == self.first_offset else []
        expected += [self.last_crc] if offset == self.last_offset else []
        if any(crc is not None and crc != checksum(record) for crc in expected):
            raise ConnectError(
                f"The object {self.key} exists, but its record with offset {offset} differs from the record in the "
                "topic, so the object may belong to a deleted topic of the same name. Move the objects of this topic, "
                "set another topics.dir, or set enable.conditional.writes=false to overwrite the objects"
            )
        return True


def checksum(record: Sequence[Any]) -> int:
    """Return the CRC-32 of an encoded record, which is a sequence of length 1: bytes, or rows of Arrow."""
    if isinstance(record, list):
        return crc32(record[0])
    (row,) = record.batch.to_pylist()  # type: ignore[attr-defined]
    return crc32(repr(row).encode("utf-8", "surrogatepass"))


class StoredRecords:
    """The records of one topic partition that existing objects contain, by directory."""

    def __init__(self) -> None:
        self._objects: dict[str, dict[int, ObjectRange]] = {}

    def add(self, directory: str, found: ObjectRange) -> None:
        """Add an object."""
        objects = self._objects.setdefault(directory, {})
        known = objects.get(found.first_offset)
        if known is None or known.last_offset < found.last_offset:
            objects[found.first_offset] = found

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
            if any(each.contains(offsets[index], record) for each in objects.values()):
                continue
            if ranges and ranges[-1][1] == index:
                ranges[-1] = (ranges[-1][0], index + 1)
            else:
                ranges.append((index, index + 1))
        return ranges

    def first_offset_around(self, offset: int) -> int | None:
        """Return the smallest first offset of the objects that contain records before and from `offset` on."""
        found = [
            each.first_offset
            for objects in self._objects.values()
            for each in objects.values()
            if each.first_offset < offset <= each.last_offset
        ]
        return min(found, default=None)
