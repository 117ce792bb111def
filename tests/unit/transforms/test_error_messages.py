"""Tests of the messages of transforms for failed records: the field path, the value's type and the expected type."""

from __future__ import annotations

import tomllib
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from headrace.data.batch import Batch, SourceBatch
from headrace.data.headers import Headers
from headrace.data.logical import decimal_schema
from headrace.data.schema import (
    BYTES_SCHEMA,
    FLOAT32_SCHEMA,
    FLOAT64_SCHEMA,
    INT32_SCHEMA,
    INT64_SCHEMA,
    STRING_SCHEMA,
    Schema,
    map_of,
    struct,
)
from headrace.data.struct import Struct, to_rows
from support.transforms import make_plugin, source_batch, transform_errors

REPOSITORY = Path(__file__).parents[3]
NEVER_FAIL = {"DropHeaders", "Filter", "InsertHeader", "RegexRouter"}
"""Transforms that accept all records."""
ROW = struct([("b", BYTES_SCHEMA)])
FLOAT = struct([("t", FLOAT32_SCHEMA)])
NESTED = struct([("m", map_of(STRING_SCHEMA, STRING_SCHEMA))])
NAMED = struct([("a", STRING_SCHEMA), ("b", INT32_SCHEMA)])
NAME = Struct(NAMED, {"a": "x", "b": 1})
UNKNOWN = "a struct without this field"


class Case(NamedTuple):
    """One value that a transform rejects. The transform applies to values, and if `has_key`, another one to keys."""

    transform: str
    props: dict[str, str]
    value: Any
    schema: Schema | None
    place: str
    found: str
    expected: str
    has_key: bool = True


class Envelope(NamedTuple):
    """A change event with a wrong schema."""

    schema: Schema
    value: Struct


def event(after: Schema, value: Any) -> Envelope:
    schema = struct([("after", after)], name="db.t.Envelope")
    return Envelope(schema, Struct(schema, {"after": value}))


ROUTED, SCALAR = event(NAMED, NAME), event(STRING_SCHEMA, "x")
TEXT_TIME = {"field": "t", "target.type": "unix", "format": "yyyy"}
NO_FIELD = "a field with this name"
CONDITION = {"filter.condition": "$[?(@.a == 1)]", "filter.type": "include"}
MILLIS = "INT64 with milliseconds since 1970"
MASKABLE = "a type other than BYTES and STRUCT"

