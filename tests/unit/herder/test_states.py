"""Statuses by generation, and what a restart touches."""

from __future__ import annotations

import pytest

from headrace.herder.states import Board, RestartPlan, State, TargetState


def board_with(connector: State, *tasks: State) -> Board:
    board = Board("worker:8083")
    board.set("c", None, connector)
    for number, state in enumerate(tasks):
        board.set("c", number, state, "trace" if state is State.FAILED else None)
    return board


def test_shape_shows_a_trace_for_failures_only() -> None:
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


def test_an_abandoned_instance_is_not_heard() -> None:
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
def test_restart_plans(include_tasks: bool, only_failed: bool, plan: RestartPlan) -> None:
    board = board_with(State.RUNNING, State.RUNNING, State.FAILED, State.PAUSED)
    assert board.plan_restart("c", include_tasks=include_tasks, only_failed=only_failed) == plan


def test_a_failed_connector_is_part_of_only_failed() -> None:
    board = board_with(State.FAILED, State.RUNNING)
    assert board.plan_restart("c", include_tasks=True, only_failed=True) == RestartPlan(True, [])


def test_initial_states() -> None:
    assert TargetState.from_initial_state("running") is TargetState.STARTED
    assert TargetState.from_initial_state("Stopped") is TargetState.STOPPED
    with pytest.raises(ValueError, match="none of RUNNING, PAUSED, STOPPED"):
        TargetState.from_initial_state("STARTED")
