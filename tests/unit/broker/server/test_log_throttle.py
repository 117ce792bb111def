"""Tests of LogThrottle, which limits the rate of log lines about a condition that persists."""

from __future__ import annotations

from headrace_broker.server.log_throttle import LogThrottle


def test_interval_between_log_lines_doubles_up_to_a_minute() -> None:
    throttle = LogThrottle()
    assert [second for second in range(300) if throttle.should_log(second)] == [0, 5, 15, 35, 75, 135, 195, 255]


def test_first_occurrence_of_the_condition_after_a_reset_is_logged_immediately() -> None:
    throttle = LogThrottle()
    assert not throttle.reset()
    assert throttle.should_log(10)
    assert (throttle.reset(), throttle.reset()) == (True, False)
    assert throttle.should_log(11)


def test_interval_between_log_lines_is_reset_if_the_condition_was_not_observed_for_a_long_time() -> None:
    throttle = LogThrottle()
    logged = [second for second in (0, 5, 15, 500, 505) if throttle.should_log(second)]
    assert logged == [0, 5, 15, 500, 505]
