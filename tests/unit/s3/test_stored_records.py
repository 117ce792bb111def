"""Tests of the records that existing objects contain."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.api.errors import ConnectError
from headrace_connectors.s3.existing_objects import ExistingRecords
from headrace_connectors.s3.stored_records import StoredRecords


def missing(stored: StoredRecords, directory: str, offsets: Sequence[int]) -> list[int]:
    """The encoded records are the offsets."""
    ranges = stored.missing(directory, offsets, offsets, 0, len(offsets))
    return [offset for start, end in ranges for offset in offsets[start:end]]


def records(count: int) -> ExistingRecords:
    return ExistingRecords("key", count)


def test_records_of_a_directory_without_existing_objects_are_missing() -> None:
    stored = StoredRecords()
    stored.add("a", 0, records(10))
    assert missing(stored, "b", [0, 1, 2]) == [0, 1, 2]


def test_object_contains_the_first_records_of_its_directory_from_its_first_offset_on() -> None:
    stored = StoredRecords()
    stored.add("a", 5, records(3))
    assert missing(stored, "a", [2, 5, 6]) == [2]
    assert missing(stored, "a", [9, 11, 12]) == [11, 12]
    assert missing(stored, "a", [5, 6, 9, 11]) == [11]


def test_object_that_is_added_again_with_a_smaller_count_keeps_its_larger_count() -> None:
    stored = StoredRecords()
    stored.add("a", 0, records(2))
    stored.add("a", 0, records(1))
    assert missing(stored, "a", [0, 1, 2]) == [2]


def test_object_with_another_record_at_the_position_of_a_record_is_an_error() -> None:
    stored = StoredRecords()
    content = [5, 6, 700]
    stored.add("a", 5, ExistingRecords("topics/a+0+5.json", 3, lambda position, record: content[position] == record[0]))
    assert missing(stored, "a", [5, 6]) == []
    with pytest.raises(ConnectError, match=r"topics/a\+0\+5\.json exists, but its record number 3 .* offset 7,"):
        missing(stored, "a", [7])


@given(st.data())
def test_records_are_missing_if_no_object_contains_them_even_if_they_are_read_again(
    data: st.DataObject,
) -> None:
    offsets = sorted(data.draw(st.sets(st.integers(0, 40), min_size=1), label="offsets of the directory"))
    stored = StoredRecords()
    expected = set(offsets)
    position = 0
    for _ in range(data.draw(st.integers(1, 6))):
        end = data.draw(st.integers(position, len(offsets)), label="end of the batch")
        batch = offsets[position:end]
        assert missing(stored, "a", batch) == [offset for offset in batch if offset in expected]
        position = end
        if position and data.draw(st.booleans(), label="an object exists"):
            first = data.draw(st.integers(0, position - 1), label="index of the object's first record")
            count = data.draw(st.integers(1, len(offsets) - first + 2), label="records in the object")
            stored.add("a", offsets[first], records(count))
            expected -= set(offsets[first : first + count])
            position = data.draw(st.integers(0, first), label="the task reads again from")
