"""Selects the instances that a restart request restarts (KIP-745). This module does no I/O."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace.stores.status_store import ConnectorStatuses, State, Status


@dataclass(frozen=True, slots=True)
class RestartPlan:
    """The instances that a restart request selects."""

    connector: bool
    tasks: Sequence[int]


def plan_restart(statuses: ConnectorStatuses, *, include_tasks: bool, only_failed: bool) -> RestartPlan:
    """Return the instances that a restart request selects."""

    def is_selected(status: Status | None) -> bool:
        return not only_failed or (status is not None and status.state is State.FAILED)

    tasks = [number for number, status in sorted(statuses.tasks.items()) if is_selected(status)]
    return RestartPlan(is_selected(statuses.connector), tasks if include_tasks else [])
