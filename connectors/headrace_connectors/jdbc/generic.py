"""Dialect for databases that are supported only through SQLAlchemy, such as DuckDB, Oracle or SQL Server.

`jdbc:NAME://host:port/database` (or `jdbc:NAME:/path`) selects SQLAlchemy's dialect NAME. A SQLAlchemy URL such as
`duckdb:////data/shop.db` works as well. Statements run through SQLAlchemy, because it knows the parameter style of each
driver. Reading through SQLAlchemy is slower than with the dialects for PostgreSQL, MySQL and SQLite. Drivers do not
describe the columns of a result in a common way, so the column types of a query are the types of the values in its
first row.
"""

from __future__ import annotations

import datetime as dt
import json
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from typing import Any

import sqlalchemy
from sqlalchemy import types as sql
from sqlalchemy.engine import Engine
from sqlalchemy.engine.reflection import Inspector

from headrace.api.errors import ConfigError
from headrace.data.logical import Date, Time, scale_of
from headrace.data.schema import Type
from headrace_connectors.common.instants import to_naive
from headrace_connectors.jdbc.connections import credentials
from headrace_connectors.jdbc.dialects import Connection, Description, Dialect, ResultSet, engine_for
from headrace_connectors.jdbc.names import like_to_regex, qualified_name, split_name
from headrace_connectors.jdbc.source_config import JdbcSourceConfig
from headrace_connectors.jdbc.statements import Statement
from headrace_connectors.jdbc.tables import Table
from headrace_connectors.jdbc.temporal_values import to_date
from headrace_connectors.jdbc.types import JdbcColumn, base_schema, to_decimal, to_integer_of
from headrace_connectors.jdbc.url import JdbcUrl

logger = logging.getLogger(__name__)

_PARAMETER = "\0"
_TABLES = """
    SELECT table_schema, table_name, table_type FROM information_schema.tables
    WHERE lower(table_schema) NOT IN ('information_schema', 'pg_catalog', 'sys')
"""
_TABLE_TYPES = {"BASE TABLE": "TABLE", "VIEW": "VIEW"}
_TYPES_OF_VALUES: Mapping[type, sql.TypeEngine[Any]] = {
    bool: sql.Boolean(),
    int: sql.BigInteger(),
    float: sql.Double(),
    Decimal: sql.Numeric(),
    str: sql.String(),
    bytes: sql.LargeBinary(),
    dt.date: sql.Date(),
    dt.time: sql.Time(),
    dt.datetime: sql.DateTime(),
}


