"""Fake fetched records for tests of `headrace.runtime.sink_task_core`. A record consists of its offset only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.data.batch import SinkBatch
from headrace.data.sink_records import SinkRecords


@dataclass(frozen=True)
class Fetched:
    """Records of one partition with the offsets from `start` to `next_offset` - 1."""

    topic: str
    partition: int
    start: int
    next_offset: int

    def __len__(self) -> int:
        return self.next_offset - self.start


class Chunk:
    """Unparsed records of a partition with the offsets from `start` to `stop` - 1.

    They are followed by control batches up to the offset `next_offset`.
    """

    def __init__(self, partition: tuple[str, int], start: int, stop: int, *, next_offset: int | None = None) -> None:
        self.topic, self.partition = partition
        self.next_offset = stop if next_offset is None else next_offset
        self._start = start
        self._stop = stop

    def next_batch(self, records_max: int | None = None) -> Any:
        """Return the next records, at most `records_max` if it is not None. Return None at the end."""
        start, stop = self._start, self._stop
        if start >= stop:
            return None
        self._start = stop if records_max is None else min(stop, start + records_max)
        end = self.next_offset if self._start == stop else self._start
        return Fetched(self.topic, self.partition, start, end) if end == self._start else _WithEnd(self, start, end)


class _WithEnd(Fetched):
    """The last records of a chunk that ends with control batches. `next_offset` is the offset after these batches."""

    def __init__(self, chunk: Chunk, start: int, next_offset: int) -> None:
        super().__init__(chunk.topic, chunk.partition, start, next_offset)
        object.__setattr__(self, "_count", chunk._stop - start)

    def __len__(self) -> int:
        return int(self.__dict__["_count"])


def records_of(fetched: Iterable[Any], dropped: Sequence[int] = ()) -> SinkRecords:
    """Convert fetched records to sink records, except for the records whose offsets are in `dropped`.

    A record's value is its offset.
    """
    batches = []
    for each in fetched:
        offsets = [offset for offset in range(each.start, each.start + len(each)) if offset not in dropped]
        batches.append(SinkBatch(each.topic, list(offsets), partition=each.partition, offsets=offsets))
    return SinkRecords(batches)
