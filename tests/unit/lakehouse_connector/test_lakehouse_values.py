"""Payloads, schemas, layouts, DDL and bad records of the lakehouse sink."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.api.errors import ConnectError
from headrace_connectors.lakehouse.bad_records import BadRecord, BadRecords, diagnose
from headrace_connectors.lakehouse.column_types import (
    Column,
    ColumnType,
    SchemaError,
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
    Payloads,
    PlainJsonReader,
    StringReader,
    schema_id_of,
)
from headrace_connectors.lakehouse.layouts import METADATA_COLUMNS, Layout, Layouts, Place, Refusal, Variant

S1, S2 = b'{"type":"struct","fields":[]}', b'{"type":"struct","fields":[],"version":2}'


def wrapped(schema: bytes, payload: bytes) -> bytes:
    return b'{"schema":' + schema + b',"payload":' + payload + b"}"


def test_payloads_are_cut_out_by_the_known_beginning() -> None:
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
        (b"", "not a JSON envelope"),
        (b"x", "not a JSON envelope"),
        (b'{"a":1}', "not a JSON envelope"),
        (wrapped(S1, b"1")[:-1], "not a JSON envelope"),
        (b'{"schema":1,"payload":2,"more":3}', "not a JSON envelope"),
        (wrapped(b"null", b"1"), "schema is null"),
    ],
)
def test_what_is_no_envelope_says_so(value: bytes, error: str) -> None:
    assert error in str(EnvelopeReader().read(value).error)


values = st.one_of(
    st.none(),
    st.binary(max_size=20),
    st.builds(wrapped, st.sampled_from([S1, S2, b"null"]), st.sampled_from([b"null", b'{"a":1}', b"[1]", b'"}"'])),
)


@given(st.lists(values, max_size=30))
def test_runs_are_cut_as_single_values_are(run: list[bytes | None]) -> None:
    for make in (EnvelopeReader, PlainJsonReader, lambda: StringReader("UTF-8")):
        one_by_one, at_once = Payloads(), Payloads()
        reader = make()
        for value in run:
            one_by_one.append(reader.read(value))
        reader = make()
        reader.read_run(run[:1], at_once)  # the first teaches the prefix
        reader.read_run(run[1:], at_once)
        for name in ("texts", "schema_ids", "schemas", "errors", "size_bytes"):
            assert getattr(one_by_one, name) == getattr(at_once, name)


def test_plain_values_have_no_schema() -> None:
    assert PlainJsonReader().read(b" null") == Payload()
    assert PlainJsonReader().read(b"[1]") == Payload(b"[1]", NO_SCHEMA)
    assert StringReader("latin-1").read(b"\xe9") == Payload("é".encode())


def struct(*fields: dict[str, Any]) -> dict[str, Any]:
    return {"type": "struct", "fields": list(fields)}


def test_connect_schemas_become_columns() -> None:
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
    assert table_columns(parse_schema({"type": "string"})) == (Column("value", ColumnType("string")),)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ("x", "not a Connect schema"),
        ({"type": "int128"}, "unknown Connect type 'int128'"),
        (struct(), "without fields"),
        (struct({"type": "int8"}), "needs a 'field' name"),
        (struct({"type": "int8", "field": "a"}, {"type": "int8", "field": "A"}), "'a' and 'A' differ only in case"),
        (struct({"type": "array", "field": "tags"}), r"value.tags\[\]: not a Connect schema"),
        (
            struct(
                {
                    "type": "bytes",
                    "name": "org.apache.kafka.connect.data.Decimal",
                    "parameters": {"scale": "127"},
                    "field": "n",
                }
            ),
            "value.n: a Decimal of scale 127",
        ),
    ],
)
def test_schemas_that_no_table_holds_name_the_field(schema: Any, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        table_columns(parse_schema(schema))


def test_ddl_declares_columns() -> None:
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
        ("", "expected a name"),
        ("id", "expected a name"),
        ("id LONGISH", "expected a type .* at 'LONGISH'"),
        ("id INT,", "expected a name"),
        ("id INT name STRING", "expected a comma between columns"),
        ("a array<int", "expected '>'"),
        ("a decimal(40,2)", "precision is 1 to 38"),
        ("a int, A string", "differ only in case"),
        ("a timestamp_ntz", "expected a type"),
        ("a int; drop", "unexpected ';"),
    ],
)
def test_ddl_errors_say_where(ddl: str, message: str) -> None:
    with pytest.raises(SchemaError, match=message):
        parse_ddl(ddl)


def layouts(**changes: Any) -> Layouts:
    settings: dict[str, Any] = {
        "root": Path("/tables"),
        "value": "envelope",
        "declared": {},
        "declared_default": None,
        "metadata_columns": True,
        "replace_null_with_default": True,
        "decimals_numeric": False,
    }
    return Layouts(**{**settings, **changes})


def text(*fields: dict[str, Any], **more: Any) -> str:
    return json.dumps({**struct(*fields), **more})


A = {"type": "int32", "optional": True, "field": "a"}
B = {"type": "string", "optional": False, "field": "b"}


def test_a_topic_keeps_the_layout_of_its_first_record() -> None:
    known = layouts()
    assert known.find("t", "t") is None
    assert known.variants("t", "t") == ()
    assert known.learn("t", "t", text(A, B), "{}")
    # another text, the same columns
    assert known.learn("t", "t", text({**B, "optional": True}, A, version=2), "{}")
    layout = known.find("t", "t")
    assert layout is not None
    assert [column.name for column in layout.columns] == ["a", "b"]
    assert known.variants("t", "t") == (Variant(layout, known.schema_ids("t")),)
    assert len(known.schema_ids("t")) == 2
    assert known.required("t") == ["b"]
    assert sorted(map(len, (known.required_in("t", id_) for id_ in known.schema_ids("t")))) == [0, 1]


def test_another_default_is_a_variant_of_the_same_columns() -> None:
    known = layouts()
    inner = {"type": "struct", "optional": True, "field": "s", "fields": [A]}
    items = {"type": "array", "optional": True, "field": "l", "items": {"type": "struct", "fields": [A]}}
    assert known.learn("t", "t", text(A, inner, items), None)
    changed = {**A, "default": 7}
    assert known.learn("t", "t", text({**items, "items": {"type": "struct", "fields": [changed]}}, inner, A), None)
    assert known.learn("t", "t", text({**inner, "fields": [changed]}, changed, items), None)
    old, in_list, new = (variant.layout.columns for variant in known.variants("t", "t"))
    assert {variant.layout for variant in known.variants("t", "t")} >= {known.find("t", "t")}
    assert leaf_types(old) == leaf_types(in_list) == leaf_types(new)
    assert [column.name for column in new] == ["a", "s", "l"]
    assert (old[0].default, new[0].default, new[1].type.fields[0].default) == (None, "7", "7")
    element = in_list[2].type.element
    assert element is not None
    assert element.fields[0].default == "7"

    without = layouts(replace_null_with_default=False)
    for fields in ((A, items), (changed, {**items, "items": {"type": "struct", "fields": [changed]}})):
        assert without.learn("t", "t", text(*fields), None)
    assert len(without.variants("t", "t")) == 1


OTHER_COLUMNS = [
    ((A,), "column b removed (string)"),
    ((A, B, {"type": "int8", "field": "c d"}), "column `c d` added (tinyint)"),
    (({**A, "type": "int64"}, B), "column a: int -> bigint"),
    ((B, {**struct({**A, "type": "int64"}), "field": "a"}), "column a removed (int), column a.a added (bigint)"),
]


@pytest.mark.parametrize(("fields", "changed"), OTHER_COLUMNS)
def test_other_columns_than_the_tables_are_refused(fields: tuple[dict[str, Any], ...], changed: str) -> None:
    """Whether the table had its columns before, or gets them from the first record of any of its topics."""
    existing = layouts()
    existing.adopt("all", {"a": "int", "b": "string"})
    first = layouts()
    assert first.learn("u", "all", text(A, B), None)
    for known in (existing, first):
        assert not known.learn("t", "all", text(*fields), None)
        assert known.find("t", "all") is None
        assert known.refused("t") == {
            schema_id_of(text(*fields).encode()): Refusal(
                f"the record's columns are not those of table /tables/all: {changed}", other_columns=True
            )
        }
        assert known.learn("t", "all", text(A, B), None)


def test_metadata_columns_cannot_be_shadowed() -> None:
    clash = {"type": "int32", "field": "_Kafka_Offset"}
    known = layouts()
    assert not known.learn("t", "t", text(clash), None)
    (refusal,) = known.refused("t").values()
    assert "the field '_Kafka_Offset' has the name of a metadata column" in refusal.reason
    assert not refusal.other_columns
    assert layouts(metadata_columns=False).learn("t", "t", text(clash), None)


def test_a_table_with_metadata_columns_is_no_matter_of_the_records() -> None:
    known = layouts(metadata_columns=False)
    known.adopt("t", {**dict.fromkeys(METADATA_COLUMNS, "int"), "a": "int"})
    with pytest.raises(
        ConnectError, match=r"table /tables/t has the metadata columns.*lakehouse.metadata.columns=false"
    ):
        known.learn("t", "t", text(A), None)


def test_how_decimals_are_written_is_seen_in_the_first_that_is_there() -> None:
    decimal = {
        "type": "bytes",
        "name": "org.apache.kafka.connect.data.Decimal",
        "parameters": {"scale": "2"},
        "field": "d",
    }
    known = layouts()
    known.learn("t", "t", text(decimal), '{"d":null}')
    layout = known.find("t", "t")
    assert layout is not None
    assert known.reads_decimals_as_numbers(layout) is False
    assert known.learn_decimals("t", '{"d":1.25}') is True
    layout = known.find("t", "t")
    assert layout is not None
    assert known.reads_decimals_as_numbers(layout) is True


def test_plain_json_needs_a_declaration() -> None:
    known = layouts(value="json", declared={"x": parse_ddl("a int")})
    assert known.find("t", "x") == Layout(parse_ddl("a int"))
    with pytest.raises(ConnectError, match=r"lakehouse.schema or lakehouse.table.t.schema"):
        known.find("t", "t")


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
def test_a_bad_payload_is_diagnosed(payload: str, reason: str) -> None:
    columns = (Column("a", ColumnType("int32")), Column("t", ColumnType("array", element=ColumnType("boolean"))))
    found = diagnose(payload, Layout(columns, encoded=True), decimals_numeric=False)
    assert re.search(reason.replace("expected string", "expected boolean"), found), found


def test_bad_records_stop_the_task_or_are_skipped_after_the_dead_letters() -> None:
    records = [
        BadRecord(Place("t", 0, 9), "late"),
        BadRecord(Place("t", 0, 2), "early"),
        BadRecord(Place("u", 1, 4), "x"),
    ]
    stopping = BadRecords(tolerate=False, log=True).handle(records)
    assert stopping is not None
    assert str(stopping).startswith(
        "topic t, partition 0, offset 2: early (and 2 more records of this batch); all records before it are loaded."
        " errors.tolerance=all skips such records, "
    )
    assert stopping.ends == {("t", 0): 2, ("u", 1): 4}
    sent: list[BadRecord] = []
    tolerant = BadRecords(tolerate=True, log=True, dead_letters=sent.extend)
    assert tolerant.handle(records) is None
    assert [record.place.offset for record in sent] == [2, 9, 4]
    assert tolerant.skipped == 3
    assert tolerant.handle([]) is None


def test_the_error_of_other_columns_says_the_way_on() -> None:
    stopping = BadRecords(tolerate=False, log=False).handle([BadRecord(Place("t", 0, 2), "changed", True)])
    assert "give the table the new columns" in str(stopping)
    assert "a second connector can load into a table of its own" in str(stopping)
