from __future__ import annotations

import pickle
from collections.abc import Mapping

import pytest

from headrace.data.errors import DataError, UnknownField
from headrace.data.json_values import EncodingOptions, to_json
from headrace.data.schema import (
    BYTES_SCHEMA,
    INT8_SCHEMA,
    INT32_SCHEMA,
    INT64_SCHEMA,
    OPTIONAL_STRING_SCHEMA,
    STRING_SCHEMA,
    Schema,
    Type,
    array,
    map_of,
    struct,
)
from headrace.data.struct import Struct, to_rows

POINT = struct([("x", INT32_SCHEMA), ("label", OPTIONAL_STRING_SCHEMA)], name="point", version=1, doc="d")


@pytest.mark.parametrize(
    "change",
    [
        {"optional": True},
        {"name": "other"},
        {"name": None},
        {"version": 2},
        {"doc": "other"},
        {"parameters": {"a": "b"}},
        {"fields": [("x", INT32_SCHEMA)]},
        {"fields": [("label", OPTIONAL_STRING_SCHEMA), ("x", INT32_SCHEMA)]},
        {"fields": [("x", INT32_SCHEMA), ("label", STRING_SCHEMA)]},
    ],
)
def test_schemas_that_differ_in_any_attribute_are_not_equal(change: dict[str, object]) -> None:
    other = POINT.replace(**change)
    assert other != POINT
    assert POINT.replace() == POINT
    assert hash(POINT.replace()) == hash(POINT)
    assert len({POINT, POINT.replace(), other}) == 2


def test_schemas_with_different_defaults_are_not_equal() -> None:
    assert Schema(Type.FLOAT64, default=1.0) != Schema(Type.FLOAT64)
    assert Schema(Type.INT32, default=1) != Schema(Type.INT32, default=2)


def test_array_and_map_schemas_with_different_element_schemas_are_not_equal() -> None:
    assert array(STRING_SCHEMA) == array(STRING_SCHEMA)
    assert array(STRING_SCHEMA) != array(OPTIONAL_STRING_SCHEMA)
    assert map_of(STRING_SCHEMA, INT32_SCHEMA) != map_of(INT32_SCHEMA, STRING_SCHEMA)


def test_schema_can_be_pickled() -> None:
    schema = POINT.replace(parameters={"k": "v"})
    copy = pickle.loads(pickle.dumps(schema))
    assert copy == schema
    assert copy.index_of("label") == 1


def test_schema_method_field_returns_none_and_method_index_of_raises_data_error_for_an_unknown_field_name() -> None:
    assert POINT.index_of("label") == 1
    assert POINT.field("nope") is None
    with pytest.raises(DataError, match="nope is not a valid field name"):
        POINT.index_of("nope")


def test_schema_with_duplicate_field_names_is_rejected() -> None:
    with pytest.raises(DataError, match=r"duplication: a$"):
        struct([("a", INT32_SCHEMA), ("a", STRING_SCHEMA)])


def test_schema_with_a_default_value_that_its_type_does_not_allow_is_rejected() -> None:
    with pytest.raises(DataError, match="INT8"):
        Schema(Type.INT8, default=128)
    assert (
        Schema(Type.STRUCT, fields=POINT.fields, default=Struct(struct(POINT.fields), {"x": 1})).default.get("x") == 1
    )


def test_struct_rejects_an_invalid_field_value_and_names_the_field() -> None:
    value = Struct(POINT)
    with pytest.raises(DataError, match=r'null used for required field: "x", schema type: INT32'):
        value.put("x", None)
    with pytest.raises(DataError, match=r'with type INT32: str for field: "x"'):
        value.put("x", "1")
    with pytest.raises(DataError, match="INT32"):
        value.put("x", True)
    with pytest.raises(DataError, match="out of range"):
        value.put("x", 2**31)
    assert value.put("x", 1).get("x") == 1


def test_struct_rejects_invalid_nested_values() -> None:
    holder = struct([("items", array(map_of(STRING_SCHEMA, INT8_SCHEMA))), ("raw", BYTES_SCHEMA)])
    value = Struct(holder, {"items": [{"a": 1}], "raw": b""})
    value.validate()
    with pytest.raises(DataError, match=r'value of map element of array field: "items"'):
        value.put("items", [{"a": 300}])


def test_struct_returns_the_schema_default_for_a_null_field() -> None:
    schema = struct([("n", Schema(Type.INT32, optional=True, default=7))])
    value = Struct(schema)
    assert value.get("n") == value["n"] == 7
    assert value.get_without_default("n") is None
    value.validate()


