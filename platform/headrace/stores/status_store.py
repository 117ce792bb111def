"""The status store: statuses of connectors and tasks, and the topics that connectors use. This module does no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


class State(StrEnum):
    """The state of a connector or task."""

    UNASSIGNED = "UNASSIGNED"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"
    FAILED = "FAILED"
    RESTARTING = "RESTARTING"


@dataclass(frozen=True, slots=True)
class Status:
    """The status of one connector or task, written by the worker that runs it."""

    state: State
    worker_id: str
    generation: int = 0
    trace: str | None = None
    version: str | None = None
    """The version of the plug-in's class; None until an instance has started."""


@dataclass(frozen=True, slots=True)
class ConnectorStatuses:
    """The statuses of a connector and its tasks. `connector` is None until the connector's first status."""

    connector: Status | None = None
    tasks: Mapping[int, Status] = field(default_factory=dict)


class StatusStore(Protocol):
    """The statuses of all connectors of a worker group.

    Writes return immediately, and are stored in the order of the calls. Reads return the statuses that this worker
    knows, including its own writes. A distributed worker learns of other workers' statuses by reading the status topic.
    """

    async def start(self) -> None:
        """Read the stored statuses."""

    async def stop(self) -> None:
        """Complete the pending writes."""

    def put(self, connector: str, task: int | None, status: Status) -> None:
        """Store the status of a connector (task None) or task."""

    def show_starting(self, connector: str, task: int | None, status: Status) -> None:
        """Let this worker return a status for an instance that has no status. The status is not stored."""

    def remove(self, connector: str, task: int | None) -> None:
        """Remove the status of a task, or of a connector with its tasks and topics (task None)."""

    def get(self, connector: str) -> ConnectorStatuses:
        """Return the statuses of a connector. For an unknown connector, the result is empty."""

    def task_counts(self) -> dict[str, int]:
        """Return, for each connector that has a status, the number of its tasks that have a status."""

    def add_topic(self, connector: str, topic: str, task: int) -> None:
        """Add a topic to those that a connector uses (KIP-558)."""

    def topics(self, connector: str) -> list[str]:
        """Return the topics that a connector uses."""

    def reset_topics(self, connector: str) -> None:
        """Remove all topics of a connector."""


class MemoryStatusStore:
    """The statuses of a standalone worker."""

    def __init__(self) -> None:
        self._connectors: dict[str, Status] = {}
        self._tasks: dict[str, dict[int, Status]] = {}
        self._topics: dict[str, dict[str, None]] = {}

    async def start(self) -> None:
        """Do nothing: a new worker has no statuses."""

    async def stop(self) -> None:
        """Do nothing: the statuses end with the worker."""

    def put(self, connector: str, task: int | None, status: Status) -> None:
        """Store the status of a connector (task None) or task."""
        if task is None:
            self._connectors[connector] = status
        else:
            self._tasks.setdefault(connector, {})[task] = status

    def show_starting(self, connector: str, task: int | None, status: Status) -> None:
        """Store the status of an instance that starts."""
        self.put(connector, task, status)

    def remove(self, connector: str, task: int | None) -> None:
        """Remove the status of a task, or of a connector and all its tasks (task None)."""
        if task is None:
            self._connectors.pop(connector, None)
            self._tasks.pop(connector, None)
            self._topics.pop(connector, None)
        else:
            self._tasks.get(connector, {}).pop(task, None)

    def get(self, connector: str) -> ConnectorStatuses:
        """Return the statuses of a connector and of its tasks, which are sorted by number."""
        tasks = self._tasks.get(connector, {})
        return ConnectorStatuses(self._connectors.get(connector), {number: tasks[number] for number in sorted(tasks)})

    def task_counts(self) -> dict[str, int]:
        """Return, for each connector that has a status, the number of its tasks that have a status."""
        return {name: len(self._tasks.get(name, ())) for name in self._connectors}

    def add_topic(self, connector: str, topic: str, task: int) -> None:
        """Add a topic to those that a connector uses."""
        self._topics.setdefault(connector, {})[topic] = None

    def topics(self, connector: str) -> list[str]:
        """Return the topics that a connector uses."""
        return list(self._topics.get(connector, ()))

    def reset_topics(self, connector: str) -> None:
        """Remove all topics of a connector."""
        self._topics.pop(connector, None)
