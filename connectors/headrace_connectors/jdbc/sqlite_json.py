"""Fast path for SQLite tables: SQLite returns each row as a JSON array, and msgspec parses many arrays at once.

The fast path takes two thirds of the time that the standard library's driver needs to fetch the
same rows value by value. The dialect uses it only for tables whose columns hold integers, text and
NULL, which JSON preserves exactly. SQLite can store any value in any column, so msgspec checks each
value against its column's type. If a value has another type, the cursor raises `FastReadError`, and
the table must then be read without JSON.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from headrace.data.logical import is_logical
from headrace.data.schema import Type
from headrace_connectors.jdbc.dialects import FastReadError
from headrace_connectors.jdbc.rows import Row
from headrace_connectors.jdbc.statements import Statement
from headrace_connectors.jdbc.types import JdbcColumn

_COLUMNS_MAX = 100  # an SQL function accepts 127 arguments at most, fewer in some builds of SQLite
_ROWS_PER_PARSE_MAX = 1000  # 10,000 rows exceed the CPU cache, and parsing them takes 20 % longer per row
_PLAIN_TYPES: dict[Type, Any] = {Type.INT64: int, Type.STRING: str}


def row_type(columns: Sequence[JdbcColumn]) -> Any:
    """Return the Python type into which msgspec parses rows of `columns`, or None if JSON cannot represent the rows."""
    kinds = [_kind(column) for column in columns]
    if len(kinds) > _COLUMNS_MAX or None in kinds:
        return None
    return list[tuple[tuple(kinds)]]  # type: ignore[misc]


def _kind(column: JdbcColumn) -> Any:
    """Return the Python type of a column's values, or None if JSON cannot represent all of them."""
    schema = column.schema
    if column.convert is None:
        kind = _PLAIN_TYPES.get(schema.type)
    else:
        is_day_or_time = schema.type is Type.INT32 and is_logical(schema)
        kind = int | str if column.is_timestamp or schema.type is Type.BOOLEAN or is_day_or_time else None
    return kind | None if kind and column.nullable else kind


class JsonRows:
    """A DBAPI cursor for a statement that returns each row as a JSON array.

    It raises the driver's exception for a transient error, and FastReadError for any other error.
    """

    def __init__(
        self,
        connection: sqlite3.Connection,
        statement: Statement,
        type_: Any,
        is_transient: Callable[[Exception], bool],
    ) -> None:
        self._decode = msgspec.json.Decoder(type_).decode
        self._is_transient = is_transient
        with self._fast_read_errors():  # fails if this build of SQLite has no JSON functions
            self._cursor = connection.execute(statement.sql, statement.parameters)

    def fetchmany(self, count: int) -> list[Row]:
        """Return at most `count` rows, or an empty list if no rows remain."""
        rows: list[Row] = []
        with self._fast_read_errors():  # fails for a BLOB, or for text in an integer column
            while len(rows) < count:
                texts = self._cursor.fetchmany(min(_ROWS_PER_PARSE_MAX, count - len(rows)))
                if not texts:
                    break
                rows += self._decode(f"[{','.join([text for (text,) in texts])}]")
        return rows

    def close(self) -> None:
        """Close the driver's cursor."""
        self._cursor.close()

    @contextmanager
    def _fast_read_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.OperationalError, msgspec.DecodeError) as error:
            if self._is_transient(error):
                raise
            raise FastReadError(str(error)) from error
