"""Tests of the lags of a sink task's partitions."""

from __future__ import annotations

from headrace.runtime.record_lags import PartitionLag, RecordLags

A, B = ("t", 0), ("t", 1)


def test_lag_is_the_distance_to_the_end_with_its_average_and_maximum() -> None:
    lags = RecordLags()
    assert lags.max is None
    lags.record({A: 5, B: 0}, {A: 15, B: 4}, 0.0)
    lags.record({A: 13, B: 0}, {A: 15, B: 4}, 1.0)
    assert lags.report(1.0) == [PartitionLag("t", 0, 2, 6, 10), PartitionLag("t", 1, 4, 4, 4)]
    assert lags.max == 4


def test_lag_of_a_revoked_partition_is_not_reported() -> None:
    lags = RecordLags()
    lags.record({A: 5, B: 0}, {A: 15, B: 4}, 0.0)
    lags.record({B: 4}, {A: 20, B: 4}, 1.0)
    assert [(each.partition, each.lag) for each in lags.report(1.0)] == [(1, 0)]


def test_last_known_lag_remains_while_the_end_is_unknown() -> None:
    lags = RecordLags()
    lags.record({A: 5, B: 0}, {A: 15}, 0.0)
    lags.record({A: 6, B: 0}, {}, 1.0)
    assert [(each.partition, each.lag) for each in lags.report(1.0)] == [(0, 10)]


def test_lag_is_not_negative_if_the_known_end_is_older_than_the_position() -> None:
    lags = RecordLags()
    lags.record({A: 8}, {A: 5}, 0.0)
    assert lags.max == 0
