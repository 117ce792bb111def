"""PostgreSQL dialect, with psycopg 3 as the driver.

A server-side cursor streams the rows, so a table of any size needs memory for only a few batches. Values of json,
jsonb, uuid, xml and enumeration types are read as text. Values of types that have no Connect type are read as text,
too. bit(1) is mapped to BOOLEAN, and a domain is mapped like its base type.
"""

from __future__ import annotations

import datetime as dt
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
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
    DOMAIN,
    DOUBLE_PRECISION,
    INTEGER,
    NUMERIC,
    OID,
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

from headrace.api.errors import ConfigError, ConnectError
from headrace.data.logical import scale_of
from headrace.data.schema import Type
from headrace_connectors.jdbc.connections import ConnectionConfig, credentials
from headrace_connectors.jdbc.dialects import (
    Connection,
    Description,
    Dialect,
    FastReadError,
    ResultSet,
    engine_for,
    run_on_connect,
)
from headrace_connectors.jdbc.horizon import RunningTransactions
from headrace_connectors.jdbc.names import like_to_regex, qualified_name
from headrace_connectors.jdbc.postgresql_dates import (
    BINARY_LOADERS,
    LOADERS_OF_ANY_VALUE,
    days_of_integers,
    describe,
    milliseconds_of_integers,
    times_of_integers,
    timestamp_parameter,
    to_date,
    to_time,
    to_time_of_timestamp,
)
from headrace_connectors.jdbc.postgresql_properties import libpq_options
from headrace_connectors.jdbc.postgresql_rows import ServerSideRows
from headrace_connectors.jdbc.source_config import JdbcSourceConfig
from headrace_connectors.jdbc.statements import Statement
from headrace_connectors.jdbc.tables import Table
from headrace_connectors.jdbc.temporal_columns import date_columns, time_columns, timestamp_columns
from headrace_connectors.jdbc.types import (
    ColumnConverter,
    JdbcColumn,
    base_schema,
    may_exceed_schema,
    to_decimal,
    to_integer,
)
from headrace_connectors.jdbc.url import JdbcUrl

logger = logging.getLogger(__name__)

