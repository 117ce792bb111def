"""Property tests of converters with columnar values.

Columnar values are encoded to the same bytes as single values, and encoding fails for the same
values.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.api.converter import FramedValues
from headrace.api.errors import RecordErrors
from headrace.converters.json_converter import JsonConverter
from headrace.converters.json_template import encode_compact
from headrace.converters.string_converter import StringConverter
from headrace.data.columns import ColumnarValues, Columns, Lines, Shared
from headrace.data.json_encoding import encode_tree
from headrace.data.json_values import EncodingOptions
from headrace.data.schema import INT32_SCHEMA, OPTIONAL_STRING_SCHEMA, STRING_SCHEMA, Schema, struct
from headrace.plugins.creation import create_converter
from support.columnar_values import columnar_values
from support.examples import examples

STRUCTS = (
    struct([("line", STRING_SCHEMA), ("n", INT32_SCHEMA.replace(optional=True))]),
    struct([("line", OPTIONAL_STRING_SCHEMA.replace(default="-")), ('a "b"\n', STRING_SCHEMA)], name="row"),
)
CONVERTERS: list[tuple[type[Any], dict[str, str]]] = [
    (JsonConverter, {"schemas.enable": "false"}),
    (JsonConverter, {"schemas.enable": "true"}),
    (JsonConverter, {"schemas.enable": "false", "replace.null.with.default": "false"}),
    (StringConverter, {}),
    (StringConverter, {"converter.encoding": "latin-1"}),
]


def _result_or_errors(encode: Any, schema: Schema | None, values: Any) -> Any:
    try:
        encoded = encode("t", schema, values)
        return encoded.whole() if isinstance(encoded, FramedValues) else encoded
    except RecordErrors as error:
        return {index: repr(cause) for index, cause in error.errors.items()}


@pytest.mark.parametrize(("class_", "props"), CONVERTERS)
@settings(deadline=None, max_examples=examples(150))
@given(typed_values=columnar_values(STRUCTS), wrong=st.sampled_from([False, False, False, True]))
def test_columnar_and_single_values_are_encoded_to_the_same_bytes(
    class_: type[Any], props: dict[str, str], typed_values: tuple[Schema | None, ColumnarValues], wrong: bool
) -> None:
    schema, values = typed_values
    if wrong and isinstance(values, Columns):  # replace all values with 1.5, which most schemas reject
        values = Columns(values.names, [Shared(1.5) for _ in values.names], len(values), is_maps=values.is_maps)
    converter = create_converter(class_, props, "value")
    expected = _result_or_errors(converter.from_connect_batch, schema, list(values.items()))
    assert _result_or_errors(converter.from_connect_columnar, schema, values) == expected


@pytest.mark.parametrize(
    "text", ["plain", 'a "b" \\', 'say "hi"', "tab\t", "\x1b", "ä€", "\U0001f600", "\x7f\u2028", ""]
)
def test_string_columns_and_constant_columns_are_encoded_with_a_json_template(text: str) -> None:
    lines = Lines(f"{text}\n\nx{text}", 3)
    columns = Columns(["line", "source"], [lines, Shared("s")], 3, is_maps=True)
    texts = encode_compact(None, columns, EncodingOptions())
    assert texts is not None
    converter = create_converter(JsonConverter, {"schemas.enable": "false"}, "value")
    assert texts.whole() == converter.from_connect_batch("t", None, columns.items())
    assert texts.whole()[1] == b'{"line":"","source":"s"}'


def test_every_character_that_json_escapes_is_escaped_in_lines() -> None:
    for letter in ("a", "\u00e9", "\U0001f600"):
        for character in map(chr, [*range(0x0A), *range(0x0B, 0x80)]):
            lines = [letter, f"{letter}{character}{letter}"]
            framed = encode_compact(STRING_SCHEMA, Lines("\n".join(lines), 2), EncodingOptions(False, True))
            assert framed is not None
            encoded = [framed.before + value + framed.after for value in framed.values]
            assert encoded == [encode_tree(line) for line in lines], f"character {character!r}"


def test_function_encode_compact_returns_none_for_columns_that_contain_null() -> None:
    columns = Columns(["line"], [["a", None]], 2, is_maps=True)
    assert encode_compact(None, columns, EncodingOptions()) is None


def test_unpaired_surrogates_in_columnar_strings_are_written_as_escapes() -> None:
    converter = create_converter(JsonConverter, {"schemas.enable": "false"}, "value")
    texts = converter.from_connect_columnar("t", STRING_SCHEMA, Lines("a\n\ud800", 2))
    assert texts == [b'"a"', rb'"\uD800"']
