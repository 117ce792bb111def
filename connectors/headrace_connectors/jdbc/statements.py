"""Builds SQL statements that read the rows after a source offset, from a table or from a custom query.

| mode | where | order |
|---|---|---|
| bulk | - | - |
| incrementing | id > ? | id |
| timestamp | ts > ? and ts < end | ts |
| timestamp+incrementing | ts < end and ((ts = ? and id > ?) or ts > ?) | ts, id |

`ts` is COALESCE over the timestamp columns. `end` is the database's current time minus
`timestamp.delay.interval.ms`, rounded down to the precision of the columns. Without a source offset,
the query has no lower bound and reads all rows. The query skips rows with NULL in the incrementing
column, because their order is undefined.
This module has no I/O.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from headrace_connectors.jdbc.offsets import TimestampIncrementingOffset


@dataclass(frozen=True, slots=True)
class OffsetExpressions:
    """SQL expressions for the incrementing and timestamp columns, by which the rows are ordered.

    `bind_timestamp` converts a datetime to a query parameter.
    """

    incrementing: str | None
    timestamps: tuple[str, ...]
    bind_timestamp: Callable[[dt.datetime], Any]
    incrementing_nullable: bool = False

    @property
    def timestamp_expression(self) -> str | None:
        """The SQL expression for a row's timestamp, or None if the mode does not use timestamps."""
        if len(self.timestamps) > 1:
            return f"COALESCE({','.join(self.timestamps)})"
        return self.timestamps[0] if self.timestamps else None


@dataclass(frozen=True, slots=True)
class LastId:
    """The largest id to read. If it is None, no row is read, because `id <= NULL` is never true in SQL."""

    value: int | None


@dataclass(frozen=True, slots=True)
class Statement:
    """SQL text with the driver's parameter placeholders, and the parameters."""

    sql: str
    parameters: tuple[Any, ...]


def select(
    base: str,
    columns: OffsetExpressions,
    offset: TimestampIncrementingOffset,
    end: dt.datetime | None,
    *,
    marker: str,
    suffix: str = "",
    last_id: LastId | None = None,
) -> Statement:
    """Append clauses to `base`, a SELECT without WHERE, so that it returns only rows after `offset`.

    In timestamp modes, the rows must also have timestamps before `end`. With `last_id`, larger ids are excluded.
    """
    conditions, parameters = _conditions(columns, offset, end, marker)
    if last_id is not None:
        conditions.append(f"{columns.incrementing} <= {marker}")
        parameters.append(last_id.value)
    order = ",".join(f"{column} ASC" for column in (columns.timestamp_expression, columns.incrementing) if column)
    sql = base
    if conditions:
        sql += " WHERE " + " AND ".join(conditions)
    if order:
        sql += f" ORDER BY {order}"
    if suffix:
        sql += f" {suffix}"
    return Statement(sql, tuple(parameters))


def _conditions(
    columns: OffsetExpressions, offset: TimestampIncrementingOffset, end: dt.datetime | None, marker: str
) -> tuple[list[str], list[Any]]:
    conditions: list[str] = []
    parameters: list[Any] = []
    timestamp, incrementing = columns.timestamp_expression, columns.incrementing
    if incrementing is not None and columns.incrementing_nullable:
        conditions.append(f"{incrementing} IS NOT NULL")
    if timestamp is not None and end is not None:
        conditions.append(f"{timestamp} < {marker}")
        parameters.append(columns.bind_timestamp(end))
    if timestamp is not None and offset.timestamp is not None:
        since = columns.bind_timestamp(offset.timestamp)
        if incrementing is not None and offset.incrementing is not None:
            conditions.append(f"(({timestamp} = {marker} AND {incrementing} > {marker}) OR {timestamp} > {marker})")
            parameters += [since, offset.incrementing, since]
        else:
            conditions.append(f"{timestamp} > {marker}")
            parameters.append(since)
    elif timestamp is None and incrementing is not None and offset.incrementing is not None:
        conditions.append(f"{incrementing} > {marker}")
        parameters.append(offset.incrementing)
    return conditions, parameters
