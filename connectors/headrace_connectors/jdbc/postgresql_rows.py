"""Streams the rows of a PostgreSQL query with a server-side cursor.

The next rows are requested before the current rows are returned, so that the server reads them while the task converts
and sends the current rows. Besides the rows that it returns, the cursor receives at most 1000 rows in advance, and
fewer if the task asks for fewer.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.abc import Loader

from headrace_connectors.jdbc.statements import Statement

logger = logging.getLogger(__name__)

_ROWS_PER_FETCH = 1000
_NAME = "headrace"


class ServerSideRows:
    """A cursor for the rows of one statement.

    `loaders` convert the values of the types with these names. While the cursor is open, its connection is in
    pipeline mode and must not be used for other statements.
    """

    def __init__(
        self,
        connection: psycopg.Connection[Any],
        statement: Statement,
        *,
        binary: bool,
        loaders: Mapping[str, type[Loader]],
    ) -> None:
        self._connection = connection
        self._binary = binary
        self._loaders = loaders
        self._requested: deque[psycopg.Cursor[Any]] = deque()
        self._rows: list[Any] = []  # received rows that were not returned yet
        self._cursor = connection.cursor(name=_NAME)
        try:
            self._cursor.execute(statement.sql, statement.parameters)
        except psycopg.Error:
            self._cursor.close()
            raise
        self._pipeline = connection.pipeline()
        self._pipeline.__enter__()

    def fetchmany(self, count: int) -> list[Any]:
        """Return at most `count` rows, or an empty list if no rows remain.

        Raises psycopg.Error if the statement fails, or if a loader cannot convert a value.
        """
        rows = self._rows
        while len(rows) < count and (received := self._receive(min(count, _ROWS_PER_FETCH))):
            rows = rows + received
        self._rows = rows[count:]
        return rows[:count]

    def _receive(self, count: int) -> list[Any]:
        """Request `count` rows, and return those of the earlier request, or an empty list if no rows remain."""
        while len(self._requested) < 2:
            self._request(count)
        return self._requested.popleft().fetchall()

    def _request(self, count: int) -> None:
        cursor = self._connection.cursor(binary=self._binary)
        for name, loader in self._loaders.items():
            cursor.adapters.register_loader(name, loader)
        self._requested.append(cursor.execute(f"FETCH FORWARD {count} FROM {_NAME}", prepare=False))

    def close(self) -> None:
        """Discard the remaining rows, and close the cursor."""
        try:
            self._pipeline.__exit__(None, None, None)
        except psycopg.Error as error:
            logger.debug("A request for rows failed after the statement had failed: %s", error)
        self._cursor.close()
