"""Tests that JSON texts have the same values whether they are decoded immediately or later."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.api.errors import RecordErrors
from headrace.converters.json_converter import JsonConverter
from headrace.data.columns import listed
from headrace.data.json_texts import JsonTexts, json_texts
from support.connect_data import schemaless
from support.examples import examples
from support.transforms import make_converter

CONVERTER = make_converter(JsonConverter, "value", schemas_enable="false")


def decoded(data: list[bytes | None], *, as_text: bool) -> list[Any] | str:
    """Return the repr of each value, or the repr of the error. A repr distinguishes 1 from 1.0 and from True.

    If `as_text` is true, the converter keeps JSON objects as text, and they are decoded when their values are read.
    """
    convert = CONVERTER.to_connect_texts if as_text else CONVERTER.to_connect_batch
    try:
        return [repr(value) for run in convert("t", data) for value in listed(run.values)]
    except Exception as error:  # noqa: BLE001 - both calls must raise the same error
        return repr(error)


@st.composite
def texts(draw: st.DrawFn) -> bytes:
    """Generate the text of a JSON object. Some texts are invalid or have several lines."""
    value = draw(st.dictionaries(st.text(max_size=3), schemaless(), max_size=3))
    text = json.dumps(value, ensure_ascii=draw(st.booleans()), indent=draw(st.sampled_from([None, None, 1])))
    data = bytearray(text.encode("utf-8", "surrogatepass"))
    for at, byte in draw(st.lists(st.tuples(st.integers(0, len(data)), st.sampled_from(b'\xff\x80\xed"{}[]e9,:\\ \n'))
                                  , max_size=2)):  # fmt: skip
        data[at:at] = bytes([byte])
    return bytes(data)


@settings(deadline=None, max_examples=examples(300))
@given(st.lists(texts() | st.sampled_from([b"", b"null", b"{}", b"[1]", b"{} {}", None]), max_size=4))
def test_json_that_is_decoded_later_has_the_same_values_as_json_that_is_decoded_immediately(
    data: list[bytes | None],
) -> None:
    assert decoded(data, as_text=True) == decoded(data, as_text=False)


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(texts() | st.sampled_from([b"null", b"{}", b"[1]", None]), min_size=1, max_size=4))
def test_other_records_of_a_batch_do_not_determine_whether_a_record_is_kept_as_text(data: list[bytes | None]) -> None:
    def kept(part: list[bytes | None]) -> list[bool] | None:
        try:
            runs = CONVERTER.to_connect_texts("t", part)
        except RecordErrors:
            return None
        return [isinstance(run.values, JsonTexts) for run in runs for _ in range(len(run.values))]

    found = kept(data)
    assert found is None or found == [is_text for each in data for is_text in kept([each]) or ()]


@settings(deadline=None, max_examples=examples(100))
@given(st.lists(texts(), min_size=1, max_size=4))
def test_payloads_that_are_kept_as_text_are_json_objects_on_one_line(data: list[bytes]) -> None:
    accepted = json_texts(data)
    if accepted is not None:
        assert b"\n".join(accepted.texts).split(b"\n") == data
        assert [json.loads(text).__class__ for text in data] == [dict] * len(data)


@pytest.mark.parametrize(
    "text",
    [
        b'{"a":"\xff"}',
        b'{"a":"\xed\xa0\x80"}',
        b'{"a":\n1}',
        b'{"a":1}\r',
        b'{"a":1} {"b":2}',
        b'{"a":1,}',
        b'{"a":' + b"9" * 5000 + b"}",
        b'{"a":' + b"[" * 500 + b"]" * 500 + b"}",
        b"[1]",
        b"null",
        b"",
    ],
)
def test_function_json_texts_returns_none_if_a_payload_is_invalid_json_or_not_an_object_or_has_several_lines(
    text: bytes,
) -> None:
    assert json_texts([b'{"a":1}', text]) is None


def test_valid_json_object_on_several_lines_is_kept_as_text_on_one_line() -> None:
    """A sink that reads exact numbers must not depend on the whitespace between them."""
    invalid = [b'{"a":"x\ny"}', b'{"a":\n1,}', b"[\n1]"]
    data = [b'{\r\n  "a": 12345678901234567.89\n}\n', b' {"a":\t"\\n"}', b'{"a":1}']
    (run,) = CONVERTER.to_connect_texts("t", data)
    assert isinstance(run.values, JsonTexts)
    assert run.values.texts == [b'{    "a": 12345678901234567.89 }', b'{"a":\t"\\n"}', b'{"a":1}']
    with pytest.raises(RecordErrors) as error:
        CONVERTER.to_connect_texts("t", [*invalid[:2], data[0]])
    assert sorted(error.value.errors) == [0, 1]
    assert [listed(run.values) for run in CONVERTER.to_connect_texts("t", [invalid[2], data[2]])] == [[[1]], [{"a": 1}]]


def test_json_number_outside_the_range_of_a_double_is_decoded_as_infinity() -> None:
    accepted = json_texts([b'{"a":1e400,"b":-1e99999999999999999999}'])
    assert accepted is not None
    assert accepted.items() == [{"a": math.inf, "b": -math.inf}]


def test_method_take_of_json_texts_returns_the_texts_and_values_at_the_given_indexes_in_the_given_order() -> None:
    selected = JsonTexts([b'{"a":1}', b'{"a":2}', b'{"a":3}']).take([2, 0])
    assert (selected.texts, selected.items()) == ([b'{"a":3}', b'{"a":1}'], [{"a": 3}, {"a": 1}])
