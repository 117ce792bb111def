"""Tests of SetSchemaMetadata, MaskField, Filter, DropHeaders, InsertHeader, HeaderFrom, Flatten and predicates."""

from __future__ import annotations

from decimal import Decimal

import pytest

from headrace.api.errors import ConfigErrors
from headrace.data.headers import Header, Headers
from headrace.data.logical import DATE_SCHEMA, Date, decimal_schema
from headrace.data.schema import (
    BOOLEAN_SCHEMA,
    FLOAT64_SCHEMA,
    INT8_SCHEMA,
    INT32_SCHEMA,
    OPTIONAL_INT32_SCHEMA,
    STRING_SCHEMA,
    array,
    map_of,
    struct,
)
from headrace.data.struct import Struct
from support.transforms import apply_to_value, batches, make_plugin, records, source_batch, transform_errors

ROW = struct([("i", INT32_SCHEMA), ("s", STRING_SCHEMA)], name="old", version=1)


def test_set_schema_metadata_replaces_the_name_and_version_of_the_schema() -> None:
    change = make_plugin("SetSchemaMetadata$Value", schema__name="foo", schema__version="42")
    schema, value = apply_to_value(change, Struct(ROW, {"i": 1, "s": "a"}), ROW)
    assert schema == ROW.replace(name="foo", version=42)
    assert value == Struct(schema, {"i": 1, "s": "a"})
    assert apply_to_value(change, None) == (None, None)
    assert "Schema required" in str(transform_errors(change, source_batch([5]))[0])
    with pytest.raises(ConfigErrors, match="Neither schema name nor version"):
        make_plugin("SetSchemaMetadata$Value")


def test_mask_field_replaces_a_number_with_zero_for_the_replacement_minus_zero() -> None:
    masked = make_plugin("MaskField$Value", fields="a", replacement="-0.0")
    assert repr(apply_to_value(masked, {"a": 1.5})) == "(None, {'a': 0.0})"


def test_mask_field_replaces_values_with_an_empty_or_zero_value_of_their_type_or_with_the_replacement() -> None:
    schema = struct(
        [("i", INT8_SCHEMA), ("s", STRING_SCHEMA), ("d", decimal_schema(2)), ("t", DATE_SCHEMA), ("b", BOOLEAN_SCHEMA),
         ("l", array(INT32_SCHEMA)), ("keep", STRING_SCHEMA), ("null", OPTIONAL_INT32_SCHEMA)],
    )  # fmt: skip
    row = Struct(schema, [5, "x", Decimal("1.50"), Date(18262), True, [1], "y", None])
    _, value = apply_to_value(make_plugin("MaskField$Value", fields="i,s,d,t,b,l,null"), row, schema)
    assert value.row == [0, "", Decimal("0.00"), Date(0), False, [], "y", None]
    assert type(value.row[3]) is Date
    value.validate()
    _, value = apply_to_value(make_plugin("MaskField$Value", fields="i,s,d", replacement="7"), row, schema)
    assert value.row[:3] == [7, "7", Decimal(7)]
    for not_replaceable in ("b", "t"):
        masked = make_plugin("MaskField$Value", fields=not_replaceable, replacement="7")
        assert list(transform_errors(masked, source_batch([row], schema))) == [0]
    assert list(
        transform_errors(make_plugin("MaskField$Value", fields="i", replacement="x"), source_batch([row], schema))
    ) == [0]
    assert list(transform_errors(make_plugin("MaskField$Value", fields="i"), source_batch([row, None], schema))) == [1]
    assert apply_to_value(make_plugin("MaskField$Value", fields="i,x"), {"i": 1.5}) == (None, {"i": 0.0, "x": None})


def test_filter_drops_all_records() -> None:
    assert make_plugin("Filter").apply_batch(source_batch(["a"])) is None
    assert make_plugin("Filter").apply(source_batch(["a"]).to_records()[0]) is None


def test_drop_headers_removes_headers_and_insert_header_appends_a_header() -> None:
    headers = [Headers().add("a", 1).add("b", 2).add("a", 3), Headers()]
    batch = source_batch(["x", "y"], headers=headers)
    dropped = make_plugin("DropHeaders", headers="a,c").apply_batch(batch)
    assert dropped.headers == [[Header("b", None, 2)], []]
    assert make_plugin("DropHeaders", headers="a").apply_batch(source_batch(["x"])).headers is None
    inserted = make_plugin("InsertHeader", header="n", value__literal="7").apply_batch(batch)
    assert [each[-1] for each in inserted.headers] == [Header("n", INT8_SCHEMA, 7)] * 2
    assert len(batch.headers or []) == len(headers[0]) - 1
    assert make_plugin("InsertHeader", header="n", value__literal="x").apply_batch(source_batch(["x"])).headers == [
        [Header("n", STRING_SCHEMA, "x")]
    ]


