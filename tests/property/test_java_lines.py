"""Tests of the function `java_lines`, which formats a whole batch.

Whether a batch consists of lines, columns or single values, the result must be equal to the result of `java_string`
for each single value.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.data.columns import Columns, Lines, Shared
from headrace.data.lines import java_lines
from headrace.data.schema import Schema
from headrace.data.struct import to_rows
from headrace.data.text import java_string
from support.connect_data import primitives, schemaless, schemas, struct_of, values
from support.examples import examples


def _lines(schema: Schema | None, items: list[Any]) -> str:
    return "".join(java_string(item, schema) + "\n" for item in items)


@st.composite
def schema_and_rows(draw: st.DrawFn) -> tuple[Schema, list[Any]]:
    schema = draw(schemas() | struct_of(primitives(), 8))
    return schema, to_rows(schema, draw(st.lists(values(schema), max_size=4)))


@settings(deadline=None, max_examples=examples(60))
@given(schema_and_rows())
def test_list_of_rows_is_formatted_like_single_rows(data: tuple[Schema, list[Any]]) -> None:
    assert java_lines(*data) == _lines(*data)


@settings(deadline=None, max_examples=examples(40))
@given(st.lists(schemaless(), max_size=4))
def test_list_of_schemaless_values_is_formatted_like_single_values(items: list[Any]) -> None:
    assert java_lines(None, items) == _lines(None, items)


@st.composite
def columns(draw: st.DrawFn, schema: Schema | None) -> Columns:
    count = draw(st.integers(1, 4))
    column_schemas = None if schema is None else [field.schema for field in schema.fields]
    if schema is None:
        names = draw(st.lists(st.text(max_size=5), unique=True, max_size=5))
    else:
        names = [field.name for field in schema.fields]
    made: list[Any] = []
    for index in range(len(names)):
        column_schema = None if column_schemas is None else column_schemas[index]
        item = schemaless() if column_schema is None else values(column_schema)
        kinds = [
            st.lists(item, min_size=count, max_size=count),
            st.builds(Shared, item),
        ]
        if column_schema is None:
            kinds.append(st.integers(-2, 10**15).map(lambda first: range(first, first + count)))
            kinds.append(st.lists(st.text("ab", max_size=3), min_size=count, max_size=count).map(_as_lines))
        made.append(draw(st.one_of(kinds)))
    return Columns(names, made, count, is_maps=schema is None)


def _as_lines(texts: list[str]) -> Lines:
    return Lines("\n".join(texts), len(texts))


@settings(deadline=None, max_examples=examples(100))
@given(columns(None))
def test_maps_stored_as_columns_are_formatted_like_single_maps(compact: Columns) -> None:
    """The class `Columns` stores a batch of maps as one column for each key."""
    assert java_lines(None, compact) == _lines(None, compact.items())


@settings(deadline=None, max_examples=examples(100))
@given(st.data())
def test_structs_stored_as_columns_are_formatted_like_single_structs(data: st.DataObject) -> None:
    """The class `Columns` stores a batch of structs as one column for each field."""
    schema = data.draw(struct_of(primitives(), 6)).replace(optional=False)
    compact = data.draw(columns(schema))
    assert java_lines(schema, compact) == _lines(schema, compact.items())


@given(st.lists(st.text("a\xe9", max_size=3), min_size=1))
def test_batch_of_strings_is_formatted_like_single_strings(texts: list[str]) -> None:
    assert java_lines(None, _as_lines(texts)) == _lines(None, texts)


def test_column_of_consecutive_integers_is_formatted_like_single_integers() -> None:
    """The column is a Python `range` object."""
    for start in (-5, 0, 1, 999, 1000, 1001, 5_999, 123_456_789):
        for count in (1, 2, 1000, 2500):
            compact = Columns(["o", "x"], [range(start, start + count), Shared("y")], count, is_maps=True)
            assert java_lines(None, compact) == "".join(f"{{x=y, o={n}}}\n" for n in range(start, start + count))
