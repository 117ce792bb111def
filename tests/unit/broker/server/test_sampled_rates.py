"""Tests of rates, averages and idle ratios over recent windows, and of error counting."""

from __future__ import annotations

import pytest

from headrace_broker.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from headrace_broker.server.metrics.meter import error_names
from headrace_broker.server.metrics.sampled_rates import Average, IdleRatio, Rate


def test_rate_ignores_values_older_than_two_windows() -> None:
    rate = Rate(100.0)
    rate.add(30, 110.0)
    assert rate.per_second(110.0) == 3.0
    assert rate.per_second(130.0) == 1.0
    rate.add(60, 140.0)
    assert rate.per_second(140.0) == pytest.approx(90 / 40)
    assert rate.per_second(165.0) == pytest.approx(60 / 35)  # the first window ended over a minute ago
    assert rate.per_second(400.0) == 0
    assert rate.total == 90


def test_rate_within_the_first_second_is_computed_over_a_full_second() -> None:
    rate = Rate(0.0)
    rate.add(5, 0.001)
    assert rate.per_second(0.001) == 5


def test_average_without_values_is_zero() -> None:
    mean = Average(0.0)
    assert mean.mean(10.0) == 0
    mean.add(2.0, 10.0)
    mean.add(4.0, 11.0)
    assert mean.mean(12.0) == pytest.approx(3.0)
    assert mean.mean(500.0) == 0


def test_idle_ratio_covers_the_last_minute() -> None:
    idle_ratio = IdleRatio(0.0, 0.0)
    assert idle_ratio.ratio(0.0, 0.0) == 1.0
    assert idle_ratio.ratio(10.0, 5.0) == 0.5
    assert idle_ratio.ratio(60.0, 5.0) == pytest.approx(1 - 5 / 60)
    assert idle_ratio.ratio(120.0, 65.0) == 0.0  # the ratio covers the time since the sample at 60 s
    assert idle_ratio.ratio(121.0, 70.0) == 0.0


def test_error_codes_in_nested_messages_are_counted() -> None:
    partitions = [MetadataResponsePartition(error_code=5), MetadataResponsePartition()]
    topics = [
        MetadataResponseTopic(name="a", partitions=partitions),
        MetadataResponseTopic(error_code=3, partitions=[]),
    ]
    assert list(error_names(MetadataResponse(topics=topics))) == ["LEADER_NOT_AVAILABLE", "UNKNOWN_TOPIC_OR_PARTITION"]
