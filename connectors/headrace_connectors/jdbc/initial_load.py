"""Splits the first read of a table into ranges of its incrementing column. This module does no I/O.

`initial.load.chunks` sets the number of ranges, and several tasks read them at the same time. Each range has its own
source partition and offset, so that a restarted task continues in the middle of a range. The table's own offset starts
after the last range. It also contains a description of the ranges, so that a restarted connector computes the same
ranges.

With mode=timestamp+incrementing, a row may change during the initial load. The records of its range may then contain
the old version. The source therefore reads changed rows only after the offsets of all ranges are committed. At that
time, the old version is in the topic, and the source writes the new version after it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from headrace.api.task import OffsetReader
from headrace_connectors.jdbc.names import unquoted

OFFSET_FIELD = "initial_load"


class KeyRange(NamedTuple):
    """The rows of a table whose incrementing column has a value from `first` to `last`, inclusive.

    `load` is the initial load that contains the range, as text (`InitialLoad.to_offset`). It is part of the range's
    source offsets.
    """

    table: str
    first: int
    last: int
    load: str

    @property
    def partition(self) -> dict[str, str]:
        """The source partition of this range."""
        return {"protocol": "1", "table": unquoted(self.table), "range": f"{self.first}..{self.last}"}

    def own_offset(self, offset: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
        """Return `offset` if it belongs to this initial load, or None if an earlier initial load has stored it.

        An offset without `OFFSET_FIELD`, which a user has stored, belongs to this initial load.
        """
        return offset if offset and offset.get(OFFSET_FIELD, self.load) == self.load else None

    def is_read(self, offset: Mapping[str, Any] | None) -> bool:
        """Whether the stored offset is at the end of the range, in the initial load of this range."""
        own = self.own_offset(offset)
        return own is not None and int(own.get("incrementing", self.first - 1)) >= self.last


class InitialLoad(NamedTuple):
    """The split of a table's first read into ranges: smallest and largest id, number of ranges, and start time.

    `started_ms` is the start time by the database's clock, rounded to the precision of the timestamp column.
    `created_ms` is the time by the worker's clock when the connector split the table. It identifies the initial load:
    if the table's offset is reset and the table is split again, offsets of the earlier ranges are ignored.
    """

    first: int
    last: int
    chunks: int
    started_ms: int
    created_ms: int = 0

    @property
    def started(self) -> int:
        """The start time, an instant.

        With mode=timestamp+incrementing, later reads of the table return rows changed after this time.
        """
        return self.started_ms * 1000

    def ranges(self, table: str) -> list[KeyRange]:
        """Return ranges of nearly equal length that cover all ids from `first` to `last`."""
        count = self.last - self.first + 1
        bounds = [self.first + count * number // self.chunks for number in range(self.chunks + 1)]
        load = self.to_offset()
        return [
            KeyRange(table, bounds[n], bounds[n + 1] - 1, load) for n in range(self.chunks) if bounds[n] < bounds[n + 1]
        ]

    def is_complete(self, table: str, offsets: OffsetReader) -> bool:
        """Whether the committed offsets of all ranges are at the end of the ranges."""
        return not unread(self.ranges(table), offsets)

    def to_offset(self) -> str:
        """Return the initial load as text, for the source offsets of the table and of the ranges."""
        return ":".join(map(str, self))

    @classmethod
    def from_offset(cls, offset: Mapping[str, Any] | None) -> InitialLoad | None:
        """Return the initial load that a table's stored offset describes, or None if there is no initial load."""
        text = (offset or {}).get(OFFSET_FIELD)
        return cls(*map(int, str(text).split(":"))) if text else None


def unread(ranges: Sequence[KeyRange], offsets: OffsetReader) -> list[KeyRange]:
    """Return the ranges whose committed offsets are not at the end of the range."""
    found = offsets.read_all([each.partition for each in ranges])
    return [each for each, offset in zip(ranges, found, strict=True) if not each.is_read(offset)]


def to_task_config(loads: Mapping[str, InitialLoad], ranges: Iterable[KeyRange]) -> str:
    """Return the value of the key `initial.load` for a task with these initial loads, which reads these ranges."""
    return json.dumps({"loads": {table: load.to_offset() for table, load in loads.items()}, "ranges": list(ranges)})


def from_task_config(text: str) -> tuple[dict[str, InitialLoad], list[KeyRange]]:
    """Parse the task's key `initial.load`: return the initial loads of its tables, and the ranges that it reads."""
    if not text:
        return {}, []
    found = json.loads(text)
    loads = {table: InitialLoad.from_offset({OFFSET_FIELD: load}) for table, load in found["loads"].items()}
    return {table: load for table, load in loads.items() if load}, [KeyRange(*each) for each in found["ranges"]]


def distribute(
    tables: Sequence[Sequence[str]], ranges: Sequence[KeyRange], max_tasks: int
) -> list[tuple[list[str], list[KeyRange]]]:
    """Return the tables and ranges of each task.

    `tables` contains one group of table names per task. Each range is assigned to the task that has the fewest tables
    and ranges so far. Tasks without tables are added, up to `max_tasks`, if there are enough ranges.
    """
    count = min(max_tasks, sum(map(len, tables)) + len(ranges))
    tasks: list[tuple[list[str], list[KeyRange]]] = [
        (list(tables[number]) if number < len(tables) else [], []) for number in range(count)
    ]
    for each in ranges:
        min(tasks, key=lambda task: len(task[0]) + len(task[1]))[1].append(each)
    return tasks
