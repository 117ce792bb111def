"""Tests of the replication throttle (KIP-73)."""

from __future__ import annotations

import pytest

from headrace_broker.replication.throttle import ReplicationThrottle


def throttle_with_rate(bytes_per_s: int | None = 1000) -> ReplicationThrottle:
    throttle = ReplicationThrottle(11, 1000)
    throttle.bytes_per_s = bytes_per_s
    return throttle


def test_throttle_measures_the_rate_since_its_oldest_sample_but_over_at_least_one_second() -> None:
    limit = throttle_with_rate()
    limit.record(1000, 5000)
    assert not limit.is_exceeded(5000)  # these are the bytes that the limit allows per second
    assert limit.is_exceeded(5000, more_bytes=1)
    limit.record(1000, 5500)
    assert limit.is_exceeded(5500)
    assert limit.delay_ms(5500) == 1000
    assert limit.delay_ms(6999) == 1
    assert limit.delay_ms(7000) == 0


def test_throttle_discards_samples_older_than_the_window() -> None:
    limit = throttle_with_rate()
    limit.record(100_000, 0)
    assert limit.is_exceeded(10_999)
    assert not limit.is_exceeded(11_000)
    limit.record(500, 20_000)
    assert not limit.is_exceeded(20_000)


def test_average_throttled_rate_equals_the_limit() -> None:
    limit, sent, now_ms = throttle_with_rate(1_000_000), 0, 0
    while now_ms < 60_000:
        if limit.is_exceeded(now_ms):
            now_ms += min(500, limit.delay_ms(now_ms))
        else:
            limit.record(300_000, now_ms)
            sent += 300_000
            now_ms += 5
    assert sent == pytest.approx(60_000_000, rel=0.05)


def test_throttle_without_limit_never_delays_and_throttle_with_limit_zero_always_delays() -> None:
    limit = throttle_with_rate(None)
    limit.record(10**12, 0)
    assert not limit.is_exceeded(0)
    limit = throttle_with_rate(0)
    assert not limit.is_exceeded(0)
    limit.record(1, 0)
    assert limit.delay_ms(0) == 1000


def test_partition_is_throttled_only_if_the_throttled_replicas_config_contains_the_replica_of_this_broker() -> None:
    limit = throttle_with_rate()
    limit.set_throttled_replicas("t", "0:1, 1:2,2:1", 1)
    limit.set_throttled_replicas("all", "*", 1)
    limit.set_throttled_replicas("others", "0:2", 1)
    assert [limit.is_throttled("t", index) for index in range(4)] == [True, False, True, False]
    assert limit.is_throttled("all", 77)
    assert not limit.is_throttled("others", 0)
    limit.set_throttled_replicas("t", "", 1)
    assert not limit.is_throttled("t", 0)
