"""Converts the herder's results to the JSON objects of the REST API. This module does no I/O."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from headrace.herder.herder import ConnectorInfo, ConnectorStatus
from headrace.metrics import task_page
from headrace.runtime.task_metrics import TaskMetrics
from headrace.stores.status_store import State, Status


def connector_info(info: ConnectorInfo) -> dict[str, Any]:
    """Return the response of `GET /connectors/C`."""
    tasks = [{"connector": info.name, "task": number} for number in range(info.task_count)]
    return {"name": info.name, "config": dict(info.config), "tasks": tasks, "type": info.type}


def connector_status(status: ConnectorStatus) -> dict[str, Any]:
    """Return the response of `GET /connectors/C/status`."""
    return {
        "name": status.name,
        "connector": _instance_status(status.connector),
        "tasks": [task_status(number, task) for number, task in status.tasks.items()],
        "type": status.type,
    }


def task_status(number: int, status: Status) -> dict[str, Any]:
    """Return the response of `GET /connectors/C/tasks/N/status`."""
    return {"id": number, **_instance_status(status)}


def task_metrics(task: TaskMetrics, connector_type: str) -> dict[str, float | None]:
    """Return the metrics of a task by their names in Kafka. Numbers that JSON does not have are null."""
    values = task_page.named_values(task, connector_type)
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def _instance_status(status: Status) -> dict[str, Any]:
    """Return the status of a connector or task.

    The status contains a trace after a failure, even while the connector or task is being restarted. It contains the
    plug-in's version once the connector or task has started.
    """
    shape: dict[str, Any] = {"state": status.state.value, "worker_id": status.worker_id}
    if status.state in (State.FAILED, State.RESTARTING) and status.trace:
        shape["trace"] = status.trace
    if status.version is not None:
        shape["version"] = status.version
    return shape


def task_configs(name: str, configs: Sequence[Mapping[str, str]]) -> list[dict[str, Any]]:
    """Return the response of `GET /connectors/C/tasks`."""
    return [
        {"id": {"connector": name, "task": number}, "config": dict(config)} for number, config in enumerate(configs)
    ]


def offsets(pairs: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> dict[str, Any]:
    """Return the response of `GET /connectors/C/offsets`. `pairs` are the connector's (partition, offset) pairs."""
    return {"offsets": [{"partition": partition, "offset": offset} for partition, offset in pairs]}