class GenericDialect(Dialect):
    """Runs all statements through SQLAlchemy. Supports every database that has a SQLAlchemy dialect."""

    parameter_marker = _PARAMETER
    driver_error = sqlalchemy.exc.SQLAlchemyError
    transient_errors = (sqlalchemy.exc.OperationalError, sqlalchemy.exc.InterfaceError)

    def _engine(self) -> Engine:
        try:
            return engine_for(_address(self.url, self.config))
        except sqlalchemy.exc.ArgumentError as error:  # also NoSuchModuleError
            raise ConfigError(
                "connection.url",
                self.config.connection_url,
                f"{error}: install the Python package with the SQLAlchemy dialect of this database, "
                "for example duckdb-engine",
            ) from error

    def is_transient(self, error: Exception) -> bool:
        is_lost = isinstance(error, sqlalchemy.exc.DBAPIError) and error.connection_invalidated
        return is_lost or isinstance(error, self.transient_errors)

    def error_text(self, error: Exception) -> str:
        return str(getattr(error, "orig", None) or error)

    def connect(self) -> Connection:
        return self.engine.connect().execution_options(stream_results=True)

    @contextmanager
    def _inspector(self) -> Iterator[Inspector]:
        with self.engine.connect() as connection:
            yield sqlalchemy.inspect(connection)

    def now(self, connection: Connection) -> dt.datetime:
        found = connection.execute(sqlalchemy.select(sqlalchemy.func.current_timestamp())).scalar()
        connection.rollback()
        return to_naive(self.to_instant(found)).replace(tzinfo=dt.UTC)

    def first_row(self, connection: Connection, sql: str) -> tuple[Any, ...]:
        row = connection.execute(sqlalchemy.text(sql)).fetchone()
        connection.rollback()
        return tuple(row)

    def _quote(self, identifier: str) -> str:
        return super()._quote(identifier).replace(":", "\\:")

    def escape_parameter_markers(self, sql: str) -> str:
        return sql.replace(":", "\\:")

    def tables(self) -> list[Table]:
        """Return the tables and views of the schemas that match `schema.pattern`.

        The names of tables outside the default schema are qualified. If the database has no information_schema.tables,
        and schema.pattern is not set, return only the tables of the default schema.
        """
        pattern = like_to_regex(self.config.schema_pattern) if self.config.schema_pattern else None
        with self._inspector() as inspector:
            try:
                found = self._tables_of_information_schema()
            except sqlalchemy.exc.DBAPIError as error:
                logger.debug("Listing tables with SQLAlchemy, because information_schema cannot be read: %s", error)
                found = _tables_of_inspector(inspector, pattern)
            default = inspector.default_schema_name
        return [
            Table(qualified_name([None if schema == default else schema, name]), _TABLE_TYPES[kind.upper()])
            for schema, name, kind in found
            if kind.upper() in _TABLE_TYPES and (pattern is None or pattern.fullmatch(schema or ""))
        ]

    def _tables_of_information_schema(self) -> list[tuple[str | None, str, str]]:
        """Return the schema, name and type of each table that information_schema.tables lists."""
        with self.engine.connect() as connection:
            return [(schema, name, kind) for schema, name, kind in connection.execute(sqlalchemy.text(_TABLES))]

    def _reflect(self, table: str) -> tuple[Sequence[Mapping[str, Any]], Sequence[str]]:
        try:
            return super()._reflect(table)
        except sqlalchemy.exc.DBAPIError as error:
            # The dialects of some databases have fallen behind SQLAlchemy and read catalogs that do not exist.
            logger.debug(
                "SQLAlchemy cannot describe table %s, reading information_schema.columns instead: %s", table, error
            )
            return self._columns_of_schema(table), ()

    def _columns_of_schema(self, table: str) -> Sequence[Mapping[str, Any]]:
        """Return a table's columns from information_schema.columns. Raises MissingError if the table does not exist."""
        *schemas, name = split_name(table)
        statement = sqlalchemy.text(
            "SELECT column_name, data_type, is_nullable FROM information_schema.columns "
            "WHERE table_name = :name AND table_schema = :schema ORDER BY ordinal_position"
        )
        with self.engine.connect() as connection:
            schema = schemas[-1] if schemas else sqlalchemy.inspect(connection).default_schema_name
            found = connection.execute(statement, {"name": name, "schema": schema}).fetchall()
        if not found:
            raise self._missing(table)
        return [
            {"name": column, "type": _type_of_standard(kind.upper()), "nullable": nullable != "NO"}
            for column, kind, nullable in found
        ]

    def shape(self, connection: Connection, table: str) -> object:
        return _shape_of(*self._reflect(table)) if table else None

    def describe(self, connection: Connection, table: str) -> Description:
        if not table:
            return Description(self.query_columns(connection, self.config.sql), None)
        described, keys = self._reflect(table)
        return Description(self._columns_of_description(table, described, keys), _shape_of(described, keys))

    def query_columns(self, connection: Connection, sql: str) -> list[JdbcColumn]:
        escaped = self.escape_parameter_markers(sql)
        result = connection.execute(sqlalchemy.text(f"SELECT * FROM ({escaped}) headrace_query"))
        try:
            row = result.fetchone() or [None] * len(result.keys())
            return [self._query_column_of_value(name, value) for name, value in zip(result.keys(), row, strict=True)]
        finally:
            result.close()
            connection.rollback()

    def _query_column_of_value(self, name: str, value: Any) -> JdbcColumn:
        """Return a column of a query whose first row has this value. If it is NULL, `declared` is empty."""
        type_ = _TYPES_OF_VALUES.get(type(value), _STRING)
        column = self._query_column({"name": name, "type": type_})
        return replace(column, declared="") if value is None else column

    def can_hold_timestamps(self, column: JdbcColumn) -> bool:
        return column.is_timestamp or not column.declared  # the type of a query's column may be unknown

    def rows(
        self, connection: Connection, statement: Statement, columns: Sequence[JdbcColumn], table: str
    ) -> ResultSet:
        text, *rest = statement.sql.split(_PARAMETER)
        text += "".join(f":p{number}{part}" for number, part in enumerate(rest))
        parameters = {f"p{number}": value for number, value in enumerate(statement.parameters)}
        return ResultSet(_Rows(connection.execute(sqlalchemy.text(text), parameters)), typed=False)

    def _convert(self, type_: sql.TypeEngine[Any]) -> Any:
        schema = base_schema(type_, self.options)
        if isinstance(type_, sql.Float):
            return float
        if isinstance(type_, sql.Date):
            return _to_date
        if isinstance(type_, sql.Time):
            return _to_time
        if isinstance(type_, sql.Boolean):
            return bool
        if schema is None:
            return None
        if not isinstance(type_, sql.Numeric):
            return {Type.BYTES: bytes, Type.STRING: to_text}.get(schema.type)
        if schema.type is Type.BYTES:
            return to_decimal(scale_of(schema))
        return float if schema.type is Type.FLOAT64 else to_integer_of(schema)

    def _text_form(self) -> Any:
        return to_text

    def read_timestamp(self, value: Any, is_zoned: bool) -> tuple[int, bool]:
        if not isinstance(value, (dt.datetime, str)):  # the driver returns text for years that Python does not support
            raise ValueError(f"{value} is out of range")
        return super().read_timestamp(value, is_zoned)


