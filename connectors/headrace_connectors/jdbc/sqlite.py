"""SQLite: the standard library's driver. Values are held against their columns' types here, because SQLite does not.

Integers and floating-point numbers are 64 bits wide whatever a column's declaration says: INT64, FLOAT64. Timestamps
are text (ISO 8601) or milliseconds since the epoch; SQLite's own functions round them to milliseconds, so that a
function of ours orders and compares them.
"""

from __future__ import annotations

import datetime as dt
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import sqlalchemy
from sqlalchemy.engine import Engine
from sqlalchemy.types import Boolean, Date, Float, Integer, LargeBinary, NullType, Numeric, String, Time, TypeEngine

from headrace.api.errors import ConfigError
from headrace.data.logical import scale_of
from headrace.data.schema import FLOAT64_SCHEMA, INT64_SCHEMA, Type
from headrace_connectors.jdbc.config import JdbcSourceConfig
from headrace_connectors.jdbc.dialects import Connection, Dialect, Ordering, Rows, driver_errors, engine_for
from headrace_connectors.jdbc.sqlite_json import JsonRows, row_type
from headrace_connectors.jdbc.statements import Statement
from headrace_connectors.jdbc.types import Column, base_schema, microseconds, to_decimal, to_whole_number
from headrace_connectors.jdbc.url import JdbcUrl

_TYPES_OF_VALUES: Mapping[str, TypeEngine[Any]] = {"integer": Integer(), "real": Float(), "blob": LargeBinary()}
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_BUSY_TIMEOUT_S = 10.0
_FUNCTION = "headrace_microseconds"
# The driver raises OperationalError for wrong SQL too: the primary result code tells what may pass by itself.
_PRIMARY_CODE = 0xFF
_PASSING_CODES = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_SCHEMA,
    }
)


