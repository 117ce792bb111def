"""`Dialect`, the base class for code that differs between databases.

A dialect opens connections, describes tables and runs queries, but does not keep connections open.
SQLAlchemy provides reflection, quoting and the driver. Rows are fetched with the driver's cursor.
"""

from __future__ import annotations

import datetime as dt
import logging
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import sqlalchemy
from sqlalchemy import event
from sqlalchemy.engine import Engine
from sqlalchemy.engine.reflection import Inspector
from sqlalchemy.pool import NullPool

from headrace.api.errors import ConfigError, ConnectError
from headrace.data.schema import STRING_SCHEMA
from headrace_connectors.common.instants import iso_text, to_naive
from headrace_connectors.common.time_zones import time_zone, to_instant, to_wall_clock
from headrace_connectors.jdbc.horizon import RunningTransactions
from headrace_connectors.jdbc.names import is_plain, qualified_name, split_name
from headrace_connectors.jdbc.source_config import JdbcSourceConfig
from headrace_connectors.jdbc.statements import OffsetExpressions, Statement, TimestampExpression, coalesce
from headrace_connectors.jdbc.tables import Table, names_of_types
from headrace_connectors.jdbc.temporal_columns import date_columns, time_columns, timestamp_columns
from headrace_connectors.jdbc.temporal_values import read_timestamp, timestamp_converter
from headrace_connectors.jdbc.types import ColumnConverter, JdbcColumn, TypeOptions, base_schema
from headrace_connectors.jdbc.url import JdbcUrl

logger = logging.getLogger(__name__)

Connection = Any  # the driver's DBAPI connection


@dataclass(frozen=True, slots=True)
class ResultSet:
    """The result of a query, with a cursor that streams rows.

    `typed` is true if every value has its column's type. `matches_schema` is true if the converted rows are known to
    match the columns' schemas, including the ranges of integers and the columns that are not nullable.
    """

    cursor: Any
    typed: bool
    matches_schema: bool = False


class FastReadError(Exception):
    """Raised when the dialect's fast path cannot read a value in a table.

    The reader must call `Dialect.disable_fast_read` and run the query again.
    """


class MissingError(ConnectError):
    """Raised when a table, or a column that is part of the source offset, does not exist."""


class ColumnsChangedError(Exception):
    """Raised if the columns of a table or query changed between `Dialect.describe` and the SELECT statement.

    The reader must call `describe` again, and then run a new SELECT statement.
    """


@dataclass(frozen=True, slots=True)
class Description:
    """The columns of a table or of the custom query, and a value that changes when the columns' definitions change.

    `shape` is this value, or None if the dialect cannot detect changes (see `Dialect.shape`).
    """

    columns: list[JdbcColumn]
    shape: object


