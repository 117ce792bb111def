"""MySQL and MariaDB dialect, with PyMySQL as the driver.

An unbuffered cursor streams the rows, so a table of any size needs memory for only one batch. The session's time zone
is UTC, so TIMESTAMP values are exact. DATETIME values are read in the time zone `db.timezone`. Types are mapped as in
Confluent's connector with MySQL's JDBC driver: TINYINT and BIT(1) to INT8, unsigned integers to the next larger type
(BIGINT UNSIGNED to INT64, which cannot represent all of its values), YEAR to Date, and JSON, ENUM and SET to STRING.
FLOAT columns of tables are selected as DOUBLE, because the server's text for a FLOAT has only six digits.
`unmappable.values` applies to zero dates, and to TIME values that are negative or longer than a day. Reference:
https://dev.mysql.com/doc/refman/8.4/en/data-types.html
"""

from __future__ import annotations

import datetime as dt
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import pymysql
from pymysql.constants import ER, FIELD_TYPE, FLAG
from pymysql.cursors import Cursor, SSCursor
from sqlalchemy import types as sql
from sqlalchemy.engine import Engine

from headrace.api.errors import ConfigError, ConnectError
from headrace.data.java import float_text
from headrace.data.logical import DATE_SCHEMA, Date, scale_of
from headrace.data.schema import INT8_SCHEMA, INT16_SCHEMA, INT32_SCHEMA, INT64_SCHEMA, INT_RANGES, Schema, Type
from headrace_connectors.common.instants import DAY_US, days, iso_text
from headrace_connectors.common.time_zones import offsets_by_wall_clock, to_instant
from headrace_connectors.jdbc.dialects import (
    ColumnsChangedError,
    Connection,
    Description,
    Dialect,
    ResultSet,
)
from headrace_connectors.jdbc.horizon import RunningTransactions
from headrace_connectors.jdbc.mysql_connections import is_denied, is_transient, mysql_engine, properties_of
from headrace_connectors.jdbc.mysql_dates import decoders, to_date, to_time, to_time_of_timestamp
from headrace_connectors.jdbc.names import like_to_regex, qualified_name, split_name
from headrace_connectors.jdbc.statements import Statement
from headrace_connectors.jdbc.tables import Table
from headrace_connectors.jdbc.temporal_values import UnmappableError
from headrace_connectors.jdbc.types import (
    JdbcColumn,
    base_schema,
    to_decimal,
    to_integer,
)

logger = logging.getLogger(__name__)

