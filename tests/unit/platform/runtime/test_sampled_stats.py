"""Tests of rates, averages and maxima over the last two windows of 30 s, with the values of Kafka's statistics."""

from __future__ import annotations

import math

import pytest

from headrace.runtime.sampled_stats import SampledStat


def test_rate_assumes_that_at_least_one_full_window_has_passed() -> None:
    stat = SampledStat()
    stat.record(60, 100.0)
    assert stat.rate(100.0) == pytest.approx(60 / 30)
    assert stat.rate(110.0) == pytest.approx(60 / 40)


def test_rate_is_computed_over_the_time_since_the_oldest_sample() -> None:
    stat = SampledStat()
    for second in range(60):
        stat.record(10, float(second))
    assert stat.rate(60.0) == pytest.approx(10)


def test_a_sample_counts_until_its_last_value_is_two_windows_old() -> None:
    stat = SampledStat()
    stat.record(60, 0.0)
    stat.record(30, 20.0)
    assert stat.rate(79.0) == pytest.approx(90 / 79)
    assert stat.rate(80.0) == 0


def test_average_and_maximum_ignore_values_that_are_too_old() -> None:
    stat = SampledStat()
    stat.record(100, 0.0)
    stat.record(4, 40.0)
    stat.record(8, 41.0)
    assert (stat.avg(59.0), stat.max(59.0)) == (pytest.approx(112 / 3), 100)
    assert (stat.avg(60.0), stat.max(60.0)) == (6, 8)


def test_average_and_maximum_without_values_are_nan_and_the_rate_is_zero() -> None:
    stat = SampledStat()
    assert math.isnan(stat.avg(1.0))
    assert math.isnan(stat.max(1.0))
    assert stat.rate(1.0) == 0
