"""Splits the first read of a table into ranges of its incrementing column, which several tasks read (no I/O).

`initial.load.chunks` sets the number of ranges. Each range has its own source partition and offset, so that a restarted
task continues in the middle of a range. The table's own offset starts after the last range. It also contains the
description of the ranges until they are read, so that a restarted connector computes the same ranges.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from headrace_connectors.jdbc.names import unquoted

OFFSET_FIELD = "initial_load"
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class KeyRange(NamedTuple):
    """The rows of a table whose incrementing column is between two values, both included."""

    table: str
    first: int
    last: int

    @property
    def partition(self) -> dict[str, str]:
        """The source partition."""
        return {"protocol": "1", "table": unquoted(self.table), "range": f"{self.first}..{self.last}"}

    def is_read(self, offset: Mapping[str, Any] | None) -> bool:
        """Whether the stored offset is at the end of the range."""
        return offset is not None and int(offset.get("incrementing", self.first - 1)) >= self.last


class InitialLoad(NamedTuple):
    """The ranges of one table: the smallest and largest value, their number, and the time of the split."""

    first: int
    last: int
    chunks: int
    started_ms: int

    @property
    def started(self) -> dt.datetime:
        """The time after which changed rows are read by the table's own query (timestamp+incrementing)."""
        return _EPOCH + dt.timedelta(milliseconds=self.started_ms)

    def ranges(self, table: str) -> list[KeyRange]:
        """Return ranges of nearly equal length that cover all values."""
        count = self.last - self.first + 1
        bounds = [self.first + count * number // self.chunks for number in range(self.chunks + 1)]
        return [KeyRange(table, bounds[n], bounds[n + 1] - 1) for n in range(self.chunks) if bounds[n] < bounds[n + 1]]

    def to_offset(self) -> str:
        """Return the text that the table's source offset contains."""
        return ":".join(map(str, self))

    @classmethod
    def from_offset(cls, offset: Mapping[str, Any] | None) -> InitialLoad | None:
        """Return the initial load that a table's stored offset describes; None if there is none."""
        text = (offset or {}).get(OFFSET_FIELD)
        return cls(*map(int, str(text).split(":"))) if text else None


def to_task_config(loads: Mapping[str, InitialLoad], ranges: Iterable[KeyRange]) -> str:
    """Return the value of the task's key `initial.load`."""
    return json.dumps({"loads": {table: load.to_offset() for table, load in loads.items()}, "ranges": list(ranges)})


def from_task_config(text: str) -> tuple[dict[str, InitialLoad], list[KeyRange]]:
    """Return the initial loads of the task's tables, and the ranges that the task reads."""
    if not text:
        return {}, []
    found = json.loads(text)
    loads = {table: InitialLoad.from_offset({OFFSET_FIELD: load}) for table, load in found["loads"].items()}
    return {table: load for table, load in loads.items() if load}, [KeyRange(*each) for each in found["ranges"]]


def distribute(
    tables: Sequence[Sequence[str]], ranges: Sequence[KeyRange], max_tasks: int
) -> list[tuple[list[str], list[KeyRange]]]:
    """Return the tables and ranges of each task: ranges go to the tasks with the least work first."""
    count = min(max_tasks, sum(map(len, tables)) + len(ranges))
    tasks: list[tuple[list[str], list[KeyRange]]] = [
        (list(tables[number]) if number < len(tables) else [], []) for number in range(count)
    ]
    for each in ranges:
        min(tasks, key=lambda task: len(task[0]) + len(task[1]))[1].append(each)
    return tasks
