"""The error counters of a task: the numbers of Kafka Connect's `task-error-metrics`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable


class ErrorCounters:
    """Counts the failed records of one task since its start. Callable from any thread.

    `now_ms` returns the time of day.
    """

    def __init__(self, now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000) -> None:
        self.failures = 0
        """Failed attempts to process a record, including those that were retried."""
        self.errors = 0
        """Records that could not be processed."""
        self.skipped = 0
        self.logged = 0
        self.retries = 0
        self.dlq_requests = 0
        self.dlq_failures = 0
        self.last_error_ms = 0
        self._now_ms = now_ms
        self._lock = threading.Lock()

    def add_failed_records(self, count: int = 1, *, are_skipped: bool) -> None:
        """Count records that are skipped, or that fail the task."""
        with self._lock:
            self.failures += count
            self.errors += count
            self.skipped += count if are_skipped else 0
            self.last_error_ms = self._now_ms()

    def add_failed_attempt(self) -> None:
        """Count a failed attempt to transform or convert a record, which is retried."""
        with self._lock:
            self.failures += 1
            self.retries += 1

    def add_retry(self) -> None:
        """Count a `poll` or `put` that is retried."""
        with self._lock:
            self.retries += 1

    def add_logged(self) -> None:
        """Count a failed record that was logged."""
        with self._lock:
            self.logged += 1

    def add_dlq_request(self) -> None:
        """Count a record that is sent to the dead letter queue."""
        with self._lock:
            self.dlq_requests += 1

    def add_dlq_failure(self) -> None:
        """Count a record that could not be written to the dead letter queue."""
        with self._lock:
            self.dlq_failures += 1

    def as_dict(self) -> dict[str, float]:
        """Return the counters by Kafka Connect's names."""
        return {
            "total_record_failures": self.failures,
            "total_record_errors": self.errors,
            "total_records_skipped": self.skipped,
            "total_errors_logged": self.logged,
            "total_retries": self.retries,
            "deadletterqueue_produce_requests": self.dlq_requests,
            "deadletterqueue_produce_failures": self.dlq_failures,
            "last_error_timestamp": self.last_error_ms,
        }
