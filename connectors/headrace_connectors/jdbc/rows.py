"""Converts the driver's values in rows to the values of record fields, one column at a time.

Columns that need no conversion are not changed. In SQLite, the type of a value may differ from the type of the value's
column. The error message about such a value contains the table, the column and the row.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Annotated, Any

import msgspec

from headrace.api.errors import ConnectError
from headrace.data.schema import INT_RANGES, Type
from headrace_connectors.jdbc.temporal_values import UnmappableError
from headrace_connectors.jdbc.types import JdbcColumn, chain

logger = logging.getLogger(__name__)

Row = tuple[Any, ...]

# msgspec accepts an integer as a float, and base64 text as bytes, so `_check` compares these two types itself.
_CHECKED_BY_MSGSPEC: dict[Type, Any] = {
    **{type_: Annotated[int, msgspec.Meta(ge=low, le=high)] for type_, (low, high) in INT_RANGES.items()},
    Type.STRING: str,
}
_PYTHON_TYPES: dict[Type, type] = {
    **dict.fromkeys(INT_RANGES, int),
    Type.STRING: str,
    Type.BOOLEAN: bool,
    Type.FLOAT32: float,
    Type.FLOAT64: float,
    Type.BYTES: bytes,
}
_NULL = type(None)
_CONVERSION_ERRORS = (ValueError, TypeError, ArithmeticError)
_ADVICE = "correct the row, or read the table with a `query` that casts the column"


class RowConverter:
    """Converts the rows of one table or query.

    If `is_checked` is true, the converter checks the types of values, because the database does not
    enforce column types. `unmappable_values` is the value of the key `unmappable.values`, which determines what happens
    to a value that cannot be converted. `report_skipped` is called for each skipped row with a dict of the row's values
    as text, and the error.
    """

    def __init__(
        self,
        table: str,
        columns: Sequence[JdbcColumn],
        *,
        is_checked: bool,
        unmappable_values: str = "fail",
        report_skipped: Callable[[dict[str, str | None], ValueError], None] | None = None,
    ) -> None:
        self._table = table
        self._columns = columns
        self._report_skipped = report_skipped
        self._keys = [(index, column.name) for index, column in enumerate(columns) if column.is_key]
        self._on_unmappable = unmappable_values
        self._check = _check(table, columns) if is_checked else None
        self._conversions = _conversions(columns)
        self._checking_conversions = _conversions([_with_type_check(column) for column in columns])
        """The conversions that check each value. They are used for rows that `_check` rejects."""

    def convert(self, rows: list[Row]) -> list[Row]:
        """Convert the driver's values in `rows` to the values of record fields, and return the converted rows.

        If a value cannot be converted, the configuration key `unmappable.values` determines whether this method
        replaces the value, skips the row, or raises ConnectError.
        """
        conversions = self._conversions
        if self._check is not None:
            try:
                self._check(rows)
            except ConnectError:
                if self._on_unmappable == "fail":
                    raise
                conversions = self._checking_conversions
        if not conversions or not rows:
            return rows
        transposed: list[Sequence[Any]] = list(zip(*rows, strict=True))
        is_changed = False
        skipped: set[int] = set()
        for index, column in conversions:
            values = transposed[index]
            if column.identity_type is None or not {column.identity_type, _NULL}.issuperset(map(type, values)):
                transposed[index] = self._converted(column, rows, values, skipped)
                is_changed = True
        converted = list(zip(*transposed, strict=True)) if is_changed else rows
        return [row for number, row in enumerate(converted) if number not in skipped] if skipped else converted

    def _converted(
        self, column: JdbcColumn, rows: list[Row], values: Sequence[Any], skipped: set[int]
    ) -> Sequence[Any]:
        function = column.convert
        assert function is not None
        if column.convert_column is not None and (converted := column.convert_column(values)) is not None:
            return converted
        try:
            return [None if value is None else function(value) for value in values]
        except _CONVERSION_ERRORS:
            return [self._convert_one(column, rows, number, value, skipped) for number, value in enumerate(values)]

    def _convert_one(self, column: JdbcColumn, rows: list[Row], number: int, value: Any, skipped: set[int]) -> Any:
        function = column.convert
        assert function is not None
        try:
            return None if value is None else function(value)
        except _CONVERSION_ERRORS as error:
            problem = f"{self._location(column, rows[number])}: the column's type is {_type_name(column)}, but {error}"
            if self._on_unmappable == "null" and column.nullable:
                return None
            if self._on_unmappable == "clamp" and isinstance(error, UnmappableError):
                return error.nearest
            if self._on_unmappable == "skip":
                if number not in skipped:
                    self._skip(rows[number], problem)
                skipped.add(number)
                return None
            raise ConnectError(f"{problem}; {self._advice(column, error)}") from error

    def _skip(self, row: Row, problem: str) -> None:
        logger.warning("%s; skipping the row (unmappable.values=skip, or errors.tolerance=all)", problem)
        if self._report_skipped is not None:
            texts = {column.name: _text(column, value) for column, value in zip(self._columns, row, strict=True)}
            self._report_skipped(texts, ValueError(problem))

    def _advice(self, column: JdbcColumn, error: Exception) -> str:
        choices = ["skip"]
        if isinstance(error, UnmappableError) and self._on_unmappable != "clamp":
            choices.insert(0, "clamp")
        if column.nullable and self._on_unmappable != "null":
            choices.insert(0, "null")
        return f"{_ADVICE}, or set unmappable.values={' or '.join(choices)}"

    def _location(self, column: JdbcColumn, row: Row) -> str:
        return _location(self._table, column, described_row(self._columns, row), self._keys)


def _conversions(columns: Sequence[JdbcColumn]) -> list[tuple[int, JdbcColumn]]:
    return [(index, column) for index, column in enumerate(columns) if column.convert is not None]


def _text(column: JdbcColumn, value: Any) -> str | None:
    """Return a value from the database as text, or None for NULL."""
    return None if value is None else str(value) if column.describe is None else column.describe(value)


def described_row(columns: Sequence[JdbcColumn], row: Row) -> Row:
    """Return a row for an error message, with text instead of values that only the dialect can interpret."""
    return tuple(
        value if column.describe is None else _text(column, value) for column, value in zip(columns, row, strict=True)
    )


def _with_type_check(column: JdbcColumn) -> JdbcColumn:
    """Return `column` with a conversion that raises ValueError for a value of the wrong type."""
    expected = _PYTHON_TYPES.get(column.schema.type)
    if column.convert is not None or expected is None:
        return column

    type_name = expected.__name__
    bounds = INT_RANGES.get(column.schema.type)

    def check_type(value: Any) -> Any:
        if type(value) is not expected:
            raise ValueError(f"the value is {value!r:.60}, not of type {type_name}")
        return value

    def check_range(value: Any) -> Any:
        if bounds is not None and not bounds[0] <= value <= bounds[1]:
            raise ValueError(f"the value {value} is too large for {column.schema.type.name}")
        return value

    return replace(column, convert=check_type if bounds is None else chain(check_type, check_range))


def _check(table: str, columns: Sequence[JdbcColumn]) -> Callable[[list[Row]], None] | None:
    """Return a function that raises ConnectError if a value's type is not its column's type.

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
            _raise_for_mismatch(table, columns, checks, rows)
        if inspected:
            _raise_for_mismatch(table, columns, inspected, rows)

    return check


