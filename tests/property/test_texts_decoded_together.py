"""Tests that StringConverter returns the same strings for a batch as for single records."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.converters.string_converter import StringConverter
from headrace.data.columns import Lines, listed
from headrace.plugins.creation import create_converter
from support.examples import examples

# Bytes that are valid at some positions of a UTF-8 sequence and invalid at others.
_BYTES = st.lists(st.sampled_from(b"a\n\r\x7f\x80\x90\x9f\xa0\xbf\xc0\xc2\xe0\xe2\xed\xf0\xf4\xf5\xff"), max_size=6)
_TEXTS = st.one_of(st.none(), _BYTES.map(bytes), st.text(max_size=6).map(str.encode))


@settings(deadline=None, max_examples=examples(500))
@given(st.lists(_TEXTS, min_size=1, max_size=5))
def test_string_converter_decodes_a_batch_to_the_same_strings_as_single_records(data: list[bytes | None]) -> None:
    converter = create_converter(StringConverter, {}, "value")
    [run] = converter.to_connect_batch("t", data)
    assert listed(run.values) == [converter.to_connect("t", item).value for item in data]
    assert isinstance(run.values, Lines) is not any(item is None or b"\n" in item for item in data)
