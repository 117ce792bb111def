"""Mutants of the worker's state machines. Each mutant disables one rule.

`test_simulated_workers.py` lists the mutants that the simulation must detect. The simulation does not detect
`ignore_generation`, `start_before_reading_configs`, `apply_incomplete_commits`, `ignore_session_while_joining` and
`accept_outdated_task_configs` within 300 seeds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from headrace.herder import assignors, core, group_core
from headrace.herder.assignment import EMPTY
from headrace.stores import config_topic_state
from headrace.stores.config_store import ConnectorState
from headrace_broker.client import membership_core


def skip_revocation_phase() -> None:
    """Let the leader assign connectors and tasks in the same generation in which it revokes them."""
    original = assignors.IncrementalAssignor.assign

    def assign(self: Any, configured: Any, held: Any, **fields: Any) -> Any:
        plan = original(self, configured, held, **fields)
        assigned, members = dict(plan.assigned), sorted(held)
        for member, revoked in plan.revoked.items():
            other = members[(members.index(member) + 1) % len(members)]
            assigned[other] = assigned.get(other, EMPTY) | (revoked & configured)
        return replace(plan, assigned=assigned)

    assignors.IncrementalAssignor.assign = assign  # type: ignore[method-assign]


def ignore_generation() -> None:
    """Let a member ignore that the coordinator has removed it from the group."""
    original = membership_core.MembershipCore.on_heartbeat

    def on_heartbeat(self: Any, error_code: int, now_ms: float) -> Any:
        return original(self, 0 if error_code in (22, 25) else error_code, now_ms)

    membership_core.MembershipCore.on_heartbeat = on_heartbeat  # type: ignore[method-assign]


def start_before_reading_configs() -> None:
    """Let a worker start its assigned connectors and tasks before it has read the config topic.

    The worker should first read the topic up to the offset in the assignment.
    """
    original = group_core.GroupCore.on_assignment

    def on_assignment(self: Any, *arguments: Any) -> Any:
        return [each for each in original(self, *arguments) if not isinstance(each, group_core.ReadConfigs)]

    group_core.GroupCore.on_assignment = on_assignment  # type: ignore[method-assign]


def keep_work_after_lost_membership() -> None:
    """Let a worker that has lost its membership keep its connectors and tasks."""

    def drop(self: Any) -> Any:
        self._stopping = EMPTY
        return []

    group_core.GroupCore._drop = drop  # type: ignore[method-assign]


def report_revoked_work_as_stopped() -> None:
    """Let a worker report connectors and tasks as stopped while it is still stopping them."""
    original = group_core.GroupCore.metadata

    def metadata(self: Any) -> Any:
        self._stopping, stopping = EMPTY, self._stopping
        try:
            return original(self)
        finally:
            self._stopping = stopping

    group_core.GroupCore.metadata = metadata  # type: ignore[method-assign]


def apply_incomplete_commits() -> None:
    """Let a commit record take effect although some of its task configurations are missing."""
    original = config_topic_state.ConfigTopicState._commit

    def commit(self: Any, offset: int, name: str, content: Any) -> Any:
        tasks = self._uncommitted.get(name, {})
        if int(content["tasks"]) and not tasks.keys() >= set(range(int(content["tasks"]))):
            content = {"tasks": next(number for number in range(len(tasks) + 1) if number not in tasks)}
        return original(self, offset, name, content)

    config_topic_state.ConfigTopicState._commit = commit  # type: ignore[method-assign]


def ignore_session_while_joining() -> None:
    """Let a worker ignore that its session has expired while it rejoins."""
    membership_core.MembershipCore.on_no_response = (  # type: ignore[method-assign]
        lambda self, now_ms: membership_core.NextStep.FIND_COORDINATOR
    )


def accept_outdated_task_configs() -> None:
    """Let a connector's owner accept outdated task configurations that a former leader has written."""
    core.HerderCore._repair_task_configs = lambda self, before, name: []  # type: ignore[method-assign]


def never_rewrite_task_configs() -> None:
    """Prevent the leader from rewriting task configurations after their connector's configuration has changed."""
    ConnectorState.tasks_to_rewrite = lambda self: None  # type: ignore[method-assign]


def never_rejoin_for_new_configs() -> None:
    """Prevent workers from rejoining when connectors or tasks are created or deleted."""
    group_core.GroupCore._rejoin_if_changed = lambda self: []  # type: ignore[method-assign]


def always_rejoin_for_new_configs() -> None:
    """Let a worker rejoin after each rebalance."""
    original = group_core.GroupCore.on_assignment

    def on_assignment(self: Any, *arguments: Any) -> Any:
        return [*original(self, *arguments), group_core.Rejoin("needless", 5_000)]

    group_core.GroupCore.on_assignment = on_assignment  # type: ignore[method-assign]


def accept_outdated_statuses() -> None:
    """Prevent the owner of a connector or task from correcting a status that another worker has overwritten.

    This mutant needs the option --statuses.
    """
    core.HerderCore.status_replaced = lambda self, connector, task: []  # type: ignore[method-assign]


MUTANTS: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        skip_revocation_phase,
        ignore_generation,
        start_before_reading_configs,
        keep_work_after_lost_membership,
        report_revoked_work_as_stopped,
        apply_incomplete_commits,
        ignore_session_while_joining,
        accept_outdated_task_configs,
        never_rewrite_task_configs,
        never_rejoin_for_new_configs,
        always_rejoin_for_new_configs,
        accept_outdated_statuses,
    )
}
