"""What differs between databases: how to connect, list and describe tables, stream rows, tell the time, bind a
timestamp.

SQLAlchemy gives reflection, quoting and the driver; rows come from the driver's own cursor. A dialect holds no
connection.
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
from headrace_connectors.jdbc.types import Column, TypeOptions, base_schema, chained, from_instant
from headrace_connectors.jdbc.url import JdbcUrl

logger = logging.getLogger(__name__)

Connection = Any  # a driver's (DBAPI) connection


@dataclass(frozen=True, slots=True)
class Ordering:
    """A timestamp column as an SQL expression that orders rows, and an instant as a parameter to compare with it."""

    sql: str
    bind: Callable[[dt.datetime], Any]


@dataclass(frozen=True, slots=True)
class Rows:
    """A running statement: the cursor that streams its rows, and whether each value is of its column's type."""

    cursor: Any
    typed: bool


class UnfitRowsError(Exception):
    """Rows cannot be read in the way that was chosen for their table."""


class Dialect(ABC):
    """One database behind one URL."""

    mark: str
    """The driver's parameter mark."""
    driver_error: type[Exception]
    """The root of the driver's errors."""
    transient_errors: tuple[type[Exception], ...]
    """Errors after which a new connection may do better."""

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
        """The database's own time, in UTC."""

    @abstractmethod
    def query_columns(self, sql: str) -> list[Column]:
        """The columns of a custom query. Raises the driver's error."""

    @abstractmethod
    def rows(self, connection: Connection, statement: Statement, columns: Sequence[Column], table: str) -> Rows:
        """The rows of a statement, which have those columns. `table`: whose `select_list` it has; "" is a query."""

    def is_transient(self, error: Exception) -> bool:
        """Whether a new connection may do better after that error."""
        return isinstance(error, self.transient_errors)

    def reason(self, error: Exception) -> str:
        """What an error of the driver says."""
        return str(error)

    def connect(self) -> Connection:
        """A new connection of the driver. Raises the driver's error."""
        with driver_errors():
            pooled = self.engine.raw_connection()
        connection = pooled.driver_connection
        pooled.detach()  # otherwise it closes with SQLAlchemy's wrapper
        return connection

    def end_transaction(self, connection: Connection) -> None:
        """Let go of what the last statement holds (locks, snapshots)."""
        connection.rollback()

    def quote(self, identifier: str) -> str:
        """An identifier as SQL text, quoted unless the configuration says never."""
        if self.config.quote_sql_identifiers.upper() == "NEVER":
            return identifier
        return self.engine.dialect.identifier_preparer.quote_identifier(identifier)

    def literal(self, sql: str) -> str:
        """SQL of the user's own, in which the driver must see no parameter marks."""
        return sql

    def quote_table(self, qualified_name: str) -> str:
        """A qualified table name as SQL text."""
        return ".".join(self.quote(part) for part in qualified_name.split("."))

    def select_list(self, columns: Sequence[Column], table: str) -> str:
        """What is selected from a table for rows of these columns, as SQL text."""
        return ",".join(self.quote(column.name) for column in columns)

    def read_plainly(self, table: str) -> None:  # noqa: B027 - most dialects have one way only
        """Have the next statement on that table read it in the way that fits all rows: after an UnfitRowsError."""

    def table_names(self) -> list[str]:
        """Qualified names of all tables (and views, where `table.types` says so), sorted. Raises the driver's error."""
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
        """SQLAlchemy's inspector on a connection of its own. Raises the driver's error."""
        with driver_errors(), self.engine.connect() as connection:
            yield sqlalchemy.inspect(connection)

    def _schemas(self, inspector: Inspector) -> Sequence[str | None]:
        return [None]

    def table_columns(self, qualified_name: str) -> list[Column]:
        """The columns of a table that have a Connect type. Raises ConnectError when the table is not there, and the
        driver's error.
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
            logger.warning("table %s: no type for columns %s, they are left out", qualified_name, ", ".join(skipped))
        return [column for column in columns.values() if column is not None]

    def _column(self, described: Mapping[str, Any], primary_key: Sequence[str]) -> Column | None:
        schema = base_schema(described["type"], self.options)
        if schema is None:
            return None
        nullable = bool(described.get("nullable", True)) and described["name"] not in primary_key
        is_timestamp = isinstance(described["type"], sqlalchemy.DateTime)
        convert = self._convert(described["type"])
        if is_timestamp:
            convert = chained(self.to_instant, from_instant(self.options.timestamp_granularity))
        return Column(
            described["name"],
            schema.replace(optional=nullable),
            convert,
            is_timestamp=is_timestamp,
            is_zoned=is_timestamp and bool(described["type"].timezone),
            is_autoincrement=self._is_autoincrement(described, primary_key),
            nullable=nullable,
            declared=str(described["type"]),
        )

    def _query_column(self, described: Mapping[str, Any]) -> Column:
        """A column of a query. Raises ConnectError when its type cannot be read: rows come whole, none is left out."""
        column = None if described["type"] is None else self._column(described, ())
        if column is None:
            raise ConnectError(
                f"query: column {described['name']} has a type that cannot be read: CAST it, or leave it out"
            )
        return nullable_column(column)

    def _is_autoincrement(self, described: Mapping[str, Any], primary_key: Sequence[str]) -> bool:
        return described.get("autoincrement") is True or bool(described.get("identity"))

    def _convert(self, type_: Any) -> Any:
        return None

    def to_instant(self, value: Any) -> dt.datetime:
        """A timestamp value of the driver as an aware datetime in UTC."""
        if value.tzinfo is None:
            value = value.replace(tzinfo=self.zone)
        instant: dt.datetime = value.astimezone(dt.UTC)
        return instant

    def holds_timestamps(self, column: Column) -> bool:
        """Whether rows can be followed by that column as a timestamp."""
        return column.is_timestamp

    def ordering(self, column: Column) -> Ordering:
        """How rows are ordered by a timestamp column."""
        if column.is_zoned:
            return Ordering(self.quote(column.name), lambda instant: instant)
        return Ordering(self.quote(column.name), lambda instant: instant.astimezone(self.zone).replace(tzinfo=None))


@contextmanager
def driver_errors() -> Iterator[None]:
    """Errors of the driver without SQLAlchemy's wrapping."""
    try:
        yield
    except sqlalchemy.exc.DBAPIError as error:
        raise (error.orig or error) from None


def _zone(name: str) -> dt.tzinfo:
    try:
        return dt.UTC if name.upper() in ("UTC", "GMT", "Z") else ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        raise ConfigError("db.timezone", name, "is not a known time zone, such as UTC or Europe/Berlin") from None


def pattern(sql_like: str) -> re.Pattern[str]:
    """An SQL LIKE pattern as a regular expression."""
    text = "".join(".*" if char == "%" else "." if char == "_" else re.escape(char) for char in sql_like)
    return re.compile(text, re.DOTALL)


def engine_for(address: sqlalchemy.URL, **arguments: Any) -> Engine:
    """An engine that keeps no connections: each reader owns one, and reflection is rare."""
    return sqlalchemy.create_engine(address, poolclass=NullPool, **arguments)


def on_connect(engine: Engine, action: Any) -> None:
    """Run `action(connection)` for each new connection of the driver."""
    event.listen(engine, "connect", lambda connection, _: action(connection))


def nullable_column(column: Column) -> Column:
    """The column as a query may deliver it: NULL is always possible."""
    return replace(column, schema=column.schema.replace(optional=True), nullable=True)
