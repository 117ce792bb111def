"""Tests of the error counters of a task."""

from __future__ import annotations

from headrace.runtime.error_counters import ErrorCounters


def test_a_retried_record_that_finally_fails_counts_each_failed_attempt_and_one_error() -> None:
    counters = ErrorCounters(now_ms=lambda: 42)
    counters.add_failed_attempt()
    assert counters.as_dict()["last_error_timestamp"] == 0
    counters.add_failed_records(are_skipped=True)
    counters.add_logged()
    assert counters.as_dict() == {
        "total_record_failures": 2,
        "total_record_errors": 1,
        "total_records_skipped": 1,
        "total_errors_logged": 1,
        "total_retries": 1,
        "deadletterqueue_produce_requests": 0,
        "deadletterqueue_produce_failures": 0,
        "last_error_timestamp": 42,
    }


def test_failed_records_that_are_not_tolerated_are_not_counted_as_skipped() -> None:
    counters = ErrorCounters()
    counters.add_failed_records(3, are_skipped=False)
    assert (counters.failures, counters.errors, counters.skipped) == (3, 3, 0)
    assert counters.last_error_ms > 0
