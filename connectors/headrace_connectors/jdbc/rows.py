"""Converts a driver's rows to a batch's rows, one column at a time, and only the columns that need a conversion.

If a value's type is not its column's type, which SQLite allows, the error names the table, the column and the row.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from headrace.api.errors import ConnectError
from headrace.data.schema import Type
from headrace_connectors.jdbc.types import JdbcColumn

Row = tuple[Any, ...]

# msgspec accepts an integer as a float, and base64 text as bytes, so the code below checks these two types itself.
_CHECKED_BY_MSGSPEC: dict[Type, type] = {
    Type.INT8: int,
    Type.INT16: int,
    Type.INT32: int,
    Type.INT64: int,
    Type.STRING: str,
}
_PYTHON_TYPES: dict[Type, type] = {
    **_CHECKED_BY_MSGSPEC,
    Type.FLOAT32: float,
    Type.FLOAT64: float,
    Type.BYTES: bytes,
}
_NULL = type(None)
_ADVICE = "correct the row, or read the table with a `query` that casts the column"


def row_converter(table: str, columns: Sequence[JdbcColumn], *, checked: bool) -> Callable[[list[Row]], list[Row]]:
    """Return a function that converts a driver's rows to a batch's rows.

    `checked`: whether the function checks the types of values, because the database does not enforce column types.
    """
    conversions = [(index, column) for index, column in enumerate(columns) if column.convert is not None]
    check = _check(table, columns) if checked else None

    def convert(rows: list[Row]) -> list[Row]:
        if check is not None:
            check(rows)
        if not conversions or not rows:
            return rows
        transposed: list[Sequence[Any]] = list(zip(*rows, strict=True))
        changed = False
        for index, column in conversions:
            values = transposed[index]
            if column.identity_type is None or not {column.identity_type, _NULL}.issuperset(map(type, values)):
                transposed[index] = _converted(table, column, rows, values)
                changed = True
        return list(zip(*transposed, strict=True)) if changed else rows

    return convert


def _check(table: str, columns: Sequence[JdbcColumn]) -> Callable[[list[Row]], None] | None:
    """Return a function that raises ConnectError if a value's type is not that of its column.

    Returns None if no column needs this check.
    """
    checks = [
        (index, column, frozenset({_PYTHON_TYPES[column.schema.type], _NULL}))
        for index, column in enumerate(columns)
        if column.convert is None and column.schema.type in _PYTHON_TYPES
    ]
    if not checks:
        return None
    fields: list[Any] = [Any] * len(columns)
    inspected = []
    for index, column, expected in checks:
        if kind := _CHECKED_BY_MSGSPEC.get(column.schema.type):
            fields[index] = kind | None
        else:
            inspected.append((index, column, expected))
    row_type: Any = list[tuple[tuple(fields)]]  # type: ignore[misc]

    def check(rows: list[Row]) -> None:
        try:
            msgspec.convert(rows, row_type)
        except msgspec.ValidationError:
            _raise_for_mismatch(table, checks, rows)
        if inspected:
            _raise_for_mismatch(table, inspected, rows)

    return check


def _raise_for_mismatch(table: str, checks: Sequence[tuple[int, JdbcColumn, frozenset[type]]], rows: list[Row]) -> None:
    """Raise ConnectError for the first value whose type is not one of the types expected for its column."""
    for index, column, expected in checks:
        if expected.issuperset({type(row[index]) for row in rows}):
            continue
        row = next(row for row in rows if type(row[index]) not in expected)
        raise ConnectError(
            f"{_location(table, column, row)}: the column's type is {column.declared or column.schema.type.value}, but "
            f"the value is {row[index]!r:.60}; {_ADVICE}"
        )


def _converted(table: str, column: JdbcColumn, rows: list[Row], values: Sequence[Any]) -> list[Any]:
    function = column.convert
    assert function is not None
    try:
        return [None if value is None else function(value) for value in values]
    except (ValueError, TypeError, ArithmeticError):
        for row, value in zip(rows, values, strict=True):
            try:
                if value is not None:
                    function(value)
            except (ValueError, TypeError, ArithmeticError) as error:
                raise ConnectError(
                    f"{_location(table, column, row)}: the column's type is "
                    f"{column.declared or column.schema.type.value}, but {error}; {_ADVICE}"
                ) from error
        raise


def _location(table: str, column: JdbcColumn, row: Row) -> str:
    return f"{table}, column {column.name}, row {repr(row)[:120]}"
