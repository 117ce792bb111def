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
def test_any_header_string_is_parsed_to_itself_or_to_a_value_that_matches_the_returned_schema(text: str) -> None:
    schema, value = parse_string(text)
    if schema is None:
        assert (value, text.strip()) == (None, "null")
    elif schema.type is Type.STRING:
        assert value == text
    elif schema.type.is_primitive:
        validate(schema, value)


@settings(deadline=None)
@given(st.lists(_plain, max_size=4) | st.dictionaries(st.text(st.sampled_from("abc"), min_size=1), _plain, max_size=4))
def test_lists_and_maps_round_trip_through_header_text(value: Any) -> None:
    assert parse_string(convert_to_string(value)).value == value


@given(
    st.integers()
    | st.sampled_from([sign * 2**bits + by for bits in (7, 15, 31, 63) for sign in (-1, 1) for by in (-1, 0, 1)])
)
def test_integer_in_header_text_is_parsed_to_the_same_type_alone_and_in_a_list(number: int) -> None:
    schema, value = parse_string(str(number))
    assert value == number
    in_list = parse_string(f"[{number}]")
    assert in_list.value == [number]
    assert in_list.schema is not None
    assert in_list.schema.value_schema == schema


@example("t", "rue ")
@example("f", "alse")
@example("n", "ull")
@given(st.sampled_from("aTNtfn\u00e9"), st.text(st.sampled_from('ue 1:,"]'), max_size=9))
def test_header_text_that_starts_with_a_letter_is_parsed_as_a_string_unless_it_is_true_false_or_null(
    letter: str, rest: str
) -> None:
    schema, value = parse_string(letter + rest)
    if (letter + rest).strip() not in {"true", "false", "null"}:
        assert schema is not None
        assert (schema.type, value) == (Type.STRING, letter + rest)
