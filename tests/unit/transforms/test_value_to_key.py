from __future__ import annotations

import pytest

from headrace.api.errors import ConfigErrors
from headrace.data.schema import INT32_SCHEMA, OPTIONAL_INT32_SCHEMA, struct
from headrace.data.struct import Struct
from support.transforms import failures, make, records, source

INNER = struct([("z", INT32_SCHEMA)], optional=True)
ROW = struct([("a", INT32_SCHEMA), ("b", INT32_SCHEMA), ("in", INNER)])


def test_with_schema() -> None:
    batch = make("ValueToKey", fields="b,a").apply_batch(source([Struct(ROW, {"a": 1, "b": 2})], ROW))
    (record,) = records(batch)
    assert record.key_schema == struct([("b", INT32_SCHEMA), ("a", INT32_SCHEMA)])
    assert record.key == Struct(record.key_schema, {"a": 1, "b": 2})
    assert record.value == Struct(ROW, {"a": 1, "b": 2})


def test_without_schema() -> None:
    batch = make("ValueToKey", fields="a,c").apply_batch(source([{"a": 1, "b": 2}]))
    assert (batch.key_schema, batch.keys) == (None, [{"a": 1, "c": None}])


def test_nested_fields() -> None:
    to_key = make("ValueToKey", fields="in.z,a", field__syntax__version="v2")
    (batch,) = [to_key.apply_batch(source([Struct(ROW, {"a": 1, "b": 2, "in": Struct(INNER, {"z": 9})})], ROW))]
    assert (batch.key_schema.fields[0].name, batch.keys) == ("in.z", [(9, 1)])
    assert to_key.apply_batch(source([{"a": 1, "in": {"z": 3}}])).keys == [{"in.z": 3, "a": 1}]


def test_errors() -> None:
    to_key = make("ValueToKey", fields="nope")
    assert "Field does not exist: nope" in str(failures(to_key, source([Struct(ROW, {"a": 1})], ROW))[0])
    to_key = make("ValueToKey", fields="a")
    errors = failures(to_key, source([Struct(ROW, {"a": 1}), None, Struct(ROW, {"b": 1})], ROW))
    assert list(errors) == [1, 2]
    assert "Only Map objects supported" in str(failures(to_key, source([None]))[0])
    with pytest.raises(ConfigErrors, match="must not be empty"):
        make("ValueToKey", fields="")


def test_defaults() -> None:
    schema = struct([("n", OPTIONAL_INT32_SCHEMA.replace(default=7))])
    assert make("ValueToKey", fields="n").apply_batch(source([Struct(schema)], schema)).keys == [(7,)]
    keep = make("ValueToKey", fields="n", replace__null__with__default="false")
    assert keep.apply_batch(source([Struct(schema)], schema)).keys == [(None,)]
