"""What goes on is said at once, then less and less often, and its end once."""

from __future__ import annotations

from headrace_broker.server.telling import Telling


def test_pauses_grow_to_a_minute() -> None:
    telling = Telling()
    assert [second for second in range(300) if telling.is_due(second)] == [0, 5, 15, 35, 75, 135, 195, 255]


def test_the_end_is_told_once_and_the_next_trouble_at_once() -> None:
    telling = Telling()
    assert not telling.is_over()
    assert telling.is_due(10)
    assert (telling.is_over(), telling.is_over()) == (True, False)
    assert telling.is_due(11)


def test_what_has_not_shown_for_long_begins_anew() -> None:
    telling = Telling()
    said = [second for second in (0, 5, 15, 500, 505) if telling.is_due(second)]
    assert said == [0, 5, 15, 500, 505]
