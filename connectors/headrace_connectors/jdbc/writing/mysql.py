"""Writes to MySQL and MariaDB with PyMySQL, which sends many rows with one INSERT.

Each session adds STRICT_TRANS_TABLES to its `sql_mode`, as MySQL's JDBC driver does, so that the server rejects values
that do not fit their columns. Timestamps are written to columns of the type TIMESTAMP in the session's time zone, UTC,
and to other columns in the time zone `db.timezone`. Statements larger than the server's `max_allowed_packet` are not
sent, because the server would end the connection.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, ClassVar

import pymysql
import sqlalchemy
from pymysql.constants import ER
from sqlalchemy.engine import Engine

from headrace.api.errors import DataError
from headrace.data.logical import DATE_NAME, DECIMAL_NAME, TIME_NAME, scale_of
from headrace.data.schema import Schema, Type
from headrace_connectors.common.instants import DAY_US, date_text, datetimes, in_python_years, iso_text
from headrace_connectors.common.time_zones import offset_at
from headrace_connectors.jdbc.mysql_connections import is_denied, is_transient, mysql_engine, properties_of
from headrace_connectors.jdbc.writing.database import RENAMING, Connection, Database, ExistingTable, Target
from headrace_connectors.jdbc.writing.debezium_times import debezium_time
from headrace_connectors.jdbc.writing.fields import Column
from headrace_connectors.jdbc.writing.runs import Run
from headrace_connectors.jdbc.writing.unique_indexes import UniqueIndex, missing_constraint

_KEY_LENGTH = 255
_NAME_CHARACTERS_MAX = 64
_SEVERAL_ROWS = 1242
_LAST_YEAR = 9999
_DATE_LENGTH = len("2026-11-24")
_OF_RECORDS = frozenset(
    {1118, 1153, _SEVERAL_ROWS, 1292, 1300, 1364, 1369, 1411, 1416, 1526, 1643, 1644, 1690, 3140, 3819, 4025}
)
"""Server errors about the data of a row which PyMySQL does not raise as DataError or IntegrityError."""
_CHARACTERS_OF_OTHER_TYPES = 80
"""An upper bound of the length of all other values. The longest of these values are decimals with 65 digits."""
_BYTES_PER_CHARACTER = 4
_FORBIDDEN = frozenset({1044, 1045, 1142, 1143, 1227})
_COLUMN = re.compile(
    r"(?:[Cc]olumn|^Field) '(.*)' (?:at row \d+|cannot be null|doesn't have a default value)", re.DOTALL
)
_QUALIFIED_COLUMN = re.compile(r" for column (`.*`) at row \d+$", re.DOTALL)
_TEMPORAL_TYPES = ("date", "datetime", "time", "timestamp")
_EXACT_TYPES = ("decimal", "char", "varchar", "tinytext", "text", "mediumtext", "longtext")
_STRICT = "SET sql_mode = CONCAT_WS(',', NULLIF(@@sql_mode, ''), 'STRICT_TRANS_TABLES')"
_COLUMNS = """
    SELECT column_name, data_type FROM information_schema.columns
    WHERE table_schema = COALESCE(%s, DATABASE()) AND table_name = %s ORDER BY ordinal_position
"""
_HAS_TRANSACTIONS = """
    SELECT engines.transactions FROM information_schema.tables JOIN information_schema.engines USING (engine)
    WHERE table_schema = COALESCE(%s, DATABASE()) AND table_name = %s
"""
_UNIQUE_INDEXES = """
    SELECT index_name, column_name, sub_part IS NOT NULL FROM information_schema.statistics
    WHERE table_schema = COALESCE(%s, DATABASE()) AND table_name = %s AND non_unique = 0
"""
_FAIL = "(SELECT 1 UNION ALL SELECT 2)"
"""An expression that fails with the error `_SEVERAL_ROWS` when the server evaluates it."""


def _characters(row: Iterable[Any]) -> int:
    """Return an upper bound of the length of a row's values, before texts and bytes are escaped."""
    return sum(len(value) if isinstance(value, (str, bytes)) else _CHARACTERS_OF_OTHER_TYPES for value in row)


