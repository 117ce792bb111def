"""Tests of the lakehouse sink's handling of payloads, schemas, record layouts, DDL and bad records."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.api.errors import ConnectError
from headrace.api.task import ErrantRecord
from headrace_connectors.lakehouse.bad_records import BadRecord, BadRecordHandler, describe_bad_payload
from headrace_connectors.lakehouse.column_types import (
    ColumnType,
    SchemaError,
    TableColumn,
    leaf_types,
    parse_schema,
    table_columns,
    wire_type,
)
from headrace_connectors.lakehouse.ddl import parse_ddl
from headrace_connectors.lakehouse.envelope import (
    NO_SCHEMA,
    EnvelopeReader,
    Payload,
    PayloadColumns,
    PlainJsonReader,
    StringReader,
    schema_id_of,
)
from headrace_connectors.lakehouse.layouts import (
    METADATA_COLUMNS,
    LayoutVariant,
    RecordLayout,
    RecordLayouts,
    RecordPosition,
    RejectedSchema,
)

S1, S2 = b'{"type":"struct","fields":[]}', b'{"type":"struct","fields":[],"version":2}'


def wrapped(schema: bytes, payload: bytes) -> bytes:
    return b'{"schema":' + schema + b',"payload":' + payload + b"}"


def test_envelope_reader_extracts_payloads_and_schemas() -> None:
    reader = EnvelopeReader()
    assert reader.read(wrapped(S1, b'{"a":1}')) == Payload(b'{"a":1}', schema_id_of(S1), S1.decode())
    assert reader.read(wrapped(S1, b'{"a":2}')) == Payload(b'{"a":2}', schema_id_of(S1))
    assert reader.read(wrapped(S2, b'{"a":3}')) == Payload(b'{"a":3}', schema_id_of(S2), S2.decode())
    assert reader.read(b'{ "payload" : {"a":4}, "schema": ' + S1 + b" }") == Payload(b'{"a":4}', schema_id_of(S1))
    assert reader.read(wrapped(S1, b"null")) == Payload(None, schema_id_of(S1))
    assert reader.read(None) == reader.read(wrapped(b"null", b"null")) == Payload()


@pytest.mark.parametrize(
    ("value", "error"),
    [
        (b"", "not a JSON object with schema and payload"),
        (b"x", "not a JSON object with schema and payload"),
        (b'{"a":1}', "not a JSON object with schema and payload"),
        (wrapped(S1, b"1")[:-1], "not a JSON object with schema and payload"),
        (b'{"schema":1,"payload":2,"more":3}', "not a JSON object with schema and payload"),
        (wrapped(b"null", b"1"), "the schema is null, but the payload is not"),
    ],
)
def test_envelope_reader_returns_an_error_for_an_invalid_envelope(value: bytes, error: str) -> None:
    assert error in str(EnvelopeReader().read(value).error)


values = st.one_of(
    st.none(),
    st.binary(max_size=20),
    st.builds(wrapped, st.sampled_from([S1, S2, b"null"]), st.sampled_from([b"null", b'{"a":1}', b"[1]", b'"}"'])),
)


@given(st.lists(values, max_size=30))
def test_envelope_reader_returns_the_same_payloads_for_a_list_of_values_as_for_single_values(
    run: list[bytes | None],
) -> None:
    for make in (EnvelopeReader, PlainJsonReader, lambda: StringReader("UTF-8")):
        one_by_one, at_once = PayloadColumns(), PayloadColumns()
        reader = make()
        for value in run:
            one_by_one.append(reader.read(value))
        reader = make()
        reader.read_many(run[:1], at_once)  # an EnvelopeReader learns the prefix from this value
        reader.read_many(run[1:], at_once)
        for name in ("texts", "schema_ids", "schemas", "errors", "size_bytes"):
            assert getattr(one_by_one, name) == getattr(at_once, name)


def test_json_value_without_an_envelope_is_a_payload_without_a_schema() -> None:
    assert PlainJsonReader().read(b" null") == Payload()
    assert PlainJsonReader().read(b"[1]") == Payload(b"[1]", NO_SCHEMA)
    assert StringReader("latin-1").read(b"\xe9") == Payload("é".encode())


def struct(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


def test_connect_schema_is_converted_to_table_columns() -> None:
    schema = struct(
        {"type": "int64", "optional": False, "field": "id"},
        {"type": "bytes", "name": "org.apache.kafka.connect.data.Decimal", "parameters": {"scale": "2"}, "field": "d"},
        {"type": "map", "keys": {"type": "int32"}, "values": {"type": "string"}, "field": "m", "optional": True},
        {"type": "array", "items": struct({"type": "int32", "field": "x y"}), "field": "a", "default": []},
        {"type": "int32", "name": "some.other.Date", "field": "plain"},
    )
    columns = table_columns(parse_schema(schema))
    assert [(column.name, str(column.type), column.optional) for column in columns] == [
        ("id", "bigint", False),
        ("d", "decimal(38,2)", False),
        ("m", "map<int,string>", True),
        ("a", "array<struct<`x y`:int>>", False),
        ("plain", "int", False),
    ]
    assert columns[3].default == "[]"
    assert wire_type(columns[1].type, encoded=True) == "binary"
    assert wire_type(columns[1].type, encoded=True, decimals_numeric=True) == "decimal(38,2)"
    assert wire_type(columns[2].type, encoded=True)["elementType"]["elementType"] == "string"
    assert table_columns(parse_schema({"type": "string"})) == (TableColumn("value", ColumnType("string")),)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("x", "a Connect schema must be an object"),
        ({"type": "int128"}, "unknown Connect type 'int128'"),
        (struct(), "without fields"),
        (struct({"type": "int8"}), "must have a name in 'field'"),
        (struct({"type": "int8", "field": "a"}, {"type": "int8", "field": "A"}), "'a' and 'A' differ only in case"),
        (struct({"type": "array", "field": "tags"}), r"value.tags\[\]: a Connect schema must be an object"),
        (
            struct(
                {
                    "type": "bytes",
                    "name": "org.apache.kafka.connect.data.Decimal",
                    "parameters": {"scale": "127"},
                    "field": "n",
                }
            ),
            "value.n: a Decimal with scale 127",
        ),
    ],
)
def test_error_for_an_unsupported_schema_names_the_field(schema: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        table_columns(parse_schema(schema))


def test_spark_ddl_is_parsed_to_table_columns() -> None:
    columns = parse_ddl(
        "id BIGINT NOT NULL COMMENT 'the key, (really)', `a b` decimal(10, 2),"
        " s struct<x: int, y:array<map<string,double>>>"
    )
    assert [(column.name, str(column.type), column.optional) for column in columns] == [
        ("id", "bigint", False),
        ("a b", "decimal(10,2)", True),
        ("s", "struct<x:int,y:array<map<string,double>>>", True),
    ]


@pytest.mark.parametrize(
    ("ddl", "message"),
    [
        ("", "expected a name, a type or a number"),
        ("id", "expected a name, a type or a number"),
        ("id LONGISH", "expected a type .* at 'LONGISH'"),
        ("id INT,", "expected a name, a type or a number"),
        ("id INT name STRING", "expected a comma between columns"),
        ("a array<int", "expected '>'"),
        ("a decimal(40,2)", "precision must be 1 to 38"),
        ("a int, A string", "differ only in case"),
        ("a timestamp_ntz", "expected a type"),
        ("a int; drop", "unexpected ';"),
    ],
)
def test_error_for_invalid_spark_ddl_contains_the_position_of_the_syntax_error(ddl: str, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        parse_ddl(ddl)


def layouts(**changes: Any) -> RecordLayouts:
    settings: dict[str, Any] = {
        "root": Path("/tables"),
        "value": "envelope",
        "declared": {},
        "declared_default": None,
        "metadata_columns": True,
        "replace_null_with_default": True,
        "decimals_numeric": False,
    }
    return RecordLayouts(**{**settings, **changes})


def text(*fields: dict[str, Any], **more: Any) -> str:
    return json.dumps({**struct(*fields), **more})


A = {"type": "int32", "optional": True, "field": "a"}
B = {"type": "string", "optional": False, "field": "b"}


def test_record_layout_of_a_topic_is_derived_from_the_schema_of_its_first_record() -> None:
    known = layouts()
    assert known.layout_of("t", "t") is None
    assert known.variants("t", "t") == ()
    assert known.learn_schema("t", "t", text(A, B), "{}")
    # The second schema has the same columns, but other JSON text.
    assert known.learn_schema("t", "t", text({**B, "optional": True}, A, version=2), "{}")
    layout = known.layout_of("t", "t")
    assert layout is not None
    assert [column.name for column in layout.columns] == ["a", "b"]
    assert known.variants("t", "t") == (LayoutVariant(layout, known.schema_ids("t")),)
    assert len(known.schema_ids("t")) == 2
    assert known.required_columns("t") == ["b"]
    assert sorted(map(len, (known.required_in_schema("t", id_) for id_ in known.schema_ids("t")))) == [0, 1]


def test_schemas_with_different_defaults_have_the_same_columns_and_keep_their_own_defaults() -> None:
    known = layouts()
    inner = {"type": "struct", "optional": True, "field": "s", "fields": [A]}
    items = {"type": "array", "optional": True, "field": "l", "items": {"type": "struct", "fields": [A]}}
    assert known.learn_schema("t", "t", text(A, inner, items), None)
    changed = {**A, "default": 7}
    assert known.learn_schema(
        "t", "t", text({**items, "items": {"type": "struct", "fields": [changed]}}, inner, A), None
    )
    assert known.learn_schema("t", "t", text({**inner, "fields": [changed]}, changed, items), None)
    old, in_list, new = (variant.layout.columns for variant in known.variants("t", "t"))
    assert {variant.layout for variant in known.variants("t", "t")} >= {known.layout_of("t", "t")}
    assert leaf_types(old) == leaf_types(in_list) == leaf_types(new)
    assert [column.name for column in new] == ["a", "s", "l"]
    assert (old[0].default, new[0].default, new[1].type.fields[0].default) == (None, "7", "7")
    element = in_list[2].type.element
    assert element is not None
    assert element.fields[0].default == "7"

    without = layouts(replace_null_with_default=False)
    for fields in ((A, items), (changed, {**items, "items": {"type": "struct", "fields": [changed]}})):
        assert without.learn_schema("t", "t", text(*fields), None)
    assert len(without.variants("t", "t")) == 1


OTHER_COLUMNS = [
    ((A,), "column b removed (string)"),
    ((A, B, {"type": "int8", "field": "c d"}), "column `c d` added (tinyint)"),
    (({**A, "type": "int64"}, B), "column a: int -> bigint"),
    ((B, {**struct({**A, "type": "int64"}), "field": "a"}), "column a removed (int), column a.a added (bigint)"),
]


@pytest.mark.parametrize(("fields", "changed"), OTHER_COLUMNS)
def test_record_schema_with_columns_other_than_the_table_columns_is_rejected(
    fields: tuple[dict[str, Any], ...], changed: str
) -> None:
    """The table may exist already, or may be created from the first record of another topic."""
    existing = layouts()
    existing.set_table_columns("all", {"a": "int", "b": "string"})
    first = layouts()
    assert first.learn_schema("u", "all", text(A, B), None)
    for known in (existing, first):
        assert not known.learn_schema("t", "all", text(*fields), None)
        assert known.layout_of("t", "all") is None
        assert known.rejected_schemas("t") == {
            schema_id_of(text(*fields).encode()): RejectedSchema(
                f"the record's columns do not match table /tables/all: {changed}", columns_mismatch=True
            )
        }
        assert known.learn_schema("t", "all", text(A, B), None)


def test_schema_with_a_field_named_like_a_metadata_column_is_rejected() -> None:
    clash = {"type": "int32", "field": "_Kafka_Offset"}
    known = layouts()
    assert not known.learn_schema("t", "t", text(clash), None)
    (rejected,) = known.rejected_schemas("t").values()
    assert "the field '_Kafka_Offset' has the same name as a metadata column" in rejected.reason
    assert not rejected.columns_mismatch
    assert layouts(metadata_columns=False).learn_schema("t", "t", text(clash), None)


def test_table_with_metadata_columns_is_rejected_if_lakehouse_metadata_columns_is_false() -> None:
    known = layouts(metadata_columns=False)
    known.set_table_columns("t", {**dict.fromkeys(METADATA_COLUMNS, "int"), "a": "int"})
    with pytest.raises(ConnectError, match=r"table /tables/t has metadata columns.*lakehouse.metadata.columns=false"):
        known.learn_schema("t", "t", text(A), None)


def test_decimal_format_is_derived_from_the_first_decimal_value() -> None:
    decimal = {
        "type": "bytes",
        "name": "org.apache.kafka.connect.data.Decimal",
        "parameters": {"scale": "2"},
        "field": "d",
    }
    known = layouts()
    known.learn_schema("t", "t", text(decimal), '{"d":null}')
    layout = known.layout_of("t", "t")
    assert layout is not None
    assert known.reads_decimals_as_numbers(layout) is False
    assert known.learn_decimal_format("t", '{"d":1.25}') is True
    layout = known.layout_of("t", "t")
    assert layout is not None
    assert known.reads_decimals_as_numbers(layout) is True


def test_record_layout_for_json_without_schemas_raises_an_error_if_the_table_has_no_declared_columns() -> None:
    known = layouts(value="json", declared={"x": parse_ddl("a int")})
    assert known.layout_of("t", "x") == RecordLayout(parse_ddl("a int"))
    with pytest.raises(ConnectError, match=r"lakehouse.schema or lakehouse.table.t.schema"):
        known.layout_of("t", "t")


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        ("{", "not JSON"),
        ("[]", "the payload: expected struct<.*found \\[\\]"),
        ('{"a":"x"}', 'field a: expected int, found "x"'),
        ('{"a":2147483648}', "field a: expected int, found 2147483648"),
        ('{"t":[1]}', "field t\\[0\\]: expected string, found 1"),
        ("\x1ffield d: out", "^field d: out$"),
    ],
)
def test_description_of_an_invalid_payload_names_the_field_and_the_expected_type(payload: str, reason: str) -> None:
    columns = (
        TableColumn("a", ColumnType("int32")),
        TableColumn("t", ColumnType("array", element=ColumnType("boolean"))),
    )
    found = describe_bad_payload(payload, RecordLayout(columns, encoded=True), decimals_numeric=False)
    assert re.search(reason.replace("expected string", "expected boolean"), found), found


class Reporter:
    """An errant record reporter that stores the reported records."""

    def __init__(self, *, tolerates_errors: bool) -> None:
        self.tolerates_errors = tolerates_errors
        self.reported: list[ErrantRecord] = []

    def report(self, records: Sequence[ErrantRecord]) -> None:
        self.reported += records


def test_errors_tolerance_determines_whether_bad_records_fail_the_task_or_are_reported_and_skipped() -> None:
    records = [
        BadRecord(RecordPosition("t", 0, 9), "late"),
        BadRecord(RecordPosition("t", 0, 2), "early"),
        BadRecord(RecordPosition("u", 1, 4), "x"),
    ]
    error = BadRecordHandler(Reporter(tolerates_errors=False)).handle(records)
    assert error is not None
    assert str(error).startswith(
        "topic t, partition 0, offset 2: early (and 2 more bad records in this batch); the records before each"
        " partition's first bad record are loaded. To continue, set errors.tolerance=all to skip such records, "
    )
    assert error.first_bad_offsets == {("t", 0): 2, ("u", 1): 4}
    reporter = Reporter(tolerates_errors=True)
    tolerant = BadRecordHandler(reporter)
    assert tolerant.handle(records) is None
    assert [(each.topic, each.partition, each.offset, str(each.error), each.stage) for each in reporter.reported] == [
        ("t", 0, 2, "early", "VALUE_CONVERTER"),
        ("t", 0, 9, "late", "VALUE_CONVERTER"),
        ("u", 1, 4, "x", "VALUE_CONVERTER"),
    ]
    assert tolerant.skipped == 3
    assert tolerant.handle([]) is None


def test_error_for_a_record_that_does_not_match_the_table_columns_says_how_to_continue() -> None:
    record = BadRecord(RecordPosition("t", 0, 2), "changed", columns_mismatch=True)
    error = BadRecordHandler(Reporter(tolerates_errors=False)).handle([record])
    assert "add the new columns to the table" in str(error)
    assert "a second connector can load them into another table" in str(error)