def test_nested_struct_is_rejected_if_its_schema_differs_from_the_schema_of_the_field() -> None:
    outer = struct([("p", POINT)])
    with pytest.raises(DataError, match="do not match"):
        Struct(outer).put("p", Struct(POINT.replace(doc=None), {"x": 1}))


def test_struct_is_a_mapping_that_returns_schema_defaults_for_null_fields() -> None:
    schema = struct([("a", INT32_SCHEMA), ("n", Schema(Type.INT32, optional=True, default=7))])
    value = Struct(schema, {"a": 1})
    assert isinstance(value, Mapping)
    assert dict(value) == dict(value.items()) == {"a": 1, "n": 7}
    assert (list(value), list(value.values()), len(value)) == (["a", "n"], [1, 7], 2)
    assert value.row == [1, None]
    assert ("a" in value, "b" in value, value.get("b"), value.get("b", 5)) == (True, False, None, 5)
    assert Struct(struct([]))


def test_access_to_an_unknown_field_of_a_struct_raises_an_unknown_field_error() -> None:
    value = Struct(POINT)
    for access in (lambda: value["nope"], lambda: value.put("nope", 1), lambda: value.get_without_default("nope")):
        with pytest.raises(UnknownField, match=r"^nope is not a valid field name$") as caught:
            access()
        assert isinstance(caught.value, KeyError)
        assert isinstance(caught.value, DataError)


def test_struct_equals_only_structs_with_the_same_schema_and_values() -> None:
    value = Struct(POINT, {"x": 1})
    assert value == Struct(POINT, {"x": 1})
    assert hash(value) == hash(Struct(POINT, {"x": 1}))
    assert value != Struct(POINT, {"x": 2})
    assert value != Struct(POINT.replace(doc=None), {"x": 1})
    assert value != dict(value)
    assert dict(value) != value


def test_method_replace_of_a_struct_returns_a_copy_and_rejects_invalid_values() -> None:
    value = Struct(POINT, {"x": 1})
    copy = value.replace(x=2)
    assert (value["x"], copy["x"], copy.schema) == (1, 2, POINT)
    with pytest.raises(DataError, match='field: "x"'):
        value.replace(x="two")


@pytest.mark.parametrize(
    ("other", "difference"),
    [
        (struct([("a", INT32_SCHEMA)]), "missing fields: b"),
        (struct([("a", INT32_SCHEMA), ("b", STRING_SCHEMA), ("c", STRING_SCHEMA)]), "additional fields: c"),
        (struct([("a", INT64_SCHEMA), ("b", STRING_SCHEMA)]), "fields with other schemas: a"),
        (struct([("b", STRING_SCHEMA), ("a", INT32_SCHEMA)]), "another name, version, default or order of fields"),
    ],
)
def test_error_for_a_struct_with_another_schema_says_how_the_schemas_differ_and_what_to_do(
    other: Schema, difference: str
) -> None:
    schema = struct([("a", INT32_SCHEMA), ("b", STRING_SCHEMA)])
    expected = rf"\({difference}\); create the struct with the schema of the record or field, or set the record's"
    with pytest.raises(DataError, match=f"Mismatching schema: .*{expected}"):
        to_rows(schema, [Struct(other)])
    with pytest.raises(DataError, match=f"Mismatching schema: .*{expected}"):
        to_json(schema, Struct(other), EncodingOptions())
    with pytest.raises(DataError, match=f'Struct schemas do not match for field: "x": .*{expected}'):
        Struct(struct([("x", schema)])).put("x", Struct(other))


def test_error_for_a_dict_instead_of_a_struct_says_how_to_create_a_struct() -> None:
    schema = struct([("a", INT32_SCHEMA)])
    for convert in (
        lambda: to_rows(schema, [{"a": 1}]),
        lambda: to_json(schema, {"a": 1}, EncodingOptions()),
        lambda: Struct(struct([("x", schema)])).put("x", {"a": 1}),
    ):
        with pytest.raises(DataError, match=r"STRUCT: dict.*create a Struct with this schema: Struct\(schema, "):
            convert()


def test_error_for_a_struct_without_a_record_schema_says_to_set_the_schema() -> None:
    with pytest.raises(DataError, match=r"Mismatching schema: .* has none; set the record's schema to the schema of"):
        to_json(None, {"x": Struct(struct([("a", INT32_SCHEMA)]))}, EncodingOptions())