def test_fields_of_a_record_are_copied_or_moved_to_headers() -> None:
    """The transform is `HeaderFrom`."""
    batch = source_batch([Struct(ROW, {"i": 1, "s": "a"})], ROW, headers=[Headers().add("h", 0)])
    (moved,) = records(make_plugin("HeaderFrom$Value", fields="s", headers="from", operation="move").apply_batch(batch))
    assert moved.headers == [Header("h", None, 0), Header("from", STRING_SCHEMA, "a")]
    assert moved.value == Struct(struct([("i", INT32_SCHEMA)], name="old", version=1), {"i": 1})
    copy = make_plugin("HeaderFrom$Value", fields="s,i", headers="x,y", operation="copy")
    (copied,) = records(copy.apply_batch(batch))
    assert copied.value.get("s") == "a"
    assert [header.value for header in copied.headers] == [0, "a", 1]
    (plain,) = records(copy.apply_batch(source_batch([{"i": 1}])))
    assert plain.headers == [Header("x", None, None), Header("y", None, 1)]
    assert list(transform_errors(copy, source_batch([None, Struct(ROW, {"i": 1, "s": "a"})], ROW))) == [0]
    with pytest.raises(ConfigErrors, match="same number of elements"):
        make_plugin("HeaderFrom$Value", fields="a,b", headers="x", operation="copy")


def test_flatten_replaces_nested_fields_with_fields_that_have_joined_names() -> None:
    inner = struct([("x", INT32_SCHEMA), ("l", array(INT32_SCHEMA))], optional=True)
    schema = struct([("a", INT32_SCHEMA), ("in", inner), ("deep", struct([("in", inner)]))])
    value = Struct(inner, {"x": 1, "l": [2]})
    flat = make_plugin("Flatten$Value", delimiter="_")
    new_schema, transformed = apply_to_value(
        flat, Struct(schema, {"a": 0, "in": value, "deep": Struct(schema.fields[2].schema)}), schema
    )
    assert [(field.name, field.schema.optional) for field in new_schema.fields] == [  # type: ignore[union-attr]
        ("a", False), ("in_x", True), ("in_l", True), ("deep_in_x", True), ("deep_in_l", True),
    ]  # fmt: skip
    assert transformed.row == [0, 1, [2], None, None]
    assert apply_to_value(make_plugin("Flatten$Value"), {"a": {"b": {"c": 1}, "l": [{}]}, "n": None}) == (
        None,
        {"a.b.c": 1, "a.l": [{}], "n": None},
    )
    with_map = struct([("m", map_of(STRING_SCHEMA, INT32_SCHEMA))])
    assert "does not support MAP" in str(
        transform_errors(flat, source_batch([Struct(with_map, {"m": {}})], with_map))[0]
    )


def test_flatten_keeps_the_schema_defaults_of_nested_fields() -> None:
    inner = struct([("x", FLOAT64_SCHEMA.replace(default=1.5))], optional=True)
    schema = struct([("in", inner)])
    new_schema, transformed = apply_to_value(make_plugin("Flatten$Value"), Struct(schema, [Struct(inner)]), schema)
    assert transformed.row == [1.5]
    assert new_schema.fields[0].schema.default == 1.5  # type: ignore[union-attr]


def test_predicates_return_the_same_results_for_batches_and_records() -> None:
    batch = source_batch(["a", None], topic="logs.x", headers=[Headers().add("h", 1), Headers()])
    for name, props, expected in (
        ("HasHeaderKey", {"name": "h"}, [True, False]),
        ("RecordIsTombstone", {}, [False, True]),
        ("TopicNameMatches", {"pattern": "logs\\..*"}, [True, True]),
        ("TopicNameMatches", {"pattern": "logs"}, [False, False]),
    ):
        predicate = make_plugin(f"org.apache.kafka.connect.transforms.predicates.{name}", "predicate", **props)
        assert predicate.test_batch(batch) == expected
        assert [predicate.test(record) for record in batch.to_records()] == expected
    assert make_plugin("HasHeaderKey", "predicate", name="h").test_batch(source_batch(["a"])) == [False]
    with pytest.raises(ConfigErrors):
        make_plugin("TopicNameMatches", "predicate", pattern="(")
    assert batches(None) == []
