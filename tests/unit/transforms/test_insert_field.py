from __future__ import annotations

import pytest

from headrace.api.errors import ConfigErrors
from headrace.data.logical import OPTIONAL_TIMESTAMP_SCHEMA, Timestamp
from headrace.data.schema import (
    INT32_SCHEMA,
    INT64_SCHEMA,
    OPTIONAL_INT32_SCHEMA,
    OPTIONAL_STRING_SCHEMA,
    STRING_SCHEMA,
    struct,
)
from headrace.data.struct import Struct
from support.transforms import apply_to_value, make_plugin, records, sink_batch, source_batch, transform_errors

MAGIC = struct([("magic", INT64_SCHEMA)], name="name", version=1, doc="doc")
ALL = {
    "topic__field": "topic_field!",
    "partition__field": "partition_field",
    "timestamp__field": "timestamp_field?",
    "static__field": "instance_id",
    "static__value": "my-instance-id",
}


def test_insert_field_adds_all_configured_fields_to_structs() -> None:
    batch = source_batch([Struct(MAGIC, {"magic": 42})], MAGIC, partition=3, timestamps=789)
    (record,) = records(make_plugin("InsertField$Value", **ALL).apply_batch(batch))
    assert record.value_schema == struct(
        [
            ("magic", INT64_SCHEMA),
            ("topic_field", STRING_SCHEMA),
            ("partition_field", OPTIONAL_INT32_SCHEMA),
            ("timestamp_field", OPTIONAL_TIMESTAMP_SCHEMA),
            ("instance_id", OPTIONAL_STRING_SCHEMA),
        ],
        name="name",
        version=1,
        doc="doc",
    )
    assert record.value.row == [
        42, "test", 3, Timestamp(789), "my-instance-id",
    ]  # fmt: skip


def test_insert_field_adds_all_available_configured_fields_to_maps() -> None:
    insert = make_plugin("InsertField$Value", **ALL)
    batch = source_batch([{"magic": 42}], timestamps=[789])
    assert records(insert.apply_batch(batch))[0].value == {
        "magic": 42,
        "topic_field": "test",
        "timestamp_field": 789,
        "instance_id": "my-instance-id",
    }
    assert batch.values == [{"magic": 42}]


def test_insert_field_adds_the_offset_to_sink_records_and_rejects_source_records_because_they_have_no_offset() -> None:
    insert = make_plugin("InsertField$Value", offset__field="at")
    batch = insert.apply_batch(sink_batch([{}, {}], offsets=range(5, 7)))
    assert batch.values == [{"at": 5}, {"at": 6}]
    assert "Only SinkRecord supported" in str(transform_errors(insert, source_batch([{}]))[0])


def test_insert_field_leaves_null_values_and_their_schema_unchanged() -> None:
    insert = make_plugin("InsertField$Value", static__field="s", static__value="x")
    transformed = records(
        insert.apply_batch(source_batch([None, Struct(MAGIC, {"magic": 1}), None], MAGIC.replace(optional=False)))
    )
    assert [record.value_schema is MAGIC or record.value_schema == MAGIC for record in transformed] == [
        True,
        False,
        True,
    ]
    assert [record.value is None for record in transformed] == [True, False, True]
    assert apply_to_value(insert, None) == (None, None)


def test_insert_field_replaces_null_fields_with_schema_defaults_unless_replace_null_with_default_is_false() -> None:
    schema = struct([("n", OPTIONAL_INT32_SCHEMA.replace(default=7))])
    for replace, expected in (("true", 7), ("false", None)):
        insert = make_plugin(
            "InsertField$Value", static__field="s", static__value="x", replace__null__with__default=replace
        )
        assert insert.apply_batch(source_batch([Struct(schema)], schema)).values == [(expected, "x")]


def test_insert_field_key_adds_fields_to_the_record_key() -> None:
    insert = make_plugin("InsertField$Key", topic__field="t")
    batch = insert.apply_batch(
        source_batch(
            ["v"],
            STRING_SCHEMA,
            keys=[
                {"k": 1},
            ],
        )
    )
    assert batch.keys == [{"k": 1, "t": "test"}]


def test_insert_field_rejects_values_that_are_not_structs_or_maps() -> None:
    insert = make_plugin("InsertField$Value", topic__field="t")
    assert "Only Struct objects supported for [field insertion], found: INT32" in str(
        transform_errors(insert, source_batch([1, 2], INT32_SCHEMA))[1]
    )
    assert list(transform_errors(insert, source_batch([{}, "x", 1]))) == [1, 2]


def test_insert_field_rejects_invalid_configuration() -> None:
    with pytest.raises(ConfigErrors, match="No field insertion configured"):
        make_plugin("InsertField$Value")
    with pytest.raises(ConfigErrors, match="No value specified for static field: s"):
        make_plugin("InsertField$Value", static__field="s")
