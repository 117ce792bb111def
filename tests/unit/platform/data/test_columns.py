"""Tests that columnar values contain the same items as the equivalent lists."""

from __future__ import annotations

from headrace.data.batch import Batch
from headrace.data.columns import Columns, Lines, Shared, listed
from headrace.data.schema import INT64_SCHEMA, STRING_SCHEMA, struct

MAPS = Columns(["line", "n", "source"], [Lines("a\nb\n", 3), [1, None, 3], Shared("x")], 3, is_maps=True)
ITEMS = [
    {"line": "a", "n": 1, "source": "x"},
    {"line": "b", "n": None, "source": "x"},
    {"line": "", "n": 3, "source": "x"},
]


def test_columnar_values_are_converted_to_a_list() -> None:
    """The items of the list are dicts if `is_maps` is true, and tuples if `is_maps` is false."""
    assert (len(MAPS), MAPS.items()) == (3, ITEMS)
    rows = Columns(MAPS.names, MAPS.columns, 3, is_maps=False)
    assert rows.items() == [("a", 1, "x"), ("b", None, "x"), ("", 3, "x")]
    assert rows.items() is rows.items()


def test_empty_maps_and_structs_in_columnar_form_are_converted_to_a_list() -> None:
    """The columnar form of empty maps or structs has no columns. The list contains empty dicts or tuples."""
    assert Columns([], [], 2, is_maps=True).items() == [{}, {}]
    assert Columns([], [], 2, is_maps=False).items() == [(), ()]


def test_column_that_stores_one_value_for_all_rows_still_stores_one_value_for_the_selected_rows() -> None:
    taken = MAPS.take([2, 0])
    assert taken.items() == [ITEMS[2], ITEMS[0]]
    assert taken.column("source") == Shared("x")


def test_column_that_is_put_under_an_existing_name_replaces_the_old_column_and_keeps_its_position() -> None:
    changed = MAPS.put("n", Shared(0)).put("new", [7, 8, 9])
    assert changed.names == ("line", "n", "source", "new")
    assert changed.items()[1] == {"line": "b", "n": 0, "source": "x", "new": 8}
    assert MAPS.items() == ITEMS


def test_column_names_may_contain_quotes_braces_and_line_breaks() -> None:
    names = ["it's", 'a "b"', "{0}", "\n"]
    item = dict(zip(names, range(4), strict=True))
    assert Columns(names, [Shared(index) for index in range(4)], 1, is_maps=True).items() == [item]


def test_values_of_a_batch_built_from_columns_are_a_list_of_rows() -> None:
    schema = struct([("line", STRING_SCHEMA), ("n", INT64_SCHEMA)])
    rows = Columns(["line", "n"], [Lines("a\nb", 2), [1, 2]], 2, is_maps=False)
    batch = Batch("t", rows, value_schema=schema)
    assert (len(batch), batch.values, batch.compact) == (2, [("a", 1), ("b", 2)], rows)
    assert [record.value["n"] for record in batch.to_records()] == [1, 2]
    assert batch.take([1]).values == [("b", 2)]
    changed = batch.replace(values=[("c", 3), ("d", 4)])
    assert (changed.values, changed.compact, changed.value_schema) == ([("c", 3), ("d", 4)], None, schema)
    assert listed(Lines("one", 1)) == ["one"]
    assert Batch("t", Lines("a\nb\nc", 3)).take([0, 2]).values == ["a", "c"]


def test_taking_records_does_not_create_a_list_of_a_range() -> None:
    offsets = range(10**15)
    taken = Columns(["offset"], [offsets], len(offsets), is_maps=False).take([3, 10**14])
    assert taken.items() == [(3,), (10**14,)]
