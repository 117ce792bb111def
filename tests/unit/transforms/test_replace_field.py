from __future__ import annotations

import pytest

from headrace.api.errors import ConfigErrors
from headrace.data.columns import Columns
from headrace.data.schema import INT32_SCHEMA, OPTIONAL_INT32_SCHEMA, STRING_SCHEMA, struct
from headrace.data.struct import Struct
from support.transforms import apply_to_value, make_plugin, source_batch, transform_errors

ROW = struct([("dont", STRING_SCHEMA), ("abc", INT32_SCHEMA), ("foo", INT32_SCHEMA), ("etc", STRING_SCHEMA)], name="n")
VALUE = {"dont": "whatever", "abc": 42, "foo": 7, "etc": "etc"}


def test_replace_field_removes_and_renames_struct_fields() -> None:
    replace = make_plugin("ReplaceField$Value", exclude="dont", renames="abc:xyz,foo:bar")
    schema, value = apply_to_value(replace, Struct(ROW, VALUE), ROW)
    assert schema == struct([("xyz", INT32_SCHEMA), ("bar", INT32_SCHEMA), ("etc", STRING_SCHEMA)], name="n")
    assert value.row == [42, 7, "etc"]


def test_replace_field_removes_and_renames_map_fields() -> None:
    replace = make_plugin("ReplaceField$Value", exclude="dont", renames="abc:xyz,foo:bar")
    assert apply_to_value(replace, VALUE) == (None, {"xyz": 42, "bar": 7, "etc": "etc"})


@pytest.mark.parametrize(
    ("props", "kept"),
    [
        ({"include": "abc"}, [42]),
        ({"include": "etc,abc"}, [42, "etc"]),
        ({"include": "abc,foo", "exclude": "foo"}, [42]),
        ({"include": "nothing"}, []),
        ({}, ["whatever", 42, 7, "etc"]),
        ({"renames": "abc:foo", "exclude": "foo"}, ["whatever", 42, "etc"]),
    ],
)
def test_replace_field_keeps_only_included_fields_that_are_not_excluded(
    props: dict[str, str], kept: list[object]
) -> None:
    assert apply_to_value(make_plugin("ReplaceField$Value", **props), Struct(ROW, VALUE), ROW)[1].row == kept


def test_replace_field_keeps_tombstones_and_replaces_null_fields_with_schema_defaults() -> None:
    replace = make_plugin("ReplaceField$Value", exclude="dont")
    assert apply_to_value(replace, None, ROW) == (ROW, None)
    schema = struct([("n", OPTIONAL_INT32_SCHEMA.replace(default=7)), ("m", INT32_SCHEMA)])
    assert apply_to_value(make_plugin("ReplaceField$Value", exclude="m"), Struct(schema), schema)[1].row == [7]
    keep = make_plugin("ReplaceField$Value", exclude="m", replace__null__with__default="false")
    assert apply_to_value(keep, Struct(schema), schema)[1].row == [None]


def test_replace_field_fails_if_a_renamed_field_has_the_name_of_another_field() -> None:
    errors = transform_errors(
        make_plugin("ReplaceField$Value", renames="abc:foo"), source_batch([Struct(ROW, VALUE)], ROW)
    )
    assert "duplication" in str(errors[0])


def test_duplicates_in_lists_of_fields_are_removed() -> None:
    replace = make_plugin("ReplaceField$Value", include="abc,abc")
    assert apply_to_value(replace, {"abc": 1, "foo": 2}) == (None, {"abc": 1})
    assert make_plugin("DropHeaders", headers="h,h").config.headers == ["h"]


def test_replace_field_rejects_invalid_configuration() -> None:
    with pytest.raises(ConfigErrors) as caught:
        make_plugin("ReplaceField$Value", include="a,,a", exclude="b,,c", renames="a:b:c")
    assert len(caught.value.errors) == 3


@pytest.mark.parametrize(
    ("renames", "value", "expected"),
    [
        ("a:b", {"a": 1, "b": 2}, {"b": 1}),
        ("a:b", {"b": 2, "a": 1}, {"b": 1}),
        ("a:b", {"b": 2}, {"b": 2}),
        ("a:b,b:a", {"a": 1, "b": 2}, {"b": 1, "a": 2}),
        ("a:b,b:c", {"c": 3, "b": 2, "a": 1}, {"c": 2, "b": 1}),
    ],
)
def test_renamed_field_of_a_map_replaces_a_field_that_has_the_new_name(
    renames: str, value: dict[str, int], expected: dict[str, int]
) -> None:
    replace = make_plugin("ReplaceField$Value", renames=renames)
    assert apply_to_value(replace, value) == (None, expected)
    columns = Columns(list(value), [[item] for item in value.values()], 1, is_maps=True)
    assert replace.apply_batch(source_batch([value]).replace(values=columns)).values == [expected]
