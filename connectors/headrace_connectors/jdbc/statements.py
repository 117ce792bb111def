"""Builds SQL statements that read the rows after a source offset, from a table or from a custom query.

| mode | where | order |
|---|---|---|
| bulk | - | - |
| incrementing | id > ? | id |
| timestamp | ts > ? and ts < end | ts |
| timestamp+incrementing | ts < end and ((ts = ? and id > ?) or ts > ?) | ts, id |

`ts` is the timestamp column, or COALESCE over several columns. `end` is the database's current time minus
`timestamp.delay.interval.ms`, rounded down to the precision of the columns. Without a source offset,
the query has no lower bound and reads all rows. The query skips rows with NULL in the incrementing
column, because their order is undefined.
This module does no I/O.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from headrace_connectors.common.time_zones import earliest_wall_clock, to_wall_clock
from headrace_connectors.jdbc.offsets import TimestampIncrementingOffset


@dataclass(frozen=True, slots=True)
class TimestampExpression:
    """An SQL expression that orders rows by timestamp.

    `bind` converts an integer to a query parameter that compares correctly with the expression. The integer is a
    wall-clock time of `zone` if the expression's values are wall-clock times. Otherwise, it is an instant, and `zone`
    is None.
    """

    sql: str
    bind: Callable[[int], Any]
    zone: dt.tzinfo | None = None

    def bind_instant(self, instant: int) -> Any:
        """Convert an instant to a query parameter."""
        return self.bind(instant if self.zone is None else to_wall_clock(instant, self.zone))

    def bind_offset(self, offset: TimestampIncrementingOffset) -> Any:
        """Convert a source offset to a query parameter. The statement compares this expression with the parameter.

        After a restart, the task knows the timestamp of the last row, but not the wall-clock time of the last row. If
        clocks are set forward from 02:00 to 03:00, the wall-clock times 02:30 (skipped) and 03:30 have the same
        timestamp. For this timestamp, the parameter is the earlier wall-clock time, so the task reads some rows again.
        """
        assert offset.timestamp is not None
        if self.zone is None:
            return self.bind(offset.timestamp)
        wall_clock = offset.wall_clock
        return self.bind(earliest_wall_clock(offset.timestamp, self.zone) if wall_clock is None else wall_clock)


@dataclass(frozen=True, slots=True)
class OffsetExpressions:
    """SQL expressions for a row's incrementing value and timestamp, by which the rows are ordered.

    An expression is None if the mode does not use it.
    """

    incrementing: str | None
    timestamp: TimestampExpression | None
    incrementing_nullable: bool = False


@dataclass(frozen=True, slots=True)
class LastId:
    """The largest id to read. If it is None, no row is read, because `id <= NULL` is never true in SQL."""

    value: int | None


@dataclass(frozen=True, slots=True)
class Statement:
    """SQL text with the driver's parameter placeholders, and the parameters."""

    sql: str
    parameters: tuple[Any, ...]


def coalesce(expressions: Sequence[str]) -> str:
    """Return the SQL expression for the first of `expressions` that is not NULL."""
    return expressions[0] if len(expressions) == 1 else f"COALESCE({','.join(expressions)})"


def select(
    base: str,
    columns: OffsetExpressions,
    offset: TimestampIncrementingOffset,
    end: int | None,
    *,
    marker: str,
    suffix: str = "",
    last_id: LastId | None = None,
    selects_rows: bool = True,
) -> Statement:
    """Append clauses to `base`, a SELECT without WHERE, so that it returns only rows after `offset`.

    In timestamp modes, the rows must also have timestamps before the instant `end`. With `last_id`, larger ids are
    excluded. `marker` is the driver's parameter placeholder. `suffix` is appended at the end of the statement. If
    `selects_rows` is false, the statement has an additional condition that is never true, so the database reads no
    rows.
    """
    conditions, parameters = _conditions(columns, offset, end, marker)
    if not selects_rows:
        conditions.insert(0, "1=0")
    if last_id is not None:
        conditions.append(f"{columns.incrementing} <= {marker}")
        parameters.append(last_id.value)
    timestamp = columns.timestamp.sql if columns.timestamp is not None else None
    order = ",".join(f"{expression} ASC" for expression in (timestamp, columns.incrementing) if expression)
    sql = base
    if conditions:
        sql += " WHERE " + " AND ".join(conditions)
    if order:
        sql += f" ORDER BY {order}"
    if suffix:
        sql += f" {suffix}"
    return Statement(sql, tuple(parameters))


def _conditions(
    columns: OffsetExpressions, offset: TimestampIncrementingOffset, end: int | None, marker: str
) -> tuple[list[str], list[Any]]:
    conditions: list[str] = []
    parameters: list[Any] = []
    incrementing = columns.incrementing
    if incrementing is not None and columns.incrementing_nullable:
        conditions.append(f"{incrementing} IS NOT NULL")
    timestamp = columns.timestamp
    if timestamp is not None and end is not None:
        conditions.append(f"{timestamp.sql} < {marker}")
        parameters.append(timestamp.bind_instant(end))
    if timestamp is not None and offset.timestamp is not None:
        since = timestamp.bind_offset(offset)
        if incrementing is not None and offset.incrementing is not None:
            conditions.append(
                f"(({timestamp.sql} = {marker} AND {incrementing} > {marker}) OR {timestamp.sql} > {marker})"
            )
            parameters += [since, offset.incrementing, since]
        else:
            conditions.append(f"{timestamp.sql} > {marker}")
            parameters.append(since)
    elif timestamp is None and incrementing is not None and offset.incrementing is not None:
        conditions.append(f"{incrementing} > {marker}")
        parameters.append(offset.incrementing)
    return conditions, parameters
