"""Tests that every transform returns the same records and errors for a batch as for single records."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.data.schema import (
    INT32_SCHEMA,
    INT64_SCHEMA,
    OPTIONAL_FLOAT64_SCHEMA,
    OPTIONAL_STRING_SCHEMA,
    STRING_SCHEMA,
    Schema,
    struct,
)
from support.columnar_values import columnar_values
from support.connect_data import schemaless, values
from support.examples import examples
from support.transforms import apply_to_each, make_plugin, records, sink_batch, source_batch, transform_errors

ROW = struct(
    [
        ("a", INT32_SCHEMA),
        ("b", OPTIONAL_STRING_SCHEMA),
        ("c", OPTIONAL_FLOAT64_SCHEMA.replace(default=1.5)),
        ("ts", INT64_SCHEMA.replace(optional=True)),
        ("in", struct([("x", INT32_SCHEMA), ("y", OPTIONAL_STRING_SCHEMA)], optional=True)),
    ],
    name="row",
    optional=True,
)
ROW_WITHOUT_DEFAULTS = struct([("a", INT32_SCHEMA), ("b", STRING_SCHEMA), ("ts", INT64_SCHEMA.replace(optional=True))])
OPTIONAL_ROW = ROW.replace(optional=True)
ENVELOPE = struct([("before", OPTIONAL_ROW), ("after", OPTIONAL_ROW), ("op", STRING_SCHEMA)], name="t.Envelope")
SCHEMAS = (ROW, ENVELOPE, STRING_SCHEMA, OPTIONAL_STRING_SCHEMA, INT64_SCHEMA, None)

TRANSFORMS: list[tuple[str, dict[str, str]]] = [
    ("HoistField", {"field": "f"}),
    ("InsertField", {"topic.field": "t", "timestamp.field": "when", "static.field": "s", "static.value": "v"}),
    ("InsertField", {"partition.field": "p!", "offset.field": "o"}),
    ("ReplaceField", {"exclude": "a", "renames": "b:z"}),
    ("ReplaceField", {"include": "c"}),
    ("ExtractField", {"field": "c"}),
    ("ExtractField", {"field": "in.y", "field.syntax.version": "V2"}),
    ("Cast", {"spec": "a:int8,c:string"}),
    ("Cast", {"spec": "b:int32"}),
    ("Cast", {"spec": "int16"}),
    ("TimestampConverter", {"target.type": "string", "field": "ts", "format": "yyyy-MM-dd HH:mm"}),
    ("TimestampConverter", {"target.type": "unix", "format": "yyyy"}),
    ("SetSchemaMetadata", {"schema.name": "n"}),
    ("MaskField", {"fields": "a,b", "replacement": "7"}),
    ("HeaderFrom", {"fields": "a,b", "headers": "x,y", "operation": "move"}),
    ("Flatten", {}),
    ("Drop", {"schema.behavior": "retain"}),
    ("io.confluent.connect.transforms.Filter", {"filter.condition": "$[?(@.a > 1)]", "filter.type": "include"}),
    ("ExtractTopic", {"field": "$.in.x", "field.format": "JSON_PATH", "skip.missing.or.null": "true"}),
    ("ExtractTopic", {"field": "c"}),
]
RECORD_TRANSFORMS: list[tuple[str, dict[str, str]]] = [
    ("ValueToKey", {"fields": "a,in.x", "field.syntax.version": "V2"}),
    ("Python", {"expression": "{**value, 'n': value['a'] + 1}"}),
    ("Python", {"expression": "value if topic == 'test' and timestamp else None"}),
    ("Python", {"expression": "record.replace(topic=topic + '!') if value['a'] > 3 else value['b']"}),
    ("RegexRouter", {"regex": "(.).*", "replacement": "$1"}),
    ("TimestampRouter", {}),
    ("DropHeaders", {"headers": "h"}),
    ("InsertHeader", {"header": "h", "value.literal": "1"}),
    ("Filter", {}),
    ("TombstoneHandler", {"behavior": "fail"}),
    ("TombstoneHandler", {}),
    ("MessageTimestampRouter", {"message.timestamp.keys": "ts,a"}),
    ("ExtractNewRecordState", {"add.headers": "op", "delete.tombstone.handling.mode": "rewrite", "add.fields": "op"}),
]

COLUMNAR_CASES: list[tuple[str, dict[str, str]]] = [
    ("InsertField$Value", {"topic.field": "b", "timestamp.field": "a"}),
    ("ReplaceField$Value", {"renames": "a:b,b:c"}),
    ("ExtractField$Value", {"field": "b"}),
    ("SetSchemaMetadata$Value", {"schema.name": "n"}),
    ("ValueToKey", {"fields": "b,a"}),
    ("ValueToKey", {"fields": "in.y,c", "field.syntax.version": "V2", "replace.null.with.default": "false"}),
    ("ReplaceField$Value", {"include": "b,c", "replace.null.with.default": "false"}),
    ("HeaderFrom$Value", {"fields": "b,c", "headers": "x,y", "operation": "copy"}),
    ("Flatten$Value", {"delimiter": ""}),
    ("MaskField$Value", {"fields": "c,b,missing"}),
    ("Cast$Value", {"spec": "b:boolean,c:float32,ts:string"}),
    ("TimestampConverter$Value", {"target.type": "Timestamp", "field": "ts"}),
    ("TimestampConverter$Value", {"target.type": "Date", "field": "b", "format": "yyyy"}),
    ("ExtractTopic$Value", {"field": "b", "skip.missing.or.null": "true"}),
    ("MessageTimestampRouter", {"message.timestamp.keys": "missing,ts,c"}),
]


def _values(schema: Schema | None) -> st.SearchStrategy[Any]:
    if schema is not None:
        return values(schema)
    fields = {name: schemaless() for name in ("a", "b", "c", "ts", "in")}
    return st.fixed_dictionaries({}, optional=fields) | schemaless()


@st.composite
def batch(draw: st.DrawFn, for_key: bool) -> Any:
    schema = draw(st.sampled_from(SCHEMAS))
    items = draw(st.lists(_values(schema), min_size=1, max_size=5))
    make_batch = draw(st.sampled_from([source_batch, sink_batch]))
    times = draw(st.lists(st.none() | st.integers(0, 10**13), min_size=len(items), max_size=len(items)))
    result = make_batch(items, schema, timestamps=times)
    if for_key:
        return result.replace(
            keys=result.values, key_schema=schema, values=["v"] * len(items), value_schema=STRING_SCHEMA
        )
    return result


def _check(transform: Any, given_batch: Any) -> None:
    expected, failed = apply_to_each(transform, given_batch)
    before = repr((given_batch.values, given_batch.keys, given_batch.headers))
    assert list(transform_errors(transform, given_batch)) == failed
    valid = given_batch.take([index for index in range(len(given_batch)) if index not in failed])
    if len(valid):
        result = records(transform.apply_batch(valid))
        assert repr(result) == repr(expected)
        assert [record.value_schema for record in result] == [record.value_schema for record in expected]
        assert [record.key_schema for record in result] == [record.key_schema for record in expected]
    assert repr((given_batch.values, given_batch.keys, given_batch.headers)) == before


def _texts(errors: dict[int, Exception]) -> dict[int, str]:
    return {index: str(error) for index, error in errors.items()}


@pytest.mark.parametrize("side", ["Key", "Value"])
@pytest.mark.parametrize(("name", "props"), TRANSFORMS)
@settings(deadline=None, max_examples=examples(15))
@given(data=st.data())
def test_key_and_value_transforms_return_the_same_results_for_batches_and_records(
    name: str, props: dict[str, str], side: str, data: st.DataObject
) -> None:
    _check(make_plugin(f"{name}${side}", **props), data.draw(batch(side == "Key")))


@pytest.mark.parametrize(("name", "props"), RECORD_TRANSFORMS)
@settings(deadline=None, max_examples=examples(15))
@given(data=st.data())
def test_record_transforms_return_the_same_results_for_batches_and_records(
    name: str, props: dict[str, str], data: st.DataObject
) -> None:
    _check(make_plugin(name, **props), data.draw(batch(False)))


@pytest.mark.parametrize(
    ("name", "props"), [*((f"{name}$Value", props) for name, props in TRANSFORMS), *RECORD_TRANSFORMS, *COLUMNAR_CASES]
)
@settings(deadline=None, max_examples=examples(30))
@given(data=st.data())
def test_transforms_return_the_same_results_for_columnar_values_as_for_lists_of_values(
    name: str, props: dict[str, str], data: st.DataObject
) -> None:
    schema, held = data.draw(columnar_values((ROW, ROW_WITHOUT_DEFAULTS)))
    times = data.draw(st.none() | st.integers(0, 10**13) | st.just([None, *range(1, len(held))]))
    make_batch = data.draw(st.sampled_from([source_batch, sink_batch]))
    given_batch = make_batch([None] * len(held), None, timestamps=times).replace(value_schema=schema, values=held)
    listed_batch = given_batch.replace(values=list(held.items()))
    transform = make_plugin(name, **props)
    errors = _texts(transform_errors(transform, listed_batch))
    assert _texts(transform_errors(transform, given_batch)) == errors
    if errors:
        return
    result, expected = records(transform.apply_batch(given_batch)), records(transform.apply_batch(listed_batch))
    assert repr(result) == repr(expected)
    assert [record.value_schema for record in result] == [record.value_schema for record in expected]
    assert [record.key_schema for record in result] == [record.key_schema for record in expected]