class MysqlDatabase(Database):
    """One MySQL or MariaDB database."""

    driver_error = pymysql.MySQLError
    marker = "%s"
    types: ClassVar = {
        Type.INT8: "TINYINT",
        Type.INT16: "SMALLINT",
        Type.INT32: "INT",
        Type.INT64: "BIGINT",
        Type.FLOAT32: "FLOAT",
        Type.FLOAT64: "DOUBLE",
        Type.BOOLEAN: "TINYINT",
        Type.STRING: "TEXT",
        Type.BYTES: "VARBINARY(1024)",
    }

    def _engine(self) -> Engine:
        return mysql_engine(self.url, self.config, [_STRICT] if properties_of(self.url, self.config).is_strict else [])

    def connect(self) -> Connection:
        """Open a connection, and read the server's `max_allowed_packet`."""
        connection = super().connect()
        with connection.cursor() as cursor:
            cursor.execute("SELECT @@max_allowed_packet")
            (self._packet_bytes_max,) = cursor.fetchone()
        return connection

    def is_transient(self, error: Exception) -> bool:
        """Whether the error is temporary: a lost connection, a lack of resources, or a conflict of transactions."""
        return is_transient(error)

    def is_denied(self, error: Exception) -> bool:
        """Whether `error` means that the server rejected the user or the password."""
        return is_denied(error)

    def is_missing_object(self, error: Exception) -> bool:
        """Whether `error` means that a table or a column does not exist."""
        return bool(error.args) and error.args[0] in (ER.NO_SUCH_TABLE, ER.BAD_FIELD_ERROR)

    def is_missing_schema(self, error: Exception) -> bool:
        """Whether `error` means that a database does not exist."""
        return bool(error.args) and error.args[0] == ER.BAD_DB_ERROR

    def is_missing_constraint(self, error: Exception) -> bool:
        """Return False, because ON DUPLICATE KEY UPDATE does not fail. See `check_upsert`."""
        return False

    def is_record_error(self, error: Exception) -> bool:
        """Whether the data of a row caused the error.

        PyMySQL's own errors for NaN and infinities count too. They have no error code.
        """
        code = error.args[0] if error.args else None
        return isinstance(error, (pymysql.DataError, pymysql.IntegrityError)) or (
            code in _OF_RECORDS if isinstance(code, int) else isinstance(error, pymysql.ProgrammingError)
        )

    def is_forbidden(self, error: Exception) -> bool:
        """Whether `error` means that the user lacks a privilege."""
        return bool(error.args) and error.args[0] in _FORBIDDEN

    def logical_type(self, name: str, schema: Schema) -> str:
        """Return the SQL type of a logical type."""
        if name == DECIMAL_NAME:
            return f"DECIMAL(65,{scale_of(schema)})"
        return "DATE" if name == DATE_NAME else "TIME(3)" if name == TIME_NAME else "DATETIME(3)"

    def debezium_type(self, schema: Schema) -> str | None:
        """Return the SQL type of one of Debezium's types, with milliseconds or microseconds."""
        found = debezium_time(schema)
        if found is None:
            return None
        return self.logical_type(found.logical.name or "", found.logical).replace("(3)", f"({found.fraction_digits})")

    def check_name(self, name: str) -> None:
        """Raise DataError if the name is too long."""
        if len(name) > _NAME_CHARACTERS_MAX:
            raise DataError(
                f"The name {name} has {len(name)} characters, but MySQL's and MariaDB's names have at most "
                f"{_NAME_CHARACTERS_MAX}; {RENAMING}"
            )

    def column_type(self, column: Column) -> str:
        """Return a column's SQL type. A string column in the primary key is VARCHAR, because it cannot be TEXT."""
        found = super().column_type(column)
        return f"VARCHAR({_KEY_LENGTH})" if column.is_key and found == "TEXT" else found

    def temporal_converter(self, name: str, zone: dt.tzinfo, unit_us: int = 1) -> Callable[[int], str]:
        """Return a function that converts dates, times or timestamps to text."""
        if name == DATE_NAME:
            return lambda days: date_text(days) or _text(days * DAY_US)[:_DATE_LENGTH]
        to_naive = datetimes(unit_us, None)
        if name == TIME_NAME:
            return lambda count: to_naive(count).isoformat(" ")[_DATE_LENGTH + 1 :]

        def utc_text(instant: int) -> str:
            try:
                return to_naive(instant).isoformat(" ")
            except OverflowError:
                return _text(instant * unit_us)

        if zone is dt.UTC:
            return utc_text
        return lambda instant: utc_text(instant + offset_at(instant * unit_us, zone) // unit_us)

    def literal(self, schema: Schema, value: Any) -> str:
        """Return the value as SQL text, with backslashes doubled, because a backslash is MySQL's escape character."""
        return super().literal(schema, value).replace("\\", "\\\\") if isinstance(value, str) else super().literal(
            schema, value
        )  # fmt: skip

    def _describe(
        self, connection: sqlalchemy.Connection, table: ExistingTable, name: str, schema: str | None
    ) -> ExistingTable:
        # SQLAlchemy parses SHOW CREATE TABLE and misreads names with backticks.
        rows = list(connection.exec_driver_sql(_COLUMNS, (schema, name)))
        instants = frozenset(name for name, kind in rows if kind == "timestamp")
        has_transactions = connection.exec_driver_sql(_HAS_TRANSACTIONS, (schema, name)).scalar()  # None for a view
        return table._replace(
            columns=tuple(name for name, _ in rows),
            instants=instants,
            temporals=frozenset(name for name, kind in rows if kind in _TEMPORAL_TYPES),
            exact=frozenset(name for name, kind in rows if kind in _EXACT_TYPES),
            is_transactional=has_transactions != "NO",
            unique_indexes=self._unique_indexes(connection, table, name, schema),
        )

    def _unique_indexes(
        self, connection: sqlalchemy.Connection, table: ExistingTable, name: str, schema: str | None
    ) -> tuple[UniqueIndex, ...] | None:
        if self.config.insert_mode.lower() != "upsert" or table.kind == "VIEW":
            return None
        rows = sorted(connection.exec_driver_sql(_UNIQUE_INDEXES, (schema, name)), key=itemgetter(0))
        indexes = [list(columns) for _, columns in groupby(rows, key=itemgetter(0))]
        return tuple(
            UniqueIndex(frozenset(column for _, column, _ in columns), any(is_prefix for *_, is_prefix in columns))
            for columns in indexes
        )

    def check_upsert(self, target: Target) -> None:
        """Raise ConnectError if no unique index prevents two rows with the same primary key."""
        indexes = target.table.unique_indexes
        if indexes is not None and not any(index.prevents_duplicates(target.key_columns) for index in indexes):
            raise missing_constraint(target.table.quoted, target.keys)

    def upsert_sql(self, target: Target) -> str:
        """Return INSERT with ON DUPLICATE KEY UPDATE.

        The server executes the update for a conflict in any unique index. If the table may have a unique index that is
        not on the key columns, the update therefore contains an expression that fails if the existing row has another
        key.
        """
        changes = [f"{name}=VALUES({name})" for name in target.others]
        key = target.keys[0]
        if _has_other_unique_index(target):
            is_same_key = " AND ".join(f"{name}=VALUES({name})" for name in target.keys)
            changes.insert(0, f"{key}=IF(({is_same_key}) OR {_FAIL}, {key}, {key})")
        elif not changes:
            changes.append(f"{key}=VALUES({key})")
        return f"{self.insert_sql(target)} ON DUPLICATE KEY UPDATE {', '.join(changes)}"

    def upsert(self, connection: Connection, target: Target, values: list[Sequence[Any]]) -> None:
        """Insert or update rows. Raises the driver's error for a row that conflicts with a row that has another key.

        A single row is inserted again without the update, so that the error contains the value and the index's name.
        """
        try:
            super().upsert(connection, target, values)
        except pymysql.MySQLError as error:
            if error.args[0] != _SEVERAL_ROWS or len(values[0]) > 1 or not _has_other_unique_index(target):
                raise
            self.insert(connection, target, values)

    def _execute_many(self, cursor: Any, sql: str, rows: list[tuple[Any, ...]]) -> None:
        limit = self._packet_bytes_max - 1  # a packet also contains the code of the command
        if max(map(_characters, rows)) * _BYTES_PER_CHARACTER + len(sql) > limit:
            size = max(len(cursor.mogrify(sql, row).encode(errors="surrogateescape")) for row in rows)
            if size > limit:
                raise DataError(f"the statement has {size} bytes, more than the server's max_allowed_packet")
        cursor.max_stmt_length = min(cursor.max_stmt_length, limit)
        super()._execute_many(cursor, sql, rows)

    def column_types_sql(self, table: ExistingTable) -> str:
        """Return SHOW COLUMNS."""
        return f"SHOW COLUMNS FROM {table.quoted}"

    def column_at_fault(self, connection: Connection, target: Target, row: Run, error: Exception) -> str | None:
        """Return the column that the server's message names, or the column of a value that PyMySQL rejects.

        PyMySQL rejects NaN and infinities. Its message does not name a column.
        """
        text = str(error.args[-1]) if error.args else ""
        if (match := _COLUMN.search(text)) and match[1] in target.table.columns:
            return match[1]
        if match := _QUALIFIED_COLUMN.search(text):  # MariaDB does not double a backtick in a name
            return max((name for name in target.table.columns if match[1].endswith(f"`{name}`")), key=len, default=None)
        if isinstance(error, pymysql.ProgrammingError) and not isinstance(error.args[0], int):
            for column, (value,) in zip(row.columns, row.values, strict=True):
                if isinstance(value, float) and not math.isfinite(value):
                    return target.table.column(column.name)
        return None

    def begin(self, connection: Connection) -> None:
        """Begin a transaction."""
        connection.begin()


def _text(time: int) -> str:
    """Return the text of a wall-clock time. Raises ValueError for a year that MySQL does not support."""
    value, years = in_python_years(time)
    if years and not 0 <= value.year + years <= _LAST_YEAR:
        raise ValueError(f"{iso_text(time, ' ')} is not between the years 0 and {_LAST_YEAR} of MySQL and MariaDB")
    return f"{value.year + years:04d}{value.isoformat(' ')[4:]}"


def _has_other_unique_index(target: Target) -> bool:
    """Whether a row may conflict with a row that has another primary key. True if the unique indexes are unknown."""
    indexes = target.table.unique_indexes
    return indexes is None or not all(index.is_for(target.key_columns) for index in indexes)
