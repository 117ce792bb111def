"""How many bytes a second replicas that catch up may have."""

from __future__ import annotations

import pytest

from headrace_broker.replication.throttle import Throttle


def throttle(bytes_per_s: int | None = 1000) -> Throttle:
    made = Throttle(11, 1000)
    made.bytes_per_s = bytes_per_s
    return made


def test_the_rate_is_over_the_time_since_the_first_sample_a_second_at_least() -> None:
    limit = throttle()
    limit.count(1000, 5000)
    assert not limit.is_exceeded(5000)  # as much as in a second
    assert limit.is_exceeded(5000, more_bytes=1)
    limit.count(1000, 5500)
    assert limit.is_exceeded(5500)
    assert limit.delay_ms(5500) == 1000
    assert limit.delay_ms(6999) == 1
    assert limit.delay_ms(7000) == 0


def test_samples_are_forgotten_after_their_windows() -> None:
    limit = throttle()
    limit.count(100_000, 0)
    assert limit.is_exceeded(10_999)
    assert not limit.is_exceeded(11_000)
    limit.count(500, 20_000)
    assert not limit.is_exceeded(20_000)


def test_over_many_seconds_the_rate_is_kept() -> None:
    limit, sent, now_ms = throttle(1_000_000), 0, 0
    while now_ms < 60_000:
        if limit.is_exceeded(now_ms):
            now_ms += min(500, limit.delay_ms(now_ms))
        else:
            limit.count(300_000, now_ms)
            sent += 300_000
            now_ms += 5
    assert sent == pytest.approx(60_000_000, rel=0.05)


def test_without_a_rate_nothing_waits_and_with_none_at_all_everything() -> None:
    limit = throttle(None)
    limit.count(10**12, 0)
    assert not limit.is_exceeded(0)
    limit = throttle(0)
    assert not limit.is_exceeded(0)
    limit.count(1, 0)
    assert limit.delay_ms(0) == 1000


def test_it_holds_for_the_replicas_of_this_broker() -> None:
    limit = throttle()
    limit.hold_for("t", "0:1, 1:2,2:1", 1)
    limit.hold_for("all", "*", 1)
    limit.hold_for("others", "0:2", 1)
    assert [limit.holds_for("t", index) for index in range(4)] == [True, False, True, False]
    assert limit.holds_for("all", 77)
    assert not limit.holds_for("others", 0)
    limit.hold_for("t", "", 1)
    assert not limit.holds_for("t", 0)