_TABLES = """
    SELECT n.nspname, c.relname, c.relkind::text, c.relispartition
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_'
"""
# Hidden sessions have no start. Vacuum and replication write no rows with new timestamps or ids.
_RUNNING = """
    SELECT min(xact_start) FILTER (WHERE backend_type NOT IN ('autovacuum worker', 'walsender')),
        coalesce(bool_or(query = '<insufficient privilege>'), false),
        coalesce(bool_or(state = 'disabled'), false),
        EXISTS (SELECT FROM pg_catalog.pg_prepared_xacts WHERE database = current_database()),
        pg_catalog.pg_is_in_recovery()
    FROM pg_catalog.pg_stat_activity WHERE datname = current_database() AND pid <> pg_catalog.pg_backend_pid()
"""
# The OIDs of a table, its partitions and its child tables.
_MEMBERS = """
    WITH RECURSIVE member (relid) AS (
        SELECT to_regclass(%s)::oid
      UNION
        SELECT inhrelid FROM member JOIN pg_catalog.pg_inherits ON inhparent = relid
    )
"""
# The names of the columns that may be NULL in a table or in one of its partitions and child tables, because a query of
# the table also returns their rows. PostgreSQL does not enforce NOT NULL in foreign tables, in domains (a view may
# return NULL for them), and in rows that existed before a constraint that is NOT VALID. A child table may lack a
# constraint of its parent. OFFSET 0 keeps PostgreSQL from reading the whole catalogue, and from compiling the query.
_NULLABLE_COLUMNS = f"""
    {_MEMBERS}, may_be_null AS (
        SELECT DISTINCT attname FROM member CROSS JOIN LATERAL (
            SELECT a.attname
            FROM pg_catalog.pg_class c JOIN pg_catalog.pg_attribute a ON a.attrelid = c.oid
            WHERE c.oid = relid AND a.attnum > 0 AND (c.relkind = 'f' OR NOT a.attnotnull OR a.attnum IN (
                SELECT unnest(n.conkey) FROM pg_catalog.pg_constraint n
                WHERE n.conrelid = relid AND n.contype = 'n' AND NOT n.convalidated
            ))
            OFFSET 0
        ) nullable
    )
    SELECT attname FROM may_be_null ORDER BY attname
"""
# The xmin of a row in the catalogue is the transaction that wrote the row. Every ALTER changes it, and it does not
# return to its old value if another ALTER reverses the change. VALIDATE CONSTRAINT changes only the row of the
# constraint. If the table or its schema is renamed and renamed back, only the xmin of their own rows changes.
_SHAPE = """
    SELECT
        concat_ws(' ', c.oid, c.xmin, n.xmin, (
            SELECT string_agg(
                concat_ws(' ', a.xmin, attnum, attname, atttypid, atttypmod, attnotnull), ',' ORDER BY attnum
            )
            FROM pg_catalog.pg_attribute a WHERE attrelid = c.oid AND attnum > 0 AND NOT attisdropped
        ), (
            SELECT string_agg(k.xmin::text, ',' ORDER BY k.oid)
            FROM pg_catalog.pg_constraint k WHERE conrelid = c.oid AND contype = 'n'
        )),
        current_setting('transaction_isolation'),
        c.relhassubclass
    FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
    WHERE c.oid = to_regclass(%s)
"""
_SHAPE_OF_MEMBERS = f"""
    {_MEMBERS}
    SELECT hashtextextended(string_agg(concat_ws(' ', relid, attributes, constraints), ';' ORDER BY relid), 0)
    FROM member CROSS JOIN LATERAL (
        SELECT string_agg(concat_ws(' ', attnum, a.xmin), ',' ORDER BY attnum) AS attributes
        FROM pg_catalog.pg_attribute a WHERE attrelid = relid AND attnum > 0
        OFFSET 0
    ) attribute CROSS JOIN LATERAL (
        SELECT string_agg(k.xmin::text, ',' ORDER BY k.oid) AS constraints
        FROM pg_catalog.pg_constraint k WHERE conrelid = relid AND contype = 'n'
        OFFSET 0
    ) not_null
"""
# Returns the base types, such as numeric(6,2), of columns whose types are domains. Domains may be nested.
_BASE_TYPES = """
    WITH RECURSIVE base AS (
        SELECT a.attname, t.typbasetype AS type, t.typtypmod AS modifier
        FROM pg_catalog.pg_attribute a JOIN pg_catalog.pg_type t ON t.oid = a.atttypid
        WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND t.typtype = 'd'
      UNION ALL
        SELECT base.attname, t.typbasetype, t.typtypmod
        FROM base JOIN pg_catalog.pg_type t ON t.oid = base.type WHERE t.typtype = 'd'
    )
    SELECT base.attname, format_type(base.type, base.modifier)
    FROM base JOIN pg_catalog.pg_type t ON t.oid = base.type WHERE t.typtype <> 'd'
"""
_DENIED = re.compile(r"password|authentication failed|role \".*\" (does not exist|is not permitted to log in)")
_MISSING = (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn)
_FRACTION_DIGITS = 6
"""The digits of fractions of a second that a timestamp has if its type has no precision."""
_TIMESTAMP = re.compile(r"timestamp\((\d)\) (with|without) time zone")
_NUMERIC = re.compile(r"numeric\((\d+),(-?\d+)\)")
_TABLE_TYPES = {"r": "TABLE", "p": "PARTITIONED TABLE", "v": "VIEW", "m": "MATERIALIZED VIEW", "f": "FOREIGN TABLE"}
# psycopg converts the values of these types to the Python types that Connect uses.
_CONVERTED_BY_PSYCOPG = frozenset(
    {
        *("bool", "int2", "int4", "int8", "oid", "float4", "float8", "numeric"),
        *("bytea", "date", "time", "timestamp", "timestamptz"),
    }
)
_TYPES_BY_NAME: dict[str, type[TypeEngine[Any]]] = {
    "text": TEXT,
    "varchar": VARCHAR,
    "bpchar": CHAR,
    "bool": Boolean,
    "int2": SmallInteger,
    "int4": Integer,
    "int8": BigInteger,
    "oid": BigInteger,
    "float4": REAL,
    "float8": Double,
    "bytea": LargeBinary,
    "date": Date,
    "time": Time,
}
# psycopg can read these types in binary format, which is faster, with the same result as in text format. Other types
# have other results in binary format: enumeration values become bytes, and the real 0.1 becomes 0.10000000149011612.
_BINARY_TYPES: frozenset[type[TypeEngine[Any]]] = frozenset(
    {
        *(BOOLEAN, SMALLINT, INTEGER, BIGINT, DOUBLE_PRECISION, NUMERIC, TEXT, VARCHAR, CHAR, BYTEA),
        *(DATE, TIME, TIMESTAMP, Numeric, *(kind for kind in _TYPES_BY_NAME.values() if kind is not REAL)),
    }
)

