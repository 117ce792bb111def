"""Tests of the retry policy for plug-ins."""

from __future__ import annotations

import logging

import pytest

from headrace.api.errors import ConnectError
from headrace.api.retries import Retries, RetryPolicy

logger = logging.getLogger(__name__)


def test_text_of_a_retry_contains_the_problem_the_pause_and_the_next_attempt() -> None:
    limited, unlimited = RetryPolicy(3000, 10), RetryPolicy(lambda failures: 100.9 * failures)
    assert limited.after(1, "locked").text == "locked; retrying in 3000 ms (attempt 2 of 11)"
    assert unlimited.after(3, "locked").text == "locked; retrying in 302 ms (attempt 4)"
    assert (unlimited.after(3, "locked").pause_ms, unlimited.after(3, "locked").pause_s) == (302, 0.302)


def test_connect_error_after_the_last_retry_names_the_attempts_and_the_key_and_has_the_cause() -> None:
    retries, cause = Retries(RetryPolicy(0, 1, "max.retries")), OSError("locked")
    retries.failed(cause)
    with pytest.raises(ConnectError, match=r"^locked; giving up after 2 attempts \(max\.retries\)$") as caught:
        retries.failed(cause)
    assert caught.value.__cause__ is cause
    with pytest.raises(ConnectError, match=r"^down; giving up after 1 attempt$") as caught:
        RetryPolicy(0, 0).after(1, "down", cause)
    assert caught.value.__cause__ is cause


def test_success_resets_the_number_of_failures_in_a_row() -> None:
    retries = Retries(RetryPolicy(0, 1))
    assert not retries.succeeded()
    retries.failed("locked")
    assert retries.are_pending
    assert retries.succeeded()
    assert not retries.are_pending
    assert retries.failed("locked").text.endswith("(attempt 2 of 2)")


def test_only_the_first_failure_and_multiples_of_logged_every_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    retries = Retries(RetryPolicy(5, logged_every=3))
    for _ in range(7):
        retries.failed("100 % full").log(logger)
    assert [record.getMessage() for record in caplog.records] == [
        f"100 % full; retrying in 5 ms (attempt {attempt})" for attempt in (2, 4, 7)
    ]


def test_call_repeats_the_operation_until_it_succeeds(caplog: pytest.LogCaptureFixture) -> None:
    outcomes: list[Exception | str] = [OSError("refused"), OSError("refused"), "connected"]
    waits: list[float] = []

    def connect() -> str:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return True

    retries = Retries(RetryPolicy(500, 2))
    assert retries.call(connect, OSError, lambda error: f"db: {error}", wait, logger) == "connected"
    assert (waits, retries.are_pending) == ([0.5, 0.5], False)
    assert caplog.messages[1] == "db: refused; retrying in 500 ms (attempt 3 of 3)"


@pytest.mark.parametrize(
    ("error", "text"),
    [(OSError("refused"), "db: refused; no retry, because the task is being stopped"), (ValueError("bad"), "bad")],
)
def test_call_raises_other_errors_unchanged_and_does_not_retry_while_the_task_stops(
    error: Exception, text: str
) -> None:
    def connect() -> None:
        raise error

    retries = Retries(RetryPolicy(500, 2))
    with pytest.raises((ConnectError, ValueError), match=f"^{text}$"):
        retries.call(connect, OSError, lambda each: f"db: {each}", lambda seconds: False, logger)
