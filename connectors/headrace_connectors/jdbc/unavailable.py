"""Decides when a task tries again to read a table that is temporarily unavailable, and when the task fails instead.

This module has no I/O: the task itself reads the tables.
"""

from __future__ import annotations

import logging
from collections.abc import Hashable

from headrace.api.errors import ConnectError, RetriableError

logger = logging.getLogger(__name__)

_BACKOFF_MAX_S = 1.0
_BACKOFF_STEP_S = 0.2


class UnavailableError(RetriableError):
    """A table or query cannot be read now, for example because another session is replacing it."""


def backoff_s(failures: int) -> float:
    """Return the seconds to wait after this number of failures in a row."""
    return min(_BACKOFF_MAX_S, _BACKOFF_STEP_S * failures)


class UnavailableTables:
    """Counts how often in a row each table or query of a task could not be read.

    `retries` is the limit of `query.retry.attempts`, or -1 for unlimited retries.
    """

    def __init__(self, retries: int) -> None:
        self._retries = retries
        self._failures: dict[Hashable, int] = {}

    def add(self, key: Hashable, error: UnavailableError) -> float:
        """Count a failure and return the seconds until the next attempt. Raises ConnectError after the last retry."""
        failures = self._failures[key] = self._failures.get(key, 0) + 1
        if 0 <= self._retries < failures:
            raise ConnectError(f"{error} (after {failures} attempts)") from error
        if failures == 1:
            logger.warning("%s; retrying. The task continues to read its other tables", error)
        return backoff_s(failures)

    def remove(self, key: Hashable, name: str) -> None:
        """Reset the count after the table or query called `name` was read."""
        if self._failures.pop(key, 0):
            logger.info("%s can be read again", name)