# The OIDs of types that are read as text, although psycopg would convert them to other Python types.
_READ_AS_TEXT = (
    *(info.oid for info in psycopg.adapters.types if info.name not in _CONVERTED_BY_PSYCOPG),
    *(info.array_oid for info in psycopg.adapters.types if info.array_oid),
)


def postgresql_engine(url: JdbcUrl, config: ConnectionConfig) -> Engine:
    """Return an engine for the URL, with the user, password and driver properties of the configuration."""
    user, password, properties = credentials(url, config)
    try:
        options = libpq_options(properties)
    except ConfigError as error:
        raise ConfigError("connection.url", config.connection_url, error.reason) from error
    address = sqlalchemy.URL.create(
        "postgresql+psycopg",
        username=user,
        password=password,
        host=None if url.hosts else url.host,
        port=url.port,
        database=url.database or None,
        query={"connect_timeout": "10", **options},
    )
    arguments: dict[str, Any] = {}
    if url.hosts:
        hosts, ports = zip(*url.hosts, strict=True)
        arguments = {"host": ",".join(hosts), "port": ",".join(str(port or "") for port in ports)}
    # SQLAlchemy would make the driver decode hstore values to dicts, but they are read as text.
    return engine_for(address, connect_args=arguments, use_native_hstore=False)


def is_denied(error: Exception) -> bool:
    """Whether the server rejected the user or the password.

    Checks the error's text, because the connection errors of libpq have no SQLSTATE.
    """
    return _DENIED.search(str(error)) is not None


