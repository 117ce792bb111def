"""Writes to PostgreSQL with psycopg.

Values are sent as text that the server converts to the type of the column, so a STRING can be written to a column of
type uuid, jsonb or an enumeration. If there are many rows, the sink sends the rows with COPY. COPY writes inserted rows
directly to the table, and also upserted rows if all of them are new. For other upserts and for updates, COPY writes the
rows to a temporary table first.
"""

from __future__ import annotations

import datetime as dt
import logging
import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import count
from typing import Any, ClassVar

import msgspec
import psycopg
import sqlalchemy
from psycopg.sql import Literal
from sqlalchemy.engine import Engine

from headrace.api.errors import DataError
from headrace.data.java import float_text
from headrace.data.logical import DATE_NAME, DECIMAL_NAME, TIME_NAME, TIMESTAMP_NAME
from headrace.data.schema import Schema, Type
from headrace_connectors.common.instants import datetimes
from headrace_connectors.common.time_zones import offset_at
from headrace_connectors.jdbc.postgresql import is_denied, postgresql_engine
from headrace_connectors.jdbc.postgresql_dates import date_text, timestamp_text
from headrace_connectors.jdbc.sink_config import JdbcSinkConfig
from headrace_connectors.jdbc.url import JdbcUrl
from headrace_connectors.jdbc.writing.database import (
    PARAMETER,
    RENAMING,
    Connection,
    Convert,
    Database,
    ExistingTable,
    Target,
    last_of_each_key,
)
from headrace_connectors.jdbc.writing.debezium_times import debezium_time
from headrace_connectors.jdbc.writing.fields import Column
from headrace_connectors.jdbc.writing.postgresql_columns import column_types_sql, first_invalid_column
from headrace_connectors.jdbc.writing.postgresql_copy import SEQUENCE, CopyAttempts, TemporaryTables, copy_rows
from headrace_connectors.jdbc.writing.runs import Run

logger = logging.getLogger(__name__)

_COPY_ROWS = 20
"""Fewer rows than this are sent with INSERT."""
_PREPARED_MAX = 10
"""The number of prepared statements of a connection. Statements for single rows are prepared again in each run."""
_INTEGERS = (Type.INT8, Type.INT16, Type.INT32, Type.INT64)
_FLOATS = (Type.FLOAT32, Type.FLOAT64)
_SENT_UNCHANGED = (*_INTEGERS, Type.STRING)
_LOGICAL = (DECIMAL_NAME, DATE_NAME, TIME_NAME, TIMESTAMP_NAME)
_NOT_TRANSIENT = ("54",)
"""SQLSTATE classes of psycopg's OperationalError that a retry cannot change: a row or index entry is too large."""
_READ_ONLY = "25006"
_OF_RECORDS = frozenset({"21", "22", "23", "27", "38", "39", "44", "54", "P0"})
"""SQLSTATE classes of errors about the data of a row: invalid values, constraints, triggers, views and row sizes."""
_POLICY_CHECK = "ExecWithCheckOptions"
"""The server's function that reports a row that violates a row-level security policy."""
_NAME_BYTES_MAX = 63
_COPY_KINDS = ("TABLE", "PARTITIONED TABLE")
_ACCEPTS_COPY = "SELECT NOT relhasrules AND NOT pg_catalog.row_security_active(oid) FROM pg_catalog.pg_class"
_KINDS = {"p": "PARTITIONED TABLE", "v": "VIEW", "r": "TABLE", "f": "FOREIGN TABLE", "m": "MATERIALIZED VIEW"}


