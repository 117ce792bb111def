"""Creates connectors of the class `MonitoredSource` in a group of workers.

Reads the journal file and the records of each connector.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from confluent_kafka import KafkaException, Message

from support.distributed import DistributedWorker, is_running, owners
from support.processes import is_alive
from support.topics import read_topic
from support.worker import wait_for

PLUGINS = {"plugin.path": str(Path(__file__).parent / "connect_plugins")}
"""Worker properties with which a worker finds `MonitoredSource`."""


class Monitored:
    """One connector. `settings` are additional configuration keys, for example `{"blocks.in": "task poll"}`."""

    def __init__(self, directory: Path, name: str, tasks: int = 1, settings: Mapping[str, str] = {}) -> None:
        self.name = name
        self.topic = f"topic-{name}"
        self.journal = directory / f"{name}.journal"
        self.tasks = tasks
        self._settings = settings

    def config(self, tasks: int | None = None, **more: str) -> dict[str, str]:
        """Return the connector's configuration. If `tasks` is given, change the connector's number of tasks first."""
        self.tasks = tasks or self.tasks
        return {
            "connector.class": "MonitoredSource",
            "tasks.max": "100",
            "tasks": str(self.tasks),
            "journal": str(self.journal),
            "topic": self.topic,
            **self._settings,
            **{key.replace("_", "."): value for key, value in more.items()},
        }

    def create(self, worker: DistributedWorker) -> Monitored:
        """Create the connector and wait until the connector and its tasks run."""
        worker.create(self.name, self.config())
        self.wait_until_running(worker)
        return self

    def wait_until_running(self, worker: DistributedWorker, timeout_s: float = 60) -> None:
        """Wait until the connector and exactly its configured number of tasks run."""
        wait_for(
            lambda: is_running(worker, self.name, self.tasks),
            f"{self.name} and its {self.tasks} tasks run",
            timeout_s,
            lambda: owners(worker, self.name),
        )

    def calls(self, call: str) -> list[dict[str, Any]]:
        """Return the journal's lines for this call, for example "task start"."""
        lines = self.journal.read_text().splitlines() if self.journal.exists() else []
        return [found for found in map(json.loads, lines) if found["call"] == call]

    def starts(self) -> dict[int | None, int]:
        """Return how often the connector (None) and each task have started."""
        counts: dict[int | None, int] = {}
        for started in [*self.calls("connector start"), *self.calls("task start")]:
            counts[started["task"]] = counts.get(started["task"], 0) + 1
        return counts

    def numbers(self, bootstrap_servers: str) -> dict[int, list[int]]:
        """Return the numbers that each task has produced, in the order of their records in the topic."""
        found: dict[int, list[int]] = {}
        for message in self._read(bootstrap_servers):
            found.setdefault(int(message.key() or b""), []).append(int(message.value() or b""))
        return found

    def _read(self, bootstrap_servers: str) -> list[Message]:
        deadline = time.monotonic() + 60
        while True:
            try:
                return read_topic(bootstrap_servers, self.topic)
            except KafkaException:  # the topic does not exist yet, or a broker has stopped
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def has_running_process(self) -> bool:
        """Whether a process of the connector or of its tasks runs."""
        lines = self.journal.read_text().splitlines() if self.journal.exists() else []
        return any(is_alive(pid) for pid in {json.loads(line)["pid"] for line in lines})

    def wait_for_progress(self, bootstrap_servers: str, timeout_s: float = 60) -> None:
        """Wait until each task has produced more records than at the time of this call."""
        before = {task: len(numbers) for task, numbers in self.numbers(bootstrap_servers).items()}

        def progressed() -> bool:
            now = self.numbers(bootstrap_servers)
            return all(len(now.get(task, ())) > before.get(task, 0) for task in range(self.tasks))

        wait_for(progressed, f"each task of {self.name} produces records", timeout_s)


def assert_no_number_is_missing(numbers: Mapping[int, list[int]]) -> None:
    """Check that each task has produced 0, 1, 2, ... in this order. After a restart, a task may repeat numbers."""
    for task, found in numbers.items():
        highest = -1
        for number in found:
            assert number <= highest + 1, f"task {task}: {number} follows {highest}: {found}"
            highest = max(highest, number)


def everything(worker: DistributedWorker) -> dict[tuple[str, int | None], tuple[str, str]]:
    """Return state and worker id of all connectors and tasks.

    A key is (connector, task), and task is None for a connector.
    """
    names = worker.request("GET", "/connectors")
    return {(name, task): owner for name in names for task, owner in owners(worker, name).items()}


def wait_until_balanced(workers: list[DistributedWorker], timeout_s: float = 60) -> None:
    """Wait until all connectors and tasks run, evenly distributed over exactly these workers."""

    def is_balanced() -> bool:
        found = everything(workers[0])
        counts = dict.fromkeys((worker.worker_id for worker in workers), 0)
        for state, worker_id in found.values():
            if state != "RUNNING" or worker_id not in counts:
                return False
            counts[worker_id] += 1
        connectors = {worker.worker_id: 0 for worker in workers}
        for (_, task), (_, worker_id) in found.items():
            connectors[worker_id] += task is None
        return _is_even(connectors) and _is_even({each: counts[each] - connectors[each] for each in counts})

    wait_for(is_balanced, "the workers run the same number of tasks", timeout_s, lambda: everything(workers[0]))


def _is_even(counts: Mapping[str, int]) -> bool:
    return max(counts.values()) - min(counts.values()) <= 1
