from __future__ import annotations

import pytest

from headrace.api.converter import Run
from headrace.api.errors import ConfigErrors
from headrace.converters.string_converter import StringConverter
from headrace.data.schema import FLOAT32_SCHEMA, INT32_SCHEMA, OPTIONAL_STRING_SCHEMA, STRING_SCHEMA, struct
from headrace.data.struct import Struct

POINT = struct([("x", INT32_SCHEMA), ("f", FLOAT32_SCHEMA)])


def converter(**props: str) -> StringConverter:
    made = StringConverter()
    made.configure({name.replace("_", "."): value for name, value in props.items()}, True)
    return made


def test_text_both_ways() -> None:
    made = converter()
    assert made.from_connect_batch("t", STRING_SCHEMA, ["é", "b"]) == ["é".encode(), b"b"]
    assert made.from_connect_batch("t", OPTIONAL_STRING_SCHEMA, ["a", None]) == [b"a", None]
    assert made.to_connect_batch("t", [b"a", None, b"\xff"]) == [Run(OPTIONAL_STRING_SCHEMA, ["a", None, "\ufffd"])]
    assert made.to_connect("t", b"a") == (OPTIONAL_STRING_SCHEMA, "a")
    assert made.to_connect_batch("t", []) == []


def test_anything_else_as_java_prints_it() -> None:
    made = converter()
    assert made.from_connect("t", POINT, Struct(POINT, {"x": 1, "f": 0.10000000149011612})) == b"Struct{x=1,f=0.1}"
    assert made.from_connect_batch("t", POINT, [(1, 0.5)]) == [b"Struct{x=1,f=0.5}"]
    assert made.from_connect_batch("t", None, [{"a": 1}, 1.0, True]) == [b"{a=1}", b"1.0", b"true"]


def test_unpaired_surrogates_become_question_marks() -> None:
    assert converter().from_connect_batch("t", STRING_SCHEMA, ["a", "\ud800"]) == [b"a", b"?"]


def test_encodings() -> None:
    made = converter(converter_encoding="ISO-8859-1")
    assert made.from_connect_batch("t", STRING_SCHEMA, ["é"]) == [b"\xe9"]
    assert made.to_connect("t", b"\xe9").value == "é"
    with pytest.raises(ConfigErrors, match="No such character set"):
        converter(converter_encoding="UTF-99")