class PostgresqlDatabase(Database):
    """One PostgreSQL database."""

    driver_error = psycopg.Error
    marker = "%s"
    types: ClassVar = {
        Type.INT8: "SMALLINT",
        Type.INT16: "SMALLINT",
        Type.INT32: "INT",
        Type.INT64: "BIGINT",
        Type.FLOAT32: "REAL",
        Type.FLOAT64: "DOUBLE PRECISION",
        Type.BOOLEAN: "BOOLEAN",
        Type.STRING: "TEXT",
        Type.BYTES: "BYTEA",
    }
    _temporary_tables: TemporaryTables
    _without_temporary_table: set[str]
    """The tables whose rows the user may not copy to a temporary table."""
    _copies: dict[Target, CopyAttempts]

    def __init__(self, url: JdbcUrl, config: JdbcSinkConfig) -> None:
        super().__init__(url, config)
        self._statement_numbers = count()

    def _engine(self) -> Engine:
        return postgresql_engine(self.url, self.config)

    def connect(self) -> Connection:
        """Open a connection, and forget the temporary tables of the previous connection."""
        self._temporary_tables = TemporaryTables()
        self._without_temporary_table = set()
        self._copies = {}
        logging.getLogger("psycopg").setLevel(logging.ERROR)  # it logs a warning for each statement that fails
        connection = super().connect()
        if connection.info.encoding != "utf-8":
            connection.execute("SET client_encoding TO 'UTF8'")
            connection.commit()
        connection.prepared_max = _PREPARED_MAX
        return connection

    def is_transient(self, error: Exception) -> bool:
        """Whether the error is temporary: a lost connection, a lack of resources, or a conflict of transactions."""
        state = getattr(error, "sqlstate", None) or ""
        if state == _READ_ONLY:  # after a failover, the server may be a standby
            return True
        return isinstance(error, (psycopg.OperationalError, psycopg.InterfaceError)) and state[:2] not in _NOT_TRANSIENT

    def is_denied(self, error: Exception) -> bool:
        """Whether `error` means that the server rejected the user or the password."""
        return is_denied(error)

    def is_missing_object(self, error: Exception) -> bool:
        """Whether `error` means that a table or a column does not exist."""
        return isinstance(error, (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedColumn))

    def is_missing_schema(self, error: Exception) -> bool:
        """Whether `error` means that a schema does not exist."""
        return isinstance(error, psycopg.errors.InvalidSchemaName)

    def is_missing_constraint(self, error: Exception) -> bool:
        """Whether `error` means that no unique constraint matches ON CONFLICT."""
        return isinstance(error, psycopg.errors.InvalidColumnReference)

    def is_record_error(self, error: Exception) -> bool:
        """Whether the data of a row caused the error.

        If a string contains a null character, psycopg itself raises the error. A row that violates a row-level security
        policy causes the same SQLSTATE as a missing privilege. Therefore, this method also checks which function of the
        server reported the error.
        """
        state = getattr(error, "sqlstate", None) or ""
        violates_policy = self.is_forbidden(error) and error.diag.source_function == _POLICY_CHECK  # type: ignore[attr-defined]
        return violates_policy or state[:2] in _OF_RECORDS or isinstance(error, psycopg.DataError)

    def is_forbidden(self, error: Exception) -> bool:
        """Whether `error` means that the user lacks a privilege."""
        return isinstance(error, psycopg.errors.InsufficientPrivilege)

    def check_name(self, name: str) -> None:
        """Raise DataError if the name is too long."""
        length = len(name.encode())
        if length > _NAME_BYTES_MAX:
            raise DataError(
                f"The name {name} has {length} bytes, but PostgreSQL's names have at most {_NAME_BYTES_MAX}; {RENAMING}"
            )

    def _kind(self, connection: sqlalchemy.Connection, name: str, schema: str | None) -> str | None:
        quoted = ".".join(
            self.engine.dialect.identifier_preparer.quote_identifier(part) for part in (schema, name) if part
        )
        row = connection.exec_driver_sql(
            "SELECT relkind::text FROM pg_catalog.pg_class WHERE oid = to_regclass(%s)", (quoted,)
        ).fetchone()
        return _KINDS.get(row[0]) if row else None

    def logical_type(self, name: str, schema: Schema) -> str:
        """Return the SQL type of a logical type."""
        return {DECIMAL_NAME: "DECIMAL", DATE_NAME: "DATE", TIME_NAME: "TIME", TIMESTAMP_NAME: "TIMESTAMP"}[name]

    def debezium_type(self, schema: Schema) -> str | None:
        """Return the SQL type of one of Debezium's types."""
        found = debezium_time(schema)
        return None if found is None else self.logical_type(found.logical.name or "", found.logical)

    def column_type(self, column: Any) -> str:
        """Return the SQL type of a column, which may also be an array of primitive values."""
        schema = column.schema
        if schema.type is Type.ARRAY and schema.value_schema is not None:
            return super().column_type(column._replace(schema=schema.value_schema)) + "[]"
        return super().column_type(column)

    def literal(self, schema: Schema, value: Any) -> str:
        """Return the value's text in quotes. PostgreSQL converts it to the type of the column."""
        return "'" + str(_text_of(schema, self.zone)(value)).replace("'", "''") + "'"

    def converter(self, schema: Schema, zone: dt.tzinfo) -> Convert:
        """Return a function that converts non-null values to text in PostgreSQL's input format."""
        return _text_of(schema, zone)

    def temporal_converter(self, name: str, zone: dt.tzinfo, unit_us: int = 1) -> Callable[[int], str]:
        """Return a function that converts dates, times or timestamps to text in PostgreSQL's input format."""
        return _temporal_text(name, zone, unit_us)

    def convert(self, table: ExistingTable, column: Column, values: Sequence[Any]) -> Sequence[Any]:
        """Convert a column's values to text in PostgreSQL's input format.

        Values that COPY accepts unchanged are not converted.
        """
        schema = column.schema
        name = table.column(column.name)
        is_temporal = debezium_time(schema) is not None and name in table.temporals
        is_exact = schema.type is Type.FLOAT32 and name in table.exact
        is_converted = column.is_timestamp or is_temporal or is_exact or schema.name in _LOGICAL
        if not is_converted and (schema.type in _SENT_UNCHANGED or (schema.type in _FLOATS and _are_finite(values))):
            return values
        return super().convert(table, column, values)

    def shortest_float(self, value: float) -> str:
        """Return Java's text of a FLOAT32 value."""
        return float_text(value)

    def upsert_sql(self, target: Target) -> str:
        """Return INSERT with ON CONFLICT."""
        return f"{self.insert_sql(target)} {_on_conflict(target)}"

    def insert(self, connection: Connection, target: Target, values: list[Sequence[Any]]) -> None:
        """Insert rows, with COPY if there are many."""
        if len(values[0]) >= _COPY_ROWS and self._accepts_copy(connection, target):
            copy_rows(connection, target.table.quoted, target.names, values)
        else:
            super().insert(connection, target, values)

    def upsert(self, connection: Connection, target: Target, values: list[Sequence[Any]]) -> None:
        """Insert or update rows. If there are `_COPY_ROWS` rows or more, send the rows with COPY.

        If all rows are new, COPY writes the rows directly to the table. Otherwise, COPY writes the rows to a temporary
        table, and one statement then upserts the rows from the temporary table.
        """
        if len(values[0]) >= _COPY_ROWS:
            values = last_of_each_key(target, values)
            if self._copy_new_rows(connection, target, values):
                return
            if stage := self._copy_to_temporary_table(connection, target, values):
                names = ", ".join(target.names)
                into = f"INSERT INTO {target.table.quoted} ({names})"
                self.run_statement(connection, f"{into} SELECT {names} FROM {stage} {_on_conflict(target)}")
                self.run_statement(connection, f"TRUNCATE {stage}")
                return
        super().upsert(connection, target, values)

    def update(self, connection: Connection, target: Target, values: list[Sequence[Any]]) -> None:
        """Update rows, through a temporary table if there are many."""
        if len(values[0]) >= _COPY_ROWS and target.others:
            # The database decides which keys are equal: in the type uuid, keys with different text may be equal.
            sequence = range(len(values[0]))
            if stage := self._copy_to_temporary_table(connection, target, [*values, sequence], has_sequence=True):
                self._update_from(connection, target, stage)
                return
        super().update(connection, target, values)

    def _update_from(self, connection: Connection, target: Target, stage: str) -> None:
        """Update the target's rows from the temporary table `stage`, and empty this temporary table."""
        last = (
            f"SELECT DISTINCT ON ({', '.join(target.keys)}) {', '.join(target.names)} FROM {stage} "
            f"ORDER BY {', '.join(target.keys)}, {SEQUENCE} DESC"
        )
        changes = ", ".join(f"{name}=stage.{name}" for name in target.others)
        keys = " AND ".join(f"target.{name}=stage.{name}" for name in target.keys)
        self.run_statement(
            connection, f"UPDATE {target.table.quoted} AS target SET {changes} FROM ({last}) AS stage WHERE {keys}"
        )
        self.run_statement(connection, f"TRUNCATE {stage}")

    def _copy_to_temporary_table(
        self, connection: Connection, target: Target, values: list[Sequence[Any]], *, has_sequence: bool = False
    ) -> str | None:
        """Copy rows to a temporary table, and return its name. Return None if the user lacks a privilege for this.

        The user needs the privileges to create temporary tables and to read all columns of the target. If
        `has_sequence` is true, `values` contains an additional last column with the order of the rows.
        """
        table = target.table.quoted
        if table in self._without_temporary_table:
            return None
        try:
            with self.savepoint(connection, "headrace_temporary"):
                return self._temporary_tables.copy(connection, target, values, has_sequence=has_sequence)
        except psycopg.errors.InsufficientPrivilege as error:
            logger.warning(
                "Table %s: the user has no privilege to copy rows to a temporary table (%s); writing each row with its "
                "own statement, which is slower",
                table,
                self.error_text(error),
            )
        self._without_temporary_table.add(table)
        return None

    def _execute(self, connection: Connection, sql: str, rows: list[tuple[Any, ...]]) -> None:
        """Execute a statement once for each row. All parameters are text, which the server converts."""
        super()._execute(connection, sql, [tuple(map(_text_of_plain, row)) for row in rows])

    def _execute_many(self, cursor: Any, sql: str, rows: list[tuple[Any, ...]]) -> None:
        """Execute `sql` once for each row. If there are several rows, prepare the statement only for this call.

        A prepared statement keeps the types of its parameters when the type of a column changes. For example, the
        server would still round values to `real` after a change to `float8`. Therefore, each call adds a comment with a
        new number, so that the driver prepares the statement again.
        """
        if len(rows) == 1:
            cursor.execute(sql, rows[0], prepare=False)
            return
        super()._execute_many(cursor, f"{sql} -- {next(self._statement_numbers)}", rows)

    def _copy_new_rows(self, connection: Connection, target: Target, values: list[Sequence[Any]]) -> bool:
        """Try to write rows directly to the table with COPY. Return True if COPY has written the rows.

        The attempt fails if one of the rows exists already, or if the table does not accept COPY. A failed attempt does
        not change the table. After a failed attempt, some later calls return False without an attempt (see the class
        `CopyAttempts`). If all rows are new, COPY is a fifth faster than an upsert. If the table has no unique
        constraint for the keys, raises the driver's exception. The upsert would raise the same exception.
        """
        attempts = self._copies.setdefault(target, CopyAttempts())
        if not attempts.is_due:
            attempts.skip()
            return False
        if not self._accepts_copy(connection, target, _on_conflict(target)):
            attempts.failed()
            return False
        try:
            with self.savepoint(connection, "headrace_copy"):
                copy_rows(connection, target.table.quoted, target.names, values)
        except psycopg.errors.UniqueViolation:
            attempts.failed()
            return False
        attempts.succeeded()
        return True

    def _accepts_copy(self, connection: Connection, target: Target, on_conflict: str = "") -> bool:
        """Whether COPY has the same effect on the target as INSERT. COPY ignores rules and rejects row-level security.

        The method runs EXPLAIN for the INSERT with the clause `on_conflict`. EXPLAIN locks the table and its
        constraints, so the result is valid until the transaction ends. EXPLAIN raises the driver's exception if the
        INSERT would fail for all rows. The INSERT would fail, for example, if the table has no constraint for
        `on_conflict`, or if a column is GENERATED ALWAYS AS IDENTITY, which COPY ignores.
        """
        if target.table.kind not in _COPY_KINDS:
            return False
        insert = self.insert_sql(target).replace(PARAMETER, "NULL")
        table = Literal(target.table.quoted).as_string(connection)
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN {insert} {on_conflict}; {_ACCEPTS_COPY} WHERE oid = {table}::pg_catalog.regclass")
            cursor.nextset()
            (accepts_copy,) = cursor.fetchone()
        return bool(accepts_copy)

    def column_types_sql(self, table: ExistingTable) -> str:
        """Return a query of the catalog. It formats types as the server's messages do."""
        return column_types_sql(table.quoted)

    def column_at_fault(self, connection: Connection, target: Target, row: Run, error: Exception) -> str | None:
        """Return the column that the server's error names, or the first column that cannot store its value."""
        assert isinstance(error, psycopg.Error)
        if error.diag.column_name in target.table.columns:
            return error.diag.column_name
        if not isinstance(error, psycopg.DataError):
            return None
        texts: dict[str, str | None] = {}
        for column, values in zip(row.columns, row.values, strict=True):
            (value,) = self.convert(target.table, column, values)
            texts[target.table.column(column.name) or column.name] = _text_of_plain(value)
        return first_invalid_column(connection, target.table.quoted, texts, error)

    def check_constraints_immediately(self, connection: Connection) -> None:
        """Check deferrable constraints at the end of each statement of the open transaction."""
        self.run_statement(connection, "SET CONSTRAINTS ALL IMMEDIATE")

    def transaction_failed(self) -> None:
        """Forget the temporary tables, which a rollback may have removed."""
        self._temporary_tables.clear()


