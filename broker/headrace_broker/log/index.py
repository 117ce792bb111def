"""The offset index and the time index of a segment: sorted arrays in memory, Kafka's format on disk.

Both indexes contain entries for only some of the batches. Offsets in an index are relative to the segment's base
offset. An entry of the offset index contains the last offset of a batch and the file position of the batch, as two
32-bit numbers. An entry of the time index contains the largest timestamp of all records up to this entry, and the last
offset of the batch with this timestamp.

The log writes the index files of the active segment only when it rolls, flushes or closes the segment. After a crash,
recovery rebuilds the files from the records. This module does no I/O.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_right
from itertools import islice
from operator import lt

OFFSET_ENTRY_SIZE = 8
TIME_ENTRY_SIZE = 12
TIME_ENTRY = struct.Struct(">qi")


class OffsetIndex:
    """Maps relative offsets to file positions."""

    __slots__ = ("offsets", "positions")

    def __init__(self) -> None:
        self.offsets = array("i")
        self.positions = array("i")

    def __len__(self) -> int:
        return len(self.offsets)

    def append(self, relative_offset: int, position: int) -> None:
        self.offsets.append(relative_offset)
        self.positions.append(position)

    def lookup(self, relative_offset: int) -> int:
        """Return the `.log` file position that the last entry at or before `relative_offset` contains, or 0 if none."""
        index = bisect_right(self.offsets, relative_offset) - 1
        return self.positions[index] if index >= 0 else 0

    def floor_position(self, position: int) -> int:
        """Return the largest indexed file position at or before `position`, or 0 if the index has no such entry."""
        index = bisect_right(self.positions, position) - 1
        return self.positions[index] if index >= 0 else 0

    def truncate(self, size_bytes: int) -> None:
        """Remove the entries of batches that begin at or after position `size_bytes`."""
        keep = bisect_right(self.positions, size_bytes - 1)
        del self.offsets[keep:], self.positions[keep:]

    def encode(self) -> bytes:
        flat = array("i", bytes(OFFSET_ENTRY_SIZE * len(self.offsets)))
        flat[0::2] = self.offsets
        flat[1::2] = self.positions
        if sys.byteorder == "little":
            flat.byteswap()
        return flat.tobytes()

    @classmethod
    def decode(cls, data: bytes) -> OffsetIndex:
        """Decode an index file. Raises ValueError if an entry is incomplete or the entries are not in order."""
        if len(data) % OFFSET_ENTRY_SIZE:
            raise ValueError(
                f"the offset index has {len(data)} bytes, not a multiple of its entry size {OFFSET_ENTRY_SIZE}"
            )
        flat = array("i")
        flat.frombytes(_without_empty_entries(data, OFFSET_ENTRY_SIZE))
        if sys.byteorder == "little":
            flat.byteswap()
        index = cls()
        index.offsets = flat[0::2]
        index.positions = flat[1::2]
        for column in (index.offsets, index.positions):
            if len(column) and (column[0] < 0 or not all(map(lt, column, islice(column, 1, None)))):
                raise ValueError("the entries of the index are not in ascending order")
        return index


class TimeIndex:
    """Maps timestamps to relative offsets.

    Each entry contains a relative offset, and the largest timestamp of all records up to this offset.
    """

    __slots__ = ("offsets", "timestamps")

    def __init__(self) -> None:
        self.timestamps = array("q")
        self.offsets = array("i")

    def __len__(self) -> int:
        return len(self.timestamps)

    def maybe_append(self, timestamp: int, relative_offset: int) -> None:
        """Add the entry (`timestamp`, `relative_offset`) if `timestamp` is larger than the last entry's timestamp."""
        if timestamp > (self.timestamps[-1] if self.timestamps else -1):
            self.timestamps.append(timestamp)
            self.offsets.append(relative_offset)

    def lookup(self, timestamp: int) -> int:
        """Return the relative offset from which to search for the first record with a timestamp >= `timestamp`."""
        index = bisect_right(self.timestamps, timestamp) - 1
        return self.offsets[index] if index >= 0 else 0

    def truncate(self, relative_offset: int) -> None:
        """Remove the entries at or after `relative_offset`."""
        keep = bisect_right(self.offsets, relative_offset - 1)
        del self.timestamps[keep:], self.offsets[keep:]

    def encode(self) -> bytes:
        pairs = zip(self.timestamps, self.offsets, strict=True)
        return b"".join([TIME_ENTRY.pack(timestamp, offset) for timestamp, offset in pairs])

    @classmethod
    def decode(cls, data: bytes) -> TimeIndex:
        """Decode an index file. Raises ValueError if an entry is incomplete or the entries are not in order."""
        if len(data) % TIME_ENTRY_SIZE:
            raise ValueError(
                f"the time index has {len(data)} bytes, not a multiple of its entry size {TIME_ENTRY_SIZE}"
            )
        index = cls()
        previous = -1
        for timestamp, offset in TIME_ENTRY.iter_unpack(_without_empty_entries(data, TIME_ENTRY_SIZE)):
            if timestamp <= previous or offset < 0:
                raise ValueError("the entries of the index are not in ascending order")
            index.timestamps.append(timestamp)
            index.offsets.append(offset)
            previous = timestamp
        return index


def _without_empty_entries(data: bytes, entry_size: int) -> bytes:
    """Return `data` without the entries of zeros at its end. Each entry has `entry_size` bytes.

    After a crash, a preallocated index file still ends with zeros.
    """
    used = len(data.rstrip(b"\0"))
    return data[: -(-used // entry_size) * entry_size]
