"""The SQL that reads a table or a custom query from a position on. Pure text.

| mode | where | order |
|---|---|---|
| bulk | - | - |
| incrementing | id > ? | id |
| timestamp | ts > ? and ts < end | ts |
| timestamp+incrementing | ts < end and ((ts = ? and id > ?) or ts > ?) | ts, id |

`ts` is COALESCE over the timestamp columns. A bound that is not known yet is left out: the first query reads
everything. Rows whose incrementing column is NULL have no place in the order and are left out.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace_connectors.jdbc.offsets import Position


@dataclass(frozen=True, slots=True)
class Cursor:
    """What rows are ordered by: quoted column names, and how a timestamp is bound as a parameter."""

    incrementing: str | None
    timestamps: tuple[str, ...]
    bind_timestamp: Callable[[dt.datetime], Any]
    incrementing_nullable: bool = False

    @property
    def timestamp(self) -> str | None:
        """The SQL expression of the row's timestamp."""
        if len(self.timestamps) > 1:
            return f"COALESCE({','.join(self.timestamps)})"
        return self.timestamps[0] if self.timestamps else None


@dataclass(frozen=True, slots=True)
class Statement:
    """SQL with its parameters, in the driver's parameter style."""

    sql: str
    parameters: tuple[Any, ...]


def select(
    base: str, cursor: Cursor, position: Position, end: dt.datetime | None, *, mark: str, suffix: str = ""
) -> Statement:
    """Extend `base` (a SELECT without WHERE) to what comes after `position` and, for timestamps, before `end`."""
    conditions, parameters = _conditions(cursor, position, end, mark)
    order = ",".join(f"{column} ASC" for column in (cursor.timestamp, cursor.incrementing) if column)
    sql = base
    if conditions:
        sql += " WHERE " + " AND ".join(conditions)
    if order:
        sql += f" ORDER BY {order}"
    if suffix:
        sql += f" {suffix}"
    return Statement(sql, tuple(parameters))


def _conditions(cursor: Cursor, position: Position, end: dt.datetime | None, mark: str) -> tuple[list[str], list[Any]]:
    conditions: list[str] = []
    parameters: list[Any] = []
    timestamp, incrementing = cursor.timestamp, cursor.incrementing
    if incrementing is not None and cursor.incrementing_nullable:
        conditions.append(f"{incrementing} IS NOT NULL")
    if timestamp is not None and end is not None:
        conditions.append(f"{timestamp} < {mark}")
        parameters.append(cursor.bind_timestamp(end))
    if timestamp is not None and position.timestamp is not None:
        since = cursor.bind_timestamp(position.timestamp)
        if incrementing is not None and position.incrementing is not None:
            conditions.append(f"(({timestamp} = {mark} AND {incrementing} > {mark}) OR {timestamp} > {mark})")
            parameters += [since, position.incrementing, since]
        else:
            conditions.append(f"{timestamp} > {mark}")
            parameters.append(since)
    elif timestamp is None and incrementing is not None and position.incrementing is not None:
        conditions.append(f"{incrementing} > {mark}")
        parameters.append(position.incrementing)
    return conditions, parameters
