"""Tests of projections between schemas."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.data.logical import DATE_NAME, DATE_SCHEMA, Date, decimal_schema
from headrace.data.schema import (
    INT8_SCHEMA,
    INT32_SCHEMA,
    INT64_SCHEMA,
    OPTIONAL_INT32_SCHEMA,
    OPTIONAL_STRING_SCHEMA,
    STRING_SCHEMA,
    Schema,
    Type,
    array,
    map_of,
    struct,
)
from headrace.data.schema_projection import find_projection
from headrace.data.struct import Struct, from_rows, to_rows
from headrace.data.values import validate
from support.connect_data import is_identical, schemas, values

ID = ("id", INT64_SCHEMA)
DEFAULT_7 = Schema(Type.INT32, default=7)


def project(source: Schema, target: Schema, value: Any) -> Any:
    """Project a value that contains rows, and check that the result is valid for the target schema."""
    projection = find_projection(source, target)
    assert projection is not None
    projected = projection.apply(value)
    validate(target, from_rows(target, [projected])[0])
    return projected


def test_projection_fills_in_missing_fields_and_orders_fields_like_the_target() -> None:
    point = struct([("x", INT32_SCHEMA)], optional=True)
    place = struct(point.fields, default=Struct(struct(point.fields), {"x": 3}))
    target = struct([("name", OPTIONAL_STRING_SCHEMA), ("size", DEFAULT_7), ID, ("point", point), ("place", place)])
    assert project(struct([ID]), target, (1,)) == (None, 7, 1, None, (3,))
    assert project(struct([ID, ("size", INT32_SCHEMA)]), target, (1, 2)) == (None, 2, 1, None, (3,))


def test_projection_reaches_the_elements_of_arrays_and_the_values_of_maps() -> None:
    def nested(item: Schema) -> Schema:
        return struct([("list", array(item)), ("map", map_of(INT8_SCHEMA, array(item, optional=True)))])

    source, target = struct([ID]), struct([("size", DEFAULT_7), ID])
    found = project(nested(source), nested(target), ([(1,), (2,)], {1: [(3,)], 2: None}))
    assert found == ([(7, 1), (7, 2)], {1: [(7, 3)], 2: None})
    assert project(map_of(INT8_SCHEMA, INT8_SCHEMA), map_of(INT64_SCHEMA, INT64_SCHEMA), {1: 2}) == {1: 2}


@pytest.mark.parametrize(
    ("source", "target", "projected"),
    [
        (Schema(Type.INT32, optional=True), Schema(Type.INT32, default=7), 7),
        (Schema(Type.INT32, optional=True, default=5), Schema(Type.INT32, default=7), 5),
        (Schema(Type.INT32, optional=True, default=5), Schema(Type.INT64, optional=True), 5),
        (Schema(Type.INT32, optional=True, default=5), Schema(Type.INT64, optional=True, default=5), None),
        (Schema(Type.INT32, optional=True), Schema(Type.INT64, optional=True), None),
    ],
)
def test_null_becomes_the_default_of_the_source_or_of_a_required_target(
    source: Schema, target: Schema, projected: Any
) -> None:
    assert project(struct([("a", source)]), struct([("a", target)]), (None,)) == (projected,)
    assert project(array(source), array(target), [None, 1]) == [projected, 1]


_NUMBERS = (Type.INT8, Type.INT16, Type.INT32, Type.INT64, Type.FLOAT32, Type.FLOAT64)
_ROUNDING = {(Type.INT32, Type.FLOAT32), (Type.INT64, Type.FLOAT32), (Type.INT64, Type.FLOAT64)}


@pytest.mark.parametrize("source", _NUMBERS)
@pytest.mark.parametrize("target", _NUMBERS)
def test_number_is_promoted_only_to_a_larger_type_that_can_store_every_digit(source: Type, target: Type) -> None:
    is_larger = _NUMBERS.index(source) <= _NUMBERS.index(target)
    if not is_larger or (source, target) in _ROUNDING:
        assert find_projection(Schema(source), Schema(target)) is None
        return
    number: Any = 100.0 if source in (Type.FLOAT32, Type.FLOAT64) else 100
    expected = float(number) if target in (Type.FLOAT32, Type.FLOAT64) else number
    assert is_identical(project(Schema(source), Schema(target), number), expected)


_INCOMPATIBLE = {
    "other type": (INT32_SCHEMA, STRING_SCHEMA),
    "other name": (struct([ID], name="a"), struct([ID], name="b")),
    "no name": (struct([ID], name="a"), struct([ID])),
    "other parameters": (decimal_schema(1), decimal_schema(2)),
    "optional source": (OPTIONAL_INT32_SCHEMA, INT32_SCHEMA),
    "missing required field": (struct([]), struct([ID])),
    "promoted logical type": (DATE_SCHEMA, Schema(Type.INT64, name=DATE_NAME, version=1)),
    "key that can be null": (map_of(OPTIONAL_INT32_SCHEMA, INT8_SCHEMA), map_of(DEFAULT_7, INT8_SCHEMA)),
    "other key type": (map_of(INT8_SCHEMA, INT8_SCHEMA), map_of(STRING_SCHEMA, INT8_SCHEMA)),
    "key that is a struct": (map_of(struct([]), INT8_SCHEMA), map_of(struct([("a", DEFAULT_7)]), INT8_SCHEMA)),
}


@pytest.mark.parametrize("nest", [lambda s: s, array, lambda s: map_of(INT8_SCHEMA, s), lambda s: struct([("a", s)])])
@pytest.mark.parametrize(("source", "target"), _INCOMPATIBLE.values(), ids=_INCOMPATIBLE)
def test_schemas_are_incompatible_at_any_depth_if_a_value_could_not_be_projected(
    source: Schema, target: Schema, nest: Any
) -> None:
    assert find_projection(nest(source), nest(target)) is None


@pytest.mark.parametrize("nest", [lambda s: s, array, lambda s: map_of(INT8_SCHEMA, s), lambda s: struct([("a", s)])])
def test_projection_says_if_it_drops_a_field_at_any_depth(nest: Any) -> None:
    more, less = struct([ID, ("name", OPTIONAL_STRING_SCHEMA)]), struct([ID])
    dropping, adding = find_projection(nest(more), nest(less)), find_projection(nest(less), nest(more))
    assert dropping is not None
    assert dropping.drops_fields
    assert adding is not None
    assert not adding.drops_fields


def test_documentation_and_version_of_a_schema_do_not_change_values() -> None:
    source = struct([("day", DATE_SCHEMA)], version=1)
    target = struct([("day", DATE_SCHEMA.replace(doc="The day."))], version=2, doc="A row.")
    assert project(source, target, (Date(19782),)) == (Date(19782),)


@given(st.data())
def test_projection_to_the_same_schema_returns_the_same_value(data: st.DataObject) -> None:
    schema = data.draw(schemas())
    (value,) = to_rows(schema, [data.draw(values(schema))])
    projection = find_projection(schema, schema.replace())
    assert projection is not None
    assert not projection.drops_fields
    assert projection.apply(value) is value


@given(st.data())
def test_projected_value_is_valid_for_the_target_schema_and_keeps_the_fields_of_the_source(
    data: st.DataObject,
) -> None:
    source = data.draw(schemas())
    target = data.draw(_evolved(source))
    (value,) = to_rows(source, [data.draw(values(source))])
    projection = find_projection(source, target)
    assert projection is not None
    assert not projection.drops_fields
    projected = projection.apply(value)
    validate(target, from_rows(target, [projected])[0])
    back = find_projection(target, source)
    if back is not None:  # only additional fields and documentation were added
        assert back.apply(projected) == value


@st.composite
def _evolved(draw: st.DrawFn, schema: Schema) -> Schema:
    """Generate schemas to which all values of `schema` can be projected without loss."""
    more: dict[str, Any] = {
        "optional": schema.optional or draw(st.booleans()),
        "doc": draw(st.sampled_from([None, "d"])),
    }
    if schema.value_schema is not None:
        more["value_schema"] = draw(_evolved(schema.value_schema))
    if schema.type is Type.STRUCT:
        fields = [(field.name, draw(_evolved(field.schema))) for field in schema.fields]
        added = [("added field", draw(st.sampled_from([DEFAULT_7, OPTIONAL_STRING_SCHEMA])))]
        more["fields"] = draw(st.permutations(fields + draw(st.sampled_from([[], added]))))
    if schema == INT32_SCHEMA:
        more["type"] = draw(st.sampled_from([Type.INT32, Type.INT64, Type.FLOAT64]))
    return schema.replace(**more)
