"""Rates, averages and maxima over the last seconds, computed as Kafka's `SampledStat`, `Rate`, `Avg` and `Max`.

The values of a window of 30 s form one sample, and a statistic covers the last two samples. These are the defaults of
`metrics.sample.window.ms` and `metrics.num.samples`. This module does no I/O.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

WINDOW_S = 30.0
SAMPLES = 2
EXPIRY_S = WINDOW_S * SAMPLES
"""The time after which a value no longer counts."""


@dataclass(slots=True)
class _Sample:
    started_s: float
    last_s: float
    count: int = 0
    total: float = 0.0
    maximum: float = -math.inf


class SampledStat:
    """The statistics of the values that were recorded lately. The caller passes the time of a monotonic clock."""

    __slots__ = ("_samples",)

    def __init__(self) -> None:
        self._samples: list[_Sample] = []

    def record(self, value: float, now_s: float) -> None:
        """Record a value."""
        samples = self._samples
        if not samples or now_s - samples[-1].started_s >= WINDOW_S:
            self._expire(now_s)
            samples.append(_Sample(now_s, now_s))
        current = samples[-1]
        current.count += 1
        current.total += value
        current.maximum = max(current.maximum, value)
        current.last_s = now_s

    def rate(self, now_s: float) -> float:
        """Return the sum of the values per second. One full window is the shortest time that is assumed to pass."""
        self._expire(now_s)
        if not self._samples:
            return 0.0
        elapsed_s = now_s - self._samples[0].started_s
        missing = max(0, SAMPLES - 1 - int(elapsed_s // WINDOW_S))
        return sum(each.total for each in self._samples) / max(elapsed_s + missing * WINDOW_S, 0.001)

    def avg(self, now_s: float) -> float:
        """Return the average of the values, or NaN if there are none."""
        self._expire(now_s)
        count = sum(each.count for each in self._samples)
        return sum(each.total for each in self._samples) / count if count else math.nan

    def max(self, now_s: float) -> float:
        """Return the greatest value, or NaN if there are none."""
        self._expire(now_s)
        return max((each.maximum for each in self._samples), default=math.nan)

    def _expire(self, now_s: float) -> None:
        """Remove samples whose last value is too old. A sample that overlaps the covered time is kept, as in Kafka."""
        while self._samples and now_s - self._samples[0].last_s >= EXPIRY_S:
            del self._samples[0]
