"""Rows of SQLite as JSON: SQLite writes a row as one array, and msgspec reads a batch of them at a time. That takes two
thirds of the time in which the standard library's driver fetches them value by value.

Integers, texts and NULL come out of it as they went in; other columns are not read so. Each value is held against its
column's type. SQLite may store anything in any column: `UnfitRowsError` says that this table must be read as it is.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec

from headrace.data.logical import is_logical
from headrace.data.schema import Type
from headrace_connectors.jdbc.dialects import UnfitRowsError
from headrace_connectors.jdbc.rows import Row
from headrace_connectors.jdbc.statements import Statement
from headrace_connectors.jdbc.types import Column

_COLUMNS_MAX = 100  # a function takes 127 arguments at most, less where SQLite was built so
_TEXTS_MAX = 1000  # at a time: 10,000 leave the processor's cache and take a fifth longer
_PLAIN_TYPES: dict[Type, Any] = {Type.INT64: int | None, Type.STRING: str | None}


def row_type(columns: Sequence[Column]) -> Any:
    """What msgspec makes of such rows; None when they cannot travel as JSON."""
    kinds = [_kind(column) for column in columns]
    if len(kinds) > _COLUMNS_MAX or None in kinds:
        return None
    return list[tuple[tuple(kinds)]]  # type: ignore[misc]


def _kind(column: Column) -> Any:
    if column.convert is None:
        return _PLAIN_TYPES.get(column.schema.type)
    if column.is_timestamp or column.schema.type is Type.BOOLEAN:
        return int | str | None
    is_day_or_time = column.schema.type is Type.INT32 and is_logical(column.schema)
    return int | str | None if is_day_or_time else None


class JsonRows:
    """A cursor like the driver's, over a statement whose rows are JSON arrays.

    What the driver raises passes through when `is_transient` says so; everything else is an UnfitRowsError.
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
        with self._unfit():  # SQLite may have been built without JSON
            self._cursor = connection.execute(statement.sql, statement.parameters)

    def fetchmany(self, count: int) -> list[Row]:
        """The next rows."""
        rows: list[Row] = []
        with self._unfit():  # a BLOB, or a text in a column of integers
            while len(rows) < count:
                texts = self._cursor.fetchmany(min(_TEXTS_MAX, count - len(rows)))
                if not texts:
                    break
                rows += self._decode(f"[{','.join([text for (text,) in texts])}]")
        return rows

    def close(self) -> None:
        """Close the driver's cursor."""
        self._cursor.close()

    @contextmanager
    def _unfit(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.OperationalError, msgspec.DecodeError) as error:
            if self._is_transient(error):
                raise
            raise UnfitRowsError(str(error)) from error