class PostgresqlDialect(Dialect):
    """Dialect for one PostgreSQL database."""

    parameter_marker = "%s"
    driver_error = psycopg.Error
    transient_errors = (psycopg.OperationalError, psycopg.InterfaceError)

    def _engine(self) -> Engine:
        engine = postgresql_engine(self.url, self.config)
        dialect: Any = engine.dialect
        dialect.ischema_names = {**dialect.ischema_names, "xml": UnicodeText}  # SQLAlchemy has no XML type
        run_on_connect(engine, self._prepare)
        return engine

    def __init__(self, url: JdbcUrl, config: JdbcSourceConfig) -> None:
        super().__init__(url, config)
        self._without_fast_read: set[str] = set()

    def _describe(self, inspector: Inspector, table: str, name: str, schema: str | None) -> Sequence[Mapping[str, Any]]:
        described = super()._describe(inspector, table, name, schema)
        quoted = self.quote_table(table)
        may_be_null = {row[0] for row in inspector.bind.exec_driver_sql(_NULLABLE_COLUMNS, (quoted,))}  # type: ignore[union-attr]
        described = [
            {**item, "nullable": True, "is_declared_not_null": True}
            if not item["nullable"] and item["name"] in may_be_null
            else item
            for item in described
        ]
        if not any(isinstance(item["type"], DOMAIN) for item in described):
            return described
        bases = dict(inspector.bind.exec_driver_sql(_BASE_TYPES, (quoted,)).fetchall())  # type: ignore[union-attr]
        return [{**item, "type": _base_type(item["type"], bases.get(item["name"], ""))} for item in described]

    def _reflect(self, table: str) -> tuple[Sequence[Mapping[str, Any]], Sequence[str]]:
        described, keys = super()._reflect(table)
        # A primary key does not apply to the rows of child tables.
        nullable = {item["name"] for item in described if item["nullable"]}
        return described, [name for name in keys if name not in nullable]

    def _prepare(self, connection: psycopg.Connection[Any]) -> None:
        if level := self.config.isolation_level:
            connection.isolation_level = psycopg.IsolationLevel[level]

    def connect(self) -> Connection:
        connection = super().connect()
        for oid in _READ_AS_TEXT:
            connection.adapters.register_loader(oid, TextLoader)
        return connection

    def is_missing(self, error: Exception) -> bool:
        return isinstance(error, _MISSING)

    def is_denied(self, error: Exception) -> bool:
        return is_denied(error)

    def now(self, connection: Connection) -> dt.datetime:
        (now,) = connection.execute("SELECT CURRENT_TIMESTAMP").fetchone()
        connection.rollback()
        instant: dt.datetime = now.astimezone(dt.UTC)
        return instant

    has_horizon = True

    def running_transactions(self, connection: Connection) -> RunningTransactions:
        found = connection.execute(_RUNNING).fetchone()
        connection.rollback()
        oldest, is_hidden, is_untracked, has_prepared, is_standby = found
        if is_hidden:
            raise ConnectError(
                "snapshot.horizon=true needs the role pg_read_all_stats: "
                f"GRANT pg_read_all_stats TO {self.config.connection_user or 'the user'}"
            )
        if is_untracked:
            raise ConnectError(
                "snapshot.horizon=true needs track_activities=on: one session has disabled it, so the start of its "
                "transaction is unknown. Find the session with SELECT pid FROM pg_stat_activity WHERE state = "
                "'disabled'"
            )
        if is_standby:
            raise ConnectError(
                "snapshot.horizon=true needs a connection to the primary: a standby does not list the transactions of "
                "the primary"
            )
        return RunningTransactions(oldest and oldest.astimezone(dt.UTC), has_prepared)

    def rows(
        self, connection: Connection, statement: Statement, columns: Sequence[JdbcColumn], table: str
    ) -> ResultSet:
        reads_fast = table not in self._without_fast_read
        is_binary = reads_fast and all(column.binary for column in columns)
        rows = ServerSideRows(
            connection,
            statement,
            binary=is_binary,
            loaders=BINARY_LOADERS if is_binary else {} if reads_fast else LOADERS_OF_ANY_VALUE,
        )
        return ResultSet(
            _FastRows(rows) if reads_fast else rows,
            typed=True,
            matches_schema=reads_fast and not any(map(may_exceed_schema, columns)),
        )

    def disable_fast_read(self, table: str) -> None:
        self._without_fast_read.add(table)

    def query_columns(self, connection: Connection, sql: str) -> list[JdbcColumn]:
        described = _describe_query(connection, sql)
        connection.rollback()
        return self._columns_of_result(connection, described)

    def _columns_of_result(self, connection: Connection, described: Any) -> list[JdbcColumn]:
        """Return the columns of a query. `described` is the driver's description of its result."""
        types = connection.adapters.types
        return [
            self._query_column({"name": item.name, "type": _described_type(item, types.get(item.type_code))})
            for item in described
        ]

    def describe(self, connection: Connection, table: str) -> Description:
        if table:
            # If the columns change after this line, the shape of the table never becomes equal to `shape` again.
            shape = self.shape(connection, table)
            return Description(self.table_columns(table), shape)
        described = _describe_query(connection, self.config.sql)
        connection.rollback()
        return Description(self._columns_of_result(connection, described), _shape_of_result(described))

    has_stable_query_columns = True

    def shape(self, connection: Connection, table: str) -> object:
        shape = (
            _fetch_shape(connection, self.quote_table(table))[0]
            if table
            else _shape_of_result(_describe_query(connection, self.config.sql))
        )
        connection.rollback()
        return shape

    def _has_shape(self, connection: Connection, table: str, result: ResultSet, shape: object) -> bool:
        return self._locked_shape(connection, table, result) == shape

    def _locked_shape(self, connection: Connection, table: str, result: ResultSet) -> object:
        if not table:
            return _shape_of_result(result.cursor.description)
        shape, isolation = _fetch_shape(connection, self.quote_table(table))
        if isolation in ("read committed", "read uncommitted"):
            return shape
        # The transaction's snapshot may be older than its lock, and may then not contain the current definition.
        other = self.connect()
        try:
            return self.shape(other, table)
        finally:
            other.close()

    def escape_parameter_markers(self, sql: str) -> str:
        return sql.replace("%", "%%")

    def tables(self) -> list[Table]:
        wanted = like_to_regex(self.config.schema_pattern) if self.config.schema_pattern else None
        connection = self.connect()
        try:
            found = connection.execute(_TABLES).fetchall()
        finally:
            connection.close()
        return [
            Table(qualified_name([schema, name]), _TABLE_TYPES[kind], is_partition)
            for schema, name, kind, is_partition in found
            if wanted is None or wanted.fullmatch(schema)
        ]

    def _column(self, described: Mapping[str, Any], primary_key: Sequence[str]) -> JdbcColumn | None:
        type_ = described["type"]
        if isinstance(type_, OID):
            type_ = BigInteger()
        described = {**described, "type": type_}
        if isinstance(type_, BIT) and not type_.varying and type_.length in (None, 1):
            column = super()._column({**described, "type": Boolean()}, primary_key)
            return None if column is None else replace(column, convert=lambda bit: bit == "1")
        column = super()._column(described, primary_key)
        if column is None:
            return None
        return replace(column, binary=type(type_) in _BINARY_TYPES, describe=_describer(type_))

    def _fraction_digits(self, described: Mapping[str, Any]) -> int:
        precision: int | None = getattr(described["type"], "precision", None)
        return _FRACTION_DIGITS if precision is None else precision

    def _is_autoincrement(self, described: Any, primary_key: Sequence[str]) -> bool:
        default = described.get("default") or ""
        return bool(described.get("identity")) or "nextval(" in default

    def _convert(self, type_: TypeEngine[Any]) -> Any:
        schema = base_schema(type_, self.options)
        if isinstance(type_, Date):
            return to_date
        if isinstance(type_, Time):
            return to_time
        if schema is None or not isinstance(type_, Numeric):
            return None
        if schema.type is Type.BYTES:
            return to_decimal(scale_of(schema))
        if isinstance(type_, (Double, REAL)):
            return None
        return float if schema.type is Type.FLOAT64 else to_integer

    def _column_converter(self, type_: TypeEngine[Any]) -> ColumnConverter | None:
        if isinstance(type_, sqlalchemy.DateTime):
            return timestamp_columns(
                self.options.timestamp_granularity, self.zone, integers=times_of_integers, has_instants=type_.timezone
            )
        if isinstance(type_, Date):
            return date_columns(days_of_integers)
        return time_columns(milliseconds_of_integers) if isinstance(type_, Time) and not type_.timezone else None

    def read_timestamp(self, value: Any, is_zoned: bool) -> tuple[int, bool]:
        return to_time_of_timestamp(value, is_zoned)

    def _bind_instant(self, instant: int) -> Any:
        return timestamp_parameter(instant, offset="+00")

    def _bind_wall_clock(self, wall_clock: int) -> Any:
        return timestamp_parameter(wall_clock)


