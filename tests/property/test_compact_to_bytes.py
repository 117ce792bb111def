"""Converters write values in a compact form as they write the same values one by one, and fail for the same ones."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.api.converter import Enclosed
from headrace.api.errors import BatchError
from headrace.converters.json_converter import JsonConverter
from headrace.converters.json_template import encode_compact
from headrace.converters.json_values import Style
from headrace.converters.string_converter import StringConverter
from headrace.data.columns import Columns, Compact, Lines, Shared
from headrace.data.schema import INT32_SCHEMA, OPTIONAL_STRING_SCHEMA, STRING_SCHEMA, Schema, struct
from support.compact_values import compact

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


def _either(encode: Any, schema: Schema | None, values: Any) -> Any:
    try:
        made = encode("t", schema, values)
        return made.whole() if isinstance(made, Enclosed) else made
    except BatchError as error:
        return {index: repr(cause) for index, cause in error.errors.items()}


@pytest.mark.parametrize(("class_", "props"), CONVERTERS)
@settings(deadline=None, max_examples=150)
@given(held=compact(STRUCTS), wrong=st.sampled_from([False, False, False, True]))
def test_same_bytes(class_: type[Any], props: dict[str, str], held: tuple[Schema | None, Compact], wrong: bool) -> None:
    schema, values = held
    if wrong and isinstance(values, Columns):  # values that do not fit their schema
        values = Columns(values.names, [Shared(1.5) for _ in values.names], len(values), is_maps=values.is_maps)
    converter = class_()
    converter.configure(props, False)
    expected = _either(converter.from_connect_batch, schema, list(values.items()))
    assert _either(converter.from_connect_compact, schema, values) == expected


@pytest.mark.parametrize(
    "text", ["plain", 'a "b" \\', 'say "hi"', "tab\t", "\x1b", "ä€", "\U0001f600", "\x7f\u2028", ""]
)
def test_lines_with_constants_need_no_closer_look(text: str) -> None:
    lines = Lines(f"{text}\n\nx{text}", 3)
    columns = Columns(["line", "source"], [lines, Shared("s")], 3, is_maps=True)
    texts = encode_compact(None, columns, Style())
    assert texts is not None
    converter = JsonConverter()
    converter.configure({"schemas.enable": "false"})
    assert texts.whole() == converter.from_connect_batch("t", None, columns.items())
    assert texts.whole()[1] == b'{"line":"","source":"s"}'


def test_a_column_with_a_null_takes_a_closer_look() -> None:
    columns = Columns(["line"], [["a", None]], 2, is_maps=True)
    assert encode_compact(None, columns, Style()) is None


def test_lone_surrogates_fail_alone() -> None:
    converter = JsonConverter()
    converter.configure({"schemas.enable": "false"})
    with pytest.raises(BatchError) as caught:
        converter.from_connect_compact("t", STRING_SCHEMA, Lines("a\n\ud800", 2))
    assert list(caught.value.errors) == [1]
