"""Tests of the records that existing objects contain."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.api.errors import ConnectError
from headrace_connectors.s3.stored_records import ObjectRange, StoredRecords, checksum


def item(offset: int) -> bytes:
    return b"%d" % offset


def missing(stored: StoredRecords, directory: str, offsets: Sequence[int]) -> list[int]:
    ranges = stored.missing(directory, offsets, [item(offset) for offset in offsets], 0, len(offsets))
    return [offset for start, end in ranges for offset in offsets[start:end]]


def object_of(first: int, last: int) -> ObjectRange:
    return ObjectRange(f"t+0+{first}.json", first, last, checksum([item(first)]), checksum([item(last)]))


def test_records_of_a_directory_without_existing_objects_are_missing() -> None:
    stored = StoredRecords()
    stored.add("a", object_of(0, 9))
    assert missing(stored, "b", [0, 1, 2]) == [0, 1, 2]


def test_object_contains_all_records_of_its_directory_from_its_first_to_its_last_offset() -> None:
    stored = StoredRecords()
    stored.add("a", object_of(5, 9))
    assert missing(stored, "a", [2, 5, 6]) == [2]
    assert missing(stored, "a", [7, 9, 11, 12]) == [11, 12]


def test_longer_object_with_the_same_first_offset_is_kept() -> None:
    stored = StoredRecords()
    stored.add("a", object_of(0, 2))
    stored.add("a", object_of(0, 1))
    assert missing(stored, "a", [0, 1, 2, 3]) == [3]


@pytest.mark.parametrize("offset", [5, 9])
def test_object_whose_first_or_last_record_differs_is_an_error(offset: int) -> None:
    stored = StoredRecords()
    stored.add("a", object_of(5, 9))
    items = [b"other" if each == offset else item(each) for each in range(5, 10)]
    with pytest.raises(ConnectError, match=rf"t\+0\+5\.json exists, but its record with offset {offset} differs"):
        stored.missing("a", range(5, 10), items, 0, 5)


def test_range_of_an_object_is_restored_from_its_metadata() -> None:
    found = object_of(3, 8)
    assert ObjectRange.from_metadata(found.key, 3, found.to_metadata()) == found


@pytest.mark.parametrize(
    "metadata", [{}, {"headrace-last-offset": "9"}, object_of(3, 8).to_metadata() | {"headrace-last-offset": "x"}]
)
def test_only_the_first_record_of_an_object_without_complete_metadata_is_known(metadata: dict[str, str]) -> None:
    assert ObjectRange.from_metadata("k", 3, metadata) == ObjectRange("k", 3, 3)


def test_offset_inside_an_object_is_not_committed() -> None:
    stored = StoredRecords()
    stored.add("a", object_of(2, 10))
    stored.add("b", object_of(3, 5))
    assert [stored.first_offset_around(offset) for offset in (2, 3, 4, 5, 6, 10, 11)] == [None, 2, 2, 2, 2, 2, None]


@given(st.data())
def test_records_are_missing_if_no_object_contains_them_even_if_they_are_read_again(data: st.DataObject) -> None:
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
            last = data.draw(st.integers(first, len(offsets) - 1), label="index of the object's last record")
            stored.add("a", object_of(offsets[first], offsets[last]))
            expected -= set(offsets[first : last + 1])
            position = data.draw(st.integers(0, first), label="the task reads again from")
