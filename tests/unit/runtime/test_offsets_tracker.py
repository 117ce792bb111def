"""An offset is committable when its batch and all before it in the same source partition are acknowledged."""

from __future__ import annotations

from headrace.runtime.offsets_tracker import OffsetsTracker

A, B = {"file": "a"}, {"file": "b"}


def test_only_the_contiguous_prefix_is_committable() -> None:
    tracker = OffsetsTracker()
    first, second, third = (tracker.submit(A, {"n": n}, 1) for n in (1, 2, 3))
    third.acknowledge()
    second.acknowledge()
    assert tracker.committable() == []
    first.acknowledge()
    assert tracker.committable() == [(A, {"n": 3})]
    assert tracker.committable() == []
    assert tracker.pending() == 0


def test_partitions_do_not_wait_for_each_other() -> None:
    tracker = OffsetsTracker()
    tracker.submit(A, {"n": 1}, 1)
    tracker.submit(B, {"n": 9}, 1).acknowledge()
    assert tracker.committable() == [(B, {"n": 9})]
    assert tracker.unacknowledged() == 1


def test_equal_partitions_in_different_dicts_are_one() -> None:
    tracker = OffsetsTracker()
    first = tracker.submit(dict(A), {"n": 1}, 1)
    tracker.submit(dict(A), {"n": 2}, 1).acknowledge()
    assert tracker.committable() == []
    first.acknowledge()
    assert [offset for _, offset in tracker.committable()] == [{"n": 2}]


def test_a_batch_in_parts_waits_for_all_of_them() -> None:
    tracker = OffsetsTracker()
    submission = tracker.submit(A, {"n": 1}, 2)
    submission.acknowledge()
    assert tracker.committable() == []
    submission.acknowledge()
    assert tracker.committable() == [(A, {"n": 1})]


def test_what_was_dropped_counts_as_acknowledged() -> None:
    tracker = OffsetsTracker()
    tracker.submit(A, {"n": 1}, 0)
    assert tracker.committable() == [(A, {"n": 1})]
