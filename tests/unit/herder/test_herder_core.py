"""Tests that HerderCore starts and stops instances until the desired ones run, for any order of events."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.herder import core
from headrace.herder.assignment import Assignment
from headrace.herder.core import HerderCore, RestartPlan, plan_restart
from headrace.runtime.spec import InstanceId
from headrace.stores.config_store import (
    ConfigChange,
    DeleteConnector,
    PutConnector,
    PutTargetState,
    PutTaskConfigs,
    TargetState,
)
from headrace.stores.status_store import ConnectorStatuses, MemoryStatusStore, State, Status

Operation = core.StartConnector | core.StartTask | core.StopInstance | core.RequestTaskConfigs


class World:
    """A worker, a config store and a status store that carry out HerderCore's effects when the test tells them to."""

    def __init__(self) -> None:
        self.core = HerderCore()
        self.offset = -1
        self.pending: list[Operation] = []
        self.retries: list[InstanceId] = []
        self.delayed: list[core.RestartLater | core.WatchRestarted] = []
        self.alive: dict[tuple[str, int | None], core.StartConnector | core.StartTask] = {}
        self.paused: dict[InstanceId, bool] = {}
        self.statuses = MemoryStatusStore()
        self.stored: list[tuple[int | None, State, str | None]] = []

    def change(self, change: ConfigChange) -> None:
        self.offset += 1
        self.carry_out(self.core.on_snapshot(self.core.snapshot.apply(self.offset, change)))

    def carry_out(self, effects: list[core.Effect]) -> None:
        for effect in effects:
            match effect:
                case core.PutStatus(name, task, state, generation, trace, version):
                    self.stored.append((task, state, version))
                    self.statuses.put(name, task, Status(state, "w", generation, trace, version))
                case core.ShowStarting(instance, version):
                    status = Status(State.UNASSIGNED, "w", instance.generation, version=version)
                    self.statuses.show_starting(instance.connector, instance.task, status)
                case core.RemoveStatus(name, task):
                    self.statuses.remove(name, task)
                case core.StoreTaskConfigs(name, configs):
                    self.change(PutTaskConfigs(name, configs))
                case core.RetryTaskConfigs(instance, delay_ms):
                    assert 250 <= delay_ms <= 60_000
                    self.retries.append(instance)
                case core.RestartLater(instance) | core.WatchRestarted(instance):
                    self.delayed.append(effect)
                case core.PauseTask(instance) | core.ResumeTask(instance):
                    assert instance in self.paused, "paused or resumed a task that does not run"
                    self.paused[instance] = isinstance(effect, core.PauseTask)
                case _:
                    self.pending.append(effect)

    def complete(self, index: int, task_count: int | None, *, succeeds: bool) -> None:
        """Carry out one pending operation. A request for task configurations fails if `task_count` is None."""
        operation = self.pending.pop(index)
        id_ = operation.instance
        key = id_.connector, id_.task
        match operation:
            case core.StartConnector() | core.StartTask():
                assert key not in self.alive, "started twice"
                if not succeeds:
                    self.carry_out(self.core.start_failed(id_, "trace"))
                    return
                self.alive[key] = operation
                if isinstance(operation, core.StartTask):
                    self.paused[id_] = operation.is_paused
                self.carry_out(self.core.started(id_, "1.0"))
            case core.StopInstance():
                if key in self.alive and self.alive[key].instance == id_:
                    del self.alive[key]
                self.paused.pop(id_, None)
                self.carry_out(self.core.stopped(id_))
            case core.RequestTaskConfigs():
                if task_count is None:
                    self.carry_out(self.core.task_configs_failed(id_, "trace", is_fatal=False))
                else:
                    configs = [{"n": str(number)} for number in range(task_count)]
                    self.carry_out(self.core.task_configs_generated(id_, configs))

    def settle(self, task_count: int = 2) -> None:
        """Carry out all operations and retries without failures, until none is pending."""
        for _ in range(1000):
            if self.pending:
                self.complete(0, task_count, succeeds=True)
            elif self.retries:
                self.carry_out(self.core.retry_due(self.retries.pop()))
            else:
                return
        raise AssertionError("the core does not converge")

    def crash(self, id_: InstanceId) -> None:
        self.alive.pop((id_.connector, id_.task), None)
        self.paused.pop(id_, None)
        self.carry_out(self.core.state_changed(id_, "FAILED", "crashed"))

    def status(self, name: str) -> ConnectorStatuses:
        return self.statuses.get(name)


