"""Hypothesis strategies for columnar values (`headrace.data.columns`)."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from headrace.data.columns import CheckedRows, Column, ColumnarValues, Columns, Lines, Shared
from headrace.data.schema import OPTIONAL_STRING_SCHEMA, STRING_SCHEMA, Schema, Type
from headrace.data.struct import to_rows
from support.connect_data import schemaless, values


@st.composite
def _column(draw: st.DrawFn, schema: Schema | None, count: int) -> Column:
    """Generate a column of `count` values. Structs are tuples.

    The column is a list, lines of text (`Lines`), or one value that all rows share (`Shared`).
    """
    strategy = schemaless() if schema is None else values(schema)
    if draw(st.booleans()):
        return Shared(to_rows(schema, [draw(strategy)])[0])
    if (schema is None or schema.type is Type.STRING) and draw(st.booleans()):
        lines = draw(
            st.lists(st.text(st.characters(codec="utf-8", exclude_characters="\n")), min_size=count, max_size=count)
        )
        return Lines("\n".join(lines), count)
    return to_rows(schema, draw(st.lists(strategy, min_size=count, max_size=count)))


@st.composite
def columnar_values(draw: st.DrawFn, structs: Sequence[Schema]) -> tuple[Schema | None, ColumnarValues]:
    """Generate columnar values and their schema. The values are strings, maps, or structs of one of the schemas."""
    count = draw(st.integers(1, 4))
    if draw(st.sampled_from([True, False, False, False])):
        column = draw(_column(STRING_SCHEMA, count).filter(lambda column: isinstance(column, Lines)))
        return draw(st.sampled_from([STRING_SCHEMA, OPTIONAL_STRING_SCHEMA, None])), column
    schema = draw(st.sampled_from([*structs, None]))
    if schema is None:
        names = draw(st.lists(st.sampled_from(["a", "b", "c", "ts", "s"]), unique=True))
        columns = [draw(_column(None, count)) for _ in names]
    else:
        names = [field.name for field in schema.fields]
        columns = [draw(_column(field.schema, count)) for field in schema.fields]
        if draw(st.booleans()):
            return schema, CheckedRows(Columns(names, columns, count, is_maps=False).items())
    return schema, Columns(names, columns, count, is_maps=schema is None)
