"""Rows as a driver delivers them, made into rows as a batch holds them: column by column, only where a column needs it.

A value of another type than the column's (SQLite stores any value in any column) is refused with the table, column
and row at fault.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headrace.api.errors import ConnectError
from headrace.data.schema import Type
from headrace_connectors.jdbc.types import Column

Row = tuple[Any, ...]

_PYTHON_TYPES: dict[Type, frozenset[type]] = {
    Type.INT8: frozenset({int}),
    Type.INT16: frozenset({int}),
    Type.INT32: frozenset({int}),
    Type.INT64: frozenset({int}),
    Type.FLOAT32: frozenset({float}),
    Type.FLOAT64: frozenset({float}),
    Type.STRING: frozenset({str}),
    Type.BYTES: frozenset({bytes}),
}
_NULL = frozenset({type(None)})


def row_converter(table: str, columns: Sequence[Column], *, checked: bool) -> Callable[[list[Row]], list[Row]]:
    """A function from a driver's rows to a batch's. `checked`: the database does not hold values to their column's
    type.
    """
    work = [(index, column) for index, column in enumerate(columns) if column.convert is not None]
    checks = [
        (index, column, _PYTHON_TYPES[column.schema.type] | _NULL)
        for index, column in enumerate(columns)
        if checked and column.convert is None and column.schema.type in _PYTHON_TYPES
    ]
    if not work and not checks:
        return lambda rows: rows

    def convert(rows: list[Row]) -> list[Row]:
        if not rows:
            return rows
        transposed: list[Sequence[Any]] = list(zip(*rows, strict=True))
        for index, column, expected in checks:
            if not expected.issuperset(map(type, transposed[index])):
                _refuse(table, column, expected, rows, transposed[index])
        if not work:
            return rows
        for index, column in work:
            transposed[index] = _converted(table, column, rows, transposed[index])
        return list(zip(*transposed, strict=True))

    return convert


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
                raise ConnectError(f"{_place(table, column, row)}: {error}") from error
        raise


def _refuse(table: str, column: Column, expected: frozenset[type], rows: list[Row], values: Sequence[Any]) -> None:
    for row, value in zip(rows, values, strict=True):
        if type(value) not in expected:
            raise ConnectError(
                f"{_place(table, column, row)}: the column is {column.declared or column.schema.type.value} and "
                f"the row holds "
                f"{value!r:.60}; correct the row, or read the table with a `query` that casts the column"
            )


def _place(table: str, column: Column, row: Row) -> str:
    return f"{table}, column {column.name}, row {repr(row)[:120]}"