_COLUMNS = """
    SELECT column_name, data_type, column_type, is_nullable, numeric_precision, numeric_scale, extra, column_key,
        datetime_precision, column_default
    FROM information_schema.columns WHERE table_schema = %s AND table_name = %s ORDER BY ordinal_position
"""
_SERVER_TIME = "SELECT CONVERT_TZ(%s, '+00:00', @@global.time_zone), @@global.time_zone, @@system_time_zone"
_TABLES = "SELECT table_name, table_type FROM information_schema.tables WHERE table_schema = DATABASE()"
# Prepared transactions are among those of InnoDB. A statement that waits for a lock may have no transaction yet.
# The list is fresh if it contains the session's own transaction with the current value of unique_checks.
_RUNNING = """
    SELECT
        (SELECT TIMESTAMPDIFF(SECOND, MIN(trx_started), NOW()) FROM information_schema.innodb_trx
            WHERE trx_mysql_thread_id <> CONNECTION_ID()),
        (SELECT MAX(time) FROM information_schema.processlist
            WHERE command IN ('Query', 'Execute') AND id <> CONNECTION_ID()),
        UTC_TIMESTAMP(6),
        EXISTS (SELECT 1 FROM information_schema.innodb_trx
            WHERE trx_mysql_thread_id = CONNECTION_ID() AND trx_unique_checks = %s)
"""
_FRESH_LIST_S = 10.0
"""How long to wait for a fresh list of transactions before the connection is opened again."""
_ACCESS_DENIED = 1227
_MISSING = frozenset({ER.NO_SUCH_TABLE, ER.BAD_FIELD_ERROR, ER.VIEW_INVALID})
_ADVICE = {
    True: "records contain the server's local times as if they were UTC. Set db.timezone to the server's time zone "
    "before the connector reads its first row",
    False: "rows may be read late. Set db.timezone to the time zone of the column's values before the connector reads "
    "its first row",
}
"""Advice if a DATETIME column may have another time zone than db.timezone. Keys: whether the server sets the column."""
# A task may read the rows of a statement slowly. If the server ended the connection, the statement would start again.
_WAIT_FOR_READER = "SET SESSION net_write_timeout = GREATEST(@@net_write_timeout, 3600)"
_TABLE_TYPES = {"BASE TABLE": "TABLE", "SYSTEM VERSIONED": "TABLE", "VIEW": "VIEW"}
_BINARY_CHARSET = 63
_FIRST_DATETIME, _LAST_DATETIME = days(0, 1, 1) * DAY_US, days(10_000, 1, 1) * DAY_US - 1
"""The first and the last value of a DATETIME column, as wall-clock times."""
_FRACTION_DIGITS_MAX = 6
_INTEGERS: Mapping[str, tuple[Schema, Schema]] = {
    "tinyint": (INT8_SCHEMA, INT16_SCHEMA),
    "smallint": (INT16_SCHEMA, INT32_SCHEMA),
    "mediumint": (INT32_SCHEMA, INT64_SCHEMA),
    "int": (INT32_SCHEMA, INT64_SCHEMA),
    "bigint": (INT64_SCHEMA, INT64_SCHEMA),
}
"""The schemas of signed and unsigned integers."""
_TYPES: Mapping[str, Callable[[], sql.TypeEngine[Any]]] = {
    **dict.fromkeys(_INTEGERS, sql.BigInteger),
    "float": sql.REAL,
    "double": sql.Double,
    "date": sql.Date,
    "time": sql.Time,
    "datetime": sql.DateTime,
    "timestamp": lambda: sql.DateTime(timezone=True),
    "year": sql.Date,
    **dict.fromkeys(("char", "varchar", "tinytext", "text", "mediumtext", "longtext", "enum", "set", "json", "uuid",
                     "inet4", "inet6"), sql.String),
    **dict.fromkeys(("binary", "varbinary", "tinyblob", "blob", "mediumblob", "longblob", "bit"), sql.LargeBinary),
}  # fmt: skip
_NAMES_OF_FIELDS = {
    FIELD_TYPE.TINY: "tinyint",
    FIELD_TYPE.SHORT: "smallint",
    FIELD_TYPE.INT24: "mediumint",
    FIELD_TYPE.LONG: "int",
    FIELD_TYPE.LONGLONG: "bigint",
    FIELD_TYPE.FLOAT: "float",
    FIELD_TYPE.DOUBLE: "double",
    FIELD_TYPE.DECIMAL: "decimal",
    FIELD_TYPE.NEWDECIMAL: "decimal",
    FIELD_TYPE.DATE: "date",
    FIELD_TYPE.NEWDATE: "date",
    FIELD_TYPE.TIME: "time",
    FIELD_TYPE.DATETIME: "datetime",
    FIELD_TYPE.TIMESTAMP: "timestamp",
    FIELD_TYPE.YEAR: "year",
    FIELD_TYPE.BIT: "bit",
    FIELD_TYPE.JSON: "json",
    FIELD_TYPE.GEOMETRY: "geometry",
}


