"""Hypothesis strategies for Connect schemas and matching values.

The strategies are cached, because Hypothesis analyzes each new strategy, which takes longer than to generate a value.
"""

from __future__ import annotations

from decimal import Decimal
from functools import cache
from typing import Any

from hypothesis import strategies as st

from headrace.data.java import float32
from headrace.data.logical import (
    DATE_SCHEMA,
    TIME_SCHEMA,
    TIMESTAMP_SCHEMA,
    Date,
    Time,
    Timestamp,
    decimal_schema,
    from_unscaled,
    is_logical,
)
from headrace.data.schema import INT_RANGES, Schema, Type, array, map_of, struct
from headrace.data.struct import Struct

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_DATES = st.integers(*INT_RANGES[Type.INT32]).map(Date)
_TIMES = st.integers(0, 86_399_999).map(Time)
_TIMESTAMPS = st.integers(*INT_RANGES[Type.INT64]).map(Timestamp)


@cache
def primitives() -> st.SearchStrategy[Schema]:
    """Generate primitive and logical schemas. Some of them are optional."""
    plain = st.sampled_from([Schema(type_) for type_ in Type if type_.is_primitive])
    logical = st.sampled_from([DATE_SCHEMA, TIME_SCHEMA, TIMESTAMP_SCHEMA, decimal_schema(2), decimal_schema(-1)])
    return st.builds(lambda schema, optional: schema.replace(optional=optional), plain | logical, st.booleans())


def struct_of(fields: st.SearchStrategy[Schema], max_size: int = 5) -> st.SearchStrategy[Schema]:
    """Generate struct schemas whose field schemas come from `fields`."""
    names = _TEXT.filter(bool)
    named = st.lists(st.tuples(names, fields), max_size=max_size, unique_by=lambda pair: pair[0])
    return st.builds(lambda pairs, optional: struct(pairs, optional=optional), named, st.booleans())


@cache
def schemas() -> st.SearchStrategy[Schema]:
    """Generate schemas of all types. Map keys are strings or integers."""
    keys = st.sampled_from([Schema(Type.STRING), Schema(Type.INT32)])
    return st.recursive(
        primitives(),
        lambda inner: st.one_of(inner.map(array), st.builds(map_of, keys, inner), struct_of(inner, 3)),
        max_leaves=6,
    )


@cache
def values(schema: Schema) -> st.SearchStrategy[Any]:
    """Generate values that match `schema`. Structs are `Struct` objects."""
    strategy = _values(schema)
    return st.none() | strategy if schema.optional else strategy


def _values(schema: Schema) -> st.SearchStrategy[Any]:
    if is_logical(schema):
        return _logical(schema)
    if schema.type in INT_RANGES:
        return st.integers(*INT_RANGES[schema.type])
    if schema.type is Type.ARRAY:
        return st.lists(values(schema.value_schema), max_size=3)  # type: ignore[arg-type]
    if schema.type is Type.MAP:
        return st.dictionaries(values(schema.key_schema), values(schema.value_schema), max_size=3)  # type: ignore[arg-type]
    if schema.type is Type.STRUCT:
        fields = [values(field.schema) for field in schema.fields]
        return st.tuples(*fields).map(lambda items: Struct(schema, items))
    simple: dict[Type, st.SearchStrategy[Any]] = {
        Type.FLOAT32: st.floats(width=32, allow_nan=False).map(float32),
        Type.FLOAT64: st.floats(allow_nan=False),
        Type.BOOLEAN: st.booleans(),
        Type.STRING: _TEXT,
        Type.BYTES: st.binary(max_size=12),
    }
    return simple[schema.type]


def _logical(schema: Schema) -> st.SearchStrategy[Any]:
    if schema.parameters:
        scale = int(schema.parameters["scale"])
        return st.integers(-(10**40), 10**40).map(lambda number: from_unscaled(number, scale))
    by_type: dict[str | None, st.SearchStrategy[Any]] = {
        DATE_SCHEMA.name: _DATES,
        TIME_SCHEMA.name: _TIMES,
        TIMESTAMP_SCHEMA.name: _TIMESTAMPS,
    }
    return by_type[schema.name]


@cache
def schemaless() -> st.SearchStrategy[Any]:
    """Generate schemaless data that JSON can represent."""
    leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | _TEXT
    return st.recursive(
        leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3), max_leaves=6
    )


def is_identical(left: Any, right: Any) -> bool:
    """Return whether two values are equal and have the same type. Decimals must also have the same scale."""
    if isinstance(left, Decimal) and isinstance(right, Decimal):
        return str(left) == str(right)
    return type(left) is type(right) and bool(left == right)
