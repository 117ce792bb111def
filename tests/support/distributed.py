"""Runs distributed workers as processes.

with worker_group(tmp_path, broker.address, 3) as workers:
    workers[0].create("source", {...}); workers[1].kill_group(); workers[1].start()
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from support.worker import RestError, Worker

GROUP = {
    "group.id": "workers",
    "config.storage.topic": "connect-configs",
    "config.storage.replication.factor": "1",
    "offset.storage.topic": "connect-offsets",
    "offset.storage.replication.factor": "1",
    "offset.storage.partitions": "5",
    "status.storage.topic": "connect-status",
    "status.storage.replication.factor": "1",
    "scheduled.rebalance.max.delay.ms": "0",
    "heartbeat.interval.ms": "300",
    "session.timeout.ms": "6000",
}


class DistributedWorker(Worker):
    """Runs `connect-distributed` in its own directory. By default, tasks of a lost worker are reassigned at once."""

    module = "headrace.cli.connect_distributed"

    def __init__(self, directory: Path, bootstrap_servers: str, settings: Mapping[str, str] = {}) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        super().__init__(directory, {**GROUP, "bootstrap.servers": bootstrap_servers, **settings})

    def bootstrap_servers(self) -> str:
        """Return the worker's `bootstrap.servers`."""
        return self.settings["bootstrap.servers"]

    @property
    def worker_id(self) -> str:
        """The worker's id in statuses."""
        return self.url.partition("://")[2]


@contextmanager
def worker_group(
    directory: Path, bootstrap_servers: str, count: int, settings: Mapping[str, str] = {}
) -> Iterator[list[DistributedWorker]]:
    """Start workers one after the other. At the end, stop those that are still running."""
    with ExitStack() as stack:
        workers = [
            DistributedWorker(directory / f"worker-{number}", bootstrap_servers, settings) for number in range(count)
        ]
        for worker in workers:
            stack.enter_context(worker)
        yield workers


def owners(worker: Worker, name: str) -> dict[int | None, tuple[str, str]]:
    """Return (state, worker id) of the connector `name` and of each of its tasks.

    The keys are the task numbers, and None for the connector.
    """
    try:
        status: Any = worker.status(name)
    except RestError:
        return {}
    found: dict[int | None, tuple[str, str]] = {
        None: (status["connector"]["state"], status["connector"]["worker_id"]),
    }
    return found | {task["id"]: (task["state"], task["worker_id"]) for task in status["tasks"]}


def is_running(worker: Worker, name: str, tasks: int) -> bool:
    """Whether the connector and exactly `tasks` of its tasks are running."""
    found = owners(worker, name)
    return len(found) == tasks + 1 and all(state == "RUNNING" for state, _ in found.values())
