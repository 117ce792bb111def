"""Logs that a table's storage does not respond, while the table's library repeats its requests without a word."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

WARN_S = 10.0
logger = logging.getLogger(__name__)


@contextmanager
def slow_requests_logged(location: str, action: str, at_most_s: float) -> Iterator[None]:
    """Log a warning if the body takes longer than `WARN_S`. `action` is for example "reading it"."""

    def warn() -> None:
        logger.warning(
            "Table %s: %s takes longer than %g s, because S3 does not respond or rejects requests; each request is"
            " repeated for up to %g s",
            location,
            action,
            WARN_S,
            at_most_s,
        )

    timer = threading.Timer(WARN_S, warn)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
