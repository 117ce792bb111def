"""Tests of the description of the field because of which a server rejects a document."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest

from headrace.data.logical import DATE_SCHEMA, decimal_schema
from headrace.data.schema import INT32_SCHEMA, STRING_SCHEMA, Schema, array, map_of, struct
from headrace.data.struct import Struct
from headrace_connectors.elasticsearch.rejected_fields import RejectedField, describe, rejected_field
from headrace_connectors.elasticsearch.responses import outcomes_of

PARSE = "failed to parse field [{}] of type [{}] in document with id '7'. Preview of field's value: 'secret'"
TYPE = "the type of the field in the index is {}".format
OBJECT = "object mapping for [a.b] tried to parse field [b] as object, but found a concrete value"
STRICT = "the index has no such field, and its mapping is strict"


@pytest.mark.parametrize(
    ("reason", "field"),
    [
        (PARSE.format("a.b", "integer"), RejectedField("a.b", TYPE("integer"))),
        ("[1:18] " + PARSE.format("a.b", "integer"), RejectedField("a.b", TYPE("integer"))),
        (PARSE.format("a[0] b", "geo_point"), RejectedField("a[0] b", TYPE("geo_point"))),
        (OBJECT, RejectedField("a.b", TYPE("object"))),
        ("[1:9] " + OBJECT, RejectedField("a.b", TYPE("object"))),
        (
            "mapper [n] cannot be changed from type [long] to [text]",
            RejectedField("n", TYPE("long")),
        ),
        ("can't merge a non object mapping [n] with an object mapping", RejectedField("n", TYPE("object"))),
        (
            "mapping set to strict, dynamic introduction of [z] within [_doc] is not allowed",
            RejectedField("z", STRICT),
        ),
        (
            "mapping set to strict, dynamic introduction of [q] within [o.p] is not allowed",
            RejectedField("o.p.q", STRICT),
        ),
        (
            'Document contains at least one immense term in field="k" (whose UTF8 encoding is longer than the max',
            RejectedField("k", "the index stores at most 32766 bytes of it as one term"),
        ),
        ("failed to parse", None),
        ("Limit of total fields [2] has been exceeded", None),
    ],
)
def test_name_and_type_of_the_rejected_field_are_read_from_the_server_error(
    reason: str, field: RejectedField | None
) -> None:
    assert rejected_field(reason) == field


ROW = struct(
    [
        ("n", INT32_SCHEMA),
        ("day", DATE_SCHEMA),
        ("price", decimal_schema(2)),
        ("items", array(struct([("id", STRING_SCHEMA)]))),
        ("m", map_of(STRING_SCHEMA, INT32_SCHEMA)),
        ("a.b", INT32_SCHEMA),
    ]
)
VALUE = Struct(
    ROW,
    {
        "n": 1, "day": dt.date(2026, 1, 2), "price": Decimal("1.50"), "m": {"x": 1}, "a.b": 2,
        "items": [Struct(struct([("id", STRING_SCHEMA)]), {"id": "x"})],
    },
)  # fmt: skip
TREE = {
    "s": "x", "i": 1, "f": 1.5, "b": True, "o": {"p": {"q": 1}}, "l": [1, "x", None], "lo": [{"p": 1}, {"p": "x"}],
    "x.y": 1, "x": {"y": "text"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("schema", "value", "name", "types"),
    [
        (ROW, VALUE, "n", "int32"),
        (ROW, VALUE, "day", "int32 (org.apache.kafka.connect.data.Date)"),
        (ROW, VALUE, "price", "bytes (org.apache.kafka.connect.data.Decimal)"),
        (ROW, VALUE, "items", "struct"),
        (ROW, VALUE, "items.id", "string"),
        (ROW, VALUE, "m.x", "int32"),
        (ROW, VALUE, "a.b", "int32"),
        (None, TREE, "s", "string"),
        (None, TREE, "i", "int64"),
        (None, TREE, "f", "float64"),
        (None, TREE, "b", "boolean"),
        (None, TREE, "o", "map"),
        (None, TREE, "o.p.q", "int64"),
        (None, TREE, "l", "int64, string"),
        (None, TREE, "lo.p", "int64, string"),
        (None, TREE, "x.y", "int64, string"),
        (None, TREE, "s.keyword", "string"),
    ],
)
def test_description_of_a_rejected_field_contains_the_types_of_its_values_in_the_record(
    schema: Schema | None, value: Any, name: str, types: str
) -> None:
    expected = f"field {name}: the type of the value is {types}, and {TYPE('ip')}"
    assert describe(RejectedField(name, TYPE("ip")), schema, value, True) == expected


def test_map_that_is_written_as_a_list_has_the_fields_key_and_value() -> None:
    schema, value = struct([("m", map_of(STRING_SCHEMA, INT32_SCHEMA))]), ({"x": 1},)
    field = RejectedField("m.value", TYPE("ip"))
    assert describe(field, schema, value, False) == f"field m.value: the type of the value is int32, and {TYPE('ip')}"


def test_description_of_a_field_that_the_record_does_not_contain_has_only_the_type_of_the_field() -> None:
    assert (
        describe(RejectedField("@timestamp", TYPE("date")), None, {"a": 1}, True) == f"field @timestamp: {TYPE('date')}"
    )


def test_values_of_a_document_are_in_the_error_only_if_log_sensitive_data_is_true() -> None:
    error = {"type": "mapper_parsing_exception", "reason": PARSE.format("n", "integer")}
    response = {"errors": True, "items": [{"index": {"status": 400, "error": error}}]}
    (hidden,), (shown,) = (outcomes_of(response, 1, shows_reason) for shows_reason in (False, True))
    assert hidden.field == shown.field == RejectedField("n", TYPE("integer"))
    assert hidden.reason == "mapper_parsing_exception, status 400"
    assert shown.reason == f"mapper_parsing_exception, status 400: {error['reason']}"
