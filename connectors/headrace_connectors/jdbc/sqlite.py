"""SQLite dialect, with the standard library's driver. The dialect checks the types of values, because SQLite does not.

SQLite stores integers and floating-point numbers with 64 bits regardless of the declared type, so they are INT64 and
FLOAT64. Timestamps are ISO 8601 text or milliseconds since the epoch.

SQL statements must order and compare timestamps with the SQL function `headrace_microseconds`, which this module
registers. `headrace_microseconds` is a Python function and does not round timestamps. SQLite's own functions round
timestamps to milliseconds, but source offsets contain exact timestamps. With SQLite's own functions, a row's timestamp
could therefore be larger than the row's source offset. The connector would then read this row again forever.
"""

from __future__ import annotations

import datetime as dt
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import sqlalchemy
from sqlalchemy.engine import Engine
from sqlalchemy.types import Boolean, Date, Float, Integer, LargeBinary, NullType, Numeric, String, Time, TypeEngine

from headrace.api.errors import ConfigError
from headrace.data import logical
from headrace.data.logical import scale_of
from headrace.data.schema import FLOAT64_SCHEMA, INT64_SCHEMA, INT_RANGES, Type
from headrace_connectors.common.instants import DAY_US
from headrace_connectors.jdbc.dialects import (
    Connection,
    Description,
    Dialect,
    FastReadError,
    ResultSet,
    driver_errors,
    engine_for,
)
from headrace_connectors.jdbc.names import split_name
from headrace_connectors.jdbc.source_config import JdbcSourceConfig
from headrace_connectors.jdbc.sqlite_json import JsonRows, row_type
from headrace_connectors.jdbc.statements import Statement, TimestampExpression, coalesce
from headrace_connectors.jdbc.temporal_columns import timestamp_columns
from headrace_connectors.jdbc.temporal_values import (
    FIRST_TIME,
    LAST_TIME,
    UnmappableError,
    checked_date,
    read_timestamp,
)
from headrace_connectors.jdbc.types import (
    ColumnConverter,
    JdbcColumn,
    base_schema,
    may_exceed_schema,
    to_decimal,
    to_integer_of,
)
from headrace_connectors.jdbc.url import JdbcUrl

_TYPES_OF_VALUES: Mapping[str, TypeEngine[Any]] = {"integer": Integer(), "real": Float(), "blob": LargeBinary()}
_BUSY_TIMEOUT_S = 10.0
_FIRST_INT64, _LAST_INT64 = INT_RANGES[Type.INT64]
_FUNCTION = "headrace_microseconds"
_VIEW = "headrace_query"
"""The temporary view of a custom query."""
_NOT_UTF_8 = "Could not decode to UTF-8"
"""The start of the driver's message about text that is not UTF-8. The error has no code."""
_MISSING = ("no such table", "no such column")
"""The start of the driver's messages about a missing table or column. The errors have no codes of their own."""
# The driver raises OperationalError for invalid SQL too. The primary result code distinguishes transient errors.
_PRIMARY_CODE = 0xFF
TRANSIENT_CODES = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_LOCKED,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_PROTOCOL,
        sqlite3.SQLITE_SCHEMA,
    }
)


@dataclass(slots=True)
class _Shape:
    """The columns of a table, view or query, as rows of `PRAGMA table_xinfo`."""

    columns: Sequence[tuple[Any, ...]]
    schema_version: int = field(compare=False)
    """A schema version of the database with these columns. DDL statements for other tables increase the version."""