def to_text(value: Any) -> str:
    """Return the text of a value that the driver may have decoded: JSON for structures, otherwise Python's text."""
    if isinstance(value, str):
        return value
    if isinstance(value, (dict, list, tuple)):
        return json.dumps(value, ensure_ascii=False, default=str)
    return str(value)


def _to_date(value: Any) -> Date:
    if not isinstance(value, (dt.date, str)):  # Oracle's DATE is a datetime; text is a date without Python equivalent
        raise ValueError(f"{value} is out of range")
    return to_date(value)


def _to_time(value: Any) -> Time:
    if not isinstance(value, dt.time):
        raise ValueError(f"{value} is out of range")
    if value.tzinfo is None:
        return Time.of(value)
    day = dt.datetime.combine(dt.date(2000, 1, 2), value)  # any day: only the time of day is kept
    return Time.of(day.astimezone(dt.UTC).time())


class _Rows:
    """The rows of a result as tuples."""

    def __init__(self, result: sqlalchemy.CursorResult[Any]) -> None:
        self._result = result
        self.close = result.close

    def fetchmany(self, count: int) -> list[tuple[Any, ...]]:
        """Return at most `count` rows."""
        return [tuple(row) for row in self._result.fetchmany(count)]


def _tables_of_inspector(inspector: Inspector, pattern: re.Pattern[str] | None) -> list[tuple[str | None, str, str]]:
    """Return the schema, name and type of each table in the schemas that match `pattern`.

    If `pattern` is None, return the tables of the default schema.
    """
    default = inspector.default_schema_name
    schemas = (
        [default] if pattern is None else [name for name in inspector.get_schema_names() if pattern.fullmatch(name)]
    )
    found: list[tuple[str | None, str, str]] = []
    for schema in schemas:
        found += ((schema, name, "BASE TABLE") for name in inspector.get_table_names(schema=schema))
        found += ((schema, name, "VIEW") for name in inspector.get_view_names(schema=schema))
    return found


_STRING = sql.String()
_STANDARD = re.compile(r"([A-Z ]+?)\s*(?:\((\d+)(?:,\s*(\d+))?\))?(\s+WITH TIME ZONE)?")
_STANDARD_TYPES: Mapping[str, type[sql.TypeEngine[Any]]] = {
    "TINYINT": sql.SmallInteger,
    "SMALLINT": sql.SmallInteger,
    "INTEGER": sql.Integer,
    "INT": sql.Integer,
    "BIGINT": sql.BigInteger,
    "REAL": sql.REAL,
    "FLOAT": sql.REAL,
    "DOUBLE": sql.Double,
    "DOUBLE PRECISION": sql.Double,
    "BOOLEAN": sql.Boolean,
    "DATE": sql.Date,
    "TIME": sql.Time,
    **dict.fromkeys(("CHAR", "CHARACTER", "VARCHAR", "CHARACTER VARYING", "TEXT", "UUID", "JSON"), sql.String),
    **dict.fromkeys(("BLOB", "BYTEA", "BINARY", "VARBINARY", "BINARY VARYING"), sql.LargeBinary),
}


def _shape_of(described: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> object:
    """Return the shape of a table (see `Dialect.shape`).

    The shape contains the name, type and nullability of each column, and the names of the primary key columns.
    """
    return tuple((item["name"], str(item["type"]), item.get("nullable")) for item in described), tuple(keys)


def _type_of_standard(name: str) -> sql.TypeEngine[Any]:
    """Return SQLAlchemy's type for a standard SQL type name, such as DECIMAL(8,2), or NullType for any other name."""
    match = _STANDARD.fullmatch(name)
    if match is None:
        return sql.NullType()
    kind, precision, scale, zone = match.groups()
    if kind in ("DECIMAL", "NUMERIC") and precision:
        return sql.Numeric(int(precision), int(scale or 0))
    if kind in ("TIMESTAMP", "DATETIME"):
        return sql.DateTime(timezone=zone is not None)
    return _STANDARD_TYPES.get(kind, sql.NullType)()


def _address(url: JdbcUrl, config: JdbcSourceConfig) -> sqlalchemy.URL:
    """Return SQLAlchemy's URL, with the user, password and driver properties of the configuration."""
    user, password, properties = credentials(url, config)
    if url.is_sqlalchemy:
        address = sqlalchemy.make_url(config.connection_url)
        return address.set(username=user or address.username, password=password or address.password)
    return sqlalchemy.URL.create(
        url.kind,
        username=user,
        password=password,
        host=url.host or None,
        port=url.port,
        database=url.database or None,
        query=properties,
    )
