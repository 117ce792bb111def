from __future__ import annotations

import pytest

from headrace.api.converter import SchemaRun
from headrace.api.errors import ConfigErrors
from headrace.converters.string_converter import StringConverter
from headrace.data.columns import listed
from headrace.data.schema import FLOAT32_SCHEMA, INT32_SCHEMA, OPTIONAL_STRING_SCHEMA, STRING_SCHEMA, struct
from headrace.data.struct import Struct
from support.transforms import make_converter

POINT = struct([("x", INT32_SCHEMA), ("f", FLOAT32_SCHEMA)])


def converter(**props: str) -> StringConverter:
    return make_converter(StringConverter, "key", **props)


def test_string_converter_encodes_and_decodes_strings_and_null() -> None:
    configured = converter()
    assert configured.from_connect_batch("t", STRING_SCHEMA, ["é", "b"]) == ["é".encode(), b"b"]
    assert configured.from_connect_batch("t", OPTIONAL_STRING_SCHEMA, ["a", None]) == [b"a", None]
    assert configured.to_connect_batch("t", [b"a", None, b"\xff"]) == [
        SchemaRun(OPTIONAL_STRING_SCHEMA, ["a", None, "\ufffd"])
    ]
    assert configured.to_connect("t", b"a") == (OPTIONAL_STRING_SCHEMA, "a")
    assert configured.to_connect_batch("t", []) == []


def test_string_converter_writes_values_that_are_not_strings_as_java_to_string_does() -> None:
    configured = converter()
    assert (
        configured.from_connect("t", POINT, Struct(POINT, {"x": 1, "f": 0.10000000149011612})) == b"Struct{x=1,f=0.1}"
    )
    assert configured.from_connect_batch("t", POINT, [(1, 0.5)]) == [b"Struct{x=1,f=0.5}"]
    assert configured.from_connect_batch("t", None, [{"a": 1}, 1.0, True]) == [b"{a=1}", b"1.0", b"true"]


def test_string_converter_writes_unpaired_surrogates_as_question_marks() -> None:
    assert converter().from_connect_batch("t", STRING_SCHEMA, ["a", "\ud800"]) == [b"a", b"?"]


def test_string_converter_uses_its_configured_encoding() -> None:
    configured = converter(converter_encoding="ISO-8859-1")
    assert configured.from_connect_batch("t", STRING_SCHEMA, ["é"]) == [b"\xe9"]
    assert configured.to_connect("t", b"\xe9").value == "é"


@pytest.mark.parametrize(
    ("encoding", "text", "data"),
    [
        ("UTF-16", "aé", "feff006100e9"),
        ("UTF-16BE", "a\ud800", "0061fffd"),
        ("UTF-16LE", "a", "6100"),
        ("UTF-32", "a", "00000061"),
        ("UTF-16", "", ""),
    ],
)
def test_encoding_has_the_byte_order_and_the_byte_order_mark_of_java(encoding: str, text: str, data: str) -> None:
    configured = converter(converter_encoding=encoding)
    assert configured.from_connect("t", STRING_SCHEMA, text) == bytes.fromhex(data)
    assert configured.to_connect("t", bytes.fromhex(data)).value == text.replace("\ud800", "\ufffd")


@pytest.mark.parametrize(
    ("encoding", "data", "text"),
    [
        ("UTF-16", "0061", "a"),
        ("UTF-16", "fffe6100", "a"),
        ("UTF-16LE", "38db5b43640b", "\ufffd\u0b64"),
        ("UTF-8", "78eda08079", "x\ufffdy"),
        ("UTF-8", "eda041", "\ufffdA"),
        ("UTF-8", "eda0", "\ufffd"),
        ("UTF-8", "f09f98", "\ufffd"),
        ("UTF-8", "c080", "\ufffd\ufffd"),
        ("UTF-8", "efbbbf61", "\ufeffa"),
    ],
)
def test_malformed_bytes_are_replaced_with_as_many_characters_as_in_java(encoding: str, data: str, text: str) -> None:
    configured = converter(converter_encoding=encoding)
    assert configured.to_connect("t", bytes.fromhex(data)).value == text
    (run,) = configured.to_connect_batch("t", [bytes.fromhex(data)])
    assert listed(run.values) == [text]


def test_unknown_encoding_is_rejected() -> None:
    with pytest.raises(ConfigErrors, match="Unknown character set"):
        converter(converter_encoding="UTF-99")
