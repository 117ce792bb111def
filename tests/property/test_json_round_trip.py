"""Property tests of JsonConverter. Values round-trip, and batches are converted like single values."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.api.converter import SchemaRun
from headrace.api.errors import DataError, RecordErrors
from headrace.converters.json_converter import JsonConverter
from headrace.converters.json_lists import PayloadDecoder
from headrace.data.columns import Columns, listed
from headrace.data.json_encoding import encode_list, encode_tree, list_encoder
from headrace.data.json_values import EncodingOptions, to_json
from headrace.data.schema import Schema
from headrace.data.struct import to_rows
from support.connect_data import primitives, schemaless, schemas, struct_of, values
from support.examples import examples
from support.transforms import make_converter


def _converter(**props: str) -> JsonConverter:
    return make_converter(JsonConverter, "value", **props)


@st.composite
def schema_and_values(draw: st.DrawFn) -> tuple[Schema, list[Any]]:
    schema = draw(schemas() | struct_of(primitives(), 8))
    return schema, draw(st.lists(values(schema), max_size=4))


@settings(deadline=None, max_examples=examples(40))
@given(schema_and_values(), st.booleans())
def test_values_with_a_schema_round_trip_through_the_json_converter(
    data: tuple[Schema, list[Any]], numeric: bool
) -> None:
    schema, items = data
    converter = _converter(decimal_format="NUMERIC" if numeric else "BASE64")
    rows = to_rows(schema, items)
    encoded = converter.from_connect_batch("t", schema, rows)
    runs = [SchemaRun(run.schema, listed(run.values)) for run in converter.to_connect_batch("t", encoded)]
    assert runs == ([SchemaRun(schema, rows)] if rows else [])
    for item, text in zip(items, encoded, strict=True):
        assert converter.from_connect("t", schema, item) == text
        assert converter.to_connect("t", text) == (schema, item)
        assert text is not None
        assert json.loads(text).keys() == {"schema", "payload"}


@settings(deadline=None, max_examples=examples(40))
@given(schema_and_values(), st.booleans())
def test_json_converter_encodes_each_value_of_a_batch_to_the_same_bytes_as_the_value_alone(
    data: tuple[Schema, list[Any]], numeric: bool
) -> None:
    schema, items = data
    options = EncodingOptions(numeric_decimals=numeric)
    rows = to_rows(schema, items)
    slow = [encode_tree(to_json(schema, row, options)) for row in rows]
    assert encode_list(schema, rows, options) == slow
    assert list_encoder(schema, options)(rows) in (slow, None)


@settings(deadline=None, max_examples=examples(40))
@given(schema_and_values())
def test_json_converter_decodes_a_list_of_payloads_to_the_same_values_as_each_payload_alone(
    data: tuple[Schema, list[Any]],
) -> None:
    schema, items = data
    payloads = encode_list(schema, to_rows(schema, items), EncodingOptions())
    decoder = PayloadDecoder(schema, True)
    assert listed(decoder.decode_list(payloads)) == [decoder.decode(payload) for payload in payloads]


@settings(deadline=None, max_examples=examples(40))
@given(st.lists(schemaless(), max_size=4))
def test_schemaless_values_round_trip_through_the_json_converter(items: list[Any]) -> None:
    converter = _converter(schemas_enable="false")
    encoded = converter.from_connect_batch("t", None, items)
    runs = converter.to_connect_batch("t", encoded)
    assert [value for run in runs for value in listed(run.values)] == items
    assert [converter.from_connect("t", None, item) for item in items] == encoded
    for item, text in zip(items, encoded, strict=True):
        assert (text is None) == (item is None)
        assert text is None or json.loads(text) == item


@settings(deadline=None, max_examples=examples(40))
@given(st.lists(st.one_of(st.none(), st.binary(max_size=40), schemaless().map(msgspec.json.encode)), max_size=6))
def test_json_converter_decodes_a_list_of_arbitrary_payloads_with_the_same_results_as_each_payload_alone(
    data: list[bytes | None],
) -> None:
    """A batch decodes to the same values as single payloads, and fails for the same payloads."""
    for converter in (_converter(), _converter(schemas_enable="false")):
        _check_batch_matches_items(converter, data)


@st.composite
def _envelopes(draw: st.DrawFn) -> bytes:
    """Envelopes of two schemas, with any order of the fields, whitespace, and sometimes a missing or repeated field."""
    schema = draw(
        st.sampled_from([b'"schema":{"type":"int32"}', b'"schema" : {"type":"string"}', b'"sch\\u0065ma":null'])
    )
    payload = draw(st.sampled_from([b'"payload":1', b'"payload":"a"', b'"payload": null ', b'"payload":1,"payload":2']))
    fields = draw(st.permutations([schema, payload]) | st.sampled_from([[schema], [payload, schema, schema]]))
    space = draw(st.sampled_from([b"", b"", b" "]))
    return b"{" + (b"," + space).join(fields) + b"}" + space


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(_envelopes(), max_size=6))
def test_json_converter_decodes_envelopes_in_any_format_with_the_same_results_as_each_envelope_alone(
    data: list[bytes],
) -> None:
    _check_batch_matches_items(_converter(), [*data])


def _check_batch_matches_items(converter: JsonConverter, data: list[bytes | None]) -> None:
    expected: list[Any] = []
    failing = []
    for index, item in enumerate(data):
        try:
            expected.append(converter.to_connect("t", item).value)
        except DataError:
            failing.append(index)
    if failing:
        with pytest.raises(RecordErrors) as caught:
            converter.to_connect_batch("t", data)
        assert list(caught.value.errors) == failing
    runs = converter.to_connect_batch("t", [item for index, item in enumerate(data) if index not in failing])
    assert [value for run in runs for value in listed(run.values)] == expected


_SCALARS = st.sampled_from(
    [b"null", b"true", b"0", b"-0.0", b"3.7", b"127", b"128", b"1e2", b"1e400", b"-1e400", b"1e-400", b"16777217",
     b"9223372036854775807", b"9223372036854775808", b"123456789012345678901234567890", b"99999999999999999999e-1",
     b'"a"', b'""', b'"NaN"', b'"-Infinity"', b'"YQ=="', b'"YQ"', b'"\\ud800"', b'"\xff"', b" 1 ", b"1 2", b"[1]"]
)  # fmt: skip


@settings(deadline=None, max_examples=examples(200))
@given(primitives(), st.lists(_SCALARS, min_size=1, max_size=4), st.booleans())
def test_json_converter_decodes_each_scalar_in_a_list_to_the_same_value_as_the_scalar_alone(
    schema: Schema, payloads: list[bytes], replace_null: bool
) -> None:
    """Scalars of the wrong type or outside the type's range fail, and all others have the same value and type."""
    decoder = PayloadDecoder(schema, replace_null)
    expected: list[Any] = []
    failing = []
    for index, payload in enumerate(payloads):
        try:
            expected.append(decoder.decode(payload))
        except DataError:
            failing.append(index)
    if failing:
        with pytest.raises(RecordErrors) as caught:
            decoder.decode_list(payloads)
        assert list(caught.value.errors) == failing
    else:
        assert list(map(repr, decoder.decode_list(payloads))) == list(map(repr, expected))


