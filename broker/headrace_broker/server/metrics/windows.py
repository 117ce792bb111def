"""How much happens per second, over the last half minute to minute, as Kafka's sampled rates tell it. Pure."""

from __future__ import annotations

_WINDOW_S = 30.0


class Rate:
    """What was added: in all, and per second of late."""

    __slots__ = ("_before", "_began_s", "_count", "_first_s", "total")

    def __init__(self, now_s: float) -> None:
        self.total = 0.0
        self._first_s = self._began_s = now_s
        self._before = 0.0
        self._count = 0.0

    def add(self, number: float, now_s: float) -> None:
        """So much happened."""
        self._turn(now_s)
        self._count += number
        self.total += number

    def per_second(self, now_s: float) -> float:
        """The rate over the present window and the one before it, or since the beginning when that is less."""
        self._turn(now_s)
        covered_s = min(now_s - self._first_s, now_s - self._began_s + _WINDOW_S)
        return (self._before + self._count) / max(covered_s, 1.0)

    def _turn(self, now_s: float) -> None:
        passed_s = now_s - self._began_s
        if passed_s >= 2 * _WINDOW_S:
            self._before, self._count, self._began_s = 0.0, 0.0, now_s
        elif passed_s >= _WINDOW_S:
            self._before, self._count, self._began_s = self._count, 0.0, self._began_s + _WINDOW_S


class Average:
    """The mean of what was noted of late."""

    __slots__ = ("_count", "_sum")

    def __init__(self, now_s: float) -> None:
        self._sum, self._count = Rate(now_s), Rate(now_s)

    def add(self, value: float, now_s: float) -> None:
        """Note a value."""
        self._sum.add(value, now_s)
        self._count.add(1, now_s)

    def mean(self, now_s: float) -> float:
        """The mean, 0 when nothing was noted."""
        rate = self._count.per_second(now_s)
        return self._sum.per_second(now_s) / rate if rate else 0.0


class Idleness:
    """Which part of the last minute a thread did not run, by two clocks that are read when somebody asks."""

    __slots__ = ("_samples",)

    def __init__(self, now_s: float, busy_s: float) -> None:
        self._samples = [(now_s, busy_s)]

    def share(self, now_s: float, busy_s: float) -> float:
        """From 0 (always at work) to 1."""
        samples = self._samples
        while len(samples) > 1 and now_s - samples[1][0] >= 2 * _WINDOW_S:
            del samples[0]
        since_s, busy_before_s = samples[0]
        if now_s - samples[-1][0] >= 1.0:
            samples.append((now_s, busy_s))
        passed_s = now_s - since_s
        return 1.0 if passed_s <= 0 else min(1.0, max(0.0, 1.0 - (busy_s - busy_before_s) / passed_s))