def running_world(**config: str) -> World:
    world = World()
    world.change(PutConnector("c", config))
    world.settle()
    return world


def test_new_connector_runs_with_the_tasks_that_it_generates() -> None:
    world = running_world(a="1")
    assert set(world.alive) == {("c", None), ("c", 0), ("c", 1)}
    assert world.core.is_settled("c")
    status = world.status("c").connector
    assert status is not None
    assert (status.state, status.version) == (State.RUNNING, "1.0")


def test_restart_replaces_only_the_selected_instances() -> None:
    world = running_world()
    before = dict(world.alive)
    world.carry_out(world.core.restart("c", RestartPlan(False, [1])))
    world.settle()
    assert {key for key in before if world.alive[key] != before[key]} == {("c", 1)}


def test_statuses_are_stored_as_in_kafka_connect() -> None:
    world = running_world()
    assert world.stored == [(None, State.RUNNING, "1.0")]  # a task is RUNNING when it reports it
    world.stored.clear()
    world.carry_out(world.core.restart("c", RestartPlan(True, [1]), shows_restarting=True))
    world.settle()
    assert [status for status in world.stored if status[0] is None] == [
        (None, State.UNASSIGNED, None),
        (None, State.RESTARTING, None),
        (None, State.RUNNING, "1.0"),
    ]
    assert [status for status in world.stored if status[0] == 1] == [
        (1, State.UNASSIGNED, None),
        (1, State.RESTARTING, None),
    ]
    world.stored.clear()
    world.change(PutTargetState("c", TargetState.PAUSED))
    world.settle()
    assert world.stored == [(None, State.PAUSED, "1.0")]
    world.stored.clear()
    world.carry_out(world.core.restart("c", RestartPlan(True, []), shows_restarting=True))
    assert [state for _, state, _ in world.stored] == [State.UNASSIGNED, State.RESTARTING, State.PAUSED]
    world.stored.clear()
    world.change(PutConnector("c", {"a": "2"}))
    assert [state for _, state, _ in world.stored] == [State.UNASSIGNED, State.PAUSED]
    world.stored.clear()
    world.change(DeleteConnector("c"))
    world.settle()
    assert sorted(world.stored, key=str) == [(number, State.UNASSIGNED, None) for number in (0, 1, None)]


@pytest.mark.parametrize("state", [State.RUNNING, State.FAILED])
def test_state_that_a_task_reports_before_its_start_returns_is_stored_once_and_with_the_version(state: State) -> None:
    world = running_world()
    world.carry_out(world.core.restart("c", RestartPlan(False, [1])))
    world.complete(0, None, succeeds=True)  # the stop
    world.stored.clear()
    [start] = world.pending
    world.carry_out(world.core.state_changed(start.instance, state.value, None))
    assert world.stored == []
    world.complete(0, None, succeeds=True)
    assert world.stored == [(1, state, "1.0")]


def test_failed_task_stays_failed_until_its_restart() -> None:
    world = running_world()
    world.crash(world.alive["c", 0].instance)
    world.change(PutTargetState("c", TargetState.PAUSED))
    world.change(PutTargetState("c", TargetState.STARTED))
    world.settle()
    assert world.status("c").tasks[0].state is State.FAILED
    world.carry_out(world.core.restart("c", plan_restart(world.status("c"), include_tasks=True, only_failed=True)))
    world.settle()
    assert ("c", 0) in world.alive


def test_failed_instances_are_replaced_when_their_configuration_changes() -> None:
    world = running_world(a="1")
    for key in (("c", None), ("c", 0)):
        world.crash(world.alive[key].instance)
    world.change(PutConnector("c", {"a": "2"}))
    world.settle()
    assert set(world.alive) == {("c", None), ("c", 0), ("c", 1)}


def test_reconfiguration_requested_while_task_configs_are_generated_generates_them_again() -> None:
    world = running_world()
    id_ = world.alive["c", None].instance
    for _ in range(2):
        world.carry_out(world.core.task_configs_needed(id_))
    (request,) = world.pending
    assert isinstance(request, core.RequestTaskConfigs)
    world.complete(0, 3, succeeds=True)  # these task configurations may have been generated before the second request
    (request,) = world.pending
    world.settle(1)
    assert set(world.alive) == {("c", None), ("c", 0)}


