"""Streams the rows of a PostgreSQL query with a server-side cursor.

The class `ServerSideRows` requests the next rows as soon as the current rows have arrived. The server therefore reads
the next rows while the task converts and sends the current rows. Each request asks for as many rows as the latest call
of `fetchmany`.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import psycopg
from psycopg.abc import Loader
from psycopg.pq import PipelineStatus, TransactionStatus

from headrace_connectors.jdbc.statements import Statement

logger = logging.getLogger(__name__)

_ROWS_PER_FETCH = 1000
"""PostgreSQL reads all rows of a FETCH before it sends the first one, so small numbers of rows arrive earlier."""
_NAME = "headrace"
_CANCEL_TIMEOUT_S = 2.0
_CANCEL_INTERVAL_S = 0.5


class ServerSideRows:
    """A cursor for the rows of one statement.

    `loaders` maps the name of a type to the loader that converts the values of this type. From the first fetch until
    the cursor is closed, its connection is in pipeline mode and must not be used for other statements.
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
        self._requested: list[psycopg.Cursor[Any]] = []  # one cursor for each FETCH
        self._rows: list[Any] = []  # received rows that were not returned yet
        self._cursor = connection.cursor(name=_NAME)
        try:
            self._cursor.execute(statement.sql, statement.parameters)
        except psycopg.Error:
            self._cursor.close()
            raise
        self._pipeline: Any = None

    @property
    def description(self) -> Any:
        """The driver's description of the result's columns."""
        return self._cursor.description

    def fetchmany(self, count: int) -> list[Any]:
        """Return at most `count` rows, or an empty list if no rows remain.

        Raises psycopg.Error if the statement fails, or if a loader cannot convert a value.
        """
        rows = self._rows
        while len(rows) < count and (received := self._receive(count)):
            rows = rows + received
        self._rows = rows[count:]
        return rows[:count]

    def _receive(self, count: int) -> list[Any]:
        """Receive the requested rows, request `count` more rows, and return the received rows."""
        if self._pipeline is None:
            self._pipeline = self._connection.pipeline()
            self._pipeline.__enter__()
        if not self._requested:
            self._request(count)
        *others, last = self._requested
        end = last.fetchmany(1)  # waits for all requested rows
        self._requested = []
        if end:
            self._request(count)
        rows: list[Any] = []
        for cursor in others:
            rows += cursor.fetchall()
        return rows + end + last.fetchall()

    def _request(self, count: int) -> None:
        """Send FETCH statements for `count` rows."""
        for start in range(0, count, _ROWS_PER_FETCH):
            cursor = self._connection.cursor(binary=self._binary)
            for name, loader in self._loaders.items():
                cursor.adapters.register_loader(name, loader)
            size = min(_ROWS_PER_FETCH, count - start)
            self._requested.append(cursor.execute(f"FETCH FORWARD {size} FROM {_NAME}", prepare=False))

    def close(self) -> None:
        """Cancel the outstanding requests for rows, discard the remaining rows, and close the cursor.

        A connection that cannot leave pipeline mode cannot execute another statement. In this case, this method also
        closes the connection.
        """
        try:
            if self._pipeline is not None:
                with _cancelling(self._connection) if self._requested else nullcontext():
                    self._pipeline.__exit__(None, None, None)
        except psycopg.Error as error:
            logger.debug("Ignoring an error of a FETCH statement while closing the cursor: %s", error)
            if self._connection.info.pipeline_status != PipelineStatus.OFF:
                self._connection.close()
        if self._connection.info.transaction_status == TransactionStatus.INERROR:
            self._connection.rollback()
        self._cursor.close()


@contextmanager
def _cancelling(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Cancel the statements of a connection until the block ends.

    The server ignores a cancel request that arrives before a statement has started. The request is therefore repeated.
    """
    has_ended = threading.Event()

    def cancel() -> None:
        while True:
            try:
                connection.cancel_safe(timeout=_CANCEL_TIMEOUT_S)
            except psycopg.Error as error:
                logger.debug("Cannot cancel the outstanding FETCH statements: %s", error)
            if has_ended.wait(_CANCEL_INTERVAL_S):
                return

    thread = threading.Thread(target=cancel, name="cancel FETCH", daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()
