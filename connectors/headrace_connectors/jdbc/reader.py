"""Reads one table or one custom query in batches, starting after its committed source offset.

In timestamp mode, a batch may end between rows with equal timestamps. In this case, the batch's source offset is the
last timestamp before the equal timestamps. After a restart, the reader reads all rows with the equal timestamps again,
so it skips none of them.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from headrace.api.errors import ConfigErrors, ConnectError
from headrace.data.batch import SourceBatch
from headrace.data.columns import CheckedRows, Values
from headrace.data.records import SourceRecord
from headrace.data.schema import Schema, struct
from headrace_connectors.common.instants import microseconds
from headrace_connectors.jdbc.dialects import (
    ColumnsChangedError,
    Connection,
    Dialect,
    FastReadError,
    MissingError,
    ResultSet,
)
from headrace_connectors.jdbc.horizon import Horizon
from headrace_connectors.jdbc.initial_load import OFFSET_FIELD, InitialLoad, KeyRange
from headrace_connectors.jdbc.names import table_of
from headrace_connectors.jdbc.offset_columns import OffsetColumns, find_offset_columns
from headrace_connectors.jdbc.offsets import TimestampIncrementingOffset
from headrace_connectors.jdbc.rows import Row, RowConverter, described_row
from headrace_connectors.jdbc.source_config import JdbcSourceConfig
from headrace_connectors.jdbc.statements import LastId, select
from headrace_connectors.jdbc.temporal_values import UnmappableError
from headrace_connectors.jdbc.types import JdbcColumn, to_integer
from headrace_connectors.jdbc.unavailable import UnavailableError

logger = logging.getLogger(__name__)

_FIRST_BATCH_ROWS = 1000
_STARTS_MAX = 5
"""How often to start a statement if other transactions change the columns of its table or query each time."""


@dataclass(frozen=True, slots=True)
class TableOrQuery:
    """The table or query that a reader reads, with its topic and source partition.

    `table` is the table's qualified name, or an empty string for a custom query.
    """

    table: str
    topic: str
    partition: dict[str, str]
    load: InitialLoad | None = None
    """The table's initial load, if it has one. The reader reads the rows that follow the initial load."""
    key_range: KeyRange | None = None
    """The range of the initial load to read, or None if the reader reads the table itself."""

    @property
    def name(self) -> str:
        """The name of the table or query for log lines and error messages."""
        return f"table {self.table}" if self.table else "query"


