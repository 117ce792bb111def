"""Functions for transforms that process `Columns` column by column. This module does no I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from headrace.data.batch import Batch
from headrace.data.columns import Column, Columns, Shared, column_items
from headrace.data.schema import Schema, Type, struct
from headrace.data.struct import from_rows, row_converter
from headrace_transforms.field_paths import map_value, row_getter
from headrace_transforms.key_or_value import row_defaults

ListConversion = Callable[[list[Any]], list[Any]]
"""Converts each value of a list."""


def map_column(convert: ListConversion, column: Column, count: int) -> Column:
    """Convert each value of a column of `count` values."""
    if isinstance(column, Shared):
        return Shared(convert([column.value])[0])
    return convert(column_items(column, count))


def without_nulls(convert: ListConversion, items: list[Any]) -> list[Any]:
    """Convert each value of a list except nulls, which stay null."""
    converted = iter(convert([item for item in items if item is not None]))
    return [None if item is None else next(converted) for item in items]


def field_column(values: Columns, name: str) -> Column:
    """Return the column of a field. If the field is missing, return a column of nulls."""
    found = values.column(name)
    return Shared(None) if found is None else found


def path_column(schema: Schema | None, values: Columns, path: tuple[str, ...], replace_null: bool, side: str) -> Column:
    """Return the column of the values at a path. The results are those of `row_getter` and `map_value`.

    If there is a schema, the path must exist in it.
    """
    if schema is None:
        if len(path) == 1:
            return field_column(values, path[0])
        name, column = path[0], field_column(values, path[0])
        return map_column(lambda items: [map_value({name: item}, path, side) for item in items], column, values.count)
    field = schema.fields[schema.index_of(path[0])]
    nested = len(path) > 1
    default = field.schema.default if replace_null or nested else None
    column = filled_column(values.columns[field.index], row_converter(field.schema)(default))
    if not nested:
        return column
    get = row_getter(field.schema, path[1:], replace_null)
    return map_column(lambda items: list(map(get, items)), column, values.count)


def values_with_fields(batch: Batch, names: Sequence[str]) -> list[Any]:
    """Return the record values as structs and maps. If they are stored as columns, only these fields are included."""
    values, schema = batch.compact, batch.value_schema
    if not isinstance(values, Columns) or (schema is not None and schema.type is not Type.STRUCT):
        return from_rows(schema, batch.values)
    if schema is None:
        present = [index for index, name in enumerate(values.names) if name in names]
        return pick_columns(values, [values.names[index] for index in present], present).items()
    fields = [field for field in schema.fields if field.name in names]
    picked = pick_columns(values, [field.name for field in fields], [field.index for field in fields])
    return from_rows(struct([(field.name, field.schema) for field in fields]), picked.items())


def filled_with_defaults(schema: Schema, values: Columns, replace_null: bool) -> Columns:
    """Replace null fields of structs with defaults, as `defaults_filler` does in rows."""
    for index, default in (row_defaults(schema) if replace_null else {}).items():
        values = values.replace(index, filled_column(values.columns[index], default))
    return values


def filled_column(column: Column, default: Any) -> Column:
    """Replace the nulls of a column with a default."""
    if isinstance(column, Shared):
        return Shared(default) if column.value is None else column
    if default is None or not isinstance(column, list) or None not in column:
        return column
    return [default if item is None else item for item in column]


def pick_columns(values: Columns, names: Sequence[str], indexes: Sequence[int]) -> Columns:
    """Return the columns at these indexes, with new names."""
    return Columns(names, [values.columns[index] for index in indexes], values.count, is_maps=values.is_maps)
