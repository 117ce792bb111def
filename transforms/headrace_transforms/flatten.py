"""Flatten: replace nested fields with top-level fields that are named by their path."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from headrace.api.config import Config, key
from headrace.data.batch import Batch
from headrace.data.schema import Schema, Type
from headrace.data.struct import Struct, row_converter
from headrace.data.values import infer_type
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

    def _plan(self, schema: Schema) -> tuple[Schema, Callable[[Any], tuple[Any, ...]]]:
        require_struct_schema(schema, _PURPOSE, self.side)
        leaves = list(self._leaves(schema, "", (), schema.optional, schema.default))
        updated = copy_basics(schema, [(leaf.name, leaf.schema) for leaf in leaves])
        paths = [leaf.steps for leaf in leaves]
        return updated, lambda row: tuple([_follow(row, steps) for steps in paths])

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
            updated, flat = self._plans(schema)
            return updated, [flat(row) for row in values]
        require_maps(values, _PURPOSE, self.side)
        return None, [dict(self._items(value, "")) for value in values]

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


class FlattenKey(Flatten):
    """Flatten applied to the key."""

    side = "key"
    java_names = ("org.apache.kafka.connect.transforms.Flatten$Key",)


class FlattenValue(Flatten):
    """Flatten applied to the value."""

    side = "value"
    java_names = ("org.apache.kafka.connect.transforms.Flatten$Value",)