class TableReader:
    """Reads one table or query. `offset` is the source offset of the last returned batch."""

    def __init__(
        self,
        dialect: Dialect,
        config: JdbcSourceConfig,
        source: TableOrQuery,
        offset: TimestampIncrementingOffset,
        *,
        commits_start: bool = False,
        is_load_complete: Callable[[], bool] | None = None,
        report_skipped: Callable[[SourceRecord, Exception], None] | None = None,
    ) -> None:
        self.source = source
        self.offset = offset
        self._dialect = dialect
        self._config = config
        self._statement: _RunningStatement | None = None
        self._columns: list[JdbcColumn] = []
        self._shape: object = None
        self._offset_columns: tuple[str, ...] | None = None  # the offset columns of the last statement, if any
        self._horizon = Horizon(dialect) if config.snapshot_horizon else None
        self._commits_start = commits_start
        self._is_load_complete = is_load_complete  # None if the reader need not wait for an initial load
        self._report_skipped = report_skipped
        self.is_complete = False
        """Whether all rows of a key range have been read."""

    @property
    def is_running(self) -> bool:
        """Whether a statement is running and may return more rows."""
        return self._statement is not None

    def next_batch(self, connection: Connection) -> SourceBatch | None:
        """Return the next batch, or None if the running statement has no more rows.

        Starts a statement if no statement is running. Returns None while `is_load_complete` returns False. Raises
        UnavailableError if an earlier statement has read a table or column that no longer exists, or if the columns
        change each time that the reader starts a statement.
        """
        try:
            return self._next_batch(connection)
        except FastReadError as error:
            logger.info(
                "Reading %s: the fast read method cannot read a row, using a slower method from now on: %s",
                self.source.name,
                error,
            )
            self._dialect.disable_fast_read(self.source.table)
            self.close_statement()
            return self.next_batch(connection)  # a dialect has at most two fast paths

    def _next_batch(self, connection: Connection) -> SourceBatch | None:
        if self._commits_start:
            # A restart computes the ranges of the initial load from this offset.
            self._commits_start = False
            return self._batch([], None)
        if self._is_load_complete is not None:
            if not self._is_load_complete():
                return None
            self._is_load_complete = None
            logger.info("Reading %s: all ranges of the initial load are in the topic", self.source.name)
        if self._statement is None:
            self._statement = self._start_or_report_missing(connection)
        statement = self._statement
        rows = statement.fetch(self._config.batch_max_rows)
        if not rows:
            self._finish(connection)
            return self._complete_range()
        self.offset = statement.offset_after(rows, self.offset)
        converted = statement.convert(rows)
        return self._batch(CheckedRows(converted) if statement.matches_schema else converted, statement.schema)

    def _batch(self, rows: Values, schema: Schema | None) -> SourceBatch:
        source = self.source
        load = source.load.to_offset() if source.load else source.key_range.load if source.key_range else ""
        return SourceBatch(
            source.topic,
            rows,
            value_schema=schema,
            source_partition=source.partition,
            source_offset=self.offset.to_map() | ({OFFSET_FIELD: load} if load else {}),
        )

    def _complete_range(self) -> SourceBatch | None:
        """Return a batch without rows, with the end of the key range as offset, or None if there is no key range."""
        if self.source.key_range is None:
            return None
        self.is_complete = True
        self.offset = TimestampIncrementingOffset(None, self.source.key_range.last)
        return self._batch([], None)

    def close_statement(self) -> None:
        """Close the running statement, if any. The next call of `next_batch` starts a new statement after `offset`."""
        statement, self._statement = self._statement, None
        if statement is not None:
            try:
                statement.cursor.close()
            except self._dialect.transient_errors as error:
                logger.debug("Ignoring an error while closing a broken cursor: %s", error)

    def _finish(self, connection: Connection) -> None:
        assert self._statement is not None
        self.offset = self._statement.offset_at_end(self.offset)
        self._statement.cursor.close()
        self._statement = None
        self._dialect.end_transaction(connection)

    def _start_or_report_missing(self, connection: Connection) -> _RunningStatement:
        """Start a statement.

        Raises UnavailableError if an earlier statement has read a table or column that no longer exists.
        """
        try:
            return self._execute(connection)
        except MissingError as error:
            if self._offset_columns is None:
                raise
            self._columns = []
            raise UnavailableError(str(error)) from error
        except self._dialect.driver_error as error:
            if self._offset_columns is None or not self._dialect.is_missing(error):
                raise
            reason = self._dialect.error_text(error).partition("\n")[0]  # without the lines that contain the SQL text
            raise UnavailableError(f"{self.source.name}: {reason}") from error

    def _execute(self, connection: Connection) -> _RunningStatement:
        """Start a statement that reads the current columns of the table or query.

        If the columns change before the statement locks them, start a new statement with the new columns. Raises the
        driver's exception, or UnavailableError if the columns change each time that the reader starts a statement.
        """
        for _ in range(_STARTS_MAX):
            try:
                return self._start(connection, self._read_columns(connection))
            except ColumnsChangedError:
                self._columns = []
                self._dialect.end_transaction(connection)
            except (self._dialect.driver_error, FastReadError) as error:
                if self._dialect.is_transient(error) or not self._has_changed(connection):
                    raise
                logger.debug("%s: reading the columns again after the error: %s", self.source.name, error)
                self._columns = []
        raise UnavailableError(
            f"{self.source.name}: the columns changed {_STARTS_MAX} times while the task was starting to read rows"
        )

    def _start(self, connection: Connection, columns: Sequence[JdbcColumn]) -> _RunningStatement:
        config, dialect, source = self._config, self._dialect, self.source
        found = self._find_offset_columns(columns)
        incrementing, timestamps = found.incrementing, found.timestamps
        key_range = source.key_range
        if key_range is not None:
            timestamps = ()
        end_us = None
        if timestamps:
            end = dialect.now(connection) - dt.timedelta(milliseconds=config.timestamp_delay_interval_ms)
            if self._horizon is not None:
                end = min(end, self._horizon.timestamp(connection))
            end = found.round_down(dialect.to_column_time(connection, end, timestamps))
            end_us = microseconds(end)
        offset_expressions = dialect.offset_expressions(incrementing, timestamps, source.table)
        timestamp = offset_expressions.timestamp
        statement = select(
            dialect.select_sql(columns, source.table),
            offset_expressions,
            self._start_offset(connection, timestamps),
            end_us,
            marker=dialect.parameter_marker,
            suffix=dialect.escape_parameter_markers(config.query_suffix),
            last_id=LastId(key_range.last)
            if key_range
            else self._last_complete_id(connection, incrementing, timestamps),
        )
        rows = dialect.rows_of_shape(connection, statement, columns, source.table, self._shape)
        self._offset_columns = found.names
        return _RunningStatement(
            source,
            dialect,
            rows,
            columns,
            incrementing=columns.index(incrementing) if incrementing else None,
            timestamps=[columns.index(column) for column in timestamps],
            has_wall_clock=timestamp is not None and timestamp.zone is not None,
            unmappable_values=self._unmappable_values(),
            report_skipped=None if self._report_skipped is None else self._report_row,
        )

    def _unmappable_values(self) -> str:
        """Return the value of unmappable.values. If it is not set, and errors are tolerated, rows are skipped."""
        if self._report_skipped is not None and "unmappable.values" not in self._config.originals:
            return "skip"
        return self._config.unmappable_values

    def _find_offset_columns(self, columns: Sequence[JdbcColumn]) -> OffsetColumns:
        """Return the columns that make up a source offset.

        Raises MissingError if an offset column of the last statement no longer exists. Raises ConfigErrors for any
        other problem with the offset columns.
        """
        try:
            return find_offset_columns(
                self._config, self.source.table, columns, can_hold_timestamps=self._dialect.can_hold_timestamps
            )
        except ConfigErrors as errors:
            existing = {column.name for column in columns}
            missing = [name for name in self._offset_columns or () if name not in existing]
            if not missing:
                raise
            raise MissingError(f"{self.source.name} has no column {', '.join(missing)} any more") from errors

    def _report_row(self, row: dict[str, str | None], error: ValueError) -> None:
        assert self._report_skipped is not None
        source = self.source
        record = SourceRecord(
            topic=source.topic, value=row, source_partition=source.partition, source_offset=self.offset.to_map()
        )
        self._report_skipped(record, error)

    def _last_complete_id(
        self, connection: Connection, incrementing: JdbcColumn | None, timestamps: Sequence[JdbcColumn]
    ) -> LastId | None:
        """Return the id up to which all rows are committed, or None if the statement needs no such limit."""
        if self._horizon is None or incrementing is None or timestamps:
            return None
        dialect, table = self._dialect, self.source.table
        source = dialect.quote_table(table) if table else f"({dialect.escape_parameter_markers(self._config.sql)}) q"
        sql = f"SELECT MAX({dialect.quote_column(incrementing.name, table)}) FROM {source}"

        def read_largest() -> int | None:
            (largest,) = dialect.first_row(connection, sql)
            return None if largest is None else int(largest)

        return LastId(self._horizon.largest_id(connection, read_largest))

    def _read_columns(self, connection: Connection) -> list[JdbcColumn]:
        """Return the columns of the last statement. Read them from the database if they may have changed.

        Raises the driver's exception, or ConnectError if there are no columns to read.
        """
        table, dialect = self.source.table, self._dialect
        if not self._columns or not (table or dialect.has_stable_query_columns):
            description = dialect.describe(connection, table)
            self._columns, self._shape = description.columns, description.shape
        if not self._columns:
            raise ConnectError(f"{self.source.name} has no column that can be converted to a Connect type")
        return self._columns

    def _has_changed(self, connection: Connection) -> bool:
        """Whether the columns of the table or query have changed since they were read. Ends the transaction."""
        self._dialect.end_transaction(connection)
        return self._shape is not None and self._dialect.shape(connection, self.source.table) != self._shape

    def _start_offset(self, connection: Connection, timestamps: Sequence[JdbcColumn]) -> TimestampIncrementingOffset:
        """Return the source offset after which to read.

        If no source offset is stored and no row has been read, this is `timestamp.initial`, or the start of the
        reader's key range.
        """
        if self.source.key_range is not None:
            first = TimestampIncrementingOffset(None, self.source.key_range.first - 1)
            return first if self.offset.incrementing is None else self.offset
        initial = self._config.timestamp_initial
        if self.offset != TimestampIncrementingOffset() or initial is None or not self._config.uses_timestamp:
            return self.offset
        if initial == -1:
            now = self._dialect.now(connection)
            start = microseconds(self._dialect.to_column_time(connection, now, timestamps))
        else:
            start = initial * 1000
        self.offset = TimestampIncrementingOffset(start)
        return self.offset


