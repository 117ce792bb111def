"""Collects the warnings and errors that plug-ins log while the platform validates a configuration."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.metrics import logs


@contextmanager
def logged_warnings() -> Iterator[list[str]]:
    """Yield a list to which the messages are added that the current thread logs at level WARNING or higher."""
    collector = _Collector()
    root = logging.getLogger()
    root.addHandler(collector)
    try:
        yield collector.messages
    finally:
        root.removeHandler(collector)


class _Collector(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.messages: list[str] = []
        self._thread = threading.get_ident()

    def emit(self, record: logging.LogRecord) -> None:
        """Add the message of a log record with masked secrets."""
        if record.thread == self._thread:
            self.messages.append(logs.secrets.mask(record.getMessage()))
