"""Reads one table, or one custom query, from where it stands: batch after batch of a running statement, then the
next statement.

A reader owns its position. In timestamp mode the position of a batch that ends inside a group of equal timestamps
stays before that group, so that a restart reads the group again whole instead of losing its rest.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from headrace.api.errors import ConnectError
from headrace.data.batch import SourceBatch
from headrace.data.schema import Schema, struct
from headrace_connectors.jdbc.config import JdbcSourceConfig
from headrace_connectors.jdbc.cursors import cursor_columns
from headrace_connectors.jdbc.dialects import Connection, Dialect, Ordering, Rows, UnfitRowsError
from headrace_connectors.jdbc.offsets import Position
from headrace_connectors.jdbc.rows import Row, row_converter
from headrace_connectors.jdbc.statements import Cursor, select
from headrace_connectors.jdbc.types import Column, to_whole_number

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Source:
    """What is read: a table by its qualified name, or (`table` empty) the configured query."""

    table: str
    topic: str
    partition: dict[str, str]

    @property
    def name(self) -> str:
        """How messages call it."""
        return f"table {self.table}" if self.table else "query"


class TableReader:
    """The statement that is under way on one source, if any, and the position behind the last batch."""

    def __init__(self, dialect: Dialect, config: JdbcSourceConfig, source: Source, position: Position) -> None:
        self.source = source
        self.position = position
        self._dialect = dialect
        self._config = config
        self._statement: _Statement | None = None

    @property
    def running(self) -> bool:
        """Whether a statement is under way."""
        return self._statement is not None

    def next_batch(self, connection: Connection) -> SourceBatch | None:
        """The next batch of the running statement, of a new one if none runs; None at its end."""
        try:
            return self._next_batch(connection)
        except UnfitRowsError as error:
            logger.info("%s is read value by value from now on: %s", self.source.name, error)
            self._dialect.read_plainly(self.source.table)
            self.abandon()
            return self._next_batch(connection)

    def _next_batch(self, connection: Connection) -> SourceBatch | None:
        if self._statement is None:
            self._statement = self._execute(connection)
        statement = self._statement
        rows = statement.fetch(self._config.batch_max_rows)
        if not rows:
            self._finish(connection)
            return None
        self.position = statement.position_after(rows, self.position)
        return SourceBatch(
            self.source.topic,
            statement.convert(rows),
            value_schema=statement.schema,
            source_partition=self.source.partition,
            source_offset=self.position.to_map(),
        )

    def abandon(self) -> None:
        """Give the running statement up: the next batch comes from a new one, behind the last position."""
        statement, self._statement = self._statement, None
        if statement is not None:
            try:
                statement.cursor.close()
            except self._dialect.transient_errors as error:
                logger.debug("closing a broken cursor: %s", error)

    def _finish(self, connection: Connection) -> None:
        assert self._statement is not None
        self.position = self._statement.final_position(self.position)
        self._statement.cursor.close()
        self._statement = None
        self._dialect.end_transaction(connection)

    def _execute(self, connection: Connection) -> _Statement:
        config, dialect = self._config, self._dialect
        source, columns = self.source, self._columns()
        followed = cursor_columns(
            config, source.name, columns, is_table=bool(source.table), holds_timestamps=dialect.holds_timestamps
        )
        incrementing, timestamps = followed.incrementing, followed.timestamps
        orderings = [dialect.ordering(column) for column in timestamps]
        end = None
        if timestamps:
            end = dialect.now(connection) - dt.timedelta(milliseconds=config.timestamp_delay_interval_ms)
        cursor = Cursor(
            dialect.quote(incrementing.name) if incrementing else None,
            *_timestamp_cursor(orderings),
            incrementing_nullable=incrementing is not None and incrementing.nullable,
        )
        base = dialect.literal(config.sql)
        if source.table:
            base = f"SELECT {dialect.select_list(columns, source.table)} FROM {dialect.quote_table(source.table)}"
        position = self._start(connection)
        statement = select(base, cursor, position, end, mark=dialect.mark, suffix=dialect.literal(config.query_suffix))
        return _Statement(
            source,
            dialect,
            dialect.rows(connection, statement, columns, source.table),
            columns,
            incrementing=columns.index(incrementing) if incrementing else None,
            timestamps=[columns.index(column) for column in timestamps],
        )

    def _columns(self) -> list[Column]:
        """The columns as they are now. Raises the driver's error, or ConnectError when there are none to read."""
        table = self.source.table
        columns = self._dialect.table_columns(table) if table else self._dialect.query_columns(self._config.sql)
        if not columns:
            raise ConnectError(f"{self.source.name}: no column has a type that can be read")
        return columns

    def _start(self, connection: Connection) -> Position:
        """Where to read from: the position, or `timestamp.initial` when there is none yet."""
        initial = self._config.timestamp_initial
        if self.position != Position() or initial is None or not self._config.uses_timestamp:
            return self.position
        if initial == -1:
            self.position = Position(self._dialect.now(connection), None)
        else:
            self.position = Position(dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(milliseconds=initial), None)
        return self.position


