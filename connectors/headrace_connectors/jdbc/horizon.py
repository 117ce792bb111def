"""Finds the timestamp or id up to which all rows of a table or query are committed (`snapshot.horizon=true`).

A transaction may commit a row late, when rows with later timestamps or larger ids are already committed. If the reader
has already read these rows, the reader misses the late row. Therefore, the reader only reads rows up to a horizon. The
horizon is a timestamp or an id:

- Timestamps: the horizon is the start time of the oldest running transaction. A row's timestamp is not earlier than
  the start of the row's transaction (PostgreSQL's `now()`) or statement (MySQL). All rows with timestamps before the
  horizon are therefore committed.
- Ids: the reader first reads the largest id in the table, and then the current time. The database assigns ids in
  ascending order (sequences with CACHE 1). When every running transaction has started after this time, all rows up to
  this id are committed. The id then becomes the horizon.

The horizon is wrong if clients set the timestamps, or if sequences cache values.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable
from typing import NamedTuple, Protocol

MARGIN = dt.timedelta(seconds=1)
"""A margin, because a transaction is listed slightly after its start."""


class RunningTransactions(NamedTuple):
    """The running transactions of other sessions."""

    oldest: dt.datetime | None
    """When the oldest transaction started, or None if no transaction is running."""
    has_prepared: bool = False
    """Whether there are prepared transactions. The database does not report when they started."""


class Database(Protocol):
    """The methods of a dialect that this module calls."""

    def now(self, connection: object) -> dt.datetime: ...

    def running_transactions(self, connection: object) -> RunningTransactions: ...


class Horizon:
    """The horizon of one table or query: the timestamp or id up to which all rows are committed."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._last: dt.datetime | None = None
        self._candidates: list[tuple[dt.datetime, int]] = []
        self._complete: int | None = None

    def timestamp(self, connection: object) -> dt.datetime:
        """Return the horizon. All rows with timestamps before the horizon are already committed.

        If no horizon is known yet, return the earliest datetime of Python.
        """
        now = self._database.now(connection)
        running = self._database.running_transactions(connection)
        if not running.has_prepared:
            # A transaction that is prepared now was running at the last call, or has started after that call.
            self._last = min(now, running.oldest or now) - MARGIN
        return self._last or dt.datetime.min.replace(tzinfo=dt.UTC)

    def largest_id(self, connection: object, read_largest: Callable[[], int | None]) -> int | None:
        """Return an id up to which all rows are committed, or None if no such id is known yet.

        `read_largest` returns the largest id of the committed rows.
        """
        largest = read_largest()
        if largest is not None and (not self._candidates or self._candidates[-1][1] != largest):
            self._candidates.append((self._database.now(connection), largest))
        running = self._database.running_transactions(connection)
        if running.has_prepared:
            return self._complete
        while self._candidates and (running.oldest is None or self._candidates[0][0] < running.oldest):
            self._complete = self._candidates.pop(0)[1]
        return self._complete