CASES = [
    Case("Cast", {"spec": "a:int8"}, NAME, NAMED, "field a of the value", "STRING", "INT8"),
    Case("Cast", {"spec": "a:int8"}, {"a": b"x"}, None, "field a of the value", "BYTES", "INT8"),
    Case("Cast", {"spec": "int8"}, "x", STRING_SCHEMA, "the value", "STRING", "INT8"),
    Case("Cast", {"spec": "int8"}, [1], None, "the value", "ARRAY", "INT8"),
    Case("Cast", {"spec": "a:int8"}, 1, INT32_SCHEMA, "the value", "INT32", "STRUCT"),
    Case("Cast", {"spec": "a:int8"}, "x", None, "the value", "STRING", "MAP"),
    Case("Drop", {"schema.behavior": "retain"}, "x", STRING_SCHEMA, "the value", "required STRING", "an optional sc"),
    Case("ExtractField", {"field": "c"}, NAME, NAMED, "field c of the value", UNKNOWN, NO_FIELD),
    Case("ExtractField", {"field": "c"}, "x", STRING_SCHEMA, "the value", "STRING", "STRUCT"),
    Case("ExtractField", {"field": "c"}, "x", None, "the value", "STRING", "MAP"),
    Case("ExtractField", {"field": "a.c", "field.syntax.version": "V2"}, NAME, NAMED, "field a of", "STRING", "STRUCT"),
    Case("ExtractField", {"field": "a.b.c", "field.syntax.version": "V2"}, {"a": {"b": 1}}, None,
         "field a.b of the value", "INT64", "MAP"),
    Case("ExtractTopic", {"field": "a"}, {"a": 1}, None, "field a of the value", "INT64", "STRING"),
    Case("ExtractTopic", {"field": "a"}, {"a": None}, None, "field a of the value", "null", "STRING"),
    Case("ExtractTopic", {"field": "a"}, "x", None, "the value", "STRING", "STRUCT or MAP"),
    Case("ExtractTopic", {"field": "b"}, NAME, NAMED, "field b of the value", "INT32", "STRING"),
    Case("ExtractTopic", {}, 1, INT32_SCHEMA, "the value", "INT32", "STRING"),
    Case("ExtractTopic", {}, "", STRING_SCHEMA, "the value", "an empty STRING", "STRING"),
    Case("ExtractTopicHeader", {"field": "h"}, "x", None, "header h", "INT32", "STRING", False),
    Case("ExtractTopicHeader", {"field": "i"}, "x", None, "header i", "null", "STRING", False),
    Case("Filter", CONDITION, {"a": None}, None, "the value", "MAP", "a STRUCT or MAP with all fields"),
    Case("Filter", CONDITION, None, None, "the value", "null", "a STRUCT or MAP with all fields"),
    Case("Flatten", {}, Struct(NESTED, {"m": {}}), NESTED,
         "field m of the value", "MAP", "a type other than MAP"),
    Case("Flatten", {}, {"a": {"b": {1}}}, None, "field a.b of the value", "set", "a type of Connect's data API"),
    Case("Flatten", {}, "x", STRING_SCHEMA, "the value", "STRING", "STRUCT"),
    Case("Flatten", {}, "x", None, "the value", "STRING", "MAP"),
    Case("HeaderFrom", {"fields": "c", "headers": "h", "operation": "copy"}, NAME, NAMED,
         "field c of the value", UNKNOWN, NO_FIELD),
    Case("HeaderFrom", {"fields": "c", "headers": "h", "operation": "move"}, None, NAMED,
         "the value", "null", "STRUCT"),
    Case("HeaderFrom", {"fields": "c", "headers": "h", "operation": "move"}, 1, None, "the value", "INT64", "MAP"),
    Case("HoistField", {"field": "f"}, None, INT32_SCHEMA, "field f of the value", "null", "INT32"),
    Case("InsertField", {"offset.field": "o!"}, {}, None, "field o of the value", "SourceRecord", "a SinkRecord"),
    Case("InsertField", {"topic.field": "b"}, NAME, NAMED, "field b of the new struct", "INT32 and STRING",
         "one field with this name"),
    Case("InsertField", {"topic.field": "t"}, "x", STRING_SCHEMA, "the value", "STRING", "STRUCT"),
    Case("InsertField", {"topic.field": "t"}, "x", None, "the value", "STRING", "MAP"),
    Case("MaskField", {"fields": "b"}, Struct(ROW, {"b": b"x"}), ROW, "field b of the value", "BYTES",
         MASKABLE),
    Case("MaskField", {"fields": "b"}, {"b": b"x"}, None, "field b of the value", "BYTES", MASKABLE),
    Case("MaskField", {"fields": "b", "replacement": "x"}, {"b": True}, None, "field b of the value", "BOOLEAN",
         "STRING or a number"),
    Case("MaskField", {"fields": "b", "replacement": "x"}, NAME, NAMED, "field b of the value", "INT32",
         "a replacement of type INT32"),
    Case("MaskField", {"fields": "b"}, None, NAMED, "the value", "null", "STRUCT"),
    Case("MaskField", {"fields": "b"}, 1.5, FLOAT64_SCHEMA, "the value", "FLOAT64", "STRUCT"),
    Case("MaskField", {"fields": "b"}, None, None, "the value", "null", "MAP"),
    Case("ReplaceField", {"renames": "a:b"}, NAME, NAMED, "field b of the new struct", "STRING and INT32",
         "one field with this name"),
    Case("ReplaceField", {"renames": "a:b"}, 1, INT64_SCHEMA, "the value", "INT64", "STRUCT"),
    Case("ReplaceField", {"renames": "a:b"}, 1, None, "the value", "INT64", "MAP"),
    Case("SetSchemaMetadata", {"schema.name": "n"}, 1, None, "the value", "INT64 without a schema", "a value with a"),
    Case("TimestampConverter", TEXT_TIME, {"t": "x"}, None, "field t of the value", "STRING",
         "STRING with the format yyyy"),
    Case("TimestampConverter", {"target.type": "unix"}, "x", STRING_SCHEMA, "the value", "STRING", "STRING"),
    Case("TimestampConverter", {"target.type": "Date"}, 10**18, INT64_SCHEMA, "the value", "INT64", MILLIS),
    Case("TimestampConverter", {"target.type": "Date"}, 1.5, FLOAT64_SCHEMA, "the value", "FLOAT64", "STRING, INT64,"),
    Case("TimestampConverter", {"target.type": "Date"}, 1.5, None, "the value", "FLOAT64", "STRING, INT64, Date,"),
    Case("TimestampConverter", TEXT_TIME, "x", STRING_SCHEMA, "the value", "STRING", "STRUCT"),
    Case("TimestampConverter", TEXT_TIME, "x", None, "the value", "STRING", "MAP"),
    Case("ValueToKey", {"fields": "c"}, NAME, NAMED, "field c of the value", UNKNOWN, NO_FIELD, False),
    Case("ValueToKey", {"fields": "c"}, "x", STRING_SCHEMA, "the value", "STRING", "STRUCT", False),
    Case("ValueToKey", {"fields": "c"}, None, None, "the value", "null", "MAP", False),
    Case("ValueToKey", {"fields": "a.c", "field.syntax.version": "V2"}, {"a": 1}, None, "field a of the value", "INT64",
         "MAP", False),
    Case("TombstoneHandler", {"behavior": "fail"}, None, None, "the value", "null", "a value that is not null", False),
    Case("TimestampRouter", {}, "x", None, "the record's timestamp", "null", "INT64", False),
    Case("MessageTimestampRouter", {"message.timestamp.keys": "t,u"}, {}, None, "fields t, u of the value", "null",
         "STRING with the format yyyy-MM-dd, Timestamp, or " + MILLIS, False),
    Case("MessageTimestampRouter", {"message.timestamp.keys": "t"}, {"t": "x"}, None, "field t of the value", "STRING",
         "STRING with the format yyyy-MM-dd, Timestamp, or " + MILLIS, False),
    Case("MessageTimestampRouter", {"message.timestamp.keys": "t"}, {"t": 1.5}, None, "field t of the value", "FLOAT64",
         "STRING with the format yyyy-MM-dd, Timestamp, or " + MILLIS, False),
    Case("MessageTimestampRouter", {"message.timestamp.keys": "t"}, Struct(FLOAT, {"t": 1.5}), FLOAT,
         "field t of the value", "FLOAT32", "STRING with the format yyyy-MM-dd, Timestamp, or " + MILLIS, False),
    Case("MessageTimestampRouter", {"message.timestamp.keys": "t"}, "x", None, "the value", "STRING", "STRUCT or MAP",
         False),
    Case("ExtractNewRecordState", {}, SCALAR.value, SCALAR.schema, "field after of the value", "STRING", "STRUCT",
         False),
    Case("ExtractNewRecordState", {"route.by.field": "b"}, ROUTED.value, ROUTED.schema, "field after.b of the value",
         "INT32", "STRING", False),
    Case("ExtractNewRecordState", {"route.by.field": "c"}, ROUTED.value, ROUTED.schema, "field after.c of the value",
         UNKNOWN, "STRING", False),
    Case("Python", {"expression": "{**value, 'c': {1}}"}, NAME, NAMED, "the new field c", "set", "bool, int, ", False),
]  # fmt: skip


