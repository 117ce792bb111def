"""JsonConverter: what is written is read back, and the fast ways agree with the definitions."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.api.converter import Run
from headrace.api.errors import BatchError, DataError
from headrace.converters.json_converter import JsonConverter
from headrace.converters.json_decoding import Decoder
from headrace.converters.json_encoding import encode_list, encoder, write
from headrace.converters.json_values import Style, to_json
from headrace.data.schema import Schema
from headrace.data.struct import to_rows
from support.connect_data import primitives, schemaless, schemas, struct_of, values


def _converter(**props: str) -> JsonConverter:
    made = JsonConverter()
    made.configure({key.replace("_", "."): value for key, value in props.items()})
    return made


@st.composite
def schema_and_values(draw: st.DrawFn) -> tuple[Schema, list[Any]]:
    schema = draw(schemas() | struct_of(primitives(), 8))
    return schema, draw(st.lists(values(schema), max_size=4))


@settings(deadline=None, max_examples=40)
@given(schema_and_values(), st.booleans())
def test_with_schema(data: tuple[Schema, list[Any]], numeric: bool) -> None:
    schema, items = data
    converter = _converter(decimal_format="NUMERIC" if numeric else "BASE64")
    rows = to_rows(schema, items)
    encoded = converter.from_connect_batch("t", schema, rows)
    assert converter.to_connect_batch("t", encoded) == ([Run(schema, rows)] if rows else [])
    for item, text in zip(items, encoded, strict=True):
        assert converter.from_connect("t", schema, item) == text
        assert converter.to_connect("t", text) == (schema, item)
        assert text is not None
        assert json.loads(text).keys() == {"schema", "payload"}


@settings(deadline=None, max_examples=40)
@given(schema_and_values(), st.booleans())
def test_lists_are_encoded_as_single_values_are(data: tuple[Schema, list[Any]], numeric: bool) -> None:
    schema, items = data
    style = Style(numeric_decimals=numeric)
    rows = to_rows(schema, items)
    slow = [write(to_json(schema, row, style)) for row in rows]
    assert encode_list(schema, rows, style) == slow
    assert encoder(schema, style)(rows) in (slow, None)


@settings(deadline=None, max_examples=40)
@given(schema_and_values())
def test_lists_are_decoded_as_single_values_are(data: tuple[Schema, list[Any]]) -> None:
    schema, items = data
    payloads = encode_list(schema, to_rows(schema, items), Style())
    decoder = Decoder(schema, True)
    assert decoder.decode_list(payloads) == [decoder.decode(payload) for payload in payloads]


@settings(deadline=None, max_examples=40)
@given(st.lists(schemaless(), max_size=4))
def test_without_schema(items: list[Any]) -> None:
    converter = _converter(schemas_enable="false")
    encoded = converter.from_connect_batch("t", None, items)
    runs = converter.to_connect_batch("t", encoded)
    assert [value for run in runs for value in run.values] == items
    assert [converter.from_connect("t", None, item) for item in items] == encoded
    for item, text in zip(items, encoded, strict=True):
        assert (text is None) == (item is None)
        assert text is None or json.loads(text) == item


@settings(deadline=None, max_examples=40)
@given(st.lists(st.one_of(st.none(), st.binary(max_size=40), schemaless().map(msgspec.json.encode)), max_size=6))
def test_any_bytes_either_way(data: list[bytes | None]) -> None:
    """A list fails exactly at the places where its items fail, and otherwise gives what they give."""
    for converter in (_converter(), _converter(schemas_enable="false")):
        _agrees(converter, data)


def _agrees(converter: JsonConverter, data: list[bytes | None]) -> None:
    expected: list[Any] = []
    failing = []
    for index, item in enumerate(data):
        try:
            expected.append(converter.to_connect("t", item).value)
        except DataError:
            failing.append(index)
    if failing:
        with pytest.raises(BatchError) as caught:
            converter.to_connect_batch("t", data)
        assert list(caught.value.errors) == failing
    runs = converter.to_connect_batch("t", [item for index, item in enumerate(data) if index not in failing])
    assert [value for run in runs for value in run.values] == expected