def _timestamp_cursor(orderings: Sequence[Ordering]) -> tuple[tuple[str, ...], Any]:
    return tuple(ordering.sql for ordering in orderings), orderings[0].bind if orderings else None


class _Statement:
    """One running statement: the driver's cursor, and the arithmetic of positions over its rows."""

    def __init__(
        self,
        source: Source,
        dialect: Dialect,
        rows: Rows,
        columns: Sequence[Column],
        *,
        incrementing: int | None,
        timestamps: list[int],
    ) -> None:
        self.cursor = rows.cursor
        self._name = name = source.table or "query"
        self.schema: Schema = struct(
            [(c.name, c.schema) for c in columns], name=source.table.rsplit(".", 1)[-1] or None
        )
        self.convert = row_converter(name, columns, checked=not rows.typed)
        self._to_instant = dialect.to_instant
        self._incrementing = incrementing
        self._timestamps = timestamps
        self._ahead: list[Row] = []
        self._last_timestamp: dt.datetime | None = None

    def fetch(self, count: int) -> list[Row]:
        """The next rows. In timestamp mode one row more is read ahead, to see whether its timestamp is a new one."""
        if self._incrementing is not None or not self._timestamps:
            rows: list[Row] = self.cursor.fetchmany(count)
            return rows
        rows = self._ahead + self.cursor.fetchmany(count + 1 - len(self._ahead))
        self._ahead = rows[count:]
        return rows[:count]

    def position_after(self, rows: list[Row], before: Position) -> Position:
        """The position that is safe to commit once these rows are delivered."""
        last = rows[-1]
        if self._incrementing is not None:
            return Position(self._timestamp(last), self._whole(last))
        if not self._timestamps:
            return before
        self._last_timestamp = timestamp = self._timestamp(last)
        if not self._ahead or self._timestamp(self._ahead[0]) != timestamp:
            return Position(timestamp)
        earlier = next((at for row in reversed(rows) if (at := self._timestamp(row)) != timestamp), None)
        return before if earlier is None else Position(earlier)

    def final_position(self, position: Position) -> Position:
        """The position at the statement's end, where every row of the last timestamp was delivered."""
        return position if self._last_timestamp is None else Position(self._last_timestamp)

    def _whole(self, row: Row) -> int:
        assert self._incrementing is not None
        try:
            return to_whole_number(row[self._incrementing])
        except (ValueError, TypeError) as error:
            raise ConnectError(
                f"{self._name}: the incrementing column must hold whole numbers: {error}, in row {repr(row)[:120]}"
            ) from error

    def _timestamp(self, row: Row) -> dt.datetime | None:
        for index in self._timestamps:
            if row[index] is not None:
                instant: dt.datetime = self._to_instant(row[index])
                return instant
        return None
