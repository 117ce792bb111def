"""The counters of a task, which the worker shows as metrics."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Durations:
    """The number, the sum and the maximum of durations."""

    __slots__ = ("count", "max_ms", "sum_ms")

    def __init__(self) -> None:
        self.count = 0
        self.sum_ms = 0.0
        self.max_ms = 0.0

    def add(self, duration_s: float) -> None:
        """Add a duration."""
        duration_ms = duration_s * 1000
        self.count += 1
        self.sum_ms += duration_ms
        self.max_ms = max(self.max_ms, duration_ms)

    @property
    def avg_ms(self) -> float:
        """The average duration, or 0 if there are no durations."""
        return self.sum_ms / self.count if self.count else 0.0


class Counters:
    """The counters of a task since its start.

    Each counter is written by only one thread: the task's or the event loop's.
    """

    def __init__(self) -> None:
        self.records = 0  # records that a source has sent or a sink has read
        self.batches = 0
        self.errors = 0
        self.skipped = 0
        self.errors_logged = 0
        self._passed = 0  # records that the task's polls returned or its puts received
        self._batch_size_max = 0
        self._calls = Durations()  # durations of polls that returned records, or of puts with records
        self._commits = Durations()
        self._commit_failures = 0

    def add_call(self, record_count: int, duration_s: float) -> None:
        """Count a poll or put that had records. Ignore a poll or put without records."""
        if record_count:
            self._passed += record_count
            self._batch_size_max = max(self._batch_size_max, record_count)
            self._calls.add(duration_s)

    @contextmanager
    def offset_commit(self) -> Iterator[None]:
        """Count the `with` body as an offset commit, which has failed if the body raises an exception."""
        started = time.monotonic()
        try:
            yield
        except BaseException:
            self._commit_failures += 1
            raise
        self._commits.add(time.monotonic() - started)

    def as_dict(self) -> dict[str, float]:
        """Return the counters by name."""
        calls, commits = self._calls, self._commits.count + self._commit_failures
        return {
            "records": self.records,
            "batches": self.batches,
            "errors": self.errors,
            "skipped": self.skipped,
            "errors_logged": self.errors_logged,
            "records_passed": self._passed,
            "batch_size_avg": self._passed / calls.count if calls.count else 0.0,
            "batch_size_max": self._batch_size_max,
            "call_avg_time_ms": calls.avg_ms,
            "call_max_time_ms": calls.max_ms,
            "offset_commits": self._commits.count,
            "offset_commit_avg_time_ms": self._commits.avg_ms,
            "offset_commit_max_time_ms": self._commits.max_ms,
            "offset_commit_success_percentage": self._commits.count / commits if commits else 0.0,
            "offset_commit_failure_percentage": self._commit_failures / commits if commits else 0.0,
        }
