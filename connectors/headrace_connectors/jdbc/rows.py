"""Rows as a driver delivers them, made into rows as a batch holds them: column by column, only where a column needs it.

A value of another type than the column's (SQLite stores any value in any column) is refused with the table, column
and row at fault.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from headrace.api.errors import ConnectError
from headrace.data.schema import Type
from headrace_connectors.jdbc.types import Column

Row = tuple[Any, ...]

# msgspec would take an integer for a float and base64 text for bytes: these two are looked at here.
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


def row_converter(table: str, columns: Sequence[Column], *, checked: bool) -> Callable[[list[Row]], list[Row]]:
    """A function from a driver's rows to a batch's. `checked`: the database does not hold values to their column's
    type.
    """
    work = [(index, column) for index, column in enumerate(columns) if column.convert is not None]
    check = _check(table, columns) if checked else None

    def convert(rows: list[Row]) -> list[Row]:
        if check is not None:
            check(rows)
        if not work or not rows:
            return rows
        transposed: list[Sequence[Any]] = list(zip(*rows, strict=True))
        changed = False
        for index, column in work:
            values = transposed[index]
            if column.as_it_is is None or not {column.as_it_is, _NULL}.issuperset(map(type, values)):
                transposed[index] = _converted(table, column, rows, values)
                changed = True
        return list(zip(*transposed, strict=True)) if changed else rows

    return convert


def _check(table: str, columns: Sequence[Column]) -> Callable[[list[Row]], None] | None:
    """A function that raises ConnectError for rows with a value that is not of its column's type."""
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
            _refuse(table, checks, rows)
        if inspected:
            _refuse(table, inspected, rows)

    return check


def _refuse(table: str, checks: Sequence[tuple[int, Column, frozenset[type]]], rows: list[Row]) -> None:
    """Raise for the first value that is not as expected, if there is one."""
    for index, column, expected in checks:
        if expected.issuperset({type(row[index]) for row in rows}):
            continue
        row = next(row for row in rows if type(row[index]) not in expected)
        raise ConnectError(
            f"{_place(table, column, row)}: the column is {column.declared or column.schema.type.value} and the row "
            f"holds {row[index]!r:.60}; {_ADVICE}"
        )


def _converted(table: str, column: Column, rows: list[Row], values: Sequence[Any]) -> list[Any]:
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
                    f"{_place(table, column, row)}: the column is {column.declared or column.schema.type.value}, but "
                    f"{error}; {_ADVICE}"
                ) from error
        raise


def _place(table: str, column: Column, row: Row) -> str:
    return f"{table}, column {column.name}, row {repr(row)[:120]}"
