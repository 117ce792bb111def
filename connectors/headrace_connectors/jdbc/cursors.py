"""The columns that a mode follows: found among those of a table, and fit to be followed. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace.api.config_def import nearest
from headrace.api.errors import ConfigError
from headrace.data.logical import DECIMAL_NAME, scale_of
from headrace.data.schema import INT_RANGES, Schema
from headrace_connectors.jdbc.config import JdbcSourceConfig
from headrace_connectors.jdbc.types import Column

INCREMENTING, TIMESTAMP = "incrementing.column.name", "timestamp.column.name"


@dataclass(frozen=True, slots=True)
class CursorColumns:
    """The column that grows, and those whose COALESCE is a row's timestamp; what the mode does not follow is absent."""

    incrementing: Column | None
    timestamps: tuple[Column, ...]


def cursor_columns(
    config: JdbcSourceConfig,
    source: str,
    columns: Sequence[Column],
    *,
    is_table: bool,
    holds_timestamps: Callable[[Column], bool],
) -> CursorColumns:
    """The columns that `config` names, or the only one that grows by itself.

    Raises ConfigError for the key at fault: no such column in `source`, or, in a table, one that cannot be followed.
    """
    incrementing = _incrementing(config, source, columns) if config.uses_incrementing else None
    timestamps: tuple[Column, ...] = ()
    if config.uses_timestamp:
        timestamps = tuple(_named(TIMESTAMP, source, columns, name) for name in config.timestamp_column_name)
    if is_table:  # the types of a query's columns may be guesses, and any of them may be NULL
        if incrementing is not None:
            _check_whole(source, incrementing)
        for column in timestamps:
            if not holds_timestamps(column):
                raise ConfigError(TIMESTAMP, column.name, f"{source}: the column is {column.declared}, no timestamp")
        if config.validate_non_null:
            _check_not_null(source, incrementing, timestamps)
    return CursorColumns(incrementing, timestamps)


def _incrementing(config: JdbcSourceConfig, source: str, columns: Sequence[Column]) -> Column:
    if config.incrementing_column_name:
        return _named(INCREMENTING, source, columns, config.incrementing_column_name)
    candidates = [column for column in columns if column.is_autoincrement]
    if len(candidates) != 1:
        raise ConfigError(
            INCREMENTING, "", f"{source} has {len(candidates)} autoincrement columns: name the one to follow"
        )
    return candidates[0]


def _named(key: str, source: str, columns: Sequence[Column], name: str) -> Column:
    exact = [column for column in columns if column.name == name]
    found = exact or [column for column in columns if column.name.lower() == name.lower()]
    if not found:
        names = [column.name for column in columns]
        guess = nearest(name, names)
        hint = f"did you mean {guess}?" if guess else f"it has {', '.join(names)}"
        raise ConfigError(key, name, f"{source} has no column {name}; {hint}")
    return found[0]


def _check_whole(source: str, column: Column) -> None:
    if column.schema.type not in INT_RANGES and not _is_whole_decimal(column.schema):
        raise ConfigError(
            INCREMENTING, column.name, f"{source}: the column is {column.declared}, and must hold whole numbers"
        )


def _is_whole_decimal(schema: Schema) -> bool:
    return schema.name == DECIMAL_NAME and scale_of(schema) == 0


def _check_not_null(source: str, incrementing: Column | None, timestamps: Sequence[Column]) -> None:
    followed = [(TIMESTAMP, column) for column in timestamps]
    if incrementing is not None:
        followed.insert(0, (INCREMENTING, incrementing))
    for key, column in followed:
        if column.nullable:
            raise ConfigError(
                key,
                column.name,
                f"{source}: column {column.name} may be NULL, and such rows would never be read; declare it NOT NULL, "
                "or set validate.non.null=false to accept that",
            )
