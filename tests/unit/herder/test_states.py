"""Status updates of current and replaced instances, and the selection of instances to restart."""

from __future__ import annotations

import pytest

from headrace.herder.states import RestartPlan, State, StatusStore, TargetState


def statuses_of(connector: State, *tasks: State) -> StatusStore:
    statuses = StatusStore("worker:8083")
    statuses.set("c", None, connector)
    for number, state in enumerate(tasks):
        statuses.set("c", number, state, "trace" if state is State.FAILED else None)
    return statuses


def test_status_contains_traces_only_of_failures() -> None:
    statuses = statuses_of(State.RUNNING, State.RUNNING, State.FAILED)
    assert statuses.shape("c", "source") == {
        "name": "c",
        "connector": {"state": "RUNNING", "worker_id": "worker:8083"},
        "tasks": [
            {"id": 0, "state": "RUNNING", "worker_id": "worker:8083"},
            {"id": 1, "state": "FAILED", "worker_id": "worker:8083", "trace": "trace"},
        ],
        "type": "source",
    }


def test_status_update_of_replaced_instance_is_ignored() -> None:
    statuses = statuses_of(State.RUNNING, State.UNASSIGNED)
    old = statuses.begin("c", 0)
    new = statuses.begin("c", 0)
    assert not statuses.hear("c", 0, old, State.FAILED, "late")
    assert statuses.hear("c", 0, new, State.RUNNING)
    assert statuses.of("c").tasks[0].state is State.RUNNING
    assert not statuses.hear("gone", None, 1, State.RUNNING)
    assert "gone" not in statuses


@pytest.mark.parametrize(
    ("include_tasks", "only_failed", "plan"),
    [
        (False, False, RestartPlan(True, [])),
        (False, True, RestartPlan(False, [])),
        (True, False, RestartPlan(True, [0, 1, 2])),
        (True, True, RestartPlan(False, [1])),
    ],
)
def test_restart_plan_depends_on_include_tasks_and_only_failed(
    include_tasks: bool, only_failed: bool, plan: RestartPlan
) -> None:
    statuses = statuses_of(State.RUNNING, State.RUNNING, State.FAILED, State.PAUSED)
    assert statuses.plan_restart("c", include_tasks=include_tasks, only_failed=only_failed) == plan


def test_restart_of_only_failed_instances_includes_failed_connector() -> None:
    statuses = statuses_of(State.FAILED, State.RUNNING)
    assert statuses.plan_restart("c", include_tasks=True, only_failed=True) == RestartPlan(True, [])


def test_initial_state_is_parsed() -> None:
    assert TargetState.from_initial_state("running") is TargetState.STARTED
    assert TargetState.from_initial_state("Stopped") is TargetState.STOPPED
    with pytest.raises(ValueError, match="must be one of RUNNING, PAUSED, STOPPED"):
        TargetState.from_initial_state("STARTED")
