"""PostgreSQL: psycopg 3. Rows stream through a server-side cursor, so that a table of any size takes the memory of
one batch.

json, jsonb, uuid, xml and enumerations are read as their text; bit(1) is a boolean.
"""

from __future__ import annotations

import datetime as dt
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import psycopg
import sqlalchemy
from psycopg.types.string import TextLoader
from sqlalchemy.dialects.postgresql import (
    BIGINT,
    BIT,
    BOOLEAN,
    BYTEA,
    CHAR,
    DATE,
    DOUBLE_PRECISION,
    INTEGER,
    NUMERIC,
    REAL,
    SMALLINT,
    TEXT,
    TIME,
    TIMESTAMP,
    VARCHAR,
)
from sqlalchemy.engine import Engine
from sqlalchemy.engine.reflection import Inspector
from sqlalchemy.types import (
    BigInteger,
    Boolean,
    Date,
    DateTime,
    Double,
    Integer,
    LargeBinary,
    Numeric,
    SmallInteger,
    String,
    Time,
    TypeEngine,
    UnicodeText,
)

from headrace.api.config import config_def
from headrace.data.logical import scale_of
from headrace.data.schema import Type
from headrace_connectors.jdbc.dialects import Connection, Dialect, Rows, engine_for, on_connect, pattern
from headrace_connectors.jdbc.statements import Statement
from headrace_connectors.jdbc.types import Column, base_schema, to_decimal, to_whole_number

logger = logging.getLogger(__name__)

_SYSTEM_SCHEMAS = ("information_schema", "pg_catalog", "pg_toast")
_AS_TEXT = ("json", "jsonb", "uuid")
_BY_NAME: dict[str, type[TypeEngine[Any]]] = {
    "text": TEXT,
    "varchar": VARCHAR,
    "bpchar": CHAR,
    "bool": Boolean,
    "int2": SmallInteger,
    "int4": Integer,
    "int8": BigInteger,
    "float4": REAL,
    "float8": Double,
    "bytea": LargeBinary,
    "date": Date,
    "time": Time,
    "timestamp": DateTime,
}
# Types that psycopg reads in binary form, the faster one, as the same values as their text. Of any other type (an
# enumeration, say) it would make bytes, and of a real 0.1 the nearest number of 64 bits, 0.10000000149011612.
_BINARY: frozenset[type[TypeEngine[Any]]] = frozenset(
    {
        *(BOOLEAN, SMALLINT, INTEGER, BIGINT, DOUBLE_PRECISION, NUMERIC, TEXT, VARCHAR, CHAR, BYTEA),
        *(DATE, TIME, TIMESTAMP, Numeric, *(kind for kind in _BY_NAME.values() if kind is not REAL)),
    }
)


# What PostgreSQL's JDBC driver and its C library call by different names.
_LIBPQ_NAMES = {
    "ApplicationName": "application_name",
    "connectTimeout": "connect_timeout",
    "loginTimeout": "connect_timeout",
}


def libpq_options(properties: Mapping[str, str]) -> dict[str, str]:
    """Properties of PostgreSQL's JDBC driver as options of its C library; what that does not know is left out."""
    known = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
    options: dict[str, str] = {}
    for name, value in properties.items():
        if name in known:
            options[name] = value
        elif name == "tcpKeepAlive":
            options["keepalives"] = "1" if value.lower() == "true" else "0"
        elif name in _LIBPQ_NAMES:
            options[_LIBPQ_NAMES[name]] = value
        elif name == "currentSchema":
            options["options"] = f"-csearch_path={value}"
        elif name == "ssl":
            options.setdefault("sslmode", "verify-full" if value.lower() in ("", "true") else "prefer")
        else:
            logger.warning("connection property %s: PostgreSQL's C library has none like it, it is ignored", name)
    return options


