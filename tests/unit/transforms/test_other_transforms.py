"""SetSchemaMetadata, MaskField, Filter, DropHeaders, InsertHeader, HeaderFrom, Flatten."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pytest

from headrace.api.errors import ConfigErrors
from headrace.data.headers import Header, Headers
from headrace.data.logical import DATE_SCHEMA, decimal_schema
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
from support.transforms import batches, failures, make, one, records, source

ROW = struct([("i", INT32_SCHEMA), ("s", STRING_SCHEMA)], name="old", version=1)


def test_set_schema_metadata() -> None:
    change = make("SetSchemaMetadata$Value", schema__name="foo", schema__version="42")
    schema, value = one(change, Struct(ROW, {"i": 1, "s": "a"}), ROW)
    assert schema == ROW.replace(name="foo", version=42)
    assert value == Struct(schema, {"i": 1, "s": "a"})
    assert one(change, None) == (None, None)
    assert "Schema required" in str(failures(change, source([5]))[0])
    with pytest.raises(ConfigErrors, match="Neither schema name nor version"):
        make("SetSchemaMetadata$Value")


def test_mask_field() -> None:
    schema = struct(
        [("i", INT8_SCHEMA), ("s", STRING_SCHEMA), ("d", decimal_schema(2)), ("t", DATE_SCHEMA), ("b", BOOLEAN_SCHEMA),
         ("l", array(INT32_SCHEMA)), ("keep", STRING_SCHEMA), ("null", OPTIONAL_INT32_SCHEMA)],
    )  # fmt: skip
    row = Struct(schema, [5, "x", Decimal("1.50"), dt.date(2020, 1, 1), True, [1], "y", None])
    _, value = one(make("MaskField$Value", fields="i,s,d,t,b,l,null"), row, schema)
    assert value.values == [0, "", Decimal("0.00"), dt.date(1970, 1, 1), False, [], "y", None]
    value.validate()
    _, value = one(make("MaskField$Value", fields="i,s,d", replacement="7"), row, schema)
    assert value.values[:3] == [7, "7", Decimal(7)]
    assert list(failures(make("MaskField$Value", fields="b", replacement="7"), source([row], schema))) == [0]
    assert list(failures(make("MaskField$Value", fields="i", replacement="x"), source([row], schema))) == [0]
    assert list(failures(make("MaskField$Value", fields="i"), source([row, None], schema))) == [1]
    assert one(make("MaskField$Value", fields="i,x"), {"i": 1.5}) == (None, {"i": 0.0, "x": None})


def test_filter_drops() -> None:
    assert make("Filter").apply_batch(source(["a"])) is None
    assert make("Filter").apply(source(["a"]).to_records()[0]) is None


def test_headers_are_dropped_and_inserted() -> None:
    headers = [Headers().add("a", 1).add("b", 2).add("a", 3), Headers()]
    batch = source(["x", "y"], headers=headers)
    dropped = make("DropHeaders", headers="a,c").apply_batch(batch)
    assert dropped.headers == [[Header("b", None, 2)], []]
    assert make("DropHeaders", headers="a").apply_batch(source(["x"])).headers is None
    inserted = make("InsertHeader", header="n", value__literal="7").apply_batch(batch)
    assert [each[-1] for each in inserted.headers] == [Header("n", INT8_SCHEMA, 7)] * 2
    assert len(batch.headers or []) == len(headers[0]) - 1
    assert make("InsertHeader", header="n", value__literal="x").apply_batch(source(["x"])).headers == [
        [Header("n", STRING_SCHEMA, "x")]
    ]


def test_header_from() -> None:
    batch = source([Struct(ROW, {"i": 1, "s": "a"})], ROW, headers=[Headers().add("h", 0)])
    (moved,) = records(make("HeaderFrom$Value", fields="s", headers="from", operation="move").apply_batch(batch))
    assert moved.headers == [Header("h", None, 0), Header("from", STRING_SCHEMA, "a")]
    assert moved.value == Struct(struct([("i", INT32_SCHEMA)], name="old", version=1), {"i": 1})
    copy = make("HeaderFrom$Value", fields="s,i", headers="x,y", operation="copy")
    (copied,) = records(copy.apply_batch(batch))
    assert copied.value.get("s") == "a"
    assert [header.value for header in copied.headers] == [0, "a", 1]
    (plain,) = records(copy.apply_batch(source([{"i": 1}])))
    assert plain.headers == [Header("x", None, None), Header("y", None, 1)]
    assert list(failures(copy, source([None, Struct(ROW, {"i": 1, "s": "a"})], ROW))) == [0]
    with pytest.raises(ConfigErrors, match="same number of elements"):
        make("HeaderFrom$Value", fields="a,b", headers="x", operation="copy")


def test_flatten() -> None:
    inner = struct([("x", INT32_SCHEMA), ("l", array(INT32_SCHEMA))], optional=True)
    schema = struct([("a", INT32_SCHEMA), ("in", inner), ("deep", struct([("in", inner)]))])
    value = Struct(inner, {"x": 1, "l": [2]})
    flat = make("Flatten$Value", delimiter="_")
    made_schema, made = one(
        flat, Struct(schema, {"a": 0, "in": value, "deep": Struct(schema.fields[2].schema)}), schema
    )
    assert [(field.name, field.schema.optional) for field in made_schema.fields] == [  # type: ignore[union-attr]
        ("a", False), ("in_x", True), ("in_l", True), ("deep_in_x", True), ("deep_in_l", True),
    ]  # fmt: skip
    assert made.values == [0, 1, [2], None, None]
    assert one(make("Flatten$Value"), {"a": {"b": {"c": 1}, "l": [{}]}, "n": None}) == (
        None,
        {"a.b.c": 1, "a.l": [{}], "n": None},
    )
    with_map = struct([("m", map_of(STRING_SCHEMA, INT32_SCHEMA))])
    assert "does not support MAP" in str(failures(flat, source([Struct(with_map, {"m": {}})], with_map))[0])


def test_flatten_carries_defaults() -> None:
    inner = struct([("x", FLOAT64_SCHEMA.replace(default=1.5))], optional=True)
    schema = struct([("in", inner)])
    made_schema, made = one(make("Flatten$Value"), Struct(schema, [Struct(inner)]), schema)
    assert made.values == [1.5]
    assert made_schema.fields[0].schema.default == 1.5  # type: ignore[union-attr]


def test_predicates() -> None:
    batch = source(["a", None], topic="logs.x", headers=[Headers().add("h", 1), Headers()])
    for name, props, expected in (
        ("HasHeaderKey", {"name": "h"}, [True, False]),
        ("RecordIsTombstone", {}, [False, True]),
        ("TopicNameMatches", {"pattern": "logs\\..*"}, [True, True]),
        ("TopicNameMatches", {"pattern": "logs"}, [False, False]),
    ):
        predicate = make(f"org.apache.kafka.connect.transforms.predicates.{name}", "predicate", **props)
        assert predicate.test_batch(batch) == expected
        assert [predicate.test(record) for record in batch.to_records()] == expected
    assert make("HasHeaderKey", "predicate", name="h").test_batch(source(["a"])) == [False]
    with pytest.raises(ConfigErrors):
        make("TopicNameMatches", "predicate", pattern="(")
    assert batches(None) == []
