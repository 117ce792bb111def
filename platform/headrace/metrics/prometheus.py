"""Formats counters and states in Prometheus' text format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

_HELP = {
    "records": "Records that the task has sent (source) or delivered (sink)",
    "batches": "Batches that the task has sent or delivered",
    "errors": "Records that failed in a converter, a transform or the sink",
    "skipped": "Failed records that were skipped because errors are tolerated",
}


class ConnectorStates(Protocol):
    """The current states of connectors and tasks."""

    def states(self, connector: str) -> Iterable[tuple[int | None, str]]: ...


def render(
    connector_states: ConnectorStates, connectors: Iterable[str], counters: Iterable[tuple[str, int, Mapping[str, int]]]
) -> str:
    """Return the metrics page for `connectors`; `counters` are (connector, task, values by name)."""
    counted = list(counters)
    lines: list[str] = []
    for name, text in _HELP.items():
        metric = f"headrace_connect_task_{name}_total"
        lines += [f"# HELP {metric} {text}", f"# TYPE {metric} counter"]
        lines += [f"{metric}{_labels(c, task)} {values.get(name, 0)}" for c, task, values in counted]
    lines += ["# HELP headrace_connect_state 1 for the current state of the connector or task"]
    lines += ["# TYPE headrace_connect_state gauge"]
    for connector in connectors:
        lines += [
            f"headrace_connect_state{_labels(connector, task, state=state)} 1"
            for task, state in connector_states.states(connector)
        ]
    return "\n".join(lines) + "\n"


def _labels(connector: str, task: int | None, **more: str) -> str:
    labels = {"connector": connector, **({} if task is None else {"task": str(task)}), **more}
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