def _raise_for_mismatch(
    table: str,
    columns: Sequence[JdbcColumn],
    checks: Sequence[tuple[int, JdbcColumn, frozenset[type]]],
    rows: list[Row],
) -> None:
    """Raise ConnectError for the first value whose type is not one of the types expected for its column.

    `checks` contains (index in the row, column, expected types) for each column that needs the check.
    """
    for index, column, expected in checks:
        bounds = INT_RANGES.get(column.schema.type)
        if bounds is None and expected.issuperset({type(row[index]) for row in rows}):
            continue
        row = next((row for row in rows if not _is_valid(row[index], expected, bounds)), None)
        if row is None:
            continue
        keys = [(number, other.name) for number, other in enumerate(columns) if other.is_key]
        raise ConnectError(
            f"{_location(table, column, row, keys)}: the column's type is {_type_name(column)}, but the value is "
            f"{row[index]!r:.60}; {_ADVICE}, or set unmappable.values=skip"
        )


def _is_valid(value: Any, types: frozenset[type], bounds: tuple[int, int] | None) -> bool:
    """Whether a value has one of the types, and, if it is an integer of a column with bounds, is within the bounds."""
    return type(value) in types and (bounds is None or value is None or bounds[0] <= value <= bounds[1])


def _type_name(column: JdbcColumn) -> str:
    return column.declared or column.schema.type.value


def _location(table: str, column: JdbcColumn, row: Row, keys: Sequence[tuple[int, str]] = ()) -> str:
    """Return a value's table, column and row for error messages. The row is described by its primary key, if any."""
    key = ", ".join(f"{name}={row[index]!r:.60}" for index, name in keys)
    return f"{table}, column {column.name}, row {key or repr(row)[:120]}"
