from __future__ import annotations

from headrace.data.schema import INT32_SCHEMA, OPTIONAL_STRING_SCHEMA, STRING_SCHEMA, struct
from headrace.data.struct import Struct
from support.transforms import failures, make, one, source, values


def test_with_schema() -> None:
    schema, value = one(make("HoistField$Value", field="magic"), 42, INT32_SCHEMA)
    assert schema == struct([("magic", INT32_SCHEMA)])
    assert value == Struct(schema, {"magic": 42})


def test_without_schema() -> None:
    assert one(make("HoistField$Value", field="magic"), 42) == (None, {"magic": 42})
    assert one(make("HoistField$Value", field="magic"), None) == (None, {"magic": None})


def test_nulls_are_wrapped_where_the_schema_allows() -> None:
    hoist = make("HoistField$Value", field="f")
    assert [value.get("f") for value in values(hoist, ["a", None], OPTIONAL_STRING_SCHEMA)] == ["a", None]
    errors = failures(hoist, source(["a", None, None], STRING_SCHEMA))
    assert list(errors) == [1, 2]
    assert 'required field: "f"' in str(errors[1])


def test_structs_nest() -> None:
    inner = struct([("x", INT32_SCHEMA)])
    _, value = one(make("HoistField$Value", field="in"), Struct(inner, {"x": 1}), inner)
    assert value.get("in") == Struct(inner, {"x": 1})


def test_the_key() -> None:
    hoist = make("org.apache.kafka.connect.transforms.HoistField$Key", field="id")
    batch = hoist.apply_batch(source(["v"], STRING_SCHEMA, keys=[7], key_schema=INT32_SCHEMA))
    assert (batch.key_schema, batch.keys) == (struct([("id", INT32_SCHEMA)]), [(7,)])
    assert (batch.value_schema, batch.values) == (STRING_SCHEMA, ["v"])
    assert hoist.apply_batch(source(["v"], STRING_SCHEMA)).keys == [{"id": None}]
