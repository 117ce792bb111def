"""Finds and validates the incrementing and timestamp columns, whose values form source offsets.

This module does no I/O.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.api.config_def import nearest
from headrace.api.errors import ConfigError, ConfigErrors
from headrace.data.logical import DECIMAL_NAME, scale_of
from headrace.data.schema import INT_RANGES, Schema
from headrace_connectors.jdbc.source_config import JdbcSourceConfig
from headrace_connectors.jdbc.types import JdbcColumn

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
INCREMENTING, TIMESTAMP = "incrementing.column.name", "timestamp.column.name"


@dataclass(frozen=True, slots=True)
class OffsetColumns:
    """The columns that make up a source offset.

    `incrementing` is None and `timestamps` is empty if the mode does not use them. A row's timestamp is the first of
    its `timestamps` that is not NULL.
    """

    incrementing: JdbcColumn | None
    timestamps: tuple[JdbcColumn, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all columns."""
        incrementing = () if self.incrementing is None else (self.incrementing,)
        return tuple(column.name for column in (*incrementing, *self.timestamps))

    @property
    def timestamp_unit(self) -> dt.timedelta:
        """The smallest difference between two timestamps that all timestamp columns can store."""
        digits = min((column.fraction_digits for column in self.timestamps), default=6)
        return dt.timedelta(microseconds=10 ** (6 - digits))

    def round_down(self, instant: dt.datetime) -> dt.datetime:
        """Return `instant`, rounded down to a multiple of `timestamp_unit`.

        Until the current unit of time has ended, further rows may be written with the same timestamp. A reader that has
        read a timestamp does not read it again, so it may only read the timestamps before the current unit.
        """
        return instant - (instant - _EPOCH) % self.timestamp_unit


def find_offset_columns(
    config: JdbcSourceConfig,
    table: str,
    columns: Sequence[JdbcColumn],
    *,
    can_hold_timestamps: Callable[[JdbcColumn], bool],
) -> OffsetColumns:
    """Return the incrementing and timestamp columns that `config` names.

    The incrementing column defaults to the table's only autoincrement column. `table` is the table's qualified name, or
    empty for a custom query. Raises ConfigErrors with an error for each column that does not exist, and for each
    timestamp column that has the wrong type. For a table, also raises an error if the incrementing column has the wrong
    type, and, with `validate.non.null`, if the incrementing column or all timestamp columns are nullable.
    """
    source = f"table {table}" if table else "query"
    errors: list[ConfigError] = []
    incrementing: JdbcColumn | None = None
    if config.uses_incrementing:
        try:
            incrementing = _incrementing(config, table, source, columns)
        except ConfigError as error:
            errors.append(error)
    timestamps: list[JdbcColumn] = []
    names = config.timestamp_columns_of(table) if config.uses_timestamp else []
    if config.uses_timestamp and not names:
        errors.append(
            ConfigError(
                "timestamp.columns.mapping", None, f"the mapping has no regular expression that matches {source}"
            )
        )
    for name in names:
        try:
            column = _named(TIMESTAMP, source, columns, name)
            if not can_hold_timestamps(column):
                raise ConfigError(
                    TIMESTAMP, column.name, f"{source}: the column's type is {column.declared}, not a timestamp"
                )
            timestamps.append(column)
        except ConfigError as error:
            errors.append(error)
    if table and config.validate_non_null:  # only a table's NOT NULL constraints are known exactly
        errors += _null_errors(source, INCREMENTING, [incrementing] if incrementing is not None else [])
        errors += _null_errors(source, TIMESTAMP, timestamps if len(timestamps) == len(names) else [])
    if errors:
        raise ConfigErrors(errors)
    return OffsetColumns(incrementing, tuple(timestamps))


def _incrementing(config: JdbcSourceConfig, table: str, source: str, columns: Sequence[JdbcColumn]) -> JdbcColumn:
    column = _find_incrementing(config, table, source, columns)
    if table:  # only a table's column types are known exactly
        _check_integer(source, column)
    return column


def _find_incrementing(config: JdbcSourceConfig, table: str, source: str, columns: Sequence[JdbcColumn]) -> JdbcColumn:
    if name := config.incrementing_column_of(table):
        return _named(INCREMENTING, source, columns, name)
    candidates = [column for column in columns if column.is_autoincrement]
    if len(candidates) != 1:
        raise ConfigError(
            INCREMENTING,
            "",
            f"{source} has {len(candidates)} autoincrement columns: set the name of the incrementing column",
        )
    return candidates[0]


def _named(key: str, source: str, columns: Sequence[JdbcColumn], name: str) -> JdbcColumn:
    exact = [column for column in columns if column.name == name]
    found = exact or [column for column in columns if column.name.lower() == name.lower()]
    if not found:
        names = [column.name for column in columns]
        guess = nearest(name, names)
        hint = f"did you mean {guess}?" if guess else f"its columns are {', '.join(names)}"
        raise ConfigError(key, name, f"{source} has no column {name}; {hint}")
    return found[0]


def _check_integer(source: str, column: JdbcColumn) -> None:
    if column.schema.type not in INT_RANGES and not _is_integer_decimal(column.schema):
        raise ConfigError(
            INCREMENTING, column.name, f"{source}: the column's type is {column.declared}, but must be an integer type"
        )


def _is_integer_decimal(schema: Schema) -> bool:
    return schema.name == DECIMAL_NAME and scale_of(schema) == 0


def _null_errors(source: str, key: str, columns: Sequence[JdbcColumn]) -> list[ConfigError]:
    """Return an error in the configuration key `key` if all of `columns` are nullable.

    `source` is the table's name for the message.
    """
    if not columns or not all(column.nullable and not column.is_declared_not_null for column in columns):
        return []
    names = ", ".join(column.name for column in columns)
    advice = "NOT NULL, or set validate.non.null=false to skip such rows"
    if len(columns) == 1:
        problem = f"column {names} is nullable, and rows with NULL in it are never read; declare it {advice}"
    else:
        problem = (
            f"columns {names} are nullable, and rows with NULL in all of them are never read; declare one of them "
            f"{advice}"
        )
    return [ConfigError(key, names, f"{source}: {problem}")]