def calls() -> list[Any]:
    """Return the transform, its properties, a batch and the expected parts of the message, for values and for keys."""
    found = []
    for case in CASES:
        headers = [Headers().add("h", 5, INT32_SCHEMA)]
        batch: Batch = source_batch([case.value], case.schema, headers=headers)
        name = case.transform + ("Value" if case.has_key else "")
        parts = (case.place, case.found, case.expected)
        found.append(pytest.param(name, case.props, batch, *parts, id=f"{name}: {case.found}, {case.expected}"))
        if case.has_key:
            batch = SourceBatch(
                "t", ["v"], keys=to_rows(case.schema, [case.value]), key_schema=case.schema, source_partition={},
                source_offset={},
            )  # fmt: skip
            name, place = case.transform + "Key", case.place.replace("the value", "the key")
            identifier = f"{name}: {case.found}, {case.expected}"
            found.append(pytest.param(name, case.props, batch, place, *parts[1:], id=identifier))
    return found


@pytest.mark.parametrize(("name", "props", "batch", "place", "found", "expected"), calls())
def test_error_of_a_transform_names_the_field_path_the_type_of_the_value_and_the_expected_type(
    name: str, props: dict[str, str], batch: Batch, place: str, found: str, expected: str
) -> None:
    transform = make_plugin(name, **{key.replace(".", "__"): value for key, value in props.items()})
    message = str(transform_errors(transform, batch)[0])
    assert place in message
    found_words = ("found: ", "has the type ")
    assert any(word + found in message for word in found_words), message
    assert f"expected: {expected}" in message


def test_error_messages_of_all_transforms_are_tested() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    names = project["project"]["entry-points"]["headrace.transforms"].keys()
    assert {parameters.values[0] for parameters in calls()} == names - NEVER_FAIL


@pytest.mark.parametrize(
    ("name", "props", "value", "schema", "words"),
    [
        ("CastValue", {"spec": "a:int8"}, 1, INT32_SCHEMA,
         "Only Struct objects supported for [cast types], found: INT32"),
        ("MaskFieldValue", {"fields": "a"}, "x", None,
         "Only Map objects supported in absence of schema for [mask fields], found: STRING"),
        ("MaskFieldValue", {"fields": "a"}, None, NAMED,
         "Only Struct objects supported for [mask fields], found: null"),
        ("CastValue", {"spec": "int8"}, "x", None, "Value (x) was out of range for requested data type"),
        ("ExtractFieldValue", {"field": "c"}, NAME, NAMED, "Unknown field: c"),
        ("MaskFieldValue", {"fields": "a"}, {"a": b"x"}, None, "Cannot mask value of type: BYTES"),
        ("SetSchemaMetadataValue", {"schema__name": "n"}, 1, None, "Schema required for [updating schema metadata]"),
        ("ValueToKey", {"fields": "c"}, NAME, NAMED, "Field does not exist: c"),
    ],
)  # fmt: skip
def test_error_of_a_transform_starts_with_the_words_of_kafkas_transform(
    name: str, props: dict[str, str], value: Any, schema: Schema | None, words: str
) -> None:
    message = str(transform_errors(make_plugin(name, **props), source_batch([value], schema))[0])
    assert message.startswith(words + " (")


def test_error_of_a_transform_names_the_logical_type_of_a_value() -> None:
    batch = source_batch([Decimal("1.50")], decimal_schema(2))
    message = str(transform_errors(make_plugin("ExtractFieldValue", field="a"), batch)[0])
    assert "found: Decimal (the value, expected: STRUCT)" in message