class SqliteDialect(Dialect):
    """One SQLite database file."""

    mark = "?"
    driver_error = sqlite3.Error
    transient_errors = (sqlite3.OperationalError,)

    def _engine(self) -> Engine:
        path = Path(self.url.database)
        if not path.is_file():
            raise ConfigError("connection.url", self.config.connection_url, f"there is no database file {path}")
        query = {"mode": "rw", "uri": "true", **self.url.properties}
        address = sqlalchemy.URL.create("sqlite", database=f"file:{path}", query=query)
        return engine_for(
            address, connect_args={"check_same_thread": False, "timeout": _BUSY_TIMEOUT_S, "detect_types": 0}
        )

    def __init__(self, url: JdbcUrl, config: JdbcSourceConfig) -> None:
        super().__init__(url, config)
        self._without_json: set[str] = set()
        self._no_timestamp: Any = None

    def is_transient(self, error: Exception) -> bool:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        return super().is_transient(error) and code & _PRIMARY_CODE in _PASSING_CODES

    def now(self, connection: Connection) -> dt.datetime:
        (text,) = connection.execute("SELECT strftime('%Y-%m-%d %H:%M:%f', 'now')").fetchone()
        return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)

    def select_list(self, columns: Sequence[Column], table: str) -> str:
        names = super().select_list(columns, table)
        return names if self._json_type(columns, table) is None else f"json_array({names})"

    def _json_type(self, columns: Sequence[Column], table: str) -> Any:
        return row_type(columns) if table and table not in self._without_json else None

    def rows(self, connection: Connection, statement: Statement, columns: Sequence[Column], table: str) -> Rows:
        json_type = self._json_type(columns, table)
        if json_type is None:
            return Rows(connection.execute(statement.sql, statement.parameters), typed=False)
        return Rows(JsonRows(connection, statement, json_type, self.is_transient), typed=True)

    def read_plainly(self, table: str) -> None:
        self._without_json.add(table)

    def query_columns(self, sql: str) -> list[Column]:
        # A temporary view knows the declared types of the columns that a query passes through.
        with driver_errors(), self.engine.connect() as connection:
            connection.exec_driver_sql(f"CREATE TEMP VIEW headrace_query AS {sql}")
            described = sqlalchemy.inspect(connection).get_columns("headrace_query")
            typed = [
                {**item, "type": self._type_of_values(connection, item["name"])}
                if isinstance(item["type"], NullType)
                else item
                for item in described
            ]
        return [self._query_column(item) for item in typed]

    def _type_of_values(self, connection: sqlalchemy.Connection, name: str) -> TypeEngine[Any]:
        """An expression has no declared type: that of its first value, text when there is none."""
        quoted = self.quote(name)
        found = connection.exec_driver_sql(
            f"SELECT typeof({quoted}) FROM headrace_query WHERE {quoted} IS NOT NULL LIMIT 1"
        ).scalar()
        return _TYPES_OF_VALUES.get(found or "text", String())

    def _column(self, described: Mapping[str, Any], primary_key: Sequence[str]) -> Column | None:
        column = super()._column(described, primary_key)
        if column is None:
            return None
        if isinstance(described["type"], Integer):
            return replace(column, schema=INT64_SCHEMA.replace(optional=column.nullable))
        if isinstance(described["type"], Float):
            return replace(column, schema=FLOAT64_SCHEMA.replace(optional=column.nullable))
        return column

    def _is_autoincrement(self, described: Mapping[str, Any], primary_key: Sequence[str]) -> bool:
        # INTEGER PRIMARY KEY is SQLite's growing row id.
        return list(primary_key) == [described["name"]] and isinstance(described["type"], Integer)

    def _convert(self, type_: TypeEngine[Any]) -> Any:
        if isinstance(type_, Boolean):
            return _to_boolean
        if isinstance(type_, Date):
            return lambda value: _to_instant(value, dt.UTC).date()
        if isinstance(type_, Time):
            return dt.time.fromisoformat
        if isinstance(type_, Float):
            return float
        schema = base_schema(type_, self.options)
        if isinstance(type_, Numeric) and schema is not None:
            if schema.type is Type.BYTES:
                return to_decimal(scale_of(schema))
            return float if schema.type is Type.FLOAT64 else to_whole_number
        if schema is not None and schema.type is Type.BYTES:
            return lambda value: value if isinstance(value, bytes) else str(value).encode()
        return None

    def to_instant(self, value: Any) -> dt.datetime:
        return _to_instant(value, self.zone)

    def holds_timestamps(self, column: Column) -> bool:
        return True  # SQLite has no type for them, and stores any value in any column

    def ordering(self, column: Column) -> Ordering:
        return Ordering(f"{_FUNCTION}({self.quote(column.name)})", microseconds)

    def connect(self) -> Connection:
        connection = super().connect()
        connection.create_function(_FUNCTION, 1, self._microseconds, deterministic=True)
        return connection

    def _microseconds(self, value: Any) -> int | None:
        try:
            return None if value is None else microseconds(self.to_instant(value))
        except (ValueError, TypeError, OverflowError):
            self._no_timestamp = value  # SQLite tells only that something was raised
            raise

    def reason(self, error: Exception) -> str:
        if self._no_timestamp is None:
            return super().reason(error)
        return f"{self._no_timestamp!r:.60} is no timestamp: these are ISO 8601 texts, or milliseconds since the epoch"


def _to_boolean(value: Any) -> bool:
    """0 is false and any other number true; a text is what it says."""
    if not isinstance(value, str):
        return bool(value)
    if value.lower() not in ("true", "false"):
        raise ValueError(f"{value!r:.60} is no boolean: these are numbers, true and false")
    return value.lower() == "true"


def _to_instant(value: Any, zone: dt.tzinfo) -> dt.datetime:
    """ISO 8601 text, or milliseconds since the epoch."""
    if isinstance(value, (int, float)):
        return _EPOCH + dt.timedelta(milliseconds=int(value))
    instant = dt.datetime.fromisoformat(value)
    if instant.tzinfo is None:
        instant = instant.replace(tzinfo=zone)
    return instant.astimezone(dt.UTC)
