"""Tests of the offsets tracker.

A source offset is committable when its batch and all earlier batches of its source partition have
been acknowledged.
"""

from __future__ import annotations

from headrace.runtime.offsets_tracker import OffsetsTracker

A, B = {"file": "a"}, {"file": "b"}


def test_source_offsets_are_committable_only_up_to_the_first_unacknowledged_batch() -> None:
    tracker = OffsetsTracker()
    first, second, third = (tracker.submit(A, {"n": n}, 1) for n in (1, 2, 3))
    third.acknowledge()
    second.acknowledge()
    assert tracker.committable() == []
    first.acknowledge()
    assert tracker.committable() == [(A, {"n": 3})]
    assert tracker.committable() == []
    assert tracker.unacknowledged() == 0


def test_offset_of_a_source_partition_is_committable_while_another_partition_has_unacknowledged_batches() -> None:
    tracker = OffsetsTracker()
    tracker.submit(A, {"n": 1}, 1)
    tracker.submit(B, {"n": 9}, 1).acknowledge()
    assert tracker.committable() == [(B, {"n": 9})]
    assert tracker.unacknowledged() == 1


def test_equal_source_partition_dicts_are_tracked_as_one_source_partition() -> None:
    tracker = OffsetsTracker()
    first = tracker.submit(dict(A), {"n": 1}, 1)
    tracker.submit(dict(A), {"n": 2}, 1).acknowledge()
    assert tracker.committable() == []
    first.acknowledge()
    assert [offset for _, offset in tracker.committable()] == [{"n": 2}]


def test_offset_of_a_split_batch_is_committable_when_all_its_parts_are_acknowledged() -> None:
    tracker = OffsetsTracker()
    submission = tracker.submit(A, {"n": 1}, 2)
    submission.acknowledge()
    assert tracker.committable() == []
    submission.acknowledge()
    assert tracker.committable() == [(A, {"n": 1})]


def test_offset_of_a_batch_without_records_to_send_is_committable_immediately() -> None:
    tracker = OffsetsTracker()
    tracker.submit(A, {"n": 1}, 0)
    assert tracker.committable() == [(A, {"n": 1})]


def test_tracked_source_offset_does_not_change_if_the_task_modifies_its_offset_dict_later() -> None:
    tracker = OffsetsTracker()
    partition, offset = {"file": "a"}, {"n": 1}
    tracker.submit(partition, offset, 0)
    partition["file"], offset["n"] = "b", 2
    tracker.submit(partition, offset, 1)
    assert tracker.committable() == [({"file": "a"}, {"n": 1})]


def test_removal_of_a_source_offset_is_committable_only_after_earlier_batches_are_acknowledged() -> None:
    tracker = OffsetsTracker()
    first = tracker.submit(A, {"n": 1}, 1)
    tracker.submit_removal(A)
    assert tracker.committable() == []
    first.acknowledge()
    assert tracker.committable() == [(A, None)]


def test_removal_of_a_source_offset_is_skipped_if_a_later_offset_of_the_same_partition_follows() -> None:
    tracker = OffsetsTracker()
    tracker.submit_removal(A)
    tracker.submit(A, {"n": 2}, 0)
    assert tracker.committable() == [(A, {"n": 2})]
