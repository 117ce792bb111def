"""Decides when a task tries again to read a table that is temporarily unavailable, and when the task fails instead.

This module does no I/O: the task itself reads the tables.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable

from headrace.api.errors import RetriableError
from headrace.api.retries import Retries, RetryPolicy

logger = logging.getLogger(__name__)

_BACKOFF_MAX_MS = 1000
_BACKOFF_STEP_MS = 200
_LOGGED_EVERY = 60


class UnavailableError(RetriableError):
    """A table or query cannot be read now, for example because another session is replacing it."""


def query_retries(attempts: int) -> RetryPolicy:
    """Return the policy for failed queries. `attempts` is query.retry.attempts; -1 means unlimited retries."""
    return RetryPolicy(
        lambda failures: min(_BACKOFF_MAX_MS, _BACKOFF_STEP_MS * failures),
        None if attempts < 0 else attempts,
        "query.retry.attempts",
        logged_every=_LOGGED_EVERY,
    )


class UnavailableTables:
    """Counts how often in a row each table or query of a task could not be read."""

    def __init__(self, policy: RetryPolicy) -> None:
        self._policy = policy
        self._retries: dict[Hashable, Retries] = {}

    def add(self, key: Hashable, error: UnavailableError) -> float:
        """Count a failure and return the seconds until the next attempt. Raises ConnectError after the last retry."""
        retry = self._retries.setdefault(key, Retries(self._policy)).failed(error)
        if retry.is_logged:
            logger.warning("%s. The task continues to read its other tables", retry.text)
        return retry.pause_s

    def remove(self, key: Hashable, name: str) -> None:
        """Reset the count after the table or query called `name` was read."""
        if self._retries.pop(key, None) is not None:
            logger.info("%s can be read again", name)
