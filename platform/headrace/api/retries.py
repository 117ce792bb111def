"""Retries of plug-ins that wait themselves: how long to pause, when to give up, and one text for all of them.

    self._retries = Retries(RetryPolicy(config.retry_backoff_ms, config.max_retries, "max.retries"))

    retry = self._retries.failed(f"Cannot write to {address}: {error}", error)  # after the last retry: ConnectError
    self.context.timeout(retry.pause_ms)
    raise RetriableError(retry.text) from error

The platform retries a call that raises RetriableError. A plug-in needs its own pause only to choose its length, or if
the failed call has had an effect. This module uses no clock and no random source.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from headrace.api.errors import ConnectError

_T = TypeVar("_T")


class Retry(NamedTuple):
    """The next attempt after a failure."""

    text: str
    """The problem, the pause and the number of the next attempt."""
    pause_ms: int
    is_logged: bool

    @property
    def pause_s(self) -> float:
        """The pause before the next attempt in seconds."""
        return self.pause_ms / 1000

    def log(self, logger: logging.Logger) -> None:
        """Log the text as a warning, if the policy does not omit this failure."""
        if self.is_logged:
            logger.warning("%s", self.text)


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When to retry an operation that fails for a temporary reason."""

    pause_ms: float | Callable[[int], float]
    """The pause before each retry, or a function of the number of failures in a row, which begins with 1."""

    max_retries: int | None = None
    """The maximum number of retries in a row; None for unlimited retries."""

    limit_key: str = ""
    """The configuration key that sets the maximum, for the error text."""

    logged_every: int = 1
    """Of the failures in a row, log the first, and then each whose number is a multiple of this one."""

    def after(self, failures: int, problem: object, cause: Exception | None = None) -> Retry:
        """Return the retry after this number of failures in a row. Raises ConnectError after the last retry.

        `problem` is a text or an exception. `cause` is the cause of the ConnectError, by default the exception.
        """
        if self.max_retries is not None and failures > self.max_retries:
            key = f" ({self.limit_key})" if self.limit_key else ""
            cause = problem if cause is None and isinstance(problem, Exception) else cause
            raise ConnectError(f"{problem}; giving up after {failures} attempt{'s' * (failures > 1)}{key}") from cause
        pause_ms = int(self.pause_ms(failures) if callable(self.pause_ms) else self.pause_ms)
        most = "" if self.max_retries is None else f" of {self.max_retries + 1}"
        text = f"{problem}; retrying in {pause_ms} ms (attempt {failures + 1}{most})"
        return Retry(text, pause_ms, failures == 1 or failures % self.logged_every == 0)


class Retries:
    """Counts the failures in a row of one operation."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._failures = 0

    @property
    def are_pending(self) -> bool:
        """Whether the last attempt has failed."""
        return self._failures > 0

    def failed(self, problem: object, cause: Exception | None = None) -> Retry:
        """Count a failure. Raises ConnectError after the last retry: see `RetryPolicy.after`."""
        self._failures += 1
        return self._policy.after(self._failures, problem, cause)

    def succeeded(self) -> bool:
        """Reset the count. Return whether attempts had failed before this success."""
        had_failed, self._failures = self.are_pending, 0
        return had_failed

    def call(
        self,
        operation: Callable[[], _T],
        errors: type[Exception] | tuple[type[Exception], ...],
        describe: Callable[[Exception], str],
        wait: Callable[[float], bool],
        logger: logging.Logger,
    ) -> _T:
        """Call `operation` until it succeeds, and return its result. Raises ConnectError after the last retry.

        `errors` are the exceptions to retry, and `describe` returns the text for one; it may raise an exception if a
        retry cannot succeed. `wait` is `context.wait`: if it returns False, because the task is to stop, the exception
        is raised as ConnectError.
        """
        while True:
            try:
                result = operation()
            except errors as error:
                problem = describe(error)
                retry = self.failed(problem, error)
                retry.log(logger)
                if not wait(retry.pause_s):
                    raise ConnectError(f"{problem}; no retry, because the task is being stopped") from error
            else:
                self.succeeded()
                return result
