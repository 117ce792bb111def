"""The numbers of a task, which the worker shows as metrics.

The counters are totals since the task's start. The gauges are current values, and statistics over the last seconds.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headrace.runtime.error_counters import ErrorCounters
from headrace.runtime.sampled_stats import SampledStat


class Counters:
    """The counters and gauges of one task. Callable from any thread, once for each batch and not for each record."""

    def __init__(self, now_s: Callable[[], float] = time.monotonic) -> None:
        self.errors = ErrorCounters()
        self._now_s = now_s
        self._lock = threading.Lock()
        self._records = 0  # records that a source has written or a sink has read
        self._passed = 0  # records that the task's polls returned or its puts received
        self._active = 0
        self._commits = 0
        self._skipped_commits = 0
        self._record_stat = SampledStat()
        self._passed_stat = SampledStat()
        self._batch_stat = SampledStat()
        self._call_stat = SampledStat()  # durations of polls that returned records, or of puts with records
        self._active_stat = SampledStat()
        self._commit_time_stat = SampledStat()
        self._commit_result_stat = SampledStat()  # 1 for a commit that succeeded, 0 for a commit that failed
        self._commit_stat = SampledStat()
        self._skipped_commit_stat = SampledStat()

    @property
    def records(self) -> int:
        """The records that a source has written or a sink has read."""
        return self._records

    def add_records(self, count: int) -> None:
        """Count records that a source has written or a sink has read."""
        with self._lock:
            self._records += count
            self._record_stat.record(count, self._now_s())

    def add_call(self, record_count: int, duration_s: float | None) -> None:
        """Count a poll or put that had records. Ignore a poll or put without records.

        The duration is None if the task itself reads and stores the records.
        """
        if not record_count:
            return
        with self._lock:
            now_s = self._now_s()
            self._passed += record_count
            self._passed_stat.record(record_count, now_s)
            self._batch_stat.record(record_count, now_s)
            if duration_s is not None:
                self._call_stat.record(duration_s * 1000, now_s)

    def add_active(self, count: int) -> None:
        """Count records as active. A negative count means that they are no longer active."""
        with self._lock:
            self._set_active(self._active + count)

    def set_active(self, count: int) -> None:
        """Set the number of active records: those of a source that are not written yet, or of a sink's next commit."""
        with self._lock:
            self._set_active(count)

    @contextmanager
    def offset_commit(self) -> Iterator[None]:
        """Count the `with` body as an offset commit, which has failed if the body raises an exception."""
        started_s = self._now_s()
        try:
            yield
        except BaseException:
            with self._lock:
                self._commit_result_stat.record(0, self._now_s())
            raise
        with self._lock:
            now_s = self._now_s()
            self._commits += 1
            self._commit_stat.record(1, now_s)
            self._commit_result_stat.record(1, now_s)
            self._commit_time_stat.record((now_s - started_s) * 1000, now_s)

    def add_skipped_commit(self) -> None:
        """Count an offset commit whose response arrived after a later commit had begun."""
        with self._lock:
            self._skipped_commits += 1
            self._skipped_commit_stat.record(1, self._now_s())

    def _set_active(self, count: int) -> None:
        self._active = max(0, count)
        self._active_stat.record(self._active, self._now_s())

    def as_dict(self) -> dict[str, float]:
        """Return the totals by name."""
        return {
            "records": self._records,
            "records_passed": self._passed,
            "offset_commits": self._commits,
            "offset_commits_skipped": self._skipped_commits,
            **self.errors.as_dict(),
        }

    def gauges(self) -> dict[str, float]:
        """Return the current values and the statistics of the last seconds by name."""
        with self._lock:
            now_s = self._now_s()
            successes = self._commit_result_stat.avg(now_s)
            has_commits = successes == successes  # not NaN
            return {
                "record_rate": self._record_stat.rate(now_s),
                "passed_rate": self._passed_stat.rate(now_s),
                "batch_size_avg": self._batch_stat.avg(now_s),
                "batch_size_max": self._batch_stat.max(now_s),
                "call_avg_time_ms": self._call_stat.avg(now_s),
                "call_max_time_ms": self._call_stat.max(now_s),
                "active_count": self._active,
                "active_count_avg": self._active_stat.avg(now_s),
                "active_count_max": self._active_stat.max(now_s),
                "offset_commit_rate": self._commit_stat.rate(now_s),
                "offset_commit_skip_rate": self._skipped_commit_stat.rate(now_s),
                "offset_commit_avg_time_ms": self._commit_time_stat.avg(now_s),
                "offset_commit_max_time_ms": self._commit_time_stat.max(now_s),
                "offset_commit_success_percentage": successes if has_commits else 0.0,
                "offset_commit_failure_percentage": 1 - successes if has_commits else 0.0,
            }
