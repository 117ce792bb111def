"""Runs standalone workers that several tests use one after the other, because a start needs a second of CPU time.

with SharedWorkers(tmp_path_factory) as workers:
    with workers.acquire() as worker:
        worker.create(...)
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Self
from urllib.parse import quote

import pytest
from confluent_kafka.admin import AdminClient

from support.worker import Worker


class SharedWorker(Worker):
    """A standalone worker with an embedded broker. The method `reset` prepares both for the next test."""

    def start(self) -> Worker:
        """Start the worker and wait until it is healthy."""
        super().start()
        self._bootstrap_servers = super().bootstrap_servers()
        return self

    def bootstrap_servers(self) -> str:
        """Return the embedded broker's address."""
        return self._bootstrap_servers

    @property
    def is_running(self) -> bool:
        """Whether the process is running."""
        return self._process is not None and self._process.poll() is None

    def reset(self) -> None:
        """Delete all connectors, offsets, topics and consumer groups. Empty the worker's log file."""
        for name in self.request("GET", "/connectors"):
            path = f"/connectors/{quote(name, safe='')}"
            self.request("PUT", f"{path}/stop")
            self.request("DELETE", f"{path}/offsets")
            self.request("DELETE", path)
        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers()})
        groups = [group.group_id for group in admin.list_consumer_groups().result(30).valid]
        topics = [name for name in admin.list_topics(timeout=30).topics if not name.startswith("__")]
        deleted = [*(admin.delete_consumer_groups(groups) if groups else {}).values()]
        deleted += (admin.delete_topics(topics) if topics else {}).values()
        for each in deleted:
            each.result(30)
        self._log.write_text("")


class SharedWorkers:
    """Starts standalone workers, and keeps the running workers for later tests that need the same settings."""

    def __init__(self, directories: pytest.TempPathFactory, settings: Mapping[str, str] = {}) -> None:
        self._directories = directories
        self._settings = settings
        self._idle: dict[tuple[tuple[str, str], ...], SharedWorker] = {}

    @contextmanager
    def acquire(self, settings: Mapping[str, str] = {}) -> Iterator[SharedWorker]:
        """Yield a worker that has these settings, and no connectors and topics.

        Keep the worker for later tests with the same settings, unless this test stops it.
        """
        key = tuple(sorted(settings.items()))
        worker = self._idle.pop(key, None)
        if worker is None:
            worker = SharedWorker(self._directories.mktemp("worker"), {**self._settings, **settings})
            worker.start()
        try:
            yield worker
            if worker.is_running:
                worker.reset()
                self._idle[key] = worker
        finally:
            if key not in self._idle:
                worker.__exit__(*sys.exc_info())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for worker in self._idle.values():
            worker.__exit__(None, None, None)
