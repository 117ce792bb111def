from __future__ import annotations

import pytest

from headrace.api.converter import SchemaRun
from headrace.api.errors import ConfigErrors
from headrace.converters.string_converter import StringConverter
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
    with pytest.raises(ConfigErrors, match="Unknown character set"):
        converter(converter_encoding="UTF-99")
