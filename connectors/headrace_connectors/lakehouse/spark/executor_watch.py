"""Cancels a job if the cluster has no executor for it. Without executors, Spark lets a job wait for ever."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any, Self

_INTERVAL_S = 1.0


class ExecutorWatch:
    """A context manager that calls `expire` when the application has had no executor for `timeout_ms`.

    With a timeout of 0, it does nothing.
    """

    def __init__(self, context: Any, timeout_ms: int, expire: Callable[[], None]) -> None:
        self._context = context
        self._timeout_s = timeout_ms / 1000
        self._expire = expire
        self._finished = threading.Event()
        self._thread: threading.Thread | None = None
        self.has_expired = False

    def __enter__(self) -> Self:
        if self._timeout_s > 0:
            self._thread = threading.Thread(target=self._watch, name="spark-executors", daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._finished.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self) -> None:
        last_seen = time.monotonic()
        while not self._finished.wait(min(_INTERVAL_S, self._timeout_s / 2)):
            if self._has_executors():
                last_seen = time.monotonic()
            elif time.monotonic() - last_seen >= self._timeout_s:
                self.has_expired = True
                self._expire()
                return

    def _has_executors(self) -> bool:
        with contextlib.suppress(Exception):  # the JVM has exited: `run` raises SparkDisconnectedError
            # The driver is one of the block managers.
            return int(self._context._jsc.sc().getExecutorMemoryStatus().size()) > 1
        return True