_NAMES = st.lists(st.sampled_from(["a", "b", "", "é", 'q"', "x\\y", "v0", "v1"]), max_size=4, unique=True)
_OTHER_JSON = st.sampled_from(
    [
        b'{"a":1,"a":2}',
        b'{"\\u0061":1}',
        b'{"b":0,"a":1}',
        b'{"a":1,"b":2,"c":3}',
        b'{"a":123456789012345678901234567890,"b":1e3}',
        b'{"a":1e400}',
        b'{"a":1},{"a":2}',
        b'{"a":[1',
        b"2]}",
        b'{"a":1} {"a":2}',
        b' {"a" : 1 }\n',
        b"null",
        b"[]",
        b"",
        b'{"a":"\xff"}',
    ]
)


@st.composite
def similar_maps(draw: st.DrawFn) -> list[bytes]:
    """Generate many JSON objects with the same keys, sometimes with other payloads among them."""
    names = draw(_NAMES)
    maps = st.fixed_dictionaries({name: schemaless() for name in names})
    texts = [msgspec.json.encode(item) for item in draw(st.lists(maps, min_size=1, max_size=4))] * 16
    for odd in draw(st.lists(_OTHER_JSON | st.just(b'{"a":1,"b":2}'), max_size=3)):
        texts.insert(draw(st.integers(0, len(texts))), odd)
    return texts


@settings(deadline=None, max_examples=examples(100))
@given(similar_maps())
def test_json_converter_decodes_a_list_of_similar_maps_in_the_same_way_as_one_map_at_a_time(
    payloads: list[bytes],
) -> None:
    """A list of payloads decodes to the same values and types as single payloads, and fails for the same payloads."""
    decoder = PayloadDecoder(None, True)
    expected: list[Any] = []
    failing = []
    for index, payload in enumerate(payloads):
        try:
            expected.append(decoder.decode(payload))
        except DataError:
            failing.append(index)
    if failing:
        with pytest.raises(RecordErrors) as caught:
            decoder.decode_list(payloads)
        assert list(caught.value.errors) == failing
        return
    decoded = listed(decoder.decode_list(payloads))
    assert [_canonical_json(item) for item in decoded] == [_canonical_json(item) for item in expected]


def test_json_objects_are_decoded_to_columns_only_if_all_have_the_same_keys() -> None:
    similar = [b'{"a":%d,"b":"x"}' % number for number in range(20)]
    for payloads in (similar, [*similar, b'{"b":"y","a":0}']):
        assert isinstance(PayloadDecoder(None, True).decode_list(payloads), Columns)
    for different in (b'{"a":1}', b'{"a":1,"b":2,"c":3}', b"null", b"[1]"):
        assert isinstance(PayloadDecoder(None, True).decode_list([*similar, different]), list)


def _canonical_json(item: Any) -> bytes:
    return msgspec.json.encode(item, order="deterministic")