class _RunningStatement:
    """Fetches the rows of a running statement, and computes source offsets from them."""

    def __init__(
        self,
        source: TableOrQuery,
        dialect: Dialect,
        rows: ResultSet,
        columns: Sequence[JdbcColumn],
        *,
        incrementing: int | None,
        timestamps: list[int],
        has_wall_clock: bool,
        unmappable_values: str,
        report_skipped: Callable[[dict[str, str | None], ValueError], None] | None = None,
    ) -> None:
        self.cursor = rows.cursor
        self.matches_schema = rows.matches_schema
        self._name = name = source.table or "query"
        self.schema: Schema = struct([(c.name, c.schema) for c in columns], name=table_of(source.table) or None)
        self.convert = RowConverter(
            name,
            columns,
            is_checked=not rows.typed,
            unmappable_values=unmappable_values,
            report_skipped=report_skipped,
        ).convert
        self._columns = columns
        self._dialect = dialect
        self._incrementing = incrementing
        self._timestamps = timestamps
        self._has_wall_clock = has_wall_clock
        self._read_ahead: list[Row] = []
        self._rows_max = _FIRST_BATCH_ROWS
        self._last_offset: TimestampIncrementingOffset | None = None

    def fetch(self, count: int) -> list[Row]:
        """Return at most `count` rows, or an empty list if no rows remain.

        The first batches are small, so that the first records are in the topic early. In timestamp mode, fetch one more
        row to check whether its timestamp differs from that of the last returned row.
        """
        count = min(count, self._rows_max)
        self._rows_max *= 2
        if self._incrementing is not None or not self._timestamps:
            rows: list[Row] = self.cursor.fetchmany(count)
            return rows
        rows = self._read_ahead
        while len(rows) <= count and (more := self.cursor.fetchmany(count + 1 - len(rows))):
            rows = rows + more
        self._read_ahead = rows[count:]
        return rows[:count]

    def offset_after(self, rows: list[Row], before: TimestampIncrementingOffset) -> TimestampIncrementingOffset:
        """Return the source offset that can be committed after `rows`. `before` is the previous batch's offset."""
        last = rows[-1]
        if self._incrementing is not None:
            return replace(self._timestamp_offset(last), incrementing=self._incrementing_value(last))
        if not self._timestamps:
            return before
        self._last_offset = offset = self._timestamp_offset(last)
        if not self._read_ahead or self._timestamp_offset(self._read_ahead[0]) != offset:
            return offset
        earlier = (at for row in reversed(rows) if (at := self._timestamp_offset(row)) != offset)
        return next(earlier, before)

    def offset_at_end(self, offset: TimestampIncrementingOffset) -> TimestampIncrementingOffset:
        """Return the source offset that can be committed after all rows of the statement.

        In timestamp mode, this is the last row's timestamp. Otherwise it is `offset`, the last batch's
        offset.
        """
        return self._last_offset or offset

    def _incrementing_value(self, row: Row) -> int:
        assert self._incrementing is not None
        try:
            return to_integer(row[self._incrementing])
        except (ValueError, TypeError) as error:
            raise ConnectError(
                f"{self._name}: values of the incrementing column must be integers: {error}. "
                f"The row is {self._described(row)}"
            ) from error

    def _timestamp_offset(self, row: Row) -> TimestampIncrementingOffset:
        """Return the source offset with only the row's timestamp, or an empty offset if the mode has no timestamps."""
        for index in self._timestamps:
            value = row[index]
            if value is None:
                continue
            try:
                instant = self._dialect.to_instant(value, self._columns[index].is_zoned)
            except UnmappableError as error:
                raise ConnectError(
                    f"{self._name}: the timestamp {error.text} cannot be part of a source offset; exclude such rows "
                    f"with a query. The row is {self._described(row)}"
                ) from error
            wall_clock = self._dialect.to_wall_clock(value) if self._has_wall_clock else None
            return TimestampIncrementingOffset(instant, wall_clock=wall_clock)
        if self._timestamps:  # no query returns a row without a timestamp
            raise ConnectError(
                f"{self._name}: a zero date that zeroDateTimeBehavior converts to null cannot be part of a source "
                f"offset; exclude such rows with a query. The row is {self._described(row)}"
            )
        return TimestampIncrementingOffset()

    def _described(self, row: Row) -> str:
        return repr(described_row(self._columns, row))[:120]
