"""A set of connectors and tasks, which the workers of a group send to each other. This module does no I/O."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeAlias

from headrace.metrics.log_text import Listing, partitions
from headrace.stores.config_store import ConfigSnapshot

TaskId: TypeAlias = tuple[str, int]
"""A connector's name and the number of one of its tasks."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The connector instances and tasks that a worker runs, starts or stops."""

    connectors: frozenset[str] = frozenset()
    tasks: frozenset[TaskId] = frozenset()

    def __str__(self) -> str:
        return f"connectors {Listing(sorted(self.connectors))}; tasks {partitions(sorted(self.tasks))}"

    def contains(self, connector: str, task: int | None) -> bool:
        """Whether the assignment contains a connector instance (if `task` is None) or a task."""
        return connector in self.connectors if task is None else (connector, task) in self.tasks

    def __bool__(self) -> bool:
        return bool(self.connectors or self.tasks)

    def __or__(self, other: Assignment) -> Assignment:
        return Assignment(self.connectors | other.connectors, self.tasks | other.tasks)

    def __sub__(self, other: Assignment) -> Assignment:
        return Assignment(self.connectors - other.connectors, self.tasks - other.tasks)

    def __and__(self, other: Assignment) -> Assignment:
        return Assignment(self.connectors & other.connectors, self.tasks & other.tasks)


EMPTY = Assignment()

NAME_BYTES_MAX = 32_767
"""The longest connector name that the protocol of the group can encode; validation permits only shorter names."""


def is_assignable(name: str) -> bool:
    """Whether an assignment can contain a connector with this name."""
    return len(name.encode()) <= NAME_BYTES_MAX


def configured(snapshot: ConfigSnapshot) -> Assignment:
    """Return all connectors and tasks that the workers of a group run. Connectors with too long names cannot run."""
    connectors = {name: state for name, state in snapshot.connectors.items() if is_assignable(name)}
    tasks = ((name, number) for name, state in connectors.items() for number in range(len(state.task_configs)))
    return Assignment(frozenset(connectors), frozenset(tasks))


def union(assignments: Iterable[Assignment]) -> Assignment:
    """Return the connectors and tasks of all the assignments."""
    found = list(assignments)
    return Assignment(
        frozenset().union(*(each.connectors for each in found)), frozenset().union(*(each.tasks for each in found))
    )


def duplicates(assignments: Iterable[Assignment]) -> Assignment:
    """Return the connectors and tasks that more than one of the assignments contains."""
    connectors: Counter[str] = Counter()
    tasks: Counter[TaskId] = Counter()
    for each in assignments:
        connectors.update(each.connectors)
        tasks.update(each.tasks)
    return Assignment(
        frozenset(name for name, count in connectors.items() if count > 1),
        frozenset(task for task, count in tasks.items() if count > 1),
    )
