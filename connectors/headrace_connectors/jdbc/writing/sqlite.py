"""Writes to SQLite with the standard library's driver.

Dates, times and timestamps are stored as milliseconds, as SQLite's JDBC driver stores them. Decimals are stored as text
in columns of type NUMERIC, which SQLite converts to numbers if no digit is lost.
"""

from __future__ import annotations

import datetime as dt
import sqlite3
from pathlib import Path
from typing import Any, ClassVar

import sqlalchemy
from sqlalchemy.engine import Engine

from headrace.data.logical import DATE_NAME, DECIMAL_NAME, TIME_NAME, TIMESTAMP_NAME
from headrace.data.schema import Schema, Type
from headrace_connectors.jdbc.dialects import engine_for
from headrace_connectors.jdbc.sqlite import TRANSIENT_CODES
from headrace_connectors.jdbc.writing.database import Connection, Convert, Database, Target, milliseconds_of_day

_BUSY_TIMEOUT_S = 10.0
_PRIMARY_CODE = 0xFF
_MISSING = ("no such table", "no such column", "has no column named")
_DAY_MS = 86_400_000
_EPOCH = dt.date(1970, 1, 1)


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
        """Whether another process has locked the database, or a file operation has failed."""
        code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR)
        return isinstance(error, sqlite3.OperationalError) and code & _PRIMARY_CODE in TRANSIENT_CODES

    def check_connection(self) -> None:
        """Open the file if it exists; otherwise check that it can be created. Raises the driver's exception."""
        path = Path(self.url.database)
        if path.exists():
            super().check_connection()
        elif not path.parent.is_dir():
            raise sqlite3.OperationalError(f"directory {path.parent} does not exist")

    def is_denied(self, error: Exception) -> bool:
        """Return False, because SQLite has no users."""
        return False

    def is_missing_object(self, error: Exception) -> bool:
        """Whether a table or a column of a statement does not exist. SQLite has no error code for this."""
        return isinstance(error, sqlite3.OperationalError) and any(text in str(error) for text in _MISSING)

    def is_record_error(self, error: Exception) -> bool:
        """Whether the error concerns the data of a row: a constraint, a size or a type of Python."""
        return not isinstance(error, sqlite3.OperationalError) and type(error) is not sqlite3.DatabaseError

    def is_forbidden(self, error: Exception) -> bool:
        """Whether the file is read-only."""
        return getattr(error, "sqlite_errorcode", 0) & _PRIMARY_CODE == sqlite3.SQLITE_READONLY

    def logical_type(self, name: str, schema: Schema) -> str:
        """Return NUMERIC for all logical types."""
        return "NUMERIC"

    def converter(self, schema: Schema, zone: dt.tzinfo) -> Convert:
        """Convert decimals to text, and dates and times to milliseconds."""
        if schema.name == DECIMAL_NAME:
            return str
        if schema.name == DATE_NAME:
            return lambda day: (day - _EPOCH).days * _DAY_MS
        if schema.name == TIME_NAME:
            return milliseconds_of_day
        if schema.name == TIMESTAMP_NAME:
            return _milliseconds
        return None

    def literal(self, schema: Schema, value: Any) -> str:
        """Return the value as SQL text, with 1 and 0 for booleans."""
        return str(int(value)) if isinstance(value, bool) else super().literal(schema, value)

    def upsert_sql(self, target: Target) -> str:
        """Return INSERT with ON CONFLICT, which keeps the columns that the record does not have."""
        changes = ", ".join(f"{name}=excluded.{name}" for name in target.others)
        action = f"DO UPDATE SET {changes}" if changes else "DO NOTHING"
        return f"{self.insert_sql(target)} ON CONFLICT ({', '.join(target.keys)}) {action}"

    def begin(self, connection: Connection) -> None:
        """Begin a transaction with the write lock, so that only this call waits for other writers."""
        connection.execute("BEGIN IMMEDIATE")


def _milliseconds(instant: dt.datetime) -> int:
    return (instant - dt.datetime(1970, 1, 1, tzinfo=dt.UTC)) // dt.timedelta(milliseconds=1)
