"""Flatten: replace nested fields with top-level fields that are named by their path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from headrace.api.config import Config, key
from headrace.data.batch import Batch
from headrace.data.columns import Column, ColumnarValues, Columns, Shared, column_items, maps_to_columns
from headrace.data.java import Float32
from headrace.data.schema import Schema, Type
from headrace.data.struct import Struct, row_converter
from headrace.data.values import infer_type
from headrace_transforms.columnar import filled_column, map_column
from headrace_transforms.key_or_value import (
    KeyOrValue,
    SchemaCache,
    TransformResult,
    copy_basics,
    require_maps,
    require_struct_schema,
)
from headrace_transforms.record_errors import place_of, record_error, type_name

_PURPOSE = "flattening"
_LEAF_CLASSES = frozenset((type(None), bool, int, Float32, float, str, bytes, list))


class FlattenConfig(Config):
    """Configuration of Flatten."""

    delimiter: str = key("delimiter", default=".", doc="Delimiter between the names of nested fields in a new name.")


class _Leaf(NamedTuple):
    """A field of the flattened schema.

    `steps` is the path to the field's value in a nested row. It contains a field index and a default for each level.
    """

    name: str
    schema: Schema
    steps: tuple[tuple[int, Any], ...]


class Flatten(KeyOrValue[FlattenConfig]):
    """Flattens structs and maps.

    Arrays are not flattened. A field of an optional struct becomes optional. A field without a default gets its default
    from the default of its struct, if the struct has one. Null keys and values are not changed.
    """

    abstract = True
    passes_null = True

    def configure(self, config: FlattenConfig) -> None:
        """Store the delimiter."""
        self._delimiter = config.delimiter
        self._plans = SchemaCache(self._plan)

    def _plan(self, schema: Schema) -> tuple[Schema, list[tuple[tuple[int, Any], ...]]]:
        """Return the flattened schema, and the path to the value of each of its fields."""
        require_struct_schema(schema, _PURPOSE, self.side)
        leaves = list(self._leaves(schema, "", (), schema.optional, schema.default))
        updated = copy_basics(schema, [(leaf.name, leaf.schema) for leaf in leaves])
        return updated, [leaf.steps for leaf in leaves]

    def _leaves(
        self, schema: Schema, prefix: str, steps: tuple[tuple[int, Any], ...], optional: bool, default: Struct | None
    ) -> Iterator[_Leaf]:
        for field in schema.fields:
            name = prefix + field.name
            own = field.schema.default
            inherited = own if own is not None else default.get(field.name) if default is not None else None
            step = (field.index, row_converter(field.schema)(own if field.schema.type is not Type.STRUCT else None))
            nullable = optional or field.schema.optional
            if field.schema.type is Type.STRUCT:
                yield from self._leaves(field.schema, name + self._delimiter, (*steps, step), nullable, inherited)
            elif field.schema.type is Type.MAP:
                message = f"Flatten transformation does not support MAP for record with schemas (for field {name})."
                raise record_error(message, place_of(self.side, name), "a type other than MAP", "MAP")
            else:
                changed = field.schema.replace(optional=nullable, default=inherited)
                yield _Leaf(name, changed, (*steps, step))

    def change(self, schema: Schema | None, values: list[Any], batch: Batch) -> TransformResult:
        """Flatten each value."""
        if schema is not None:
            updated, paths = self._plans(schema)
            return updated, [tuple([_follow(row, steps) for steps in paths]) for row in values]
        require_maps(values, _PURPOSE, self.side)
        return None, [dict(self._items(value, "")) for value in values]

    def change_columnar(self, schema: Schema | None, values: ColumnarValues, batch: Batch) -> TransformResult | None:
        """Flatten the columns of nested structs and maps.

        Returns None if `change` must flatten the values, because nested maps have different keys or contain values
        that are not supported.
        """
        if not isinstance(values, Columns):
            return None
        if schema is None:
            flat = self._flat_columns(values, "")
            return (
                None if flat is None else (None, Columns(tuple(flat), tuple(flat.values()), len(values), is_maps=True))
            )
        updated, paths = self._plans(schema)
        columns = [_follow_column(values, steps) for steps in paths]
        return updated, Columns([field.name for field in updated.fields], columns, len(values), is_maps=False)

    def _flat_columns(self, values: Columns, prefix: str) -> dict[str, Column] | None:
        flat: dict[str, Column] = {}
        for key_, column in zip(values.names, values.columns, strict=True):
            name = prefix + key_
            items = [column.value] if isinstance(column, Shared) else column_items(column, len(values))
            classes = set(map(type, items))
            if classes <= _LEAF_CLASSES:
                flat[name] = column
                continue
            nested = maps_to_columns(items) if classes == {dict} and len(items) == len(values) else None
            inner = None if nested is None else self._flat_columns(nested, name + self._delimiter)
            if inner is None:
                return None
            flat |= inner
        return flat

    def _items(self, value: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
        for key_, item in value.items():
            name = prefix + key_
            if isinstance(item, dict):
                yield from self._items(item, name + self._delimiter)
            elif item is not None and infer_type(item) is None:
                found = type_name(item)
                message = (
                    f"Flatten transformation was passed a value of type {found} which is not supported by Connect's "
                    f"data API (for field {name})"
                )
                raise record_error(message, place_of(self.side, name), "a type of Connect's data API", found)
            else:
                yield name, item


def _follow(row: Any, steps: tuple[tuple[int, Any], ...]) -> Any:
    for index, default in steps:
        if row is None:
            return None
        row = row[index]
        if row is None:
            row = default
    return row


def _follow_column(values: Columns, steps: tuple[tuple[int, Any], ...]) -> Column:
    index, default = steps[0]
    column = filled_column(values.columns[index], default)
    if len(steps) == 1:
        return column
    return map_column(lambda items: [_follow(item, steps[1:]) for item in items], column, len(values))


class FlattenKey(Flatten):
    """Flatten applied to the key."""

    side = "key"
    java_names = ("org.apache.kafka.connect.transforms.Flatten$Key",)


class FlattenValue(Flatten):
    """Flatten applied to the value."""

    side = "value"
    java_names = ("org.apache.kafka.connect.transforms.Flatten$Value",)
