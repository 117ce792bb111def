"""Tests of a task's counters and gauges, which are the source of its metrics."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from headrace.runtime.counters import Counters


@dataclass
class Clock:
    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_batch_sizes_and_call_times_ignore_calls_without_records() -> None:
    counters = Counters()
    for count, duration_s in ((10, 0.001), (0, 9.0), (20, 0.003)):
        counters.add_call(count, duration_s)
    values = counters.gauges()
    assert counters.as_dict()["records_passed"] == 30
    assert (values["batch_size_avg"], values["batch_size_max"]) == (15, 20)
    assert (values["call_avg_time_ms"], values["call_max_time_ms"]) == (pytest.approx(2), pytest.approx(3))


def test_offset_commit_success_and_failure_percentages_are_computed() -> None:
    counters = Counters()
    for _ in range(3):
        with counters.offset_commit():
            pass
    with pytest.raises(OSError, match="gone"), counters.offset_commit():
        raise OSError("gone")
    values = counters.gauges()
    assert counters.as_dict()["offset_commits"] == 3
    assert values["offset_commit_success_percentage"] == 0.75
    assert values["offset_commit_failure_percentage"] == 0.25


def test_statistics_cover_only_the_last_windows_while_totals_remain() -> None:
    clock = Clock()
    counters = Counters(clock)
    counters.add_records(300)
    counters.add_call(300, 0.5)
    clock.now_s += 10
    assert counters.gauges()["record_rate"] == counters.gauges()["passed_rate"] == pytest.approx(300 / 40)
    clock.now_s += 50
    values = counters.gauges()
    assert values["record_rate"] == values["passed_rate"] == 0
    assert all(math.isnan(values[name]) for name in ("batch_size_avg", "batch_size_max", "call_max_time_ms"))
    assert counters.as_dict()["records"] == counters.as_dict()["records_passed"] == 300


def test_active_count_has_a_maximum_and_is_never_negative() -> None:
    counters = Counters()
    counters.add_active(5)
    counters.add_active(3)
    counters.add_active(-9)
    values = counters.gauges()
    assert (values["active_count"], values["active_count_max"], values["active_count_avg"]) == (0, 8, 13 / 3)


def test_totals_of_a_new_task_are_zero() -> None:
    assert set(Counters().as_dict().values()) == {0}
