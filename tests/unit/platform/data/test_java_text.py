from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest

from headrace.data.lines import java_lines
from headrace.data.logical import Date, Time, Timestamp
from headrace.data.schema import (
    FLOAT32_SCHEMA,
    FLOAT64_SCHEMA,
    INT32_SCHEMA,
    OPTIONAL_STRING_SCHEMA,
    STRING_SCHEMA,
    Schema,
    array,
    map_of,
    struct,
)
from headrace.data.struct import Struct
from headrace.data.text import java_string

INNER = struct([("f", FLOAT32_SCHEMA)], optional=True)
OUTER = struct([("a", INT32_SCHEMA), ("b", OPTIONAL_STRING_SCHEMA), ("i", INNER), ("l", array(FLOAT32_SCHEMA))])
TENTH = 0.10000000149011612


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x", "x"),
        (1, "1"),
        (True, "true"),
        (None, "null"),
        (1e10, "1.0E10"),
        ([1, "a", None, False], "[1, a, null, false]"),
        ({"a": 1}, "{a=1}"),
        ({"data_source": "t", "line": "x"}, "{line=x, data_source=t}"),
        ({"a": {"b": [1.5]}}, "{a={b=[1.5]}}"),
        (Decimal("1E+3"), "1E+3"),
        (Decimal("0.0000001"), "1E-7"),
        (Decimal("123.450"), "123.450"),
        (Timestamp(1_700_000_000_123), "Tue Nov 14 22:13:20 UTC 2023"),
        (Date(0), "Thu Jan 01 00:00:00 UTC 1970"),
        (Time(3_723_000), "Thu Jan 01 01:02:03 UTC 1970"),
        (Timestamp(-(2**63)), "Sun Dec 02 16:47:04 UTC 292269055"),
        (Date(2**31 - 1), "Fri Jul 11 00:00:00 UTC 5881580"),
        (dt.date(1970, 1, 1), "Thu Jan 01 00:00:00 UTC 1970"),
        (b"\x01\xff", "01ff"),
    ],
)
def test_schemaless_value_is_formatted_as_by_javas_to_string_method(value: Any, text: str) -> None:
    assert java_string(value) == text


def test_text_of_a_struct_with_a_null_field_omits_the_field_as_in_java() -> None:
    value = Struct(OUTER, {"a": 1, "i": Struct(INNER, {"f": TENTH}), "l": [TENTH]})
    assert repr(value) == "Struct{a=1,i=Struct{f=0.1},l=[0.1]}"
    assert java_string((1, None, (TENTH,), [TENTH]), OUTER) == repr(value)
    assert repr(Struct(OUTER, [1, "b", None, None])) == "Struct{a=1,b=b}"


@pytest.mark.parametrize(
    ("schema", "values", "texts"),
    [
        (STRING_SCHEMA, ["a", "b"], ["a", "b"]),
        (OPTIONAL_STRING_SCHEMA, ["a", None], ["a", "null"]),
        (FLOAT32_SCHEMA, [TENTH], ["0.1"]),
        (FLOAT64_SCHEMA, [TENTH], ["0.10000000149011612"]),
        (map_of(STRING_SCHEMA, FLOAT32_SCHEMA), [{"k": TENTH}], ["{k=0.1}"]),
        (None, [{"k": 1}], ["{k=1}"]),
    ],
)
def test_values_with_a_schema_are_formatted_as_by_javas_to_string_method(
    schema: Schema | None, values: list[Any], texts: list[str]
) -> None:
    assert java_lines(schema, values) == "".join(text + "\n" for text in texts)