def test_task_that_fails_before_the_response_to_its_start_stays_failed() -> None:
    world = World()
    world.change(PutConnector("c", {}))
    world.complete(0, 1, succeeds=True)
    world.complete(0, 1, succeeds=True)
    (start,) = world.pending
    world.carry_out(world.core.state_changed(start.instance, "FAILED", "early"))
    world.settle(1)
    assert world.status("c").tasks[0].state is State.FAILED
    assert world.status("c").tasks[0].trace == "early"


def test_failed_generation_of_task_configs_is_retried_with_growing_delays() -> None:
    world = World()
    world.change(PutConnector("c", {}))
    world.complete(0, None, succeeds=True)
    id_ = world.alive["c", None].instance
    delays = []
    for _ in range(10):
        (effect,) = world.core.task_configs_failed(id_, "trace", is_fatal=False)
        assert isinstance(effect, core.RetryTaskConfigs)
        delays.append(effect.delay_ms)
        world.core.retry_due(id_)
    assert delays == [250, 500, 1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000]


def test_at_most_one_retry_of_task_configs_is_pending() -> None:
    world = World()
    world.change(PutConnector("c", {}))
    world.complete(0, None, succeeds=True)
    id_ = world.alive["c", None].instance
    assert len(world.core.task_configs_failed(id_, "trace", is_fatal=False)) == 1
    for _ in range(3):  # the connector requests a reconfiguration during the delay
        assert world.core.task_configs_needed(id_) == [core.RequestTaskConfigs(id_)]
        assert world.core.task_configs_failed(id_, "trace", is_fatal=False) == []
    assert world.core.retry_due(id_) == [core.RequestTaskConfigs(id_)]
    assert len(world.core.task_configs_failed(id_, "trace", is_fatal=False)) == 1


def test_too_many_task_configs_fail_the_connector() -> None:
    world = World()
    world.change(PutConnector("c", {}))
    world.complete(0, None, succeeds=True)
    world.carry_out(world.core.task_configs_failed(world.alive["c", None].instance, "too many", is_fatal=True))
    status = world.status("c").connector
    assert status is not None
    assert (status.state, status.trace) == (State.FAILED, "too many")


def test_task_configs_generated_before_a_configuration_change_are_dropped() -> None:
    world = running_world(a="1")
    old = world.alive["c", None].instance
    world.carry_out(world.core.task_configs_needed(old))
    world.change(PutConnector("c", {"a": "2"}))
    assert world.core.task_configs_generated(old, [{}]) == []
    world.pending = [each for each in world.pending if not isinstance(each, core.RequestTaskConfigs)]
    world.settle(1)
    assert set(world.alive) == {("c", None), ("c", 0)}
    task = world.alive["c", 0]
    assert isinstance(task, core.StartTask)
    assert task.connector_config == {"a": "2"}


def incomplete_commit(world: World) -> None:
    """Apply a commit without all of its task configurations, as ConfigTopicState does."""
    world.offset += 1
    snapshot = world.core.snapshot.apply(world.offset, PutTaskConfigs("c", []))
    state = replace(snapshot.connectors["c"], applied_config=None)
    world.carry_out(world.core.on_snapshot(replace(snapshot, connectors={"c": state})))


def test_running_connector_generates_task_configs_again_after_a_commit_without_all_of_them() -> None:
    world = running_world()
    incomplete_commit(world)
    world.settle()
    assert set(world.alive) == {("c", None), ("c", 0), ("c", 1)}


def test_task_configs_that_a_former_leader_writes_late_are_replaced() -> None:
    world = running_world()
    world.change(PutTaskConfigs("c", [{"n": "old"}]))
    world.settle()
    assert set(world.alive) == {("c", None), ("c", 0), ("c", 1)}
    assert list(world.core.snapshot.connectors["c"].task_configs) == [{"n": "0"}, {"n": "1"}]


