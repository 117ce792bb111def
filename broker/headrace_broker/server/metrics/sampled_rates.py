"""Rates and means over the last 30 to 60 seconds, computed from two windows, like Kafka's sampled stats."""

from __future__ import annotations

_WINDOW_S = 30.0


class Rate:
    """A total and its recent rate per second."""

    __slots__ = ("_created_s", "_current", "_previous", "_window_start_s", "total")

    def __init__(self, now_s: float) -> None:
        self.total = 0.0
        self._created_s = self._window_start_s = now_s
        self._previous = 0.0
        self._current = 0.0

    def add(self, number: float, now_s: float) -> None:
        """Add `number` to the total and to the current window."""
        self._roll_window(now_s)
        self._current += number
        self.total += number

    def per_second(self, now_s: float) -> float:
        """Return the rate over the current and the previous window.

        If this object was created during these windows, return the rate since its creation.
        """
        self._roll_window(now_s)
        covered_s = min(now_s - self._created_s, now_s - self._window_start_s + _WINDOW_S)
        return (self._previous + self._current) / max(covered_s, 1.0)

    def _roll_window(self, now_s: float) -> None:
        passed_s = now_s - self._window_start_s
        if passed_s >= 2 * _WINDOW_S:
            self._previous, self._current, self._window_start_s = 0.0, 0.0, now_s
        elif passed_s >= _WINDOW_S:
            self._previous, self._current, self._window_start_s = (
                self._current,
                0.0,
                self._window_start_s + _WINDOW_S,
            )


class Average:
    """The mean of recent values."""

    __slots__ = ("_count", "_sum")

    def __init__(self, now_s: float) -> None:
        self._sum, self._count = Rate(now_s), Rate(now_s)

    def add(self, value: float, now_s: float) -> None:
        """Add a value."""
        self._sum.add(value, now_s)
        self._count.add(1, now_s)

    def mean(self, now_s: float) -> float:
        """Return the mean, or 0 if no value was added recently."""
        rate = self._count.per_second(now_s)
        return self._sum.per_second(now_s) / rate if rate else 0.0


class IdleRatio:
    """The fraction of the last minute in which a thread was idle, computed from elapsed time and the thread's CPU time.

    Each query of the ratio takes a sample.
    """

    __slots__ = ("_samples",)

    def __init__(self, now_s: float, busy_s: float) -> None:
        self._samples = [(now_s, busy_s)]

    def ratio(self, now_s: float, busy_s: float) -> float:
        """Return the idle ratio, from 0 (always busy) to 1. `busy_s` is the thread's total CPU time until now."""
        samples = self._samples
        while len(samples) > 1 and now_s - samples[1][0] >= 2 * _WINDOW_S:
            del samples[0]
        since_s, busy_before_s = samples[0]
        if now_s - samples[-1][0] >= 1.0:
            samples.append((now_s, busy_s))
        passed_s = now_s - since_s
        return 1.0 if passed_s <= 0 else min(1.0, max(0.0, 1.0 - (busy_s - busy_before_s) / passed_s))
