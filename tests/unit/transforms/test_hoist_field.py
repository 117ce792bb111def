from __future__ import annotations

from headrace.data.schema import INT32_SCHEMA, OPTIONAL_STRING_SCHEMA, STRING_SCHEMA, struct
from headrace.data.struct import Struct
from support.transforms import apply_to_value, apply_to_values, make_plugin, source_batch, transform_errors


def test_hoist_field_wraps_values_in_structs() -> None:
    schema, value = apply_to_value(make_plugin("HoistField$Value", field="magic"), 42, INT32_SCHEMA)
    assert schema == struct([("magic", INT32_SCHEMA)])
    assert value == Struct(schema, {"magic": 42})


def test_hoist_field_wraps_schemaless_values_in_maps() -> None:
    assert apply_to_value(make_plugin("HoistField$Value", field="magic"), 42) == (None, {"magic": 42})
    assert apply_to_value(make_plugin("HoistField$Value", field="magic"), None) == (None, {"magic": None})


def test_hoist_field_wraps_a_null_value_if_its_schema_is_optional_and_rejects_it_if_the_schema_is_required() -> None:
    hoist = make_plugin("HoistField$Value", field="f")
    assert [value.get("f") for value in apply_to_values(hoist, ["a", None], OPTIONAL_STRING_SCHEMA)] == ["a", None]
    errors = transform_errors(hoist, source_batch(["a", None, None], STRING_SCHEMA))
    assert list(errors) == [1, 2]
    assert 'required field: "f"' in str(errors[1])


def test_hoist_field_wraps_a_struct_in_another_struct() -> None:
    inner = struct([("x", INT32_SCHEMA)])
    _, value = apply_to_value(make_plugin("HoistField$Value", field="in"), Struct(inner, {"x": 1}), inner)
    assert value.get("in") == Struct(inner, {"x": 1})


def test_hoist_field_key_wraps_the_record_key() -> None:
    hoist = make_plugin("org.apache.kafka.connect.transforms.HoistField$Key", field="id")
    batch = hoist.apply_batch(source_batch(["v"], STRING_SCHEMA, keys=[7], key_schema=INT32_SCHEMA))
    assert (batch.key_schema, batch.keys) == (struct([("id", INT32_SCHEMA)]), [(7,)])
    assert (batch.value_schema, batch.values) == (STRING_SCHEMA, ["v"])
    assert hoist.apply_batch(source_batch(["v"], STRING_SCHEMA)).keys == [{"id": None}]
