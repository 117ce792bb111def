"""The stages of a request, which are the worker's operations for it. The response after a timeout names the last stage.

The herder uses `stage` to mark an operation that may take long. The REST server calls `track` for each request, and
reads the last stage after the request timeout. The texts are those of Kafka Connect's `Stage`. The tracker of a request
is in a context variable, which the tasks and threads that execute the request inherit.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import UTC, datetime


@dataclass(slots=True)
class Stage:
    """One operation for a request, with the times of its start and end in ms since the epoch."""

    description: str
    started_ms: int
    completed_ms: int | None = None

    def summarize(self) -> str:
        """Return the sentence that describes the stage."""
        started = _instant(self.started_ms)
        if self.completed_ms is None:
            return f"The worker is currently {self.description}, which began at {started}."
        return (
            f"The last operation the worker completed was {self.description}, which began at {started} and completed "
            f"at {_instant(self.completed_ms)}."
        )


@dataclass(slots=True)
class StageTracker:
    """The last stage of one request."""

    last: Stage | None = None


_tracker: ContextVar[StageTracker | None] = ContextVar("stage_tracker", default=None)


def track() -> StageTracker:
    """Start to track the stages of the request that the current task and its later child tasks execute."""
    tracker = StageTracker()
    _tracker.set(tracker)
    return tracker


@contextmanager
def stage(description: str) -> Iterator[None]:
    """Mark the block as an operation for the current request, for example "writing a config for connector C"."""
    tracker = _tracker.get()
    if tracker is None:
        yield
        return
    outer = tracker.last
    tracker.last = current = Stage(description, _now_ms())
    try:
        yield
    finally:
        current.completed_ms = _now_ms()
        is_nested = outer is not None and outer.completed_ms is None
        if is_nested and tracker.last is current:
            tracker.last = outer


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _instant(ms: int) -> str:
    """Return a time as Java's `Instant.toString` does."""
    text = datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds" if ms % 1000 else "seconds")
    return text.replace("+00:00", "Z")