class MysqlDialect(Dialect):
    """Dialect for one MySQL or MariaDB database."""

    parameter_marker = "%s"
    driver_error = pymysql.MySQLError
    transient_errors = (pymysql.MySQLError,)

    def _engine(self) -> Engine:
        if not self.url.database:
            raise ConfigError(
                "connection.url",
                self.config.connection_url,
                f"must name a database, as in jdbc:{self.url.kind}://host/db",
            )
        statements = [_WAIT_FOR_READER]
        if level := self.config.isolation_level:
            statements.append(f"SET SESSION TRANSACTION ISOLATION LEVEL {level.replace('_', ' ')}")
        self._zero_dates = properties_of(self.url, self.config).zero_dates
        return mysql_engine(self.url, self.config, statements, conv=decoders(self._zero_dates), autocommit=False)

    def is_transient(self, error: Exception) -> bool:
        return is_transient(error)

    def is_missing(self, error: Exception) -> bool:
        return bool(error.args) and error.args[0] in _MISSING

    def is_denied(self, error: Exception) -> bool:
        return is_denied(error)

    def now(self, connection: Connection) -> dt.datetime:
        ((now,),) = _fetch(connection, "SELECT CURRENT_TIMESTAMP(6)")
        connection.rollback()
        instant: dt.datetime = now.replace(tzinfo=dt.UTC)
        return instant

    def to_column_time(
        self, connection: Connection, instant: dt.datetime, columns: Sequence[JdbcColumn]
    ) -> dt.datetime:
        """Return the timestamp that a row has in `columns` if it is written at `instant`.

        By default, the server sets DATETIME columns in its own time zone, but applications may write UTC. If
        db.timezone is not set, both are possible. The source then uses the server's time zone for columns that the
        server is known to set. For other columns, it uses the earlier of UTC and the server's time, so that it skips no
        row.
        """
        local = [column for column in columns if not column.is_zoned]
        if not local or self.zone is not dt.UTC:
            return instant
        parameter = instant.astimezone(dt.UTC).replace(tzinfo=None)
        ((found, zone, system_zone),) = _fetch(connection, _SERVER_TIME, (parameter,))
        connection.rollback()
        server_time: dt.datetime = (found or parameter).replace(tzinfo=dt.UTC)
        if server_time == instant:
            return instant
        names = ", ".join(column.name for column in local)
        server_zone = system_zone if zone == "SYSTEM" else zone
        if len(local) < len(columns) and any(column.is_set_by_database for column in local):
            reason = (
                f"column {names}: the server's time zone is {server_zone}, and only the other timestamp columns have a "
                f"time zone; set db.timezone to {server_zone}"
            )
            raise ConfigError("db.timezone", self.config.db_timezone, reason)
        are_set_by_server = all(column.is_set_by_database for column in local)
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "Timestamp column %s: the server's time zone is %s, but db.timezone is UTC: %s",
                names,
                server_zone,
                _ADVICE[are_set_by_server],
            )
        return server_time if are_set_by_server else min(instant, server_time)

    _has_warned = False
    has_horizon = True
    _unique_checks = 0

    def running_transactions(self, connection: Connection) -> RunningTransactions:
        """Return the start time of the oldest running transaction in other sessions.

        The transactions are listed in information_schema.innodb_trx. InnoDB caches this list, and renews it only if no
        session has read it for 0.1 seconds. A cached list may lack transactions. Therefore this session begins a
        transaction, and reads the list until it contains this transaction. A cached list may still contain the previous
        call's transaction of this session. To distinguish the two, each call changes the session variable
        `unique_checks`, which the list shows for each transaction, and waits until the list shows the new value.
        """
        self._unique_checks = 1 - self._unique_checks
        deadline_s = time.monotonic() + _FRESH_LIST_S
        with connection.cursor() as cursor:
            cursor.execute("SET time_zone = SYSTEM")  # trx_started has the time zone of the server's system
            cursor.execute(f"SET unique_checks = {self._unique_checks}")
            cursor.execute("START TRANSACTION WITH CONSISTENT SNAPSHOT")
            try:
                cursor.execute(_RUNNING, (self._unique_checks,))
                while not (found := cursor.fetchone())[3]:
                    if time.monotonic() > deadline_s:
                        raise pymysql.err.InterfaceError(
                            "snapshot.horizon=true: InnoDB did not update information_schema.innodb_trx for "
                            f"{_FRESH_LIST_S:.0f} s, because other sessions read it more than 10 times per second"
                        )
                    # If all tasks waited for the same time, their reads would keep the list cached.
                    time.sleep(random.uniform(0.11, 0.4))
                    cursor.execute(_RUNNING, (self._unique_checks,))
            except pymysql.err.OperationalError as error:
                if error.args[0] != _ACCESS_DENIED:
                    raise
                raise ConnectError(
                    "snapshot.horizon=true needs the privilege PROCESS: "
                    f"GRANT PROCESS ON *.* TO {self.config.connection_user or 'the user'}"
                ) from error
            finally:
                connection.rollback()
                cursor.execute("SET time_zone = '+00:00'")
        transaction_s, statement_s, now, _ = found
        # Times have whole seconds. A negative age means that the clocks have been set back for winter time.
        ages = [age if age >= 0 else age + 3600 for age in (transaction_s, statement_s) if age is not None]
        if not ages:
            return RunningTransactions(None)
        return RunningTransactions(now.replace(tzinfo=dt.UTC) - dt.timedelta(seconds=max(ages) + 1))

    def rows_of_shape(
        self, connection: Connection, statement: Statement, columns: Sequence[JdbcColumn], table: str, shape: object
    ) -> ResultSet:
        # The transaction's first statement acquires the metadata locks, which the transaction keeps. The shape is read
        # before the SELECT, because an unbuffered cursor blocks other statements.
        if shape is not None and self._shape_in_transaction(connection, table) != shape:
            raise ColumnsChangedError
        return self.rows(connection, statement, columns, table)

    def rows(
        self, connection: Connection, statement: Statement, columns: Sequence[JdbcColumn], table: str
    ) -> ResultSet:
        cursor = connection.cursor(SSCursor)
        cursor.execute(statement.sql, statement.parameters)
        return ResultSet(_StreamedRows(cursor, lambda: self._cancel(connection)), typed=True)

    def _cancel(self, connection: Connection) -> None:
        """Cancel a connection's running statement. Otherwise the server would send all remaining rows."""
        other = self.connect()
        try:
            with other.cursor() as cursor:
                cursor.execute(f"KILL QUERY {connection.thread_id()}")
        finally:
            other.close()

    def escape_parameter_markers(self, sql: str) -> str:
        return sql.replace("%", "%%")

    def _quote(self, identifier: str) -> str:
        quoted = "`" + identifier.replace("`", "``") + "`"
        return quoted.replace("%", "%%")  # PyMySQL would read a percent sign as a parameter

    def select_list(self, columns: Sequence[JdbcColumn], table: str) -> str:
        return ",".join(
            f"{self.quote_column(column.name, table)}{'+0e0' if column.schema.type is Type.FLOAT32 else ''}"
            for column in columns
        )

    def tables(self) -> list[Table]:
        wanted = like_to_regex(self.config.schema_pattern) if self.config.schema_pattern else None
        connection = self.connect()
        try:
            found = _fetch(connection, _TABLES)
        finally:
            connection.close()
        database = self.url.database
        return [
            Table(qualified_name([database, name]), _TABLE_TYPES[kind])
            for name, kind in found
            if kind in _TABLE_TYPES and (wanted is None or wanted.fullmatch(database))
        ]

    has_stable_query_columns = True

    def shape(self, connection: Connection, table: str) -> object:
        shape = self._column_rows(connection, table) if table else _shape_of_fields(self._fields(connection))
        connection.rollback()
        return shape

    def describe(self, connection: Connection, table: str) -> Description:
        if not table:
            fields = self._fields(connection)
            connection.rollback()
            return Description(self._columns_of_fields(fields), _shape_of_fields(fields))
        rows = self._column_rows(connection, table)
        connection.rollback()
        return Description(self._columns_of_description(table, *self._described(table, rows)), rows)

    def _shape_in_transaction(self, connection: Connection, table: str) -> object:
        """Begin a transaction that prevents changes to the columns, and return the same value as `shape`.

        The first statement acquires metadata locks on the table, or on the tables of the custom query. The statement
        has LIMIT 0, reads no row, and therefore creates no snapshot. The transaction creates its snapshot later, so the
        snapshot is not older than the metadata locks.
        """
        if not table:
            return _shape_of_fields(self._fields(connection))
        _fetch(connection, f"SELECT 1 FROM {self.quote_table(table)} LIMIT 0")
        return self._column_rows(connection, table)

    def _fields(self, connection: Connection) -> Sequence[Any]:
        return _fields_of_query(connection, self.config.sql)

    def _column_rows(self, connection: Connection, table: str) -> Sequence[tuple[Any, ...]]:
        *databases, name = split_name(table)
        return _fetch(connection, _COLUMNS, (databases[-1] if databases else self.url.database, name))

    def _reflect(self, table: str) -> tuple[Sequence[Mapping[str, Any]], Sequence[str]]:
        # SQLAlchemy parses SHOW CREATE TABLE and misreads names with backticks.
        connection = self.connect()
        try:
            rows = self._column_rows(connection, table)
        finally:
            connection.close()
        return self._described(table, rows)

    def _described(
        self, table: str, rows: Sequence[tuple[Any, ...]]
    ) -> tuple[Sequence[Mapping[str, Any]], Sequence[str]]:
        """Return the result of `_reflect` for a table. `rows` are the rows of information_schema.columns."""
        if not rows:
            raise self._missing(table)
        described = [
            {
                "name": name,
                "type": _sql_type(kind, precision, scale),
                "kind": kind,
                "declared": declared,
                "is_unsigned": "unsigned" in declared,
                "is_single_bit": declared == "bit(1)",
                "fraction_digits": fraction_digits or 0,
                "nullable": nullable == "YES",
                "autoincrement": "auto_increment" in extra,
                "is_set_by_database": "current_timestamp" in f"{default} {extra}".lower(),
            }
            for name, kind, declared, nullable, precision, scale, extra, _, fraction_digits, default in rows
        ]
        return described, [row[0] for row in rows if row[7] == "PRI"]

    def query_columns(self, connection: Connection, sql: str) -> list[JdbcColumn]:
        fields = _fields_of_query(connection, sql)
        connection.rollback()
        return self._columns_of_fields(fields)

    def _columns_of_fields(self, fields: Sequence[Any]) -> list[JdbcColumn]:
        return [self._query_column(_described_field(field)) for field in fields]

    def _column(self, described: Mapping[str, Any], primary_key: Sequence[str]) -> JdbcColumn | None:
        column = super()._column(described, primary_key)
        if column is None:
            return None
        column = replace(column, declared=described["declared"])
        kind = described["kind"]
        if described.get("is_set_by_database"):
            column = replace(column, is_set_by_database=True)
        if kind in ("date", "datetime", "timestamp") and self._zero_dates == "CONVERT_TO_NULL":
            return replace(column, schema=column.schema.replace(optional=True))
        if kind in _INTEGERS:
            schema = _INTEGERS[kind][described["is_unsigned"]]
            is_large = kind == "bigint" and described["is_unsigned"]
            return _with_schema(column, schema, _check_int64 if is_large else None)
        if kind == "float":
            return replace(column, convert=_shortest_float)
        if kind == "bit" and described["is_single_bit"]:
            return _with_schema(column, INT8_SCHEMA, int.from_bytes)
        if kind == "year":
            return _with_schema(column, DATE_SCHEMA, _first_day)
        return column

    def _is_autoincrement(self, described: Mapping[str, Any], primary_key: Sequence[str]) -> bool:
        return bool(described.get("autoincrement"))

    def _fraction_digits(self, described: Mapping[str, Any]) -> int:
        digits: int = described["fraction_digits"]
        return digits

    def _convert(self, type_: sql.TypeEngine[Any]) -> Any:
        if isinstance(type_, (sql.Date, sql.Time)):
            return to_date if isinstance(type_, sql.Date) else to_time
        schema = base_schema(type_, self.options)
        if schema is None or not isinstance(type_, sql.DECIMAL):
            return None
        if schema.type is Type.BYTES:
            return to_decimal(scale_of(schema))
        return float if schema.type is Type.FLOAT64 else to_integer

    def _text_form(self) -> Any:
        return lambda value: "0x" + value.hex() if isinstance(value, bytes) else str(value)

    def read_timestamp(self, value: Any, is_zoned: bool) -> tuple[int, bool]:
        try:
            time, is_instant = to_time_of_timestamp(value)
        except UnmappableError as error:
            nearest = error.nearest if is_zoned else to_instant(error.nearest, self.zone)
            raise UnmappableError(error.text, nearest) from None
        return time, is_instant or is_zoned

    def _with_time_zone(self, timestamp: str) -> str:
        # CONVERT_TZ needs tables that many servers do not have. It also does not convert like `to_instant` when clocks
        # change, so that rows could be skipped.
        last_year = dt.datetime.now().year + 1  # the source does not read rows with timestamps in the future
        (_, earliest), *changes = offsets_by_wall_clock(self.zone, last_year)
        cases = "".join(f" WHEN {timestamp} >= '{since}' THEN {offset}" for since, offset in reversed(changes))
        offset_s = f"CASE{cases} ELSE {earliest} END" if cases else str(earliest)
        return f"({timestamp} - INTERVAL {offset_s} SECOND)"

    def _bind_instant(self, instant: int) -> Any:
        return self._bind_wall_clock(instant)  # the session's time zone is UTC

    def _bind_wall_clock(self, wall_clock: int) -> Any:
        return iso_text(min(max(wall_clock, _FIRST_DATETIME), _LAST_DATETIME), " ")


