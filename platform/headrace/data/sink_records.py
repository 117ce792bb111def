"""SinkRecords: the records of one call of a sink task's `put`, both as batches and as a sequence of records.

The record objects are created when the sequence is accessed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, chain, groupby
from operator import itemgetter
from typing import overload

from headrace.data.batch import SinkBatch
from headrace.data.records import SinkRecord


class SinkRecords(Sequence[SinkRecord]):
    """An immutable sequence of records. `batches` contains the same records in the same order, grouped into batches."""

    __slots__ = ("_records", "_starts", "batches")

    def __init__(self, batches: Sequence[SinkBatch] = ()) -> None:
        self.batches: tuple[SinkBatch, ...] = tuple(batch for batch in batches if len(batch))
        self._starts = [0, *accumulate(map(len, self.batches))]
        self._records: list[list[SinkRecord] | None] = [None] * len(self.batches)

    def __len__(self) -> int:
        return self._starts[-1]

    @overload
    def __getitem__(self, index: int) -> SinkRecord: ...
    @overload
    def __getitem__(self, index: slice) -> list[SinkRecord]: ...
    def __getitem__(self, index: int | slice) -> SinkRecord | list[SinkRecord]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        position, at = self.locate(index)
        return self._records_of(position)[at]

    def __iter__(self) -> Iterator[SinkRecord]:
        return chain.from_iterable(map(self._records_of, range(len(self.batches))))

    def __repr__(self) -> str:
        return f"SinkRecords({len(self)} records in {len(self.batches)} batches)"

    def locate(self, index: int) -> tuple[int, int]:
        """Return the position of a record: the index of its batch in `batches`, and its index in this batch.

        Raises IndexError.
        """
        position = index + len(self) if index < 0 else index
        if not 0 <= position < len(self):
            raise IndexError(f"record index {index} is out of range: there are {len(self)} records")
        batch = bisect_right(self._starts, position) - 1
        return batch, position - self._starts[batch]

    def take(self, indexes: Sequence[int]) -> SinkRecords:
        """Return the records at these indexes, which must be in increasing order."""
        located = [self.locate(index) for index in indexes]
        runs = groupby(located, key=itemgetter(0))
        return SinkRecords([self.batches[batch].take([at for _, at in run]) for batch, run in runs])

    def _records_of(self, batch: int) -> list[SinkRecord]:
        records = self._records[batch]
        if records is None:
            records = self._records[batch] = self.batches[batch].to_records()
        return records
