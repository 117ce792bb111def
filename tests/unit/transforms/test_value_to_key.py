from __future__ import annotations

import pytest

from headrace.api.errors import ConfigErrors
from headrace.data.schema import INT32_SCHEMA, OPTIONAL_INT32_SCHEMA, struct
from headrace.data.struct import Struct
from support.transforms import make_plugin, records, source_batch, transform_errors

INNER = struct([("z", INT32_SCHEMA)], optional=True)
ROW = struct([("a", INT32_SCHEMA), ("b", INT32_SCHEMA), ("in", INNER)])


def test_value_to_key_copies_fields_of_a_struct_value_to_a_struct_key() -> None:
    batch = make_plugin("ValueToKey", fields="b,a").apply_batch(source_batch([Struct(ROW, {"a": 1, "b": 2})], ROW))
    (record,) = records(batch)
    assert record.key_schema == struct([("b", INT32_SCHEMA), ("a", INT32_SCHEMA)])
    assert record.key == Struct(record.key_schema, {"a": 1, "b": 2})
    assert record.value == Struct(ROW, {"a": 1, "b": 2})


def test_value_to_key_copies_fields_of_a_map_value_to_a_map_key() -> None:
    batch = make_plugin("ValueToKey", fields="a,c").apply_batch(source_batch([{"a": 1, "b": 2}]))
    assert (batch.key_schema, batch.keys) == (None, [{"a": 1, "c": None}])


def test_value_to_key_copies_nested_fields_with_v2_paths() -> None:
    to_key = make_plugin("ValueToKey", fields="in.z,a", field__syntax__version="v2")
    (batch,) = [to_key.apply_batch(source_batch([Struct(ROW, {"a": 1, "b": 2, "in": Struct(INNER, {"z": 9})})], ROW))]
    assert (batch.key_schema.fields[0].name, batch.keys) == ("in.z", [(9, 1)])
    assert to_key.apply_batch(source_batch([{"a": 1, "in": {"z": 3}}])).keys == [{"in.z": 3, "a": 1}]


def test_value_to_key_rejects_values_that_are_null_or_lack_a_configured_field() -> None:
    to_key = make_plugin("ValueToKey", fields="nope")
    assert "Field does not exist: nope" in str(transform_errors(to_key, source_batch([Struct(ROW, {"a": 1})], ROW))[0])
    to_key = make_plugin("ValueToKey", fields="a")
    errors = transform_errors(to_key, source_batch([Struct(ROW, {"a": 1}), None, Struct(ROW, {"b": 1})], ROW))
    assert list(errors) == [1, 2]
    assert "Only Map objects supported" in str(transform_errors(to_key, source_batch([None]))[0])
    with pytest.raises(ConfigErrors, match="must not be empty"):
        make_plugin("ValueToKey", fields="")


def test_value_to_key_replaces_null_fields_with_schema_defaults_unless_replace_null_with_default_is_false() -> None:
    schema = struct([("n", OPTIONAL_INT32_SCHEMA.replace(default=7))])
    assert make_plugin("ValueToKey", fields="n").apply_batch(source_batch([Struct(schema)], schema)).keys == [(7,)]
    keep = make_plugin("ValueToKey", fields="n", replace__null__with__default="false")
    assert keep.apply_batch(source_batch([Struct(schema)], schema)).keys == [(None,)]
