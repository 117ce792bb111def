"""Tests of Debezium's transform ExtractNewRecordState."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.api.errors import ConfigError
from headrace.data.headers import Header, Headers
from headrace.data.schema import (
    INT32_SCHEMA,
    INT64_SCHEMA,
    OPTIONAL_STRING_SCHEMA,
    STRING_SCHEMA,
    Schema,
    array,
    struct,
)
from headrace.data.struct import Struct
from support.transforms import batches, make_plugin, records, source_batch, transform_errors

DEBEZIUM = "io.debezium.transforms.ExtractNewRecordState"
ROW = struct(
    [("id", INT32_SCHEMA), ("name", OPTIONAL_STRING_SCHEMA), ("route", OPTIONAL_STRING_SCHEMA)],
    name="db.customers.Value",
    optional=True,
)
SOURCE = struct([("table", STRING_SCHEMA), ("ts_ms", INT64_SCHEMA), ("lsn", INT64_SCHEMA.replace(optional=True))])
TRANSACTION = struct([("id", STRING_SCHEMA), ("total_order", INT64_SCHEMA)], optional=True)
ENVELOPE = struct(
    [("before", ROW), ("after", ROW), ("source", SOURCE), ("op", STRING_SCHEMA),
     ("ts_ms", INT64_SCHEMA.replace(optional=True)), ("transaction", TRANSACTION)],
    name="db.customers.Envelope",
)  # fmt: skip


def row(number: int, name: str | None = "n", route: str | None = None) -> Struct:
    return Struct(ROW, {"id": number, "name": name, "route": route})


def event(before: Struct | None, after: Struct | None, op: str) -> Struct:
    source = Struct(SOURCE, {"table": "customers", "ts_ms": 5, "lsn": None})
    return Struct(ENVELOPE, {"before": before, "after": after, "source": source, "op": op, "ts_ms": 7})


CREATE, UPDATE, DELETE = event(None, row(1), "c"), event(row(1), row(1, "m"), "u"), event(row(1, "m"), None, "d")


def extract(values: list[Any], schema: Schema | None = ENVELOPE, /, **props: str) -> list[Any]:
    return records(make_plugin(DEBEZIUM, **props).apply_batch(source_batch(values, schema)))


def as_dicts(found: list[Any]) -> list[Any]:
    return [None if record.value is None else dict(record.value) for record in found]


def test_change_event_is_replaced_with_the_row_after_the_change() -> None:
    created, updated = extract([CREATE, UPDATE])
    assert (created.value_schema, created.value) == (ROW, row(1))
    assert updated.value == row(1, "m")


@pytest.mark.parametrize(
    ("mode", "deleted", "tombstones_kept"),
    [
        ({}, None, False),
        ({"delete__tombstone__handling__mode": "tombstone"}, None, False),
        ({"delete__tombstone__handling__mode": "drop"}, "dropped", False),
        ({"delete__tombstone__handling__mode": "rewrite"}, "true", False),
        ({"delete__tombstone__handling__mode": "rewrite-with-tombstone"}, "true", True),
        ({"delete__tombstone__handling__mode": "delete-to-tombstone"}, None, False),
        ({"drop__tombstones": "false", "delete__handling__mode": "none"}, None, True),
        ({"drop__tombstones": "false"}, "dropped", True),
        ({"delete__handling__mode": "rewrite"}, "true", False),
    ],
)
def test_delete_events_and_tombstones_are_kept_dropped_or_rewritten_as_configured(
    mode: dict[str, str], deleted: str | None, tombstones_kept: bool
) -> None:
    found = extract([DELETE], **mode)
    if deleted == "dropped":
        assert found == []
    elif deleted is None:
        assert [record.value for record in found] == [None]
    else:
        assert as_dicts(found) == [{"id": 1, "name": "m", "route": None, "__deleted": deleted}]
    assert len(extract([None], None, **mode)) == tombstones_kept


def test_record_of_a_delete_event_keeps_its_schema_unless_the_configured_mode_converts_it_to_a_tombstone() -> None:
    assert extract([DELETE])[0].value_schema == ROW
    assert extract([DELETE], delete__tombstone__handling__mode="delete-to-tombstone")[0].value_schema is None


def test_rewrite_mode_adds_its_own_field_to_each_row() -> None:
    """The field `__deleted` has the value `true` or `false`."""
    found = extract([UPDATE, DELETE], delete__tombstone__handling__mode="rewrite")
    assert [record.value["__deleted"] for record in found] == ["false", "true"]
    assert found[0].value_schema.field("__deleted").schema == OPTIONAL_STRING_SCHEMA


def test_event_fields_listed_in_add_fields_are_added_to_rows() -> None:
    names = "op,table,source.ts_ms,ts_ms,total_order,transaction.id,lsn:position,unknown"
    (found,) = extract([CREATE], add__fields=names)
    assert dict(found.value) == {
        "id": 1, "name": "n", "route": None, "__op": "c", "__table": "customers", "__source_ts_ms": 5, "__ts_ms": 7,
        "__total_order": None, "__transaction_id": None, "__position": None,
    }  # fmt: skip
    assert found.value_schema.field("__source_ts_ms").schema == INT64_SCHEMA.replace(optional=True)
    found.value.validate()
    (found,) = extract([CREATE], add__fields="op", add__fields__prefix="_")
    assert found.value["_op"] == "c"


def test_rewrite_mode_adds_its_own_field_before_the_other_added_fields() -> None:
    """The field `__deleted` precedes the fields of the property `add.fields`."""
    (found,) = extract([DELETE], add__fields="op", delete__tombstone__handling__mode="rewrite")
    assert list(found.value) == ["id", "name", "route", "__deleted", "__op"]
    assert found.value["__op"] == "d"


def test_event_fields_listed_in_add_headers_are_added_as_headers() -> None:
    (found,) = extract([CREATE], add__headers="op,source.table:origin", add__headers__prefix="h.")
    assert found.headers == [
        Header("h.op", STRING_SCHEMA.replace(optional=True), "c"),
        Header("h.origin", STRING_SCHEMA.replace(optional=True), "customers"),
    ]
    (tombstone,) = extract([None], None, add__headers="op", drop__tombstones="false")
    assert tombstone.headers == [Header("__op", STRING_SCHEMA, "d")]


def test_route_by_field_sets_the_topic_of_a_row_to_the_value_of_the_configured_row_field() -> None:
    events = [event(None, row(1, route="x"), "c"), event(row(2, route="y"), None, "d"), CREATE]
    assert [record.topic for record in extract(events, route__by__field="route")] == ["x", "y", "test"]
    errors = transform_errors(make_plugin(DEBEZIUM, route__by__field="id"), source_batch([CREATE], ENVELOPE))
    assert "route.by.field" in str(errors[0])


def test_fields_listed_in_the_drop_fields_header_are_removed_from_rows_and_optionally_from_keys() -> None:
    headers = [Headers().add("drop", ["name", "id"], array(STRING_SCHEMA)), Headers()]
    key_schema = struct([("id", INT32_SCHEMA), ("name", OPTIONAL_STRING_SCHEMA)])
    keys = [(1, "a"), (2, "b")]
    batch = source_batch([CREATE, CREATE], ENVELOPE, headers=headers, keys=keys, key_schema=key_schema)
    found = records(make_plugin(DEBEZIUM, drop__fields__header__name="drop").apply_batch(batch))
    assert [list(record.value) for record in found] == [["id", "route"], ["id", "name", "route"]]
    props = {"drop__fields__from__key": "true", "drop__fields__keep__schema__compatible": "false"}
    found = records(make_plugin(DEBEZIUM, drop__fields__header__name="drop", **props).apply_batch(batch))
    assert [list(record.value) for record in found] == [["route"], ["id", "name", "route"]]
    assert [list(record.key) for record in found] == [[], ["id", "name"]]


@pytest.mark.parametrize("value", [{"before": None, "after": {"id": 1}, "op": "c"}, "text"])
def test_schemaless_records_that_are_not_change_events_stay_unchanged(value: Any) -> None:
    (found,) = extract([value], None)
    assert found.value == value


def test_records_without_the_schema_of_a_change_event_stay_unchanged() -> None:
    assert extract([row(1)], ROW)[0].value == row(1)


def test_change_events_with_neither_a_before_row_nor_an_after_row_are_dropped() -> None:
    assert extract([event(None, None, "t")]) == []


def test_transformed_batch_keeps_the_order_and_source_offsets_of_its_records() -> None:
    transform = make_plugin(DEBEZIUM, delete__tombstone__handling__mode="drop")
    offsets = [{"o": number} for number in range(4)]
    batch = source_batch([CREATE, DELETE, UPDATE, CREATE], ENVELOPE, source_offsets=offsets)
    found = records(transform.apply_batch(batch))
    assert [record.source_offset for record in found] == [{"o": 0}, {"o": 2}, {"o": 3}]
    assert len(batches(transform.apply_batch(batch))) == 1


@pytest.mark.parametrize("reference", ["a.b.c", "op:x:y", ".op", "op:"])
def test_invalid_field_reference_in_add_fields_is_rejected(reference: str) -> None:
    with pytest.raises(ConfigError, match=r"add\.fields"):
        make_plugin(DEBEZIUM, add__fields=reference)