class _StreamedRows:
    """A cursor that streams rows, and cancels the statement if it is closed before the last row."""

    def __init__(self, cursor: Any, cancel: Callable[[], None]) -> None:
        self._cursor, self._cancel = cursor, cancel
        self._is_at_end = False

    def fetchmany(self, count: int) -> Sequence[tuple[Any, ...]]:
        """Return at most `count` rows."""
        rows: Sequence[tuple[Any, ...]] = list(self._cursor.fetchmany(count))
        self._is_at_end = len(rows) < count
        return rows

    def close(self) -> None:
        """Close the cursor, and ignore the error of a lost connection."""
        try:
            if not self._is_at_end:
                self._cancel()
            self._cursor.close()
        except pymysql.MySQLError as error:
            logger.debug("Ignoring an error while closing a cursor: %s", error)


class _DescribingCursor(Cursor):
    """A cursor that also returns the server's description of the result columns."""

    def fields(self) -> Sequence[Any]:
        """Return PyMySQL's field descriptions, with flags and character sets."""
        return list(cast("Any", self)._result.fields)


def _fetch(connection: Connection, statement: str, parameters: tuple[Any, ...] = ()) -> Sequence[tuple[Any, ...]]:
    with connection.cursor() as cursor:
        cursor.execute(statement, parameters)
        rows: Sequence[tuple[Any, ...]] = cursor.fetchall()
        return rows


