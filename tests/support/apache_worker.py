"""Runs Kafka's distributed worker with the interface of `DistributedWorker`, so that tests can use both classes."""

from __future__ import annotations

import json
import sys
import urllib.error
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType

from support import apache
from support.distributed import DistributedWorker
from support.worker import RestError, wait_for

STOP_TIMEOUT_S = 40


class ApacheWorker(DistributedWorker):
    """Runs Apache Kafka's `connect-distributed`. Its settings and REST methods are those of `DistributedWorker`."""

    def __init__(self, directory: Path, bootstrap_servers: str, settings: Mapping[str, str] = {}) -> None:
        super().__init__(directory, bootstrap_servers, settings)
        del self.settings["headrace.data.dir"]
        self._running: AbstractContextManager[apache.ApacheProcess] | None = None
        self._apache: apache.ApacheProcess | None = None

    def start(self) -> ApacheWorker:
        """Start the worker and wait until it is healthy."""
        self._running = apache.connect_distributed(self.settings, flags=apache.SHORT_RUN_FLAGS)
        self._apache = self._running.__enter__()
        wait_for(self.is_healthy, "Kafka's worker is healthy", 90, self.log)
        return self

    def is_healthy(self) -> bool:
        """Return whether GET /health reports a healthy worker."""
        try:
            return bool(self.request("GET", "/health")["status"] == "healthy")
        except (RestError, urllib.error.URLError, ConnectionError, json.JSONDecodeError):
            return False

    def stop(self) -> None:
        """Stop the worker cleanly, and wait until it has exited."""
        if self._running is not None:
            self._running.__exit__(None, None, None)
            self._running = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            sys.stderr.write(self.log())
        self.stop()

    def log(self) -> str:
        """Return the worker's log so far."""
        return "" if self._apache is None or not self._apache.log.exists() else self._apache.log.read_text()
