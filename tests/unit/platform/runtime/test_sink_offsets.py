"""Tests of the offsets that a sink commits.

A sink commits the offsets that `pre_commit` returns, but only for assigned partitions and never
beyond delivered records.
"""

from __future__ import annotations

from headrace.runtime.sink_offsets import SinkOffsets

P0, P1 = ("t", 0), ("t", 1)


def test_unassigned_partitions_and_offsets_beyond_the_delivered_records_are_not_committed() -> None:
    offsets = SinkOffsets()
    offsets.assign({P0: 5, P1: 0})
    offsets.deliver(P0, 8)
    commit, complaints = offsets.to_commit({P0: 8, P1: 3, ("other", 0): 1})
    assert commit == {P0: 8}
    assert len(complaints) == 2
    assert "t-1" in complaints[0]
    assert "other-0" in complaints[1]


def test_offsets_to_commit_exclude_offsets_that_are_already_committed() -> None:
    offsets = SinkOffsets()
    offsets.assign({P0: 5})
    assert offsets.to_commit({P0: 5}) == ({}, [])


def test_rewind_of_a_sink_resets_its_positions_to_committed_offsets() -> None:
    offsets = SinkOffsets()
    offsets.assign({P0: 5})
    offsets.deliver(P0, 9)
    assert offsets.rewind() == {P0: 5}
    assert offsets.delivered == {P0: 5}


def test_revocation_removes_the_delivered_and_committed_offsets_of_the_revoked_partitions() -> None:
    offsets = SinkOffsets()
    offsets.assign({P0: 5, P1: 6})
    offsets.revoke([P0])
    assert offsets.delivered == {P1: 6}
    assert offsets.to_commit({P0: 5})[0] == {}