class _FastRows:
    """A cursor whose `fetchmany` raises FastReadError for a value that the driver's own loaders cannot convert.

    An example is a date after the year 9999 in text format.
    """

    def __init__(self, cursor: ServerSideRows) -> None:
        self._cursor = cursor
        self.close = cursor.close
        self.description = cursor.description

    def fetchmany(self, count: int) -> Any:
        """Return at most `count` rows."""
        try:
            return self._cursor.fetchmany(count)
        except psycopg.DataError as error:
            raise FastReadError(str(error)) from error


def _describer(type_: TypeEngine[Any]) -> Callable[[Any], str] | None:
    """Return a function that returns the text of the driver's dates and times."""
    if isinstance(type_, sqlalchemy.DateTime):
        return partial(describe, type_name="timestamptz" if type_.timezone else "timestamp")
    if isinstance(type_, (Date, Time)):
        return partial(describe, type_name="date" if isinstance(type_, Date) else "time")
    return None


def _base_type(type_: TypeEngine[Any], base: str) -> TypeEngine[Any]:
    """Return `type_`, or its base type if it is a domain.

    `base` is the base type's name, with the precision and scale that SQLAlchemy omits.
    """
    while isinstance(type_, DOMAIN):
        type_ = type_.data_type
    if timestamp := _TIMESTAMP.fullmatch(base):
        return TIMESTAMP(timezone=timestamp[2] == "with", precision=int(timestamp[1]))
    numeric = _NUMERIC.fullmatch(base)
    return NUMERIC(int(numeric[1]), int(numeric[2])) if numeric else type_


def _fetch_shape(connection: Connection, quoted_table: str) -> tuple[object, str]:
    """Return two values: a table's shape (see `Dialect.shape`), and the isolation level of the transaction.

    Both values are empty strings if the snapshot of the transaction does not contain the table.
    """
    shape, isolation, has_children = connection.execute(_SHAPE, [quoted_table]).fetchone() or ("", "", False)
    if has_children:
        shape = (shape, connection.execute(_SHAPE_OF_MEMBERS, [quoted_table]).fetchone())
    return shape, isolation


def _describe_query(connection: Connection, sql: str) -> Any:
    """Return the driver's description of the columns of a query."""
    return connection.execute(f"SELECT * FROM ({sql}) AS headrace_query LIMIT 0").description


def _shape_of_result(description: Any) -> object:
    return [tuple(item) for item in description]


def _described_type(item: Any, info: Any) -> TypeEngine[Any]:
    """Return the SQL type of a result column: String for arrays and for every other type that is read as text."""
    if info is not None and info.array_oid == item.type_code:
        return String()
    name = info.name if info is not None else ""
    if name == "numeric":
        return Numeric(item.precision, item.scale)
    if name in ("timestamp", "timestamptz"):
        return TIMESTAMP(timezone=name == "timestamptz", precision=item.precision)
    return _TYPES_BY_NAME.get(name, String)()
