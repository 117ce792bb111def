"""`Dialect`, the base class for the differences between databases: connections, table descriptions, queries, time.

SQLAlchemy provides reflection, quoting and the driver. Rows come from the driver's own cursor. A dialect does not keep
connections open.
"""

from __future__ import annotations

import datetime as dt
import logging
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import sqlalchemy
from sqlalchemy import event
from sqlalchemy.engine import Engine
from sqlalchemy.engine.reflection import Inspector
from sqlalchemy.pool import NullPool

from headrace.api.errors import ConfigError, ConnectError
from headrace_connectors.jdbc.config import JdbcSourceConfig
from headrace_connectors.jdbc.statements import Statement
from headrace_connectors.jdbc.types import JdbcColumn, TypeOptions, base_schema, chain, from_instant
from headrace_connectors.jdbc.url import JdbcUrl

logger = logging.getLogger(__name__)

Connection = Any  # a DBAPI connection of the driver


@dataclass(frozen=True, slots=True)
class TimestampExpression:
    """An SQL expression that orders rows by a timestamp column.

    `bind` converts a datetime to a query parameter that compares correctly with the expression.
    """

    sql: str
    bind: Callable[[dt.datetime], Any]


@dataclass(frozen=True, slots=True)
class ResultSet:
    """The result of a query: a cursor that streams rows, and whether every value has its column's type (`typed`)."""

    cursor: Any
    typed: bool


class FastReadError(Exception):
    """A table cannot be read by the dialect's fast path. Call `Dialect.disable_fast_read` and query again."""