def _on_conflict(target: Target) -> str:
    changes = ", ".join(f"{name}=EXCLUDED.{name}" for name in target.others)
    return f"ON CONFLICT ({', '.join(target.keys)}) " + (f"DO UPDATE SET {changes}" if changes else "DO NOTHING")


def _text_of(schema: Schema, zone: dt.tzinfo) -> Callable[[Any], str]:
    """Return a function that converts non-null values of `schema` to text in PostgreSQL's input format."""
    if schema.name in (DATE_NAME, TIME_NAME, TIMESTAMP_NAME):
        return _temporal_text(schema.name, zone, 1000)
    if schema.name == DECIMAL_NAME:
        return str
    if schema.type is Type.ARRAY and schema.value_schema is not None:
        item = _text_of(schema.value_schema, zone)
        return lambda items: "{" + ",".join("NULL" if each is None else _array_item(item(each)) for each in items) + "}"
    if schema.type is Type.BOOLEAN:
        return lambda value: "t" if value else "f"
    if schema.type in _FLOATS:
        return _float_text
    if schema.type is Type.BYTES:
        return lambda value: "\\x" + bytes(value).hex()
    return str


def _temporal_text(name: str, zone: dt.tzinfo, unit_us: int) -> Callable[[int], str]:
    if name == DATE_NAME:
        return date_text
    if name == TIME_NAME:
        to_naive = datetimes(unit_us, None)
        return lambda count: to_naive(count).isoformat(" ").partition(" ")[2]
    to_datetime = datetimes(unit_us, zone)

    def timestamp(instant: int) -> str:
        try:
            # The offset makes the text correct for columns with and without a time zone.
            return to_datetime(instant).isoformat(" ")
        except OverflowError:
            time = instant * unit_us
            offset = offset_at(time, zone)
            return timestamp_text(time + offset, offset=_offset_text(offset))

    return timestamp


@cache
def _offset_text(offset: int) -> str:
    return dt.datetime(1970, 1, 1, tzinfo=dt.timezone(dt.timedelta(microseconds=offset))).isoformat()[19:]


def _float_text(value: float) -> str:
    text = repr(value)
    return text if math.isfinite(value) else text.replace("inf", "Infinity").replace("nan", "NaN")


def _are_finite(values: Sequence[float | None]) -> bool:
    """Whether no value is NaN or infinite. May return False if the sum of finite values is too large for a float."""
    return math.isfinite(sum(filter(None, values)))


def _text_of_plain(value: Any) -> str | None:
    """Return a converted value as text. Numbers have the same text as in COPY."""
    return value if value is None or isinstance(value, str) else msgspec.json.encode(value).decode()


def _array_item(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
