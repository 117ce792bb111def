"""Writes to SQLite with the standard library's driver.

Dates, times and timestamps are stored as milliseconds, as SQLite's JDBC driver stores them. Decimals are stored as
numbers, or as text in columns of type TEXT. A decimal that a number cannot represent is rejected, and so is NaN, which
SQLite would store as NULL. Reference for types of columns: https://www.sqlite.org/datatype3.html
"""

from __future__ import annotations

import datetime as dt
import re
import sqlite3
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import sqlalchemy
from sqlalchemy.engine import Engine

from headrace.api.errors import DataError
from headrace.data.logical import DATE_NAME, DECIMAL_NAME
from headrace.data.schema import INT_RANGES, Schema, Type
from headrace_connectors.jdbc.dialects import engine_for
from headrace_connectors.jdbc.names import split_name
from headrace_connectors.jdbc.sqlite import TRANSIENT_CODES
from headrace_connectors.jdbc.writing.database import (
    Connection,
    Convert,
    Database,
    ExistingTable,
    Target,
)
from headrace_connectors.jdbc.writing.fields import Column
from headrace_connectors.jdbc.writing.runs import Run

_BUSY_TIMEOUT_S = 10.0
_PRIMARY_CODE = 0xFF
_MISSING = ("no such table", "no such column", "has no column named")
_MISSING_SCHEMA = re.compile(r"no such table: .*\.sqlite_master", re.DOTALL)
_ABOUT_ONE_COLUMN = ("NOT NULL constraint failed: ", "cannot store ")
_TEXT_TYPES = ("CHAR", "CLOB", "TEXT", "BLOB")
_REAL_TYPES = ("REAL", "FLOA", "DOUB")
_DAY_MS = 86_400_000


