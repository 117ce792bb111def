"""Tests that formatting a list of values returns the same text as formatting each value."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.data.lines import java_lines
from headrace.data.schema import FLOAT32_SCHEMA, INT64_SCHEMA, OPTIONAL_STRING_SCHEMA, STRING_SCHEMA, Schema, struct
from headrace.data.text import java_string

ROW = struct(fields=[("100%", INT64_SCHEMA), ("b", OPTIONAL_STRING_SCHEMA), ("f", FLOAT32_SCHEMA)])


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        (STRING_SCHEMA, ["a", "b"]),
        (OPTIONAL_STRING_SCHEMA, ["a", None]),
        (ROW, [(1, "x", 1.5), (2, "y %s", 0.1)]),
        (ROW, [(1, "x", 1.5), (2, None, 0.1)]),
        (ROW, [(1, "x", 1.5), None]),
        (None, [{"timestamp": 1, "a%": "x", "incrementing": True}, {"timestamp": 2, "a%": "y", "incrementing": None}]),
        (None, [{"a": 1}, {"b": 1}]),
        (None, [{"a": 1, "b": [1, {"x": None}]}, {"b": 2, "a": {"y": 1.0}}]),
        (None, [{}, {}]),
        (None, [{"a": 1}, None]),
        (None, [{1: "x"}, {1: "y"}]),
        (None, [1, "x"]),
        (None, []),
    ],
)
def test_list_of_values_is_formatted_to_the_same_texts_as_each_value_alone(
    schema: Schema | None, values: list[Any]
) -> None:
    assert java_lines(schema, values) == "".join(java_string(value, schema) + "\n" for value in values)
