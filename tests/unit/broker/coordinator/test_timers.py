from __future__ import annotations

from headrace_broker.coordinator.timers import Timers


def test_expired_timers_are_returned_once_in_order_of_their_deadlines() -> None:
    timers = Timers()
    for key, time in (("b", 20), ("a", 10), ("c", 30)):
        timers.schedule((key,), time)
    assert list(timers.pop_due(9)) == []
    assert list(timers.pop_due(25)) == [("a",), ("b",)]
    assert list(timers.pop_due(25)) == []
    assert timers.next_deadline_ms() == 30


def test_postponed_timer_is_due_only_at_its_new_deadline() -> None:
    timers = Timers()
    timers.schedule(("a",), 10)
    for time in range(11, 1000):
        timers.schedule(("a",), time)
    assert list(timers.pop_due(998)) == []
    assert timers.next_deadline_ms() == 999
    assert list(timers.pop_due(999)) == [("a",)]
    assert timers.next_deadline_ms() is None


def test_timer_can_be_rescheduled_to_an_earlier_time() -> None:
    timers = Timers()
    timers.schedule(("a",), 100)
    timers.schedule(("a",), 10)
    assert timers.next_deadline_ms() == 10
    assert list(timers.pop_due(10)) == [("a",)]
    assert list(timers.pop_due(100)) == []


def test_cancelled_timer_is_due_only_if_it_is_scheduled_again() -> None:
    timers = Timers()
    timers.schedule(("a",), 10)
    timers.cancel(("a",))
    timers.cancel(("a",))
    assert ("a",) not in timers
    assert timers.next_deadline_ms() is None
    timers.schedule(("a",), 20)
    assert list(timers.pop_due(19)) == []
    assert list(timers.pop_due(20)) == [("a",)]


def test_rescheduling_timers_does_not_increase_memory_use() -> None:
    timers = Timers()
    for now in range(0, 100_000, 10):
        for member in range(10):
            timers.schedule((str(member),), now + 45_000)
        assert not list(timers.pop_due(now))
    assert len(timers._heap) == len(timers) == 10
