"""Status updates of current and replaced instances, and the selection of instances to restart."""

from __future__ import annotations

import pytest

from headrace.herder.states import Board, RestartPlan, State, TargetState


def board_with(connector: State, *tasks: State) -> Board:
    board = Board("worker:8083")
    board.set("c", None, connector)
    for number, state in enumerate(tasks):
        board.set("c", number, state, "trace" if state is State.FAILED else None)
    return board


def test_status_contains_traces_only_of_failures() -> None:
    board = board_with(State.RUNNING, State.RUNNING, State.FAILED)
    assert board.shape("c", "source") == {
        "name": "c",
        "connector": {"state": "RUNNING", "worker_id": "worker:8083"},
        "tasks": [
            {"id": 0, "state": "RUNNING", "worker_id": "worker:8083"},
            {"id": 1, "state": "FAILED", "worker_id": "worker:8083", "trace": "trace"},
        ],
        "type": "source",
    }


def test_status_update_of_replaced_instance_is_ignored() -> None:
    board = board_with(State.RUNNING, State.UNASSIGNED)
    old = board.begin("c", 0)
    new = board.begin("c", 0)
    assert not board.hear("c", 0, old, State.FAILED, "late")
    assert board.hear("c", 0, new, State.RUNNING)
    assert board.of("c").tasks[0].state is State.RUNNING
    assert not board.hear("gone", None, 1, State.RUNNING)
    assert "gone" not in board


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
    board = board_with(State.RUNNING, State.RUNNING, State.FAILED, State.PAUSED)
    assert board.plan_restart("c", include_tasks=include_tasks, only_failed=only_failed) == plan


def test_restart_of_only_failed_instances_includes_failed_connector() -> None:
    board = board_with(State.FAILED, State.RUNNING)
    assert board.plan_restart("c", include_tasks=True, only_failed=True) == RestartPlan(True, [])


def test_initial_state_is_parsed() -> None:
    assert TargetState.from_initial_state("running") is TargetState.STARTED
    assert TargetState.from_initial_state("Stopped") is TargetState.STOPPED
    with pytest.raises(ValueError, match="must be one of RUNNING, PAUSED, STOPPED"):
        TargetState.from_initial_state("STARTED")
