"""Tests of a task's counters, which are the source of its metrics."""

from __future__ import annotations

import pytest

from headrace.runtime.counters import Counters


def test_batch_size_and_call_time_counters_ignore_calls_without_records() -> None:
    counters = Counters()
    for count, duration_s in ((10, 0.001), (0, 9.0), (20, 0.003)):
        counters.add_call(count, duration_s)
    values = counters.as_dict()
    assert (values["records_passed"], values["batch_size_avg"], values["batch_size_max"]) == (30, 15, 20)
    assert (values["call_avg_time_ms"], values["call_max_time_ms"]) == (pytest.approx(2), pytest.approx(3))


def test_offset_commit_success_and_failure_percentages_are_computed() -> None:
    counters = Counters()
    for _ in range(3):
        with counters.offset_commit():
            pass
    with pytest.raises(OSError, match="gone"), counters.offset_commit():
        raise OSError("gone")
    values = counters.as_dict()
    assert values["offset_commits"] == 3
    assert values["offset_commit_success_percentage"] == 0.75
    assert values["offset_commit_failure_percentage"] == 0.25


def test_counters_of_a_new_task_are_zero() -> None:
    assert set(Counters().as_dict().values()) == {0}
