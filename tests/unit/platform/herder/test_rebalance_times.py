"""Tests of RebalanceTimes, which counts rebalances and measures their durations."""

from __future__ import annotations

from math import inf

from headrace.herder.rebalance_times import RebalanceTimes


def test_rebalance_duration_is_measured_from_the_first_join_of_the_worker_to_its_assignment() -> None:
    times = RebalanceTimes()
    assert (times.completed, times.avg_ms, times.max_ms, times.since_last_ms(5)) == (0, 0, 0, inf)
    times.on_started(100)
    times.on_started(150)  # joins again before the first attempt was completed
    assert times.is_rebalancing
    times.on_completed(200)
    assert not times.is_rebalancing
    times.on_started(300)
    times.on_completed(350)
    assert (times.completed, times.avg_ms, times.max_ms, times.since_last_ms(360)) == (2, 75, 100, 10)
