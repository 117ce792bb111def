"""Tests that any string is parsed to a header value without loss, and that formatted values round-trip."""

from __future__ import annotations

from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from headrace.data.schema import Type
from headrace.data.value_text import convert_to_string, parse_string
from headrace.data.values import validate

_plain = st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(st.sampled_from("ab x."), max_size=5)


@settings(deadline=None)
@example("{ ")
@example("[ ")
@given(st.text(st.sampled_from('0123456789-+.:TZe,[]{}"\\ truefalsn'), max_size=30) | st.text(max_size=20))
def test_any_header_string_is_parsed_without_loss(text: str) -> None:
    schema, value = parse_string(text)
    if schema is None:
        assert (value, text.strip()) == (None, "null")
    elif schema.type is Type.STRING:
        assert value == text
    elif schema.type.is_primitive:
        validate(schema, value)


@settings(deadline=None)
@given(st.lists(_plain, max_size=4) | st.dictionaries(st.text(st.sampled_from("abc"), min_size=1), _plain, max_size=4))
def test_header_lists_and_maps_are_parsed_from_their_strings(value: Any) -> None:
    assert parse_string(convert_to_string(value)).value == value
