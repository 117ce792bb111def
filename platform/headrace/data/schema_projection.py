"""Projection: converts values of one schema to values of another schema, as Kafka's SchemaProjector does.

A projection reorders the fields of structs, fills in fields that are missing, and promotes numbers to larger types. It
also drops fields that the target schema lacks; `Projection.drops_fields` says so. A projection never changes a number:
in contrast to SchemaProjector, it does not convert integers to a floating-point type with fewer digits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from headrace.data.logical import is_logical
from headrace.data.schema import Schema, Type
from headrace.data.struct import contains_struct, row_converter

Convert = Callable[[Any], Any]

_INTEGERS = (Type.INT8, Type.INT16, Type.INT32, Type.INT64)
_LARGER_TYPES = {type_: set(_INTEGERS[index:]) for index, type_ in enumerate(_INTEGERS)}
_LARGER_TYPES[Type.INT8] |= {Type.FLOAT32, Type.FLOAT64}
_LARGER_TYPES[Type.INT16] |= {Type.FLOAT32, Type.FLOAT64}
_LARGER_TYPES[Type.INT32] |= {Type.FLOAT64}
_LARGER_TYPES[Type.FLOAT32] = {Type.FLOAT64}


@dataclass(frozen=True, slots=True)
class Projection:
    """A conversion of values from a source schema to a target schema."""

    apply: Convert
    """Returns the value in the target schema. Structs are rows, as in batches."""
    drops_fields: bool
    """Whether a struct of the source schema has a field that the target schema lacks."""


@lru_cache(maxsize=1024)
def find_projection(source: Schema, target: Schema) -> Projection | None:
    """Return the projection from `source` to `target`, or None if the schemas are incompatible.

    The schemas are incompatible if their names, parameters or types differ, unless the type of a number can be
    promoted. They are also incompatible if the target requires a value that the source can lack, and has no default.
    These rules also apply to fields, elements, keys and values.
    """
    if source == target:
        return Projection(_identity, drops_fields=False)
    if source.name != target.name or source.parameters != target.parameters or _needs_value(source, target):
        return None
    found = _for_type(source, target)
    return None if found is None else Projection(_convert_nulls(source, target, found.apply), found.drops_fields)


def _identity(value: Any) -> Any:
    return value


def _needs_value(source: Schema, target: Schema) -> bool:
    return source.optional and not target.optional and target.default is None


def _for_type(source: Schema, target: Schema) -> Projection | None:
    """Return the projection of values that are not null."""
    if source.type is not target.type:
        return _promotion(source, target)
    if source.type is Type.STRUCT:
        return _struct_projection(source, target)
    if source.type is Type.ARRAY:
        return _array_projection(source, target)
    if source.type is Type.MAP:
        return _map_projection(source, target)
    return Projection(_identity, drops_fields=False)


def _promotion(source: Schema, target: Schema) -> Projection | None:
    if is_logical(source) or target.type not in _LARGER_TYPES.get(source.type, ()):
        return None
    return Projection(_identity if target.type in _INTEGERS else float, drops_fields=False)


def _struct_projection(source: Schema, target: Schema) -> Projection | None:
    drops_fields = any(target.field(field.name) is None for field in source.fields)
    steps: list[tuple[int, Any]] = []
    """For each field of the target: the index in the source and the conversion, or -1 and the value if missing."""
    for field in target.fields:
        own = source.field(field.name)
        if own is None:
            if not field.schema.optional and field.schema.default is None:
                return None
            steps.append((-1, _default_of(field.schema)))
            continue
        found = find_projection(own.schema, field.schema)
        if found is None:
            return None
        drops_fields = drops_fields or found.drops_fields
        steps.append((own.index, found.apply))

    def project(row: Any) -> Any:
        return tuple([value if index < 0 else value(row[index]) for index, value in steps])

    return Projection(project, drops_fields)


def _array_projection(source: Schema, target: Schema) -> Projection | None:
    if source.value_schema is None or target.value_schema is None:
        return None
    found = find_projection(source.value_schema, target.value_schema)
    if found is None:
        return None
    convert = found.apply
    return Projection(lambda items: [convert(item) for item in items], found.drops_fields)


def _map_projection(source: Schema, target: Schema) -> Projection | None:
    if source.key_schema is None or target.key_schema is None or source.value_schema is None:
        return None
    keys = _key_projection(source.key_schema, target.key_schema)
    values = None if target.value_schema is None else find_projection(source.value_schema, target.value_schema)
    if keys is None or values is None:
        return None
    key, value = keys.apply, values.apply
    return Projection(lambda items: {key(name): value(item) for name, item in items.items()}, values.drops_fields)


def _key_projection(source: Schema, target: Schema) -> Projection | None:
    """Return a projection that never converts two different keys to the same key."""
    if source != target and (source.optional or contains_struct(source)):
        return None
    return find_projection(source, target)


def _convert_nulls(source: Schema, target: Schema, convert: Convert) -> Convert:
    """Return `convert` for values that may be null. A null of a schema with a default means the default."""
    null = None
    if source.default is not None and not (target.optional and source.default == target.default):
        null = convert(_default_of(source))
    elif not target.optional:
        null = _default_of(target)
    if null is None and convert is _identity:
        return convert
    return lambda value: null if value is None else convert(value)


def _default_of(schema: Schema) -> Any:
    return None if schema.default is None else row_converter(schema)(schema.default)
