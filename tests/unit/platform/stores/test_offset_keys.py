"""Tests that offset keys have the same bytes as in Java, for any order of a source partition's fields."""

from __future__ import annotations

import pytest

from headrace.stores import offset_keys


def test_json_fields_of_offset_keys_and_values_are_in_java_hash_map_order() -> None:
    assert offset_keys.encode_key("c", {"table": "t", "protocol": "1"}) == b'["c",{"protocol":"1","table":"t"}]'
    offset = {"timestamp": 1, "incrementing": 2, "timestamp_nanos": 3}
    assert offset_keys.encode_value(offset) == b'{"timestamp_nanos":3,"incrementing":2,"timestamp":1}'


def test_non_ascii_text_in_an_offset_key_is_encoded_as_utf_8() -> None:
    assert offset_keys.encode_key("ü", {"file": "ä"}) == '["ü",{"file":"ä"}]'.encode()


def test_encoded_offset_keys_and_values_are_decoded() -> None:
    assert offset_keys.decode_key(b'["c",{"a":1}]') == ("c", {"a": 1})
    assert offset_keys.decode_value(b'{"position":7}') == {"position": 7}
    assert offset_keys.decode_value(None) is None


@pytest.mark.parametrize("key", [b"null", b"[]", b'["c"]', b'[1,{"a":1}]', b"not json"])
def test_invalid_offset_key_is_rejected(key: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        offset_keys.decode_key(key)


def test_canonical_key_of_a_source_partition_does_not_depend_on_the_order_of_its_fields() -> None:
    assert offset_keys.canonical({"a": 1, "b": 2}) == offset_keys.canonical({"b": 2, "a": 1})
    assert offset_keys.canonical({"a": 1}) != offset_keys.canonical({"a": "1"})


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e400"])
def test_numbers_that_json_cannot_represent_are_rejected(number: str) -> None:
    with pytest.raises(ValueError, match=number.removeprefix("-")):
        offset_keys.decode_value(f'{{"n":{number}}}'.encode())
    with pytest.raises(ValueError, match=number.removeprefix("-")):
        offset_keys.decode_key(f'["c",{{"p":{number}}}]'.encode())