def _fields_of_query(connection: Connection, sql: str) -> Sequence[Any]:
    """Return the server's description of the columns of a query."""
    cursor = connection.cursor(_DescribingCursor)
    try:
        cursor.execute(f"SELECT * FROM ({sql}) AS headrace_query LIMIT 0")
        return cast("_DescribingCursor", cursor).fields()
    finally:
        cursor.close()


def _shape_of_fields(fields: Sequence[Any]) -> object:
    return [(each.name, each.type_code, each.length, each.scale, each.flags, each.charsetnr) for each in fields]


def _with_schema(column: JdbcColumn, schema: Schema, convert: Callable[[Any], Any] | None) -> JdbcColumn:
    return replace(column, schema=schema.replace(optional=column.nullable), convert=convert, convert_column=None)


def _sql_type(kind: str, precision: int | None = None, scale: int | None = None) -> sql.TypeEngine[Any]:
    if kind == "decimal":
        return sql.DECIMAL(precision, scale)
    return _TYPES.get(kind, sql.NullType)()


def _described_field(field: Any) -> dict[str, Any]:
    """Return the description of a column of a query's result."""
    is_unsigned = bool(field.flags & FLAG.UNSIGNED)
    kind = _NAMES_OF_FIELDS.get(field.type_code)
    if kind is None:
        is_text = field.charsetnr != _BINARY_CHARSET or bool(field.flags & (FLAG.ENUM | FLAG.SET))
        kind = "text" if is_text else "blob"
    precision = field.length - (field.scale > 0) - (not is_unsigned)  # the length contains the point and the sign
    return {
        "name": field.name,
        "type": _sql_type(kind, precision, field.scale),
        "kind": kind,
        "declared": f"{kind} unsigned" if is_unsigned else kind,
        "is_unsigned": is_unsigned,
        "is_single_bit": kind == "bit" and field.length == 1,
        "fraction_digits": field.scale if field.scale <= _FRACTION_DIGITS_MAX else 0,
    }


def _check_int64(value: int) -> int:
    if value > INT_RANGES[Type.INT64][1]:
        raise ValueError(f"{value} is too large for INT64")
    return value


def _shortest_float(value: float) -> float:
    """Return the number with the fewest digits that has the same FLOAT32 value: 0.1 for 0.10000000149011612."""
    return float(float_text(value))


def _first_day(year: Any) -> Date:
    return Date(days(int(year), 1, 1))
