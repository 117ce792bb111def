"""Limits the number of open segment files and the memory of indexes in a broker.

If a limit is exceeded, the files that were opened first are closed, or the indexes that were added first are removed
from memory.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headrace_broker.log.segment import LogSegment


class OpenSegments:
    """The segments that have an open file, and the segments that have indexes in memory.

    Both lists are in the order in which segments were added.

    All logs of a broker share one instance. Only the broker's event loop uses it.
    """

    def __init__(self, count_max: int = 256, index_bytes_max: int = 64 * 1024 * 1024) -> None:
        self._count_max = count_max
        self._index_bytes_max = index_bytes_max
        self._index_bytes = 0
        self._indexed: OrderedDict[int, tuple[LogSegment, int]] = OrderedDict()
        self._segments: OrderedDict[int, LogSegment] = OrderedDict()

    def add(self, segment: LogSegment) -> None:
        self._segments[id(segment)] = segment
        if len(self._segments) > self._count_max:
            _, oldest = self._segments.popitem(last=False)
            oldest.release()

    def discard(self, segment: LogSegment) -> None:
        self._segments.pop(id(segment), None)
        self._index_bytes -= self._indexed.pop(id(segment), (segment, 0))[1]

    def account_indexes(self, segment: LogSegment, size_bytes: int) -> None:
        """Add `size_bytes`, the size of an inactive segment's indexes, to the total.

        If the total exceeds the limit, remove from memory the indexes that were added first.
        """
        self._index_bytes += size_bytes - self._indexed.pop(id(segment), (segment, 0))[1]
        self._indexed[id(segment)] = (segment, size_bytes)
        while self._index_bytes > self._index_bytes_max and len(self._indexed) > 1:
            _, (oldest, freed_bytes) = self._indexed.popitem(last=False)
            self._index_bytes -= freed_bytes
            oldest.forget_indexes()