class PostgresqlDialect(Dialect):
    """One PostgreSQL database."""

    mark = "%s"
    driver_error = psycopg.Error
    transient_errors = (psycopg.OperationalError, psycopg.InterfaceError)

    def _engine(self) -> Engine:
        password = self.config.connection_password
        properties = {"connect_timeout": "10", **libpq_options({**self.url.properties, **self._driver_properties()})}
        user, secret = properties.pop("user", None), properties.pop("password", None)
        address = sqlalchemy.URL.create(
            "postgresql+psycopg",
            username=self.config.connection_user or user,
            password=password.value if password else secret,
            host=self.url.host,
            port=self.url.port,
            database=self.url.database or None,
            query=properties,
        )
        engine = engine_for(address)
        dialect: Any = engine.dialect
        dialect.ischema_names = {**dialect.ischema_names, "xml": UnicodeText}  # SQLAlchemy has no XML
        on_connect(engine, self._prepare)
        return engine

    def _driver_properties(self) -> dict[str, str]:
        known = config_def(type(self.config)).keys
        given = self.config.originals_with_prefix("connection.")
        return {name: value for name, value in given.items() if f"connection.{name}" not in known}

    def _prepare(self, connection: psycopg.Connection[Any]) -> None:
        for name in _AS_TEXT:
            connection.adapters.register_loader(name, TextLoader)
        if self.config.transaction_isolation_mode != "DEFAULT":
            level = self.config.transaction_isolation_mode
            connection.isolation_level = psycopg.IsolationLevel[level]

    def now(self, connection: Connection) -> dt.datetime:
        (now,) = connection.execute("SELECT CURRENT_TIMESTAMP").fetchone()
        connection.rollback()
        instant: dt.datetime = now.astimezone(dt.UTC)
        return instant

    def rows(self, connection: Connection, statement: Statement, columns: Sequence[Column], table: str) -> Rows:
        cursor = connection.cursor(name="headrace", binary=all(column.binary for column in columns))
        cursor.execute(statement.sql, statement.parameters)
        return Rows(cursor, typed=True)

    def query_columns(self, sql: str) -> list[Column]:
        connection = self.connect()
        try:
            cursor = connection.execute(f"SELECT * FROM ({sql}) AS headrace_query LIMIT 0")
            types = connection.adapters.types
            described = [
                {"name": item.name, "type": _described_type(item, types.get(item.type_code))}
                for item in cursor.description
            ]
        finally:
            connection.close()
        return [self._query_column(item) for item in described]

    def literal(self, sql: str) -> str:
        return sql.replace("%", "%%")

    def _schemas(self, inspector: Inspector) -> Sequence[str | None]:
        wanted = pattern(self.config.schema_pattern) if self.config.schema_pattern else None
        names = [name for name in inspector.get_schema_names() if name not in _SYSTEM_SCHEMAS]
        return [name for name in names if wanted is None or wanted.fullmatch(name)]

    def _column(self, described: Mapping[str, Any], primary_key: Sequence[str]) -> Column | None:
        type_ = described["type"]
        if isinstance(type_, BIT) and type_.length in (None, 1):
            column = super()._column({**described, "type": Boolean()}, primary_key)
            return None if column is None else replace(column, convert=lambda bit: bit == "1")
        column = super()._column(described, primary_key)
        return column and replace(column, binary=type(type_) in _BINARY)

    def _is_autoincrement(self, described: Any, primary_key: Sequence[str]) -> bool:
        default = described.get("default") or ""
        return bool(described.get("identity")) or "nextval(" in default

    def _convert(self, type_: TypeEngine[Any]) -> Any:
        schema = base_schema(type_, self.options)
        if schema is None or not isinstance(type_, Numeric):
            return None
        if schema.type is Type.BYTES:
            return to_decimal(scale_of(schema))
        if isinstance(type_, (Double, REAL)):
            return None
        return float if schema.type is Type.FLOAT64 else to_whole_number


def _described_type(item: Any, info: Any) -> TypeEngine[Any] | None:
    """The SQL type of a result column; None for an array."""
    if info is not None and info.array_oid == item.type_code:
        return None
    name = info.name if info is not None else ""
    if name == "numeric":
        return Numeric(item.precision, item.scale)
    if name == "timestamptz":
        return DateTime(timezone=True)
    return _BY_NAME.get(name, String)()