def test_task_configs_that_differ_again_after_a_request_are_not_requested_again() -> None:
    """The config topic may not contain exactly what the connector generated, for example values that are not text."""
    world = running_world()
    stored = PutTaskConfigs("c", [{"n": "stored"}])
    world.change(stored)
    (request,) = [each for each in world.pending if isinstance(each, core.RequestTaskConfigs)]
    configs = [{"n": "0"}, {"n": "1"}]
    assert world.core.task_configs_generated(request.instance, configs) == [core.StoreTaskConfigs("c", configs)]
    world.pending.remove(request)
    world.change(stored)
    assert not [each for each in world.pending if isinstance(each, core.RequestTaskConfigs)]


def test_status_that_another_worker_has_replaced_is_written_again() -> None:
    world = running_world()
    assert world.core.status_replaced("c", 0) == []  # the task has not reported its state
    world.carry_out(world.core.state_changed(world.alive["c", 0].instance, "RUNNING", None))
    world.crash(world.alive["c", 1].instance)
    (running,) = world.core.status_replaced("c", 0)
    (failed,) = world.core.status_replaced("c", 1)
    assert isinstance(running, core.PutStatus)
    assert isinstance(failed, core.PutStatus)
    assert (running.state, failed.state, failed.trace) == (State.RUNNING, State.FAILED, "crashed")
    assert world.core.status_replaced("c", 2) == world.core.status_replaced("d", None) == []
    world.change(PutTargetState("c", TargetState.PAUSED))
    world.settle()
    (paused,) = world.core.status_replaced("c", None)
    assert isinstance(paused, core.PutStatus)
    assert paused.state is State.PAUSED
    world.carry_out(world.core.assign(Assignment()))
    assert world.core.status_replaced("c", 0) == []  # the task is being stopped


def test_only_an_outdated_status_of_another_worker_is_replaced() -> None:
    other = Status(State.RUNNING, "other", 4)
    assert core.is_outdated(None, "w", 4)
    assert core.is_outdated(other, "w", 4)
    assert not core.is_outdated(other, "other", 4)
    assert not core.is_outdated(other, "w", 3)  # the other worker is the new owner


def test_worker_runs_only_the_instances_assigned_to_it() -> None:
    world = World()
    world.core.assign(Assignment())
    world.change(PutConnector("c", {}))
    world.change(PutTaskConfigs("c", [{}, {}]))
    world.settle()
    assert world.alive == {}
    assert world.status("c") == ConnectorStatuses()
    world.carry_out(world.core.assign(Assignment(frozenset(), frozenset({("c", 1)}))))
    world.settle()
    assert set(world.alive) == {("c", 1)}
    world.carry_out(world.core.assign(Assignment(frozenset({"c"}), frozenset())))
    world.settle()
    assert set(world.alive) == {("c", None)}
    assert world.status("c").tasks[1].state is State.UNASSIGNED


def statuses_of(connector: State, *tasks: State) -> ConnectorStatuses:
    return ConnectorStatuses(Status(connector, "w"), {n: Status(state, "w") for n, state in enumerate(tasks)})


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
    assert plan_restart(statuses, include_tasks=include_tasks, only_failed=only_failed) == plan


def test_restart_of_only_failed_instances_includes_failed_connector() -> None:
    statuses = statuses_of(State.FAILED, State.RUNNING)
    assert plan_restart(statuses, include_tasks=True, only_failed=True) == RestartPlan(True, [])


NAMES = st.sampled_from(["a", "b"])


