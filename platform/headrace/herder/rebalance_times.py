"""The number and the durations of a worker's rebalances, for the metrics of the worker. This module does no I/O.

As in Kafka Connect, a rebalance begins when the worker joins the group again, and is completed when the worker has
received an assignment.
"""

from __future__ import annotations

from math import inf


class RebalanceTimes:
    """Measures the rebalances of a worker. Times are in ms."""

    def __init__(self) -> None:
        self.completed = 0
        self.max_ms = 0
        self._sum_ms = 0
        self._started_ms: int | None = None
        self._completed_ms: int | None = None

    @property
    def is_rebalancing(self) -> bool:
        """Whether a rebalance is in progress."""
        return self._started_ms is not None

    @property
    def avg_ms(self) -> float:
        """The average duration of the completed rebalances, or 0 if none is completed."""
        return self._sum_ms / self.completed if self.completed else 0.0

    def since_last_ms(self, now_ms: int) -> float:
        """Return the time since the last rebalance was completed. It is infinite if none is completed."""
        return inf if self._completed_ms is None else now_ms - self._completed_ms

    def on_started(self, now_ms: int) -> None:
        """Handle the beginning of a rebalance. If a rebalance is in progress, that rebalance continues."""
        if self._started_ms is None:
            self._started_ms = now_ms

    def on_completed(self, now_ms: int) -> None:
        """Handle an assignment."""
        duration_ms = 0 if self._started_ms is None else now_ms - self._started_ms
        self._started_ms, self._completed_ms = None, now_ms
        self.completed += 1
        self._sum_ms += duration_ms
        self.max_ms = max(self.max_ms, duration_ms)