class SqliteDialect(Dialect):
    """Dialect for one SQLite database file."""

    parameter_marker = "?"
    driver_error = sqlite3.Error
    transient_errors = (sqlite3.OperationalError,)

    def _engine(self) -> Engine:
        path = Path(self.url.database)
        if not path.is_file():
            raise ConfigError("connection.url", self.config.connection_url, f"database file {path} does not exist")
        query = {"mode": "rw", "uri": "true", **self.url.properties}
        address = sqlalchemy.URL.create("sqlite", database=f"file:{path}", query=query)
        return engine_for(
            address, connect_args={"check_same_thread": False, "timeout": _BUSY_TIMEOUT_S, "detect_types": 0}
        )

    def __init__(self, url: JdbcUrl, config: JdbcSourceConfig) -> None:
        super().__init__(url, config)
        self._without_json: set[str] = set()
        self._with_invalid_text: set[str] = set()
        self._invalid_timestamp: Any = None

    def is_transient(self, error: Exception) -> bool:
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        return super().is_transient(error) and code & _PRIMARY_CODE in TRANSIENT_CODES

    def is_missing(self, error: Exception) -> bool:
        return str(error).startswith(_MISSING)

    def now(self, connection: Connection) -> dt.datetime:
        (text,) = connection.execute("SELECT strftime('%Y-%m-%d %H:%M:%f', 'now')").fetchone()
        return dt.datetime.fromisoformat(text).replace(tzinfo=dt.UTC)

    def select_list(self, columns: Sequence[JdbcColumn], table: str) -> str:
        names = super().select_list(columns, table)
        return names if self._json_type(columns, table) is None else f"json_array({names})"

    def _json_type(self, columns: Sequence[JdbcColumn], table: str) -> Any:
        return row_type(columns) if table and table not in self._without_json else None

    def rows(
        self, connection: Connection, statement: Statement, columns: Sequence[JdbcColumn], table: str
    ) -> ResultSet:
        json_type = self._json_type(columns, table)
        connection.text_factory = _text_or_bytes if table in self._with_invalid_text else str
        # Both cursors read the first row at once. The read transaction has then begun, so the schema cannot change.
        if json_type is None:
            return ResultSet(_DecodedRows(connection.execute(statement.sql, statement.parameters)), typed=False)
        rows = JsonRows(connection, statement, json_type, self.is_transient)
        return ResultSet(rows, typed=True, matches_schema=not any(map(may_exceed_schema, columns)))

    def disable_fast_read(self, table: str) -> None:
        """Use a slower method to read `table` from now on. `table` is an empty string for the custom query.

        After the first call for a table, the dialect no longer reads the table's rows as JSON. After the second call,
        the dialect returns bytes for text that is not valid UTF-8. The dialect never reads the custom query as JSON.
        For the custom query, the first call therefore has the effect of the second call.
        """
        if not table or table in self._without_json:
            self._with_invalid_text.add(table)
        self._without_json.add(table)

    def shape(self, connection: Connection, table: str) -> object:
        version = _schema_version(connection)
        return _Shape(self._table_info(connection, table) if table else self._query_info(connection), version)

    def describe(self, connection: Connection, table: str) -> Description:
        with driver_errors(), self.engine.connect() as other:
            other.exec_driver_sql("BEGIN")  # all following statements read the same snapshot
            driver_connection = other.connection.driver_connection
            version = _schema_version(driver_connection)
            if not table:
                columns = self._query_columns(other, self.config.sql)
                return Description(columns, _Shape(_view_info(driver_connection), version))
            info = self._table_info(driver_connection, table)
            return Description(
                self._columns_of_description(table, *self._reflect_with(sqlalchemy.inspect(other), table)),
                _Shape(info, version),
            )

    def _has_shape(self, connection: Connection, table: str, result: ResultSet, shape: object) -> bool:
        assert isinstance(shape, _Shape)
        if (version := _schema_version(connection)) == shape.schema_version:
            return True
        if self.shape(connection, table) != shape:
            return False
        shape.schema_version = version
        return True

    def _table_info(self, connection: Connection, table: str) -> Sequence[tuple[Any, ...]]:
        name = self._quote(split_name(table)[-1])
        rows: Sequence[tuple[Any, ...]] = connection.execute(f"PRAGMA main.table_xinfo({name})").fetchall()
        return rows

    def _query_info(self, connection: Connection) -> Sequence[tuple[Any, ...]]:
        """Return the rows of `PRAGMA table_xinfo` for the custom query."""
        connection.execute(f"CREATE TEMP VIEW {_VIEW} AS {self.config.sql}")
        try:
            return _view_info(connection)
        finally:
            connection.execute(f"DROP VIEW temp.{_VIEW}")

    def query_columns(self, connection: Connection, sql: str) -> list[JdbcColumn]:
        with driver_errors(), self.engine.connect() as other:  # the view must not stay in the task's connection
            return self._query_columns(other, sql)

    def _query_columns(self, connection: sqlalchemy.Connection, sql: str) -> list[JdbcColumn]:
        """Create a temporary view for a query, and return its columns.

        The columns that the query selects unchanged have the declared types of the table's columns.
        """
        connection.exec_driver_sql(f"CREATE TEMP VIEW {_VIEW} AS {sql}")
        described = sqlalchemy.inspect(connection).get_columns(_VIEW)
        typed = [
            {**item, "type": self._type_of_values(connection, item["name"])}
            if isinstance(item["type"], NullType)
            else item
            for item in described
        ]
        return [self._query_column(item) for item in typed]

    def _type_of_values(self, connection: sqlalchemy.Connection, name: str) -> TypeEngine[Any]:
        """Return the type of the first non-null value of the query's column `name`, or String if all are NULL."""
        quoted = self._quote(name)  # the name may be an expression such as count(*)
        found = connection.exec_driver_sql(
            f"SELECT typeof({quoted}) FROM {_VIEW} WHERE {quoted} IS NOT NULL LIMIT 1"
        ).scalar()
        return _TYPES_OF_VALUES.get(found or "text", String())

    def _column(self, described: Mapping[str, Any], primary_key: Sequence[str]) -> JdbcColumn | None:
        column = super()._column(described, primary_key)
        if column is None:
            return None
        if isinstance(described["type"], Integer):
            return replace(column, schema=INT64_SCHEMA.replace(optional=column.nullable))
        if isinstance(described["type"], Float):
            return replace(column, schema=FLOAT64_SCHEMA.replace(optional=column.nullable))
        return column

    def _is_autoincrement(self, described: Mapping[str, Any], primary_key: Sequence[str]) -> bool:
        # INTEGER PRIMARY KEY is an alias for SQLite's row id, which increases automatically.
        return list(primary_key) == [described["name"]] and isinstance(described["type"], Integer)

    def _convert(self, type_: TypeEngine[Any]) -> Any:
        if isinstance(type_, Boolean):
            return _to_boolean
        if isinstance(type_, Date):
            return _to_date
        if isinstance(type_, Time):
            return _to_time
        if isinstance(type_, Float):
            return float
        schema = base_schema(type_, self.options)
        if isinstance(type_, Numeric) and schema is not None:
            if schema.type is Type.BYTES:
                return to_decimal(scale_of(schema))
            return float if schema.type is Type.FLOAT64 else to_integer_of(schema)
        if schema is not None and schema.type is Type.BYTES:
            return lambda value: value if isinstance(value, bytes) else str(value).encode()
        return None

    def _text_form(self) -> Any:
        return lambda value: value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)

    def _column_converter(self, type_: TypeEngine[Any]) -> ColumnConverter | None:
        if not isinstance(type_, sqlalchemy.DateTime):
            return None
        return timestamp_columns(
            self.options.timestamp_granularity, self.zone, integers=_instants_of_milliseconds, has_instants=True
        )

    def read_timestamp(self, value: Any, is_zoned: bool) -> tuple[int, bool]:
        return _read_timestamp(value)

    def can_hold_timestamps(self, column: JdbcColumn) -> bool:
        return True  # SQLite has no timestamp type, and stores any value in any column

    def timestamp_expression(self, columns: Sequence[JdbcColumn], table: str) -> TimestampExpression:
        terms = [f"{_FUNCTION}({self.quote_column(column.name, table)})" for column in columns]
        return TimestampExpression(coalesce(terms), _int64)

    def connect(self) -> Connection:
        connection = super().connect()
        connection.create_function(_FUNCTION, 1, self._microseconds, deterministic=True)
        return connection

    def _microseconds(self, value: Any) -> int | None:
        try:
            return None if value is None else _int64(self.to_instant(value))
        except (ValueError, TypeError, OverflowError):
            self._invalid_timestamp = value  # `error_text` needs the value, which SQLite's error does not contain
            raise

    def error_text(self, error: Exception) -> str:
        if self._invalid_timestamp is None:
            return super().error_text(error)
        return (
            f"{self._invalid_timestamp!r:.60} is not a timestamp; timestamps must be ISO 8601 text or milliseconds "
            "since the epoch"
        )


