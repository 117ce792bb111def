"""Tests that the CSV text that the JDBC sink sends to PostgreSQL contains the values of the rows."""

from __future__ import annotations

import csv
import io
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from headrace_connectors.jdbc.writing.postgresql_copy import csv_lines

TEXTS = st.text(st.one_of(st.characters(codec="utf-8"), st.sampled_from('\0\b\t\n\f\r"\\,[]nu0')))
VALUES = st.one_of(
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    TEXTS.filter(lambda text: text != "null"),  # the csv module does not distinguish null from "null"
    st.none(),
)


def text_of(value: Any) -> str | float:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    return value if isinstance(value, (str, float)) else str(value)


@given(st.integers(1, 4).flatmap(lambda width: st.lists(st.tuples(*[VALUES] * width), min_size=1, max_size=5)))
def test_csv_contains_the_values_of_all_rows(rows: list[tuple[Any, ...]]) -> None:
    text = csv_lines(rows).decode()
    found = list(csv.reader(io.StringIO(text, newline=""), doublequote=False, escapechar="\\", strict=True))
    expected = [[text_of(value) for value in row] for row in rows]
    assert len(found) == len(expected)
    for items, row in zip(found, expected, strict=True):
        assert [
            float(item) if isinstance(value, float) else item for item, value in zip(items, row, strict=True)
        ] == row


def test_csv_quotes_text_but_not_null() -> None:
    assert csv_lines([(None, "null", "", 1), (True, 'a"b\\', "c\nd", 1e20)]) == (
        b'null,"null","",1\n' + rb'true,"a\"b\\","c' + b"\n" + b'd",1e20\n'
    )
