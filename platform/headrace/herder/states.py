"""States of connectors and tasks, and the selection of instances to restart (KIP-745). No I/O.

A `StatusStore` contains the statuses that the REST API returns. Each start of an instance receives a new generation;
status updates with an older generation are ignored.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class State(StrEnum):
    """The state of a connector or task."""

    UNASSIGNED = "UNASSIGNED"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"
    FAILED = "FAILED"
    RESTARTING = "RESTARTING"


class TargetState(StrEnum):
    """The state of a connector that the user has requested."""

    STARTED = "STARTED"
    PAUSED = "PAUSED"
    STOPPED = "STOPPED"

    @classmethod
    def from_initial_state(cls, text: str) -> TargetState:
        """Parse KIP-980's `initial_state` (RUNNING, PAUSED or STOPPED, case-insensitive). Raises ValueError."""
        names = {"RUNNING": cls.STARTED, "PAUSED": cls.PAUSED, "STOPPED": cls.STOPPED}
        try:
            return names[text.upper()]
        except KeyError:
            raise ValueError(f"initial_state: {text!r} must be one of RUNNING, PAUSED, STOPPED") from None


@dataclass(slots=True)
class Status:
    """The state of one connector or task."""

    state: State = State.UNASSIGNED
    trace: str | None = None
    generation: int = 0

    def shape(self, worker_id: str) -> dict[str, Any]:
        """Return the status in the REST API's format; only a failed instance has a trace."""
        shown: dict[str, Any] = {"state": self.state.value, "worker_id": worker_id}
        if self.state is State.FAILED and self.trace:
            shown["trace"] = self.trace
        return shown


@dataclass(slots=True)
class ConnectorStatus:
    """The statuses of a connector and its tasks."""

    connector: Status = field(default_factory=Status)
    tasks: dict[int, Status] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RestartPlan:
    """The instances that a restart request selects."""

    connector: bool
    tasks: list[int]


class StatusStore:
    """The statuses of all connectors and tasks of this worker."""

    def __init__(self, worker_id: str) -> None:
        self.worker_id = worker_id
        self._statuses: dict[str, ConnectorStatus] = {}
        self._generation = 0

    def __contains__(self, connector: str) -> bool:
        return connector in self._statuses

    def of(self, connector: str) -> ConnectorStatus:
        """Return the status of a connector; create it if it does not exist."""
        return self._statuses.setdefault(connector, ConnectorStatus())

    def forget(self, connector: str) -> None:
        """Remove the status of a deleted connector."""
        self._statuses.pop(connector, None)

    def begin(self, connector: str, task: int | None) -> int:
        """Return a new generation for an instance that is about to start."""
        self._generation += 1
        self._status(connector, task).generation = self._generation
        return self._generation

    def set(self, connector: str, task: int | None, state: State, trace: str | None = None) -> None:
        """Set a state that the herder has decided."""
        status = self._status(connector, task)
        status.state, status.trace = state, trace

    def hear(self, connector: str, task: int | None, generation: int, state: State, trace: str | None = None) -> bool:
        """Set the state that an instance reports; return False if the instance was replaced or removed."""
        known = self._statuses.get(connector)
        status = None if known is None else known.connector if task is None else known.tasks.get(task)
        if status is None or status.generation != generation:
            return False
        status.state, status.trace = state, trace
        return True

    def keep_tasks(self, connector: str, count: int) -> None:
        """Keep the statuses of tasks 0 to `count - 1` and remove all others."""
        tasks = self.of(connector).tasks
        for number in [number for number in tasks if number >= count]:
            del tasks[number]

    def shape(self, connector: str, kind: str) -> dict[str, Any]:
        """`GET /connectors/C/status`."""
        status = self._statuses[connector]
        return {
            "name": connector,
            "connector": status.connector.shape(self.worker_id),
            "tasks": [{"id": number, **task.shape(self.worker_id)} for number, task in sorted(status.tasks.items())],
            "type": kind,
        }

    def plan_restart(self, connector: str, *, include_tasks: bool, only_failed: bool) -> RestartPlan:
        """Return the instances that a restart request selects."""
        status = self._statuses[connector]
        tasks = status.tasks.items() if include_tasks else ()
        return RestartPlan(
            connector=_restarts(status.connector, only_failed),
            tasks=sorted(number for number, task in tasks if _restarts(task, only_failed)),
        )

    def states(self, connector: str) -> Iterable[tuple[int | None, str]]:
        """Yield the state of a connector (task None) and of each of its tasks."""
        if (status := self._statuses.get(connector)) is not None:
            yield None, status.connector.state.value
            for number, task in sorted(status.tasks.items()):
                yield number, task.state.value

    def _status(self, connector: str, task: int | None) -> Status:
        status = self.of(connector)
        return status.connector if task is None else status.tasks.setdefault(task, Status())


def _restarts(status: Status, only_failed: bool) -> bool:
    return not only_failed or status.state is State.FAILED
