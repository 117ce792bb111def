"""PostgreSQL dialect, with psycopg 3 as the driver.

A server-side cursor streams the rows, so reading a table of any size needs the memory of one batch. Columns of json,
jsonb, uuid, xml and enumeration types are read as text; bit(1) is a boolean.
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
from headrace_connectors.jdbc.dialects import Connection, Dialect, ResultSet, engine_for, like_to_regex, run_on_connect
from headrace_connectors.jdbc.statements import Statement
from headrace_connectors.jdbc.types import JdbcColumn, base_schema, to_decimal, to_integer

logger = logging.getLogger(__name__)

_SYSTEM_SCHEMAS = ("information_schema", "pg_catalog", "pg_toast")
_LOADED_AS_TEXT = ("json", "jsonb", "uuid")
_TYPES_BY_NAME: dict[str, type[TypeEngine[Any]]] = {
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
# Types that psycopg can transfer in binary format, which is faster, with the same result as in text format. In binary
# format psycopg returns bytes for other types (such as enumerations), and 0.10000000149011612 for the real 0.1.
_BINARY_TYPES: frozenset[type[TypeEngine[Any]]] = frozenset(
    {
        *(BOOLEAN, SMALLINT, INTEGER, BIGINT, DOUBLE_PRECISION, NUMERIC, TEXT, VARCHAR, CHAR, BYTEA),
        *(DATE, TIME, TIMESTAMP, Numeric, *(kind for kind in _TYPES_BY_NAME.values() if kind is not REAL)),
    }
)


# Connection properties that have different names in PostgreSQL's JDBC driver and in libpq.
_LIBPQ_NAMES = {
    "ApplicationName": "application_name",
    "connectTimeout": "connect_timeout",
    "loginTimeout": "connect_timeout",
}


def libpq_options(properties: Mapping[str, str]) -> dict[str, str]:
    """Convert properties of PostgreSQL's JDBC driver to libpq options. Skip unknown properties with a warning."""
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
            logger.warning("Connection property %s is ignored, libpq has no such option", name)
    return options


class PostgresqlDialect(Dialect):
    """One PostgreSQL database."""

    parameter_marker = "%s"
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
        dialect.ischema_names = {**dialect.ischema_names, "xml": UnicodeText}  # SQLAlchemy has no XML type
        run_on_connect(engine, self._prepare)
        return engine

    def _driver_properties(self) -> dict[str, str]:
        known = config_def(type(self.config)).keys
        given = self.config.originals_with_prefix("connection.")
        return {name: value for name, value in given.items() if f"connection.{name}" not in known}

    def _prepare(self, connection: psycopg.Connection[Any]) -> None:
        for name in _LOADED_AS_TEXT:
            connection.adapters.register_loader(name, TextLoader)
        if self.config.transaction_isolation_mode != "DEFAULT":
            level = self.config.transaction_isolation_mode
            connection.isolation_level = psycopg.IsolationLevel[level]

    def now(self, connection: Connection) -> dt.datetime:
        (now,) = connection.execute("SELECT CURRENT_TIMESTAMP").fetchone()
        connection.rollback()
        instant: dt.datetime = now.astimezone(dt.UTC)
        return instant

    def rows(
        self, connection: Connection, statement: Statement, columns: Sequence[JdbcColumn], table: str
    ) -> ResultSet:
        cursor = connection.cursor(name="headrace", binary=all(column.binary for column in columns))
        cursor.execute(statement.sql, statement.parameters)
        return ResultSet(cursor, typed=True)

    def query_columns(self, sql: str) -> list[JdbcColumn]:
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

    def escape_parameter_markers(self, sql: str) -> str:
        return sql.replace("%", "%%")

    def _schemas(self, inspector: Inspector) -> Sequence[str | None]:
        wanted = like_to_regex(self.config.schema_pattern) if self.config.schema_pattern else None
        names = [name for name in inspector.get_schema_names() if name not in _SYSTEM_SCHEMAS]
        return [name for name in names if wanted is None or wanted.fullmatch(name)]

    def _column(self, described: Mapping[str, Any], primary_key: Sequence[str]) -> JdbcColumn | None:
        type_ = described["type"]
        if isinstance(type_, BIT) and type_.length in (None, 1):
            column = super()._column({**described, "type": Boolean()}, primary_key)
            return None if column is None else replace(column, convert=lambda bit: bit == "1")
        column = super()._column(described, primary_key)
        return column and replace(column, binary=type(type_) in _BINARY_TYPES)

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
        return float if schema.type is Type.FLOAT64 else to_integer


def _described_type(item: Any, info: Any) -> TypeEngine[Any] | None:
    """Return the SQL type of a result column, None for an array."""
    if info is not None and info.array_oid == item.type_code:
        return None
    name = info.name if info is not None else ""
    if name == "numeric":
        return Numeric(item.precision, item.scale)
    if name == "timestamptz":
        return DateTime(timezone=True)
    return _TYPES_BY_NAME.get(name, String)()