class HerderMachine(RuleBasedStateMachine):
    """Makes random changes, and completes operations in random order, with failures and restarts."""

    @initialize()
    def start(self) -> None:
        self.world = World()
        self.number = 0

    def _next(self) -> dict[str, str]:
        self.number += 1
        return {"n": str(self.number)}

    @rule(name=NAMES, target_state=st.sampled_from([None, *TargetState]))
    def put(self, name: str, target_state: TargetState | None) -> None:
        self.world.change(PutConnector(name, self._next(), target_state))

    @rule(name=NAMES)
    def patch(self, name: str) -> None:
        if (state := self.world.core.snapshot.connectors.get(name)) is not None:
            self.world.change(PutConnector(name, {**state.config, **self._next()}))

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        self.world.change(DeleteConnector(name))

    @rule(name=NAMES, target_state=st.sampled_from(TargetState))
    def set_target(self, name: str, target_state: TargetState) -> None:
        if target_state is TargetState.STOPPED:
            self.world.change(PutTaskConfigs(name, []))
        self.world.change(PutTargetState(name, target_state))

    @rule(name=NAMES, count=st.integers(0, 3))
    def task_configs_from_another_worker(self, name: str, count: int) -> None:
        self.world.change(PutTaskConfigs(name, [{"n": str(number)} for number in range(count)]))

    @precondition(lambda self: self.world.pending)
    @rule(data=st.data(), count=st.sampled_from([None, 0, 1, 2, 3]), succeeds=st.booleans())
    def complete(self, data: Any, count: int | None, succeeds: bool) -> None:
        self.world.complete(data.draw(st.integers(0, len(self.world.pending) - 1)), count, succeeds=succeeds)

    @precondition(lambda self: self.world.alive)
    @rule(data=st.data())
    def crash(self, data: Any) -> None:
        key = data.draw(st.sampled_from(sorted(self.world.alive, key=str)))
        self.world.crash(self.world.alive[key].instance)

    @precondition(lambda self: self.world.alive)
    @rule(data=st.data())
    def request_reconfiguration(self, data: Any) -> None:
        key = data.draw(st.sampled_from(sorted(self.world.alive, key=str)))
        self.world.carry_out(self.world.core.task_configs_needed(InstanceId(key[0], None, 1)))
        if key[1] is None:
            self.world.carry_out(self.world.core.task_configs_needed(self.world.alive[key].instance))

    @rule(name=NAMES, include_tasks=st.booleans(), only_failed=st.booleans())
    def restart(self, name: str, include_tasks: bool, only_failed: bool) -> None:
        plan = plan_restart(self.world.status(name), include_tasks=include_tasks, only_failed=only_failed)
        self.world.carry_out(self.world.core.restart(name, plan))

    @rule(name=st.sampled_from(["a", "b"]), data=st.data())
    def late_report_of_a_replaced_instance(self, name: str, data: Any) -> None:
        current = {id_.generation for id_ in self.world.core.instances(name)}
        generation = data.draw(st.integers(0, 50).filter(lambda number: number not in current))
        before = self.world.status(name)
        for task in (None, 0):
            id_ = InstanceId(name, task, generation)
            assert self.world.core.state_changed(id_, "FAILED", "late") == []
            assert self.world.core.stopped(id_) == []
            assert self.world.core.started(id_, None) == []
        assert self.world.status(name) == before

    def teardown(self) -> None:
        self.converge(2)

    @invariant()
    def at_most_one_operation_of_an_instance_is_in_progress(self) -> None:
        changing = [
            (each.instance.connector, each.instance.task)
            for each in self.world.pending
            if not isinstance(each, core.RequestTaskConfigs)
        ]
        assert len(changing) == len(set(changing))

    @rule(task_count=st.integers(0, 3))
    def converge(self, task_count: int) -> None:
        """Complete all operations. Then exactly the desired instances run, with their current configuration."""
        self.world.settle(task_count)
        connectors = self.world.core.snapshot.connectors
        assert {name for name, _ in self.world.alive} <= set(connectors)
        current = {id_ for name in connectors for id_ in self.world.core.instances(name)}
        assert {start.instance for start in self.world.alive.values()} <= current
        for name, state in connectors.items():
            assert self.world.core.is_settled(name)
            self._check_connector(name, state.target)
            expected = range(0 if state.target is TargetState.STOPPED else len(state.task_configs))
            for task in expected:
                self._check_task(name, task, state)
            assert {task for each, task in self.world.alive if each == name and task is not None} <= set(expected)
            if state.target is TargetState.STOPPED:
                assert not self.world.status(name).tasks

    def _check_connector(self, name: str, target: TargetState) -> None:
        status = self.world.status(name).connector
        assert status is not None
        if status.state is State.FAILED:
            assert target is not TargetState.STOPPED
            return
        assert status.state.value == {"STARTED": "RUNNING"}.get(target.value, target.value)
        assert ((name, None) in self.world.alive) is (target is TargetState.STARTED)
        if target is TargetState.STARTED:
            start = self.world.alive[name, None]
            assert isinstance(start, core.StartConnector)
            state = self.world.core.snapshot.connectors[name]
            assert start.config == state.config
            assert state.applied_config in (None, state.config)

    def _check_task(self, name: str, task: int, state: Any) -> None:
        if self.world.status(name).tasks[task].state is State.FAILED:
            return
        start = self.world.alive[name, task]
        assert isinstance(start, core.StartTask)
        assert start.task_config == state.task_configs[task]
        assert start.connector_config == state.applied_config
        assert self.world.paused[start.instance] is (state.target is TargetState.PAUSED)