class Dialect(ABC):
    """Reads from the database of one JDBC URL."""

    parameter_marker: str
    """The driver's placeholder for a query parameter."""
    driver_error: type[Exception]
    """The base class of the driver's exceptions."""
    transient_errors: tuple[type[Exception], ...]
    """Exceptions after which a retry on a new connection may succeed."""

    def __init__(self, url: JdbcUrl, config: JdbcSourceConfig) -> None:
        self.url = url
        self.config = config
        self.zone = time_zone(config.db_timezone)
        self.options = TypeOptions(
            numeric_mapping="precision_only" if config.numeric_precision_mapping else config.numeric_mapping,
            unconstrained_scale=config.numeric_unconstrained_scale,
            timestamp_granularity=config.timestamp_granularity,
        )
        self.engine = self._engine()
        self._skipped: set[str] = set()

    @abstractmethod
    def _engine(self) -> Engine: ...

    @abstractmethod
    def now(self, connection: Connection) -> dt.datetime:
        """Return the database server's current time in UTC."""

    def to_column_time(
        self, connection: Connection, instant: dt.datetime, columns: Sequence[JdbcColumn]
    ) -> dt.datetime:
        """Return the timestamp that the source reads from `columns` in a row that the database writes at `instant`.

        The two differ, for example, if the columns have no time zone and the database sets them to the current time in
        a zone other than db.timezone.
        """
        return instant

    @abstractmethod
    def query_columns(self, connection: Connection, sql: str) -> list[JdbcColumn]:
        """Return the columns of a custom query. Raises the driver's exception."""

    @abstractmethod
    def shape(self, connection: Connection, table: str) -> object:
        """Return the shape of a table: a value that changes when the definitions of the table's columns change.

        If `table` is an empty string, return the shape of the custom query. The shape is None if the dialect cannot
        detect changes. Raises the driver's exception.
        """

    @abstractmethod
    def describe(self, connection: Connection, table: str) -> Description:
        """Return the columns of a table, and the value that the method `shape` returns for these columns.

        If `table` is an empty string, return the columns and the value for the custom query. The returned columns are
        up to date as long as the method `shape` returns the same value. This must be true even if another session
        changes the columns and reverses the change while this method runs. Raises the same exceptions as
        `table_columns` and `query_columns`.
        """

    has_stable_query_columns = False
    """Whether `describe` returns the same columns for the custom query until the shape of the custom query changes."""

    @abstractmethod
    def rows(
        self, connection: Connection, statement: Statement, columns: Sequence[JdbcColumn], table: str
    ) -> ResultSet:
        """Run `statement`, which selects `columns`, and return its result.

        The statement contains the text that `select_list` returned for `table`. For a custom query, `table` is empty.
        """

    def rows_of_shape(
        self, connection: Connection, statement: Statement, columns: Sequence[JdbcColumn], table: str, shape: object
    ) -> ResultSet:
        """Run `statement` and return its result, as the method `rows` does.

        Raises ColumnsChangedError if the columns have changed. Also raises the driver's exception.

        `columns` and `shape` are results of an earlier call of `describe` (see `Dialect.shape`). If `shape` is None,
        the method does not check the columns. The columns cannot change while the statement returns rows. However, the
        statement may first wait for another transaction, and this transaction may change the columns.
        """
        result = self.rows(connection, statement, columns, table)
        try:
            if shape is not None and not self._has_shape(connection, table, result, shape):
                raise ColumnsChangedError
        except Exception:
            result.cursor.close()
            raise
        return result

    def _has_shape(self, connection: Connection, table: str, result: ResultSet, shape: object) -> bool:
        """Whether `shape` is still the shape of `table`. The statement that returned `result` is still running."""
        return self.shape(connection, table) == shape

    has_horizon = False
    """Whether `running_transactions` is supported."""

    def running_transactions(self, connection: Connection) -> RunningTransactions:
        """Return the start time of the oldest running transaction in other sessions.

        Raises ConnectError if the database user may not see these transactions, and the driver's exception if the
        query fails for another reason.
        """
        raise NotImplementedError

    def first_row(self, connection: Connection, sql: str) -> tuple[Any, ...]:
        """Return the first row of a statement without parameters. Raises the driver's exception."""
        cursor = connection.cursor()
        try:
            cursor.execute(sql, ())  # drivers replace doubled percent signs only if there are parameters
            row: tuple[Any, ...] = cursor.fetchone()
        finally:
            cursor.close()
        self.end_transaction(connection)
        return row

    def is_transient(self, error: Exception) -> bool:
        """Whether a retry on a new connection may succeed after `error`."""
        return isinstance(error, self.transient_errors)

    def is_missing(self, error: Exception) -> bool:
        """Whether a statement failed because a table or column does not exist. Returns False if this is unknown."""
        return False

    def is_denied(self, error: Exception) -> bool:
        """Whether the server rejected the user or the password. Returns False if this is unknown."""
        return False

    def error_text(self, error: Exception) -> str:
        """Return the text of a driver's exception for error messages."""
        return str(error)

    def connect(self) -> Connection:
        """Open a new DBAPI connection. Raises the driver's exception."""
        with driver_errors():
            pooled = self.engine.raw_connection()
        connection = pooled.driver_connection
        pooled.detach()  # otherwise SQLAlchemy closes the connection when `pooled` is garbage-collected
        return connection

    def end_transaction(self, connection: Connection) -> None:
        """End the last statement's transaction, which releases its locks and snapshot."""
        connection.rollback()

    def quote_column(self, column: str, table: str) -> str:
        """Return a column's name as SQL text. `table` is the table's qualified name, or empty for the custom query.

        Raises ConfigError if quote.sql.identifiers=NEVER and the name needs quotes.
        """
        return self._quote_unless_disabled(column, f"column {column} of {f'table {table}' if table else 'the query'}")

    def _quote_unless_disabled(self, identifier: str, owner: str) -> str:
        """Return an identifier as SQL text, quoted unless quote.sql.identifiers=NEVER.

        `owner` is the table or column for the error message. Raises ConfigError if the identifier needs quotes.
        """
        if self.config.quote_sql_identifiers != "NEVER":
            return self._quote(identifier)
        if not is_plain(identifier):
            raise ConfigError(
                "quote.sql.identifiers",
                "NEVER",
                f"{owner}: a name without quotes can contain only letters, digits, _ and $, and cannot start with a "
                "digit or $; set quote.sql.identifiers=ALWAYS, or do not read this table",
            )
        return identifier

    def _quote(self, identifier: str) -> str:
        """Return an identifier as SQL text in quotes."""
        return self.engine.dialect.identifier_preparer.quote_identifier(identifier)

    def escape_parameter_markers(self, sql: str) -> str:
        """Escape characters in a user's SQL that the driver would read as parameter placeholders."""
        return sql

    def quote_table(self, table: str) -> str:
        """Return a qualified table name as SQL text.

        Raises ConfigError if quote.sql.identifiers=NEVER and the name needs quotes.
        """
        return ".".join(self._quote_unless_disabled(part, f"table {table}") for part in split_name(table))

    def select_list(self, columns: Sequence[JdbcColumn], table: str) -> str:
        """Return the SQL text between SELECT and FROM that reads `columns` of `table`."""
        return ",".join(self.quote_column(column.name, table) for column in columns)

    def select_sql(self, columns: Sequence[JdbcColumn], table: str) -> str:
        """Return a SELECT without WHERE that reads `columns` of `table`, or the custom query if `table` is empty."""
        if not table:
            return self.escape_parameter_markers(self.config.sql)
        return f"SELECT {self.select_list(columns, table)} FROM {self.quote_table(table)}"

    def offset_expressions(
        self, incrementing: JdbcColumn | None, timestamps: Sequence[JdbcColumn], table: str
    ) -> OffsetExpressions:
        """Return the SQL expressions for the offset columns of `table`, or of the custom query if `table` is empty."""
        return OffsetExpressions(
            self.quote_column(incrementing.name, table) if incrementing else None,
            self.timestamp_expression(timestamps, table) if timestamps else None,
            incrementing_nullable=incrementing is not None and incrementing.nullable,
        )

    def disable_fast_read(self, table: str) -> None:  # noqa: B027 - most dialects have no fast path
        """Read `table` without the fast path from now on. Call this after a FastReadError."""

    def table_names(self) -> list[str]:
        """Return the sorted qualified names of all tables that `table.types` selects. Raises the driver's exception."""
        return names_of_types(self.tables(), self.config.table_types)

    def tables(self) -> list[Table]:
        """Return the tables of all types. Raises the driver's exception."""
        with self._inspector() as inspector:
            return [
                *(Table(qualified_name([name]), "TABLE") for name in inspector.get_table_names()),
                *(Table(qualified_name([name]), "VIEW") for name in inspector.get_view_names()),
            ]

    @contextmanager
    def _inspector(self) -> Iterator[Inspector]:
        """Open a connection and yield SQLAlchemy's inspector for it. Raises the driver's exception."""
        with driver_errors(), self.engine.connect() as connection:
            yield sqlalchemy.inspect(connection)

    def table_columns(self, table: str) -> list[JdbcColumn]:
        """Return the columns of `table`, with `unsupported.columns` applied to columns without a Connect type.

        Raises MissingError if the table does not exist. Raises ConnectError if it has a column without a Connect type
        and unsupported.columns=fail. Raises the driver's exception if the database cannot be read.
        """
        return self._columns_of_description(table, *self._reflect(table))

    def _columns_of_description(
        self, table: str, described: Sequence[Mapping[str, Any]], keys: Sequence[str]
    ) -> list[JdbcColumn]:
        """Return the columns of `table`. `described` and `keys` are the two results of `_reflect`."""
        columns = [self._column(item, keys) or self._unsupported(item, keys) for item in described]
        unsupported = [column for column in columns if column.is_unsupported]
        if unsupported and self.config.unsupported_columns != "text":
            self._report_unsupported(table, unsupported)
            return [column for column in columns if not column.is_unsupported]
        return columns

    def _reflect(self, table: str) -> tuple[Sequence[Mapping[str, Any]], Sequence[str]]:
        """Return SQLAlchemy's descriptions of a table's columns, and the names of its primary key columns.

        Raises MissingError if the table does not exist.
        """
        with self._inspector() as inspector:
            return self._reflect_with(inspector, table)

    def _reflect_with(self, inspector: Inspector, table: str) -> tuple[Sequence[Mapping[str, Any]], Sequence[str]]:
        """Return the result of `_reflect`, read with the connection of `inspector`."""
        *schemas, name = split_name(table)
        schema = schemas[-1] if schemas else None
        try:
            described = self._describe(inspector, table, name, schema)
            return described, inspector.get_pk_constraint(name, schema=schema)["constrained_columns"]
        except sqlalchemy.exc.NoSuchTableError:
            raise self._missing(table) from None

    def _missing(self, table: str) -> MissingError:
        return MissingError(f"table {table} does not exist in {self.engine.url.render_as_string()}")

    def _describe(self, inspector: Inspector, table: str, name: str, schema: str | None) -> Sequence[Mapping[str, Any]]:
        """Return SQLAlchemy's descriptions of a table's columns.

        `table` is the qualified name of the table. `schema` and `name` are the last two parts of the qualified name.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", sqlalchemy.exc.SAWarning)  # `_unsupported` handles unknown types
            return inspector.get_columns(name, schema=schema)

    def _report_unsupported(self, table: str, columns: Sequence[JdbcColumn]) -> None:
        """Log one warning for each column without a Connect type. Raises ConnectError if unsupported.columns=fail."""
        described = ", ".join(f"{column.name} ({column.declared})" for column in columns)
        problem = f"table {table}: no Connect type can represent the columns {described}"
        if self.config.unsupported_columns == "fail":
            raise ConnectError(
                f"{problem}; set unsupported.columns=text to read these columns as text, or "
                "unsupported.columns=warn to skip them"
            )
        names = {f"{table}.{column.name}" for column in columns}
        if names - self._skipped:
            self._skipped |= names
            logger.warning("%s; skipping these columns, because unsupported.columns=warn", problem)

    def _unsupported(self, described: Mapping[str, Any], primary_key: Sequence[str]) -> JdbcColumn:
        """Return a column that is read as text, because no Connect type can represent it."""
        nullable = bool(described.get("nullable", True)) and described["name"] not in primary_key
        return JdbcColumn(
            described["name"],
            STRING_SCHEMA.replace(optional=nullable),
            self._text_form(),
            nullable=nullable,
            is_unsupported=True,
            is_key=described["name"] in primary_key,
            declared=_declared(described["type"]),
        )

    def _text_form(self) -> Callable[[Any], str] | None:
        """Return a function that converts the driver's values of unsupported types to text.

        Returns None if the driver already returns text.
        """
        return None

    def _column(self, described: Mapping[str, Any], primary_key: Sequence[str]) -> JdbcColumn | None:
        schema = base_schema(described["type"], self.options)
        if schema is None:
            return None
        nullable = bool(described.get("nullable", True)) and described["name"] not in primary_key
        is_timestamp = isinstance(described["type"], sqlalchemy.DateTime)
        convert = self._convert(described["type"])
        convert_column = self._column_converter(described["type"])
        if is_timestamp:
            read = partial(self.to_instant, is_zoned=bool(described["type"].timezone))
            convert = timestamp_converter(read, self.options.timestamp_granularity, self.zone)
        return JdbcColumn(
            described["name"],
            schema.replace(optional=nullable),
            convert,
            convert_column=convert_column,
            is_timestamp=is_timestamp,
            is_zoned=is_timestamp and bool(described["type"].timezone),
            is_autoincrement=self._is_autoincrement(described, primary_key),
            nullable=nullable,
            is_key=described["name"] in primary_key,
            fraction_digits=self._fraction_digits(described) if is_timestamp else 0,
            is_declared_not_null=bool(described.get("is_declared_not_null")),
            declared=_declared(described["type"]),
        )

    def _fraction_digits(self, described: Mapping[str, Any]) -> int:
        """Return the number of fractional-second digits that a timestamp column stores, or 0 if it is unknown."""
        return 0

    def _query_column(self, described: Mapping[str, Any]) -> JdbcColumn:
        """Return a column of a custom query. It is read as text if no Connect type can represent it.

        A column cannot be skipped, because the connector does not change the query's SELECT list.
        """
        return nullable_column(self._column(described, ()) or self._unsupported(described, ()))

    def _is_autoincrement(self, described: Mapping[str, Any], primary_key: Sequence[str]) -> bool:
        return described.get("autoincrement") is True or bool(described.get("identity"))

    def _convert(self, type_: Any) -> Any:
        return None

    def _column_converter(self, type_: Any) -> ColumnConverter | None:
        """Return the function `JdbcColumn.convert_column` for a type."""
        if isinstance(type_, sqlalchemy.DateTime):
            return timestamp_columns(self.options.timestamp_granularity, self.zone)
        if isinstance(type_, sqlalchemy.Date):
            return date_columns()
        return time_columns() if isinstance(type_, sqlalchemy.Time) and not type_.timezone else None

    def read_timestamp(self, value: Any, is_zoned: bool) -> tuple[int, bool]:
        """Return (time, whether it is an instant) for a timestamp of the driver.

        A time that is not an instant is a wall-clock time in the time zone of db.timezone. `is_zoned` is true if the
        column has a time zone. Raises UnmappableError with the nearest instant, or ValueError for an invalid value.
        """
        return read_timestamp(value)

    def to_instant(self, value: Any, is_zoned: bool = False) -> int:
        """Convert a timestamp of the driver to an instant (see `read_timestamp`)."""
        time, is_instant = self.read_timestamp(value, is_zoned)
        return time if is_instant else to_instant(time, self.zone)

    def to_wall_clock(self, value: Any) -> int:
        """Convert a timestamp of the driver to a wall-clock time in the time zone of db.timezone."""
        time, is_instant = self.read_timestamp(value, False)
        return to_wall_clock(time, self.zone) if is_instant else time

    def can_hold_timestamps(self, column: JdbcColumn) -> bool:
        """Whether the column can be configured as a timestamp column."""
        return column.is_timestamp

    def timestamp_expression(self, columns: Sequence[JdbcColumn], table: str) -> TimestampExpression:
        """Return the SQL expression that orders rows of `table` by the first of `columns` that is not NULL.

        If only some of the columns have a time zone, the expression converts the other columns from the time zone of
        db.timezone. Otherwise the database would convert them from the time zone of the session.
        """
        is_zoned = any(column.is_zoned for column in columns)
        terms = [
            self._with_time_zone(self.quote_column(column.name, table))
            if is_zoned and not column.is_zoned
            else self.quote_column(column.name, table)
            for column in columns
        ]
        if is_zoned:
            return TimestampExpression(coalesce(terms), self._bind_instant)
        return TimestampExpression(coalesce(terms), self._bind_wall_clock, self.zone)

    def _with_time_zone(self, timestamp: str) -> str:
        """Return an SQL expression that converts `timestamp` to a timestamp with time zone.

        `timestamp` is the SQL text of a column without time zone. The column's values are local times in the time zone
        of db.timezone.
        """
        if self.zone is dt.UTC or isinstance(self.zone, ZoneInfo):
            return f"({timestamp} AT TIME ZONE '{self.zone}')"
        offset_s = (self.zone.utcoffset(None) or dt.timedelta()) // dt.timedelta(seconds=1)
        return f"({timestamp} AT TIME ZONE INTERVAL '{offset_s}' SECOND)"

    def _bind_instant(self, instant: int) -> Any:
        """Return the query parameter to compare with timestamps that have a time zone."""
        return _naive(instant).replace(tzinfo=dt.UTC)

    def _bind_wall_clock(self, wall_clock: int) -> Any:
        """Return the query parameter to compare with timestamps that have no time zone."""
        return _naive(wall_clock)


def _naive(time: int) -> dt.datetime:
    try:
        return to_naive(time)
    except OverflowError:
        raise ConnectError(
            f"the driver cannot compare timestamps with {iso_text(time, ' ')}; set the source offset to a timestamp in "
            "the years 1 to 9999"
        ) from None


def _declared(type_: Any) -> str:
    """Return the name of an SQL type for log lines and error messages."""
    return "unknown type" if isinstance(type_, sqlalchemy.types.NullType) else str(type_)


@contextmanager
def driver_errors() -> Iterator[None]:
    """Raise the driver's exceptions from the `with` block, instead of SQLAlchemy's exceptions that wrap them."""
    try:
        yield
    except sqlalchemy.exc.DBAPIError as error:
        raise (error.orig or error) from None


def engine_for(address: sqlalchemy.URL, **arguments: Any) -> Engine:
    """Create an engine without a connection pool.

    A pool would not help, because each task keeps one connection and reflection is rare.
    """
    return sqlalchemy.create_engine(address, poolclass=NullPool, **arguments)


def run_on_connect(engine: Engine, action: Any) -> None:
    """Call `action(connection)` for every new DBAPI connection."""
    event.listen(engine, "connect", lambda connection, _: action(connection))


def nullable_column(column: JdbcColumn) -> JdbcColumn:
    """Return a nullable copy of `column`. A custom query may return NULL for any of its columns."""
    return replace(column, schema=column.schema.replace(optional=True), nullable=True)