class _DecodedRows:
    """A cursor whose `fetchmany` raises FastReadError if some text is not UTF-8."""

    def __init__(self, cursor: sqlite3.Cursor) -> None:
        self._cursor = cursor
        self.close = cursor.close

    def fetchmany(self, count: int) -> list[Any]:
        """Return at most `count` rows."""
        try:
            return self._cursor.fetchmany(count)
        except sqlite3.OperationalError as error:
            if _NOT_UTF_8 in str(error):
                raise FastReadError(str(error)) from error
            raise


def _schema_version(connection: Connection) -> int:
    """Return SQLite's schema version. Each DDL statement increases the schema version.

    In a transaction, return the schema version of the transaction's snapshot.
    """
    (version,) = connection.execute("PRAGMA schema_version").fetchone()
    return int(version)


def _view_info(connection: Connection) -> Sequence[tuple[Any, ...]]:
    rows: Sequence[tuple[Any, ...]] = connection.execute(f"PRAGMA temp.table_xinfo({_VIEW})").fetchall()
    return rows


def _text_or_bytes(data: bytes) -> str | bytes:
    """Return text as a string, or as bytes if it is not UTF-8. The row converter rejects the bytes."""
    try:
        return data.decode()
    except UnicodeDecodeError:
        return data


def _to_boolean(value: Any) -> bool:
    """Convert a number, or the text `true` or `false`, to a boolean. Raises ValueError for other text."""
    if not isinstance(value, str):
        return bool(value)
    if value.lower() not in ("true", "false"):
        raise ValueError(f"{value!r:.60} is not a boolean; booleans must be numbers, true or false")
    return value.lower() == "true"


def _read_timestamp(value: Any) -> tuple[int, bool]:
    """Return (time, whether it is an instant) for ISO 8601 text or milliseconds since the epoch."""
    return (int(value) * 1000, True) if isinstance(value, (int, float)) else read_timestamp(value)


def _instants_of_milliseconds(values: Sequence[int], unit_us: int) -> list[int] | None:
    if not values or not _FIRST_INT64 <= min(values) <= max(values) <= _LAST_INT64:
        return None
    return [value * 1000 // unit_us for value in values]


def _to_date(value: Any) -> logical.Date:
    time, _ = _read_timestamp(value)
    return checked_date(time // DAY_US, str(value))


def _to_time(value: Any) -> logical.Time:
    """Convert ISO 8601 text, or milliseconds since midnight, which the JDBC sink writes."""
    if not isinstance(value, int):
        return logical.Time.of(dt.time.fromisoformat(value))
    if not FIRST_TIME <= value <= LAST_TIME:
        raise UnmappableError(str(value), FIRST_TIME if value < 0 else LAST_TIME)
    return logical.Time(value)


def _int64(instant: int) -> int:
    """Return the instant, or the nearest integer that SQLite can store."""
    return min(max(instant, _FIRST_INT64), _LAST_INT64)