TestHerderMachine = HerderMachine.TestCase
TestHerderMachine.settings = settings(max_examples=200, stateful_step_count=60, deadline=None)


def failing_world(**restart: str) -> World:
    world = World()
    world.change(PutConnector("c", {f"errors.restart.{key}": value for key, value in restart.items()}))
    return world


RESTARTS = {"max.attempts": "2", "backoff.initial.ms": "100", "backoff.max.ms": "150"}


def test_failed_connector_is_restarted_with_a_backoff_until_its_attempts_are_used_up() -> None:
    world = failing_world(**RESTARTS)
    world.complete(0, None, succeeds=False)
    for attempt, delay_ms in ((1, 100), (2, 150)):
        status = world.statuses.get("c").connector
        assert status is not None
        assert (
            status.trace
            == f"trace\nAutomatic restart {attempt} of 2 follows in {delay_ms} ms (errors.restart.max.attempts)."
        )
        (later,) = world.delayed
        assert later == core.RestartLater(later.instance, delay_ms)
        world.delayed.clear()
        world.carry_out(world.core.restart_due(later.instance))
        world.complete(0, None, succeeds=True)  # the stop of the failed instance
        world.complete(0, None, succeeds=False)
    status = world.statuses.get("c").connector
    assert status is not None
    assert (status.state, status.trace, world.delayed, world.pending) == (State.FAILED, "trace", [], [])


def test_restarted_connector_has_all_attempts_again_after_it_ran_long_enough() -> None:
    world = failing_world(**RESTARTS)
    world.complete(0, None, succeeds=False)
    world.carry_out(world.core.restart_due(world.delayed.pop().instance))
    world.complete(0, None, succeeds=True)
    world.complete(0, None, succeeds=True)
    (watch,) = world.delayed
    assert watch == core.WatchRestarted(watch.instance, 150)
    world.core.ran_long_enough(watch.instance)
    world.delayed.clear()
    world.carry_out(world.core.state_changed(watch.instance, "FAILED", "later"))
    assert world.delayed == [core.RestartLater(watch.instance, 100)]


def test_restart_by_the_user_replaces_an_automatic_restart() -> None:
    world = failing_world(**RESTARTS)
    world.complete(0, None, succeeds=False)
    world.carry_out(world.core.restart("c", RestartPlan(connector=True, tasks=[])))
    world.complete(0, None, succeeds=True)
    world.complete(0, None, succeeds=True)
    assert world.core.restart_due(world.delayed[0].instance) == []


def test_failed_connector_is_not_restarted_by_default() -> None:
    world = failing_world()
    world.complete(0, None, succeeds=False)
    assert world.delayed == []


def instance_of(world: World, task: int | None) -> InstanceId:
    return world.alive["c", task].instance


@pytest.mark.parametrize("task", [None, 1])
def test_instance_restarts_when_a_value_from_a_config_provider_expires(task: int | None) -> None:
    world = running_world()
    before = {key: start.instance for key, start in world.alive.items()}
    world.carry_out(world.core.values_expired(before["c", task]))
    world.settle()
    assert {key for key, start in world.alive.items() if start.instance != before[key]} == {("c", task)}
    assert world.core.values_expired(before["c", task]) == []  # the instance has been replaced


def test_expired_value_restarts_nothing_with_config_action_reload_none() -> None:
    world = running_world(**{"config.action.reload": "none"})
    assert world.core.values_expired(instance_of(world, None)) == []
    assert world.core.values_expired(instance_of(world, 0)) == []


def test_expired_value_restarts_a_failed_connector_but_no_failed_task() -> None:
    world = running_world()
    connector, task = instance_of(world, None), instance_of(world, 0)
    world.crash(connector)
    world.crash(task)
    assert world.core.values_expired(task) == []
    world.carry_out(world.core.values_expired(connector))
    world.settle()
    assert set(world.alive) == {("c", None), ("c", 1)}


def test_value_that_expires_during_the_start_restarts_the_instance_after_it() -> None:
    world = World()
    world.change(PutConnector("c", {}))
    (start,) = world.pending
    world.carry_out(world.core.values_expired(start.instance))
    world.settle()
    assert instance_of(world, None) != start.instance