class Dialect(ABC):
    """Access to the database of one JDBC URL."""

    parameter_marker: str
    """The driver's placeholder for a query parameter."""
    driver_error: type[Exception]
    """The base class of the driver's exceptions."""
    transient_errors: tuple[type[Exception], ...]
    """Exceptions after which a retry on a new connection may succeed."""

    def __init__(self, url: JdbcUrl, config: JdbcSourceConfig) -> None:
        self.url = url
        self.config = config
        self.zone = _zone(config.db_timezone)
        self.options = TypeOptions(
            numeric_mapping="precision_only" if config.numeric_precision_mapping else config.numeric_mapping,
            timestamp_granularity=config.timestamp_granularity,
        )
        self.engine = self._engine()
        self._skipped: set[str] = set()

    @abstractmethod
    def _engine(self) -> Engine: ...

    @abstractmethod
    def now(self, connection: Connection) -> dt.datetime:
        """Return the database server's current time in UTC."""

    @abstractmethod
    def query_columns(self, sql: str) -> list[JdbcColumn]:
        """Return the columns of a custom query. Raises the driver's exception."""

    @abstractmethod
    def rows(
        self, connection: Connection, statement: Statement, columns: Sequence[JdbcColumn], table: str
    ) -> ResultSet:
        """Run a statement that selects these columns.

        `table` is the table whose `select_list` the statement contains, or "" for a custom query.
        """

    def is_transient(self, error: Exception) -> bool:
        """Whether a retry on a new connection may succeed after this error."""
        return isinstance(error, self.transient_errors)

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
        """Release the locks and snapshots of the last statement."""
        connection.rollback()

    def quote(self, identifier: str) -> str:
        """Return an identifier as SQL text, quoted unless quote.sql.identifiers=never."""
        if self.config.quote_sql_identifiers.upper() == "NEVER":
            return identifier
        return self.engine.dialect.identifier_preparer.quote_identifier(identifier)

    def escape_parameter_markers(self, sql: str) -> str:
        """Escape characters in a user's SQL that the driver would read as parameter placeholders."""
        return sql

    def quote_table(self, qualified_name: str) -> str:
        """Return a qualified table name as SQL text."""
        return ".".join(self.quote(part) for part in qualified_name.split("."))

    def select_list(self, columns: Sequence[JdbcColumn], table: str) -> str:
        """Return the SQL text between SELECT and FROM that reads these columns of a table."""
        return ",".join(self.quote(column.name) for column in columns)

    def disable_fast_read(self, table: str) -> None:  # noqa: B027 - most dialects have no fast path
        """Read this table without the fast path from now on. Call this after a FastReadError."""

    def table_names(self) -> list[str]:
        """Return the sorted qualified names of all tables or views that `table.types` selects.

        Raises the driver's exception.
        """
        types = {kind.strip().upper() for kind in self.config.table_types}
        names: list[str] = []
        with self._inspector() as inspector:
            for schema in self._schemas(inspector):
                found = inspector.get_table_names(schema=schema) if "TABLE" in types else []
                if "VIEW" in types:
                    found += inspector.get_view_names(schema=schema)
                names += [f"{schema}.{name}" if schema else name for name in found]
        return sorted(names)

    @contextmanager
    def _inspector(self) -> Iterator[Inspector]:
        """Open a connection and yield SQLAlchemy's inspector for it. Raises the driver's exception."""
        with driver_errors(), self.engine.connect() as connection:
            yield sqlalchemy.inspect(connection)

    def _schemas(self, inspector: Inspector) -> Sequence[str | None]:
        return [None]

    def table_columns(self, qualified_name: str) -> list[JdbcColumn]:
        """Return the columns of a table whose SQL types have a Connect type. Skips all other columns with a warning.

        Raises ConnectError if the table does not exist, and the driver's exception if the database cannot be read.
        """
        schema, _, table = qualified_name.rpartition(".")
        try:
            with self._inspector() as inspector:
                described = inspector.get_columns(table, schema=schema or None)
                keys = inspector.get_pk_constraint(table, schema=schema or None)["constrained_columns"]
        except sqlalchemy.exc.NoSuchTableError:
            raise ConnectError(
                f"table {qualified_name} does not exist in {self.engine.url.render_as_string()}"
            ) from None
        columns = {item["name"]: self._column(item, keys) for item in described}
        skipped = {name for name, column in columns.items() if column is None}
        if skipped - self._skipped:
            self._skipped |= skipped
            logger.warning(
                "Table %s: skipping columns %s, no Connect type can represent them", qualified_name, ", ".join(skipped)
            )
        return [column for column in columns.values() if column is not None]

    def _column(self, described: Mapping[str, Any], primary_key: Sequence[str]) -> JdbcColumn | None:
        schema = base_schema(described["type"], self.options)
        if schema is None:
            return None
        nullable = bool(described.get("nullable", True)) and described["name"] not in primary_key
        is_timestamp = isinstance(described["type"], sqlalchemy.DateTime)
        convert = self._convert(described["type"])
        if is_timestamp:
            convert = chain(self.to_instant, from_instant(self.options.timestamp_granularity))
        return JdbcColumn(
            described["name"],
            schema.replace(optional=nullable),
            convert,
            is_timestamp=is_timestamp,
            is_zoned=is_timestamp and bool(described["type"].timezone),
            is_autoincrement=self._is_autoincrement(described, primary_key),
            nullable=nullable,
            declared=str(described["type"]),
        )

    def _query_column(self, described: Mapping[str, Any]) -> JdbcColumn:
        """Return a column of a query. Raises ConnectError if no Connect type can represent the column.

        A query's column cannot be skipped, because the connector does not change the query's SELECT list.
        """
        column = None if described["type"] is None else self._column(described, ())
        if column is None:
            raise ConnectError(
                f"query: no Connect type can represent column {described['name']}; CAST the column to another type, "
                "or remove it from the query"
            )
        return nullable_column(column)

    def _is_autoincrement(self, described: Mapping[str, Any], primary_key: Sequence[str]) -> bool:
        return described.get("autoincrement") is True or bool(described.get("identity"))

    def _convert(self, type_: Any) -> Any:
        return None

    def to_instant(self, value: Any) -> dt.datetime:
        """Convert a timestamp value from the driver to an aware datetime in UTC."""
        if value.tzinfo is None:
            value = value.replace(tzinfo=self.zone)
        instant: dt.datetime = value.astimezone(dt.UTC)
        return instant

    def can_hold_timestamps(self, column: JdbcColumn) -> bool:
        """Whether the column can be configured as a timestamp column."""
        return column.is_timestamp

    def timestamp_expression(self, column: JdbcColumn) -> TimestampExpression:
        """Return the SQL expression that orders rows by a timestamp column."""
        if column.is_zoned:
            return TimestampExpression(self.quote(column.name), lambda instant: instant)
        return TimestampExpression(
            self.quote(column.name), lambda instant: instant.astimezone(self.zone).replace(tzinfo=None)
        )


@contextmanager
def driver_errors() -> Iterator[None]:
    """Raise the driver's own exceptions instead of SQLAlchemy's wrappers."""
    try:
        yield
    except sqlalchemy.exc.DBAPIError as error:
        raise (error.orig or error) from None


def _zone(name: str) -> dt.tzinfo:
    try:
        return dt.UTC if name.upper() in ("UTC", "GMT", "Z") else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        raise ConfigError("db.timezone", name, "unknown time zone; set a name such as UTC or Europe/Berlin") from None


def like_to_regex(sql_like: str) -> re.Pattern[str]:
    """Convert an SQL LIKE pattern to a regular expression."""
    text = "".join(".*" if char == "%" else "." if char == "_" else re.escape(char) for char in sql_like)
    return re.compile(text, re.DOTALL)


def engine_for(address: sqlalchemy.URL, **arguments: Any) -> Engine:
    """Create an engine without a connection pool: each reader has its own connection, and reflection is rare."""
    return sqlalchemy.create_engine(address, poolclass=NullPool, **arguments)


def run_on_connect(engine: Engine, action: Any) -> None:
    """Call `action(connection)` for every new DBAPI connection."""
    event.listen(engine, "connect", lambda connection, _: action(connection))


def nullable_column(column: JdbcColumn) -> JdbcColumn:
    """Return the column as nullable, since a query may return NULL for any column."""
    return replace(column, schema=column.schema.replace(optional=True), nullable=True)
