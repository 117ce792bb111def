"""Tests of the share of the time that a task has spent in its states."""

from __future__ import annotations

import pytest

from headrace.runtime.state_times import StateTimes


def test_ratios_are_zero_before_the_first_state() -> None:
    assert StateTimes().ratio("RUNNING", 5.0) == 0


def test_ratios_include_the_current_state_and_all_earlier_periods() -> None:
    states = StateTimes()
    states.change("RUNNING", 10.0)
    assert states.ratio("RUNNING", 12.0) == 1
    states.change("PAUSED", 13.0)
    states.change("RUNNING", 14.0)
    assert states.ratio("RUNNING", 20.0) == pytest.approx(0.9)
    assert states.ratio("PAUSED", 20.0) == pytest.approx(0.1)


def test_a_state_that_is_reported_again_does_not_change_the_ratios() -> None:
    states = StateTimes()
    states.change("RUNNING", 0.0)
    states.change("RUNNING", 5.0)
    assert states.ratio("RUNNING", 10.0) == 1