class SqliteDatabase(Database):
    """One SQLite database file, which is created if it does not exist."""

    driver_error = sqlite3.Error
    marker = "?"
    types: ClassVar = {
        Type.INT8: "INTEGER",
        Type.INT16: "INTEGER",
        Type.INT32: "INTEGER",
        Type.INT64: "INTEGER",
        Type.FLOAT32: "REAL",
        Type.FLOAT64: "REAL",
        Type.BOOLEAN: "INTEGER",
        Type.STRING: "TEXT",
        Type.BYTES: "BLOB",
    }

    def _engine(self) -> Engine:
        query = {"mode": "rwc", "uri": "true", **self.url.properties}
        address = sqlalchemy.URL.create("sqlite", database=f"file:{self.url.database}", query=query)
        return engine_for(
            address,
            connect_args={"check_same_thread": False, "timeout": _BUSY_TIMEOUT_S, "isolation_level": None},
        )

    @property
    def address(self) -> str:
        """The path of the file."""
        return f"sqlite:{self.url.database}"

    def is_transient(self, error: Exception) -> bool:
        """Whether `error` means that another process has locked the database, or that a file operation has failed."""
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        return isinstance(error, sqlite3.OperationalError) and code & _PRIMARY_CODE in TRANSIENT_CODES

    def check_connection(self) -> None:
        """Open the file if it exists. Otherwise, check that it can be created. Raises the driver's exception."""
        path = Path(self.url.database)
        if path.exists():
            super().check_connection()
        elif not path.parent.is_dir():
            raise sqlite3.OperationalError(f"directory {path.parent} does not exist")

    def is_denied(self, error: Exception) -> bool:
        """Return False, because SQLite has no users."""
        return False

    def is_missing_object(self, error: Exception) -> bool:
        """Whether `error` means that a table or column does not exist. SQLite has no error code for this."""
        return isinstance(error, sqlite3.OperationalError) and any(text in str(error) for text in _MISSING)

    def is_missing_schema(self, error: Exception) -> bool:
        """Whether `error` means that no attached database has the name of the schema."""
        text = str(error)
        is_missing = text.startswith("unknown database ") or _MISSING_SCHEMA.fullmatch(text) is not None
        return isinstance(error, sqlite3.OperationalError) and is_missing

    def is_missing_constraint(self, error: Exception) -> bool:
        """Whether `error` means that no unique constraint matches ON CONFLICT. SQLite has no error code for this."""
        return isinstance(error, sqlite3.OperationalError) and str(error).startswith(
            "ON CONFLICT clause does not match"
        )

    def is_record_error(self, error: Exception) -> bool:
        """Whether the data of a row caused the error.

        For example, the data may violate a constraint, be too large, or contain a Python type that SQLite does not
        support.
        """
        return not isinstance(error, sqlite3.OperationalError) and type(error) is not sqlite3.DatabaseError

    def is_forbidden(self, error: Exception) -> bool:
        """Whether `error` means that the database file is read-only."""
        return getattr(error, "sqlite_errorcode", 0) & _PRIMARY_CODE == sqlite3.SQLITE_READONLY

    def logical_type(self, name: str, schema: Schema) -> str:
        """Return NUMERIC for all logical types."""
        return "NUMERIC"

    def _describe(
        self, connection: sqlalchemy.Connection, table: ExistingTable, name: str, schema: str | None
    ) -> ExistingTable:
        described = connection.exec_driver_sql(
            "SELECT name, type FROM pragma_table_xinfo(?, ?) WHERE hidden <> 1", (name, schema or "main")
        )
        types = {column: kind.upper() for column, kind in described}
        return table._replace(
            columns=tuple(types),
            reals=frozenset(column for column, kind in types.items() if _is_real(kind)),
            texts=frozenset(column for column, kind in types.items() if _stores_text(kind)),
        )

    def convert(self, table: ExistingTable, column: Column, values: Sequence[Any]) -> Sequence[Any]:
        """Return a column's values, converted to the driver's types.

        Raises DataError if SQLite cannot store a value unchanged.
        """
        schema = column.schema
        if column.is_timestamp:
            return super().convert(table, column, values)
        if schema.type in (Type.FLOAT32, Type.FLOAT64) and any(value != value for value in values):
            raise DataError(f"field {column.name}: SQLite would store NaN as NULL")
        name = table.column(column.name)
        if schema.name != DECIMAL_NAME or name in table.texts:
            return super().convert(table, column, values)
        is_real = name in table.reals
        return [None if value is None else _number(column.name, value, is_real) for value in values]

    def converter(self, schema: Schema, zone: dt.tzinfo) -> Convert:
        """Return a function that converts decimals to text, or dates and times to milliseconds.

        If the schema has another type, return None.
        """
        if schema.name == DECIMAL_NAME:
            return str
        return super().converter(schema, zone)

    def temporal_converter(self, name: str, zone: dt.tzinfo, unit_us: int = 1) -> Callable[[int], int]:
        """Return a function that converts dates, times or timestamps to milliseconds."""
        if name == DATE_NAME:
            return lambda days: days * _DAY_MS
        return int if unit_us == 1000 else lambda count: count * unit_us // 1000

    def literal(self, schema: Schema, value: Any) -> str:
        """Return the value as SQL text, with 1 and 0 for booleans."""
        return str(int(value)) if isinstance(value, bool) else super().literal(schema, value)

    def upsert_sql(self, target: Target) -> str:
        """Return INSERT with ON CONFLICT, which keeps the columns that the record does not have."""
        changes = ", ".join(f"{name}=excluded.{name}" for name in target.others)
        action = f"DO UPDATE SET {changes}" if changes else "DO NOTHING"
        return f"{self.insert_sql(target)} ON CONFLICT ({', '.join(target.keys)}) {action}"

    def column_types_sql(self, table: ExistingTable) -> str:
        """Return PRAGMA table_xinfo."""
        *schemas, name = split_name(table.quoted)
        arguments = ", ".join("'" + part.replace("'", "''") + "'" for part in (name, *schemas))
        return f"SELECT name, type FROM pragma_table_xinfo({arguments})"

    def column_at_fault(self, connection: Connection, target: Target, row: Run, error: Exception) -> str | None:
        """Return the column at the end of SQLite's message about a null value or about a value of a STRICT table."""
        text = str(error)
        names = [name for name in target.table.columns if text.endswith(f".{name}")]
        return max(names, key=len) if names and text.startswith(_ABOUT_ONE_COLUMN) else None

    def has_rolled_back(self, connection: Connection) -> bool:
        """Whether ON CONFLICT ROLLBACK or RAISE(ROLLBACK) has ended the transaction."""
        return not connection.in_transaction

    def begin(self, connection: Connection) -> None:
        """Begin a transaction with the write lock, so that only this call waits for other writers."""
        connection.execute("BEGIN IMMEDIATE")


def _stores_text(declared: str) -> bool:
    """Whether a column with the type `declared` stores text unchanged, because its affinity is TEXT or BLOB."""
    return "INT" not in declared and (not declared or any(name in declared for name in _TEXT_TYPES))


def _is_real(declared: str) -> bool:
    """Whether a column with the type `declared` converts integers to REAL."""
    return "INT" not in declared and any(name in declared for name in _REAL_TYPES)


def _number(field: str, value: Decimal, is_real: bool) -> int | float:
    """Return the number that SQLite stores for a decimal. Raises DataError if this number differs from the decimal.

    If `is_real` is true, the column stores integers as REAL.
    """
    if not is_real and value == value.to_integral_value():
        integer, (smallest, largest) = int(value), INT_RANGES[Type.INT64]
        if smallest <= integer <= largest:
            return integer
    number = float(value)
    if Decimal(repr(number)) != value:
        raise DataError(
            f"field {field}: SQLite cannot store {value} exactly as a number; create the column with the type TEXT"
        )
    return number
