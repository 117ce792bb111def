"""Tests of HerderCore, which starts and stops connectors and tasks.

After any sequence of events, exactly the desired connectors and tasks run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.herder import core, instance_effects
from headrace.herder.assignment import Assignment
from headrace.herder.core import HerderCore
from headrace.herder.restart_plan import RestartPlan, plan_restart
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
from support.examples import examples

Operation = (
    instance_effects.StartConnector
    | instance_effects.StartTask
    | instance_effects.StopInstance
    | instance_effects.RequestTaskConfigs
)


class SimulatedWorker:
    """Simulates a worker, its config store and its status store. A test decides when HerderCore's effects complete."""

    def __init__(self) -> None:
        self.core = HerderCore()
        self.offset = -1
        self.pending: list[Operation] = []
        self.retries: list[InstanceId] = []
        self.delayed: list[instance_effects.RestartLater | instance_effects.WatchRestarted] = []
        self.alive: dict[tuple[str, int | None], instance_effects.StartConnector | instance_effects.StartTask] = {}
        self.paused: dict[InstanceId, bool] = {}
        self.statuses = MemoryStatusStore()
        self.stored: list[tuple[int | None, State, str | None]] = []
        self.aborted: list[InstanceId] = []
        self.kills: list[instance_effects.ForgetKill] = []

    def change(self, change: ConfigChange) -> None:
        self.offset += 1
        self.carry_out(self.core.on_snapshot(self.core.snapshot.apply(self.offset, change)))

    def carry_out(self, effects: list[instance_effects.Effect]) -> None:
        for effect in effects:
            match effect:
                case instance_effects.PutStatus(name, task, state, generation, trace, version):
                    self.stored.append((task, state, version))
                    self.statuses.put(name, task, Status(state, "w", generation, trace, version))
                case instance_effects.ShowStarting(instance, version):
                    status = Status(State.UNASSIGNED, "w", instance.generation, version=version)
                    self.statuses.show_starting(instance.connector, instance.task, status)
                case instance_effects.RemoveStatus(name, task):
                    self.statuses.remove(name, task)
                case instance_effects.StoreTaskConfigs(name, configs):
                    self.change(PutTaskConfigs(name, configs))
                case instance_effects.RetryTaskConfigs(instance, delay_ms):
                    assert 250 <= delay_ms <= 60_000
                    self.retries.append(instance)
                case instance_effects.RestartLater(instance) | instance_effects.WatchRestarted(instance):
                    self.delayed.append(effect)
                case instance_effects.ForgetKill():
                    self.kills.append(effect)
                case instance_effects.PauseTask(instance) | instance_effects.ResumeTask(instance):
                    assert instance in self.paused, "paused or resumed a task that does not run"
                    self.paused[instance] = isinstance(effect, instance_effects.PauseTask)
                case instance_effects.AbortStart(instance):
                    self.aborted.append(instance)
                case _:
                    self.pending.append(effect)

    def complete(self, index: int, task_count: int | None, *, succeeds: bool) -> None:
        """Complete the pending operation at `index`. A start fails if `succeeds` is false.

        A request for task configurations returns `task_count` configurations, or fails if `task_count` is None.
        """
        operation = self.pending.pop(index)
        id_ = operation.instance
        key = id_.connector, id_.task
        match operation:
            case instance_effects.StartConnector() | instance_effects.StartTask():
                assert key not in self.alive, "started twice"
                if not succeeds:
                    self.carry_out(self.core.start_failed(id_, "trace"))
                    return
                self.alive[key] = operation
                if isinstance(operation, instance_effects.StartTask):
                    self.paused[id_] = operation.is_paused
                self.carry_out(self.core.started(id_, "1.0"))
            case instance_effects.StopInstance():
                if key in self.alive and self.alive[key].instance == id_:
                    del self.alive[key]
                self.paused.pop(id_, None)
                self.carry_out(self.core.stopped(id_))
            case instance_effects.RequestTaskConfigs():
                if task_count is None:
                    self.carry_out(self.core.task_configs_failed(id_, "trace", is_fatal=False))
                else:
                    configs = [{"n": str(number)} for number in range(task_count)]
                    self.carry_out(self.core.task_configs_generated(id_, configs))

    def settle(self, task_count: int = 2) -> None:
        """Complete all operations and retries without failures, until no operation is pending.

        Each request for task configurations returns `task_count` configurations.
        """
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


def running_worker(**config: str) -> SimulatedWorker:
    worker = SimulatedWorker()
    worker.change(PutConnector("c", config))
    worker.settle()
    return worker


def test_new_connector_and_the_tasks_that_it_generates_are_started() -> None:
    worker = running_worker(a="1")
    assert set(worker.alive) == {("c", None), ("c", 0), ("c", 1)}
    assert worker.core.is_settled("c")
    status = worker.status("c").connector
    assert status is not None
    assert (status.state, status.version) == (State.RUNNING, "1.0")


def test_restart_of_one_task_restarts_only_this_task() -> None:
    worker = running_worker()
    before = dict(worker.alive)
    worker.carry_out(worker.core.restart("c", RestartPlan(False, [1])))
    worker.settle()
    assert {key for key in before if worker.alive[key] != before[key]} == {("c", 1)}


def test_herder_stores_the_same_sequence_of_statuses_as_kafka_connect() -> None:
    worker = running_worker()
    assert worker.stored == [(None, State.RUNNING, "1.0")]  # a task's status is stored when the task reports RUNNING
    worker.stored.clear()
    worker.carry_out(worker.core.restart("c", RestartPlan(True, [1]), shows_restarting=True))
    worker.settle()
    assert [status for status in worker.stored if status[0] is None] == [
        (None, State.UNASSIGNED, None),
        (None, State.RESTARTING, None),
        (None, State.RUNNING, "1.0"),
    ]
    assert [status for status in worker.stored if status[0] == 1] == [
        (1, State.UNASSIGNED, None),
        (1, State.RESTARTING, None),
    ]
    worker.stored.clear()
    worker.change(PutTargetState("c", TargetState.PAUSED))
    worker.settle()
    assert worker.stored == [(None, State.PAUSED, "1.0")]
    worker.stored.clear()
    worker.carry_out(worker.core.restart("c", RestartPlan(True, []), shows_restarting=True))
    assert [state for _, state, _ in worker.stored] == [State.UNASSIGNED, State.RESTARTING, State.PAUSED]
    worker.stored.clear()
    worker.change(PutConnector("c", {"a": "2"}))
    assert [state for _, state, _ in worker.stored] == [State.UNASSIGNED, State.PAUSED]
    worker.stored.clear()
    worker.change(DeleteConnector("c"))
    worker.settle()
    assert sorted(worker.stored, key=str) == [(number, State.UNASSIGNED, None) for number in (0, 1, None)]


@pytest.mark.parametrize("state", [State.RUNNING, State.FAILED])
def test_state_of_a_starting_task_is_stored_when_the_start_completes(state: State) -> None:
    """The task reports the state before the start completes.

    Only one status is stored. This status contains the version of the task.
    """
    worker = running_worker()
    worker.carry_out(worker.core.restart("c", RestartPlan(False, [1])))
    worker.complete(0, None, succeeds=True)  # the stop
    worker.stored.clear()
    [start] = worker.pending
    worker.carry_out(worker.core.state_changed(start.instance, state.value, None))
    assert worker.stored == []
    worker.complete(0, None, succeeds=True)
    assert worker.stored == [(1, state, "1.0")]


@pytest.mark.parametrize("is_wanted", [True, False])
def test_connector_whose_start_was_aborted_is_not_stored_as_failed(is_wanted: bool) -> None:
    """A pending start is aborted when the connector is unassigned.

    If the connector is assigned again, its start is repeated.
    """
    worker = SimulatedWorker()
    worker.core.assign(Assignment(frozenset({"c"})))
    worker.change(PutConnector("c", {"a": "1"}))
    [start] = worker.pending
    worker.carry_out(worker.core.assign(Assignment()))
    worker.carry_out(worker.core.assign(Assignment()))
    assert worker.aborted == [start.instance], "the start is aborted once"
    if is_wanted:
        worker.carry_out(worker.core.assign(Assignment(frozenset({"c"}))))
    worker.complete(0, None, succeeds=False)
    assert State.FAILED not in [state for _, state, _ in worker.stored]
    assert [type(each) for each in worker.pending] == ([instance_effects.StartConnector] if is_wanted else [])


def test_pending_connector_start_is_aborted_and_repeated_after_a_configuration_change() -> None:
    worker = SimulatedWorker()
    worker.change(PutConnector("c", {"a": "1"}))
    [start] = worker.pending
    worker.change(PutConnector("c", {"a": "2"}))
    assert worker.aborted == [start.instance]
    worker.complete(0, None, succeeds=False)
    [again] = worker.pending
    assert isinstance(again, instance_effects.StartConnector)
    assert again.config == {"a": "2"}


def test_failed_task_stays_failed_after_pause_and_resume_but_runs_after_a_restart() -> None:
    worker = running_worker()
    worker.crash(worker.alive["c", 0].instance)
    worker.change(PutTargetState("c", TargetState.PAUSED))
    worker.change(PutTargetState("c", TargetState.STARTED))
    worker.settle()
    assert worker.status("c").tasks[0].state is State.FAILED
    worker.carry_out(worker.core.restart("c", plan_restart(worker.status("c"), include_tasks=True, only_failed=True)))
    worker.settle()
    assert ("c", 0) in worker.alive


def test_task_is_started_again_after_its_process_ended_unless_the_task_had_already_failed() -> None:
    worker = running_worker()
    running, failed = worker.alive.pop(("c", 0)).instance, worker.alive["c", 1].instance
    worker.crash(failed)
    for instance in (running, failed):
        worker.carry_out(worker.core.process_ended(instance))
    worker.settle()
    assert set(worker.alive) == {("c", None), ("c", 0)}
    assert worker.status("c").tasks[1].state is State.FAILED


def test_failed_connector_and_failed_task_are_started_again_when_the_configuration_changes() -> None:
    worker = running_worker(a="1")
    for key in (("c", None), ("c", 0)):
        worker.crash(worker.alive[key].instance)
    worker.change(PutConnector("c", {"a": "2"}))
    worker.settle()
    assert set(worker.alive) == {("c", None), ("c", 0), ("c", 1)}


def test_all_tasks_are_restarted_with_the_new_number_of_tasks_if_only_this_number_changes() -> None:
    worker = running_worker()
    before = dict(worker.alive)
    worker.carry_out(worker.core.task_configs_needed(worker.alive["c", None].instance))
    worker.settle(task_count=3)
    tasks = [worker.alive["c", number] for number in range(3)]
    assert [task.task_count for task in tasks if isinstance(task, instance_effects.StartTask)] == [3, 3, 3]
    assert all(before["c", number].instance != tasks[number].instance for number in range(2))


def test_task_configs_are_stored_and_generated_again_if_reconfiguration_is_requested_during_their_generation() -> None:
    worker = running_worker()
    id_ = worker.alive["c", None].instance
    for _ in range(2):
        worker.carry_out(worker.core.task_configs_needed(id_))
    (request,) = worker.pending
    assert isinstance(request, instance_effects.RequestTaskConfigs)
    worker.complete(0, 3, succeeds=True)  # these task configurations may have been generated before the second request
    assert worker.retries == [id_]
    worker.retries.clear()
    worker.settle(3)
    assert set(worker.alive) == {("c", None), ("c", 0), ("c", 1), ("c", 2)}
    worker.carry_out(worker.core.task_configs_needed(id_))
    assert worker.pending == [], "the pending request is for this request, too"
    worker.carry_out(worker.core.retry_due(id_))
    worker.settle(1)
    assert set(worker.alive) == {("c", None), ("c", 0)}
    assert worker.retries == []


def test_tasks_are_created_even_if_the_connector_requests_reconfiguration_whenever_it_generates_task_configs() -> None:
    worker = SimulatedWorker()
    worker.change(PutConnector("c", {}))
    worker.complete(0, 1, succeeds=True)
    delays_ms: list[int] = []
    for _ in range(3):
        (request,) = worker.pending
        worker.pending.clear()
        worker.core.task_configs_needed(request.instance)
        effects = worker.core.task_configs_generated(request.instance, [{"t": "0"}])
        delays_ms += [effect.delay_ms for effect in effects if isinstance(effect, instance_effects.RetryTaskConfigs)]
        worker.carry_out([effect for effect in effects if not isinstance(effect, instance_effects.RetryTaskConfigs)])
        worker.pending = [each for each in worker.pending if not isinstance(each, instance_effects.StartTask)]
        worker.carry_out(worker.core.retry_due(request.instance))
    assert delays_ms == [250, 500, 1000]
    assert len(worker.core.snapshot.connectors["c"].task_configs) == 1


def test_task_stays_failed_if_it_fails_before_its_start_completes() -> None:
    worker = SimulatedWorker()
    worker.change(PutConnector("c", {}))
    worker.complete(0, 1, succeeds=True)
    worker.complete(0, 1, succeeds=True)
    (start,) = worker.pending
    worker.carry_out(worker.core.state_changed(start.instance, "FAILED", "early"))
    worker.settle(1)
    assert worker.status("c").tasks[0].state is State.FAILED
    assert worker.status("c").tasks[0].trace == "early"


def test_failed_generation_of_task_configs_is_retried_with_growing_delays() -> None:
    worker = SimulatedWorker()
    worker.change(PutConnector("c", {}))
    worker.complete(0, None, succeeds=True)
    id_ = worker.alive["c", None].instance
    delays = []
    for _ in range(10):
        (effect,) = worker.core.task_configs_failed(id_, "trace", is_fatal=False)
        assert isinstance(effect, instance_effects.RetryTaskConfigs)
        delays.append(effect.delay_ms)
        worker.core.retry_due(id_)
    assert delays == [250, 500, 1000, 2000, 4000, 8000, 16_000, 32_000, 60_000, 60_000]


def test_at_most_one_retry_of_a_task_configs_request_is_pending() -> None:
    worker = SimulatedWorker()
    worker.change(PutConnector("c", {}))
    worker.complete(0, None, succeeds=True)
    id_ = worker.alive["c", None].instance
    assert len(worker.core.task_configs_failed(id_, "trace", is_fatal=False)) == 1
    for _ in range(3):  # the connector requests a reconfiguration during the delay
        assert worker.core.task_configs_needed(id_) == [instance_effects.RequestTaskConfigs(id_)]
        assert worker.core.task_configs_failed(id_, "trace", is_fatal=False) == []
    assert worker.core.retry_due(id_) == [instance_effects.RequestTaskConfigs(id_)]
    assert len(worker.core.task_configs_failed(id_, "trace", is_fatal=False)) == 1


def test_connector_fails_after_a_fatal_error_in_generating_task_configs() -> None:
    worker = SimulatedWorker()
    worker.change(PutConnector("c", {}))
    worker.complete(0, None, succeeds=True)
    worker.carry_out(worker.core.task_configs_failed(worker.alive["c", None].instance, "too many", is_fatal=True))
    status = worker.status("c").connector
    assert status is not None
    assert (status.state, status.trace) == (State.FAILED, "too many")


def test_connector_fails_if_its_task_configs_can_never_be_stored() -> None:
    worker = SimulatedWorker()
    worker.change(PutConnector("c", {}))
    worker.settle(1)
    assert worker.core.task_configs_rejected("c", [{"n": "outdated"}], "too large") == []
    worker.carry_out(worker.core.task_configs_rejected("c", [{"n": "0"}], "too large"))
    status = worker.status("c").connector
    assert status is not None
    assert (status.state, status.trace) == (State.FAILED, "too large")
    assert worker.core.task_configs_rejected("deleted", [{"n": "0"}], "too large") == []


def test_task_configs_that_were_generated_from_an_outdated_configuration_are_ignored() -> None:
    worker = running_worker(a="1")
    old = worker.alive["c", None].instance
    worker.carry_out(worker.core.task_configs_needed(old))
    worker.change(PutConnector("c", {"a": "2"}))
    assert worker.core.task_configs_generated(old, [{}]) == []
    worker.pending = [each for each in worker.pending if not isinstance(each, instance_effects.RequestTaskConfigs)]
    worker.settle(1)
    assert set(worker.alive) == {("c", None), ("c", 0)}
    task = worker.alive["c", 0]
    assert isinstance(task, instance_effects.StartTask)
    assert task.connector_config == {"a": "2"}


def incomplete_commit(worker: SimulatedWorker) -> None:
    """Apply a commit record whose task configurations are partly missing.

    The resulting snapshot equals the snapshot that ConfigTopicState returns for such a commit.
    """
    worker.offset += 1
    snapshot = worker.core.snapshot.apply(worker.offset, PutTaskConfigs("c", []))
    state = replace(snapshot.connectors["c"], applied_config=None)
    worker.carry_out(worker.core.on_snapshot(replace(snapshot, connectors={"c": state})))


def test_task_configs_of_a_running_connector_are_generated_again_if_the_commit_record_follows_too_few_of_them() -> None:
    worker = running_worker()
    incomplete_commit(worker)
    worker.settle()
    assert set(worker.alive) == {("c", None), ("c", 0), ("c", 1)}


def test_task_configs_that_a_former_leader_writes_late_are_replaced() -> None:
    worker = running_worker()
    worker.change(PutTaskConfigs("c", [{"n": "old"}]))
    worker.settle()
    assert set(worker.alive) == {("c", None), ("c", 0), ("c", 1)}
    assert list(worker.core.snapshot.connectors["c"].task_configs) == [{"n": "0"}, {"n": "1"}]


def test_same_difference_between_stored_and_generated_configs_causes_only_one_request() -> None:
    """The request asks the connector to generate the task configs again.

    The stored task configs can differ from the generated task configs permanently. For example, a generated task config
    can contain a value that is not a string.
    """
    worker = running_worker()
    stored = PutTaskConfigs("c", [{"n": "stored"}])
    worker.change(stored)
    (request,) = [each for each in worker.pending if isinstance(each, instance_effects.RequestTaskConfigs)]
    configs = [{"n": "0"}, {"n": "1"}]
    assert worker.core.task_configs_generated(request.instance, configs) == [
        instance_effects.StoreTaskConfigs("c", configs)
    ]
    worker.pending.remove(request)
    worker.change(stored)
    assert not [each for each in worker.pending if isinstance(each, instance_effects.RequestTaskConfigs)]


def test_worker_writes_a_status_again_if_another_worker_has_replaced_the_status() -> None:
    """The status belongs to a connector or task that this worker runs."""
    worker = running_worker()
    assert worker.core.status_replaced("c", 0) == []  # the task has not reported its state
    worker.carry_out(worker.core.state_changed(worker.alive["c", 0].instance, "RUNNING", None))
    worker.crash(worker.alive["c", 1].instance)
    (running,) = worker.core.status_replaced("c", 0)
    (failed,) = worker.core.status_replaced("c", 1)
    assert isinstance(running, instance_effects.PutStatus)
    assert isinstance(failed, instance_effects.PutStatus)
    assert (running.state, failed.state, failed.trace) == (State.RUNNING, State.FAILED, "crashed")
    assert worker.core.status_replaced("c", 2) == worker.core.status_replaced("d", None) == []
    worker.change(PutTargetState("c", TargetState.PAUSED))
    worker.settle()
    (paused,) = worker.core.status_replaced("c", None)
    assert isinstance(paused, instance_effects.PutStatus)
    assert paused.state is State.PAUSED
    worker.carry_out(worker.core.assign(Assignment()))
    assert worker.core.status_replaced("c", 0) == []  # the task is being stopped


def test_status_of_another_worker_is_outdated_unless_its_generation_is_later_than_that_of_this_worker() -> None:
    other = Status(State.RUNNING, "other", 4)
    assert core.is_outdated(None, "w", 4)
    assert core.is_outdated(other, "w", 4)
    assert not core.is_outdated(other, "other", 4)
    assert not core.is_outdated(other, "w", 3)  # the other worker is the new owner


def test_worker_runs_only_the_connectors_and_tasks_assigned_to_it() -> None:
    worker = SimulatedWorker()
    worker.core.assign(Assignment())
    worker.change(PutConnector("c", {}))
    worker.change(PutTaskConfigs("c", [{}, {}]))
    worker.settle()
    assert worker.alive == {}
    assert worker.status("c") == ConnectorStatuses()
    worker.carry_out(worker.core.assign(Assignment(frozenset(), frozenset({("c", 1)}))))
    worker.settle()
    assert set(worker.alive) == {("c", 1)}
    worker.carry_out(worker.core.assign(Assignment(frozenset({"c"}), frozenset())))
    worker.settle()
    assert set(worker.alive) == {("c", None)}
    assert worker.status("c").tasks[1].state is State.UNASSIGNED


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
def test_restart_plan_depends_on_the_parameters_of_the_restart_request(
    include_tasks: bool, only_failed: bool, plan: RestartPlan
) -> None:
    statuses = statuses_of(State.RUNNING, State.RUNNING, State.FAILED, State.PAUSED)
    assert plan_restart(statuses, include_tasks=include_tasks, only_failed=only_failed) == plan


def test_restart_plan_for_failed_connectors_and_tasks_contains_no_running_task() -> None:
    statuses = statuses_of(State.FAILED, State.RUNNING)
    assert plan_restart(statuses, include_tasks=True, only_failed=True) == RestartPlan(True, [])


NAMES = st.sampled_from(["a", "b"])


class HerderMachine(RuleBasedStateMachine):
    """Changes connectors at random, and completes a worker's operations in random order, with failures and restarts."""

    @initialize()
    def start(self) -> None:
        self.worker = SimulatedWorker()
        self.number = 0

    def _next(self) -> dict[str, str]:
        self.number += 1
        return {"n": str(self.number)}

    @rule(name=NAMES, target_state=st.sampled_from([None, *TargetState]))
    def put(self, name: str, target_state: TargetState | None) -> None:
        self.worker.change(PutConnector(name, self._next(), target_state))

    @rule(name=NAMES)
    def patch(self, name: str) -> None:
        if (state := self.worker.core.snapshot.connectors.get(name)) is not None:
            self.worker.change(PutConnector(name, {**state.config, **self._next()}))

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        self.worker.change(DeleteConnector(name))

    @rule(name=NAMES, target_state=st.sampled_from(TargetState))
    def set_target(self, name: str, target_state: TargetState) -> None:
        if target_state is TargetState.STOPPED:
            self.worker.change(PutTaskConfigs(name, []))
        self.worker.change(PutTargetState(name, target_state))

    @rule(name=NAMES, count=st.integers(0, 3))
    def task_configs_from_another_worker(self, name: str, count: int) -> None:
        self.worker.change(PutTaskConfigs(name, [{"n": str(number)} for number in range(count)]))

    @precondition(lambda self: self.worker.pending)
    @rule(data=st.data(), count=st.sampled_from([None, 0, 1, 2, 3]), succeeds=st.booleans())
    def complete(self, data: Any, count: int | None, succeeds: bool) -> None:
        self.worker.complete(data.draw(st.integers(0, len(self.worker.pending) - 1)), count, succeeds=succeeds)

    @precondition(lambda self: self.worker.alive)
    @rule(data=st.data())
    def crash(self, data: Any) -> None:
        key = data.draw(st.sampled_from(sorted(self.worker.alive, key=str)))
        self.worker.crash(self.worker.alive[key].instance)

    @precondition(lambda self: self.worker.alive)
    @rule(data=st.data())
    def request_reconfiguration(self, data: Any) -> None:
        key = data.draw(st.sampled_from(sorted(self.worker.alive, key=str)))
        self.worker.carry_out(self.worker.core.task_configs_needed(InstanceId(key[0], None, 1)))
        if key[1] is None:
            self.worker.carry_out(self.worker.core.task_configs_needed(self.worker.alive[key].instance))

    @rule(name=NAMES, include_tasks=st.booleans(), only_failed=st.booleans())
    def restart(self, name: str, include_tasks: bool, only_failed: bool) -> None:
        plan = plan_restart(self.worker.status(name), include_tasks=include_tasks, only_failed=only_failed)
        self.worker.carry_out(self.worker.core.restart(name, plan))

    @rule(name=st.sampled_from(["a", "b"]), data=st.data())
    def late_report_of_a_replaced_instance(self, name: str, data: Any) -> None:
        current = {id_.generation for id_ in self.worker.core.instances(name)}
        generation = data.draw(st.integers(0, 50).filter(lambda number: number not in current))
        before = self.worker.status(name)
        for task in (None, 0):
            id_ = InstanceId(name, task, generation)
            assert self.worker.core.state_changed(id_, "FAILED", "late") == []
            assert self.worker.core.stopped(id_) == []
            assert self.worker.core.started(id_, None) == []
        assert self.worker.status(name) == before

    def teardown(self) -> None:
        self.converge(2)

    @invariant()
    def at_most_one_operation_of_an_instance_is_in_progress(self) -> None:
        changing = [
            (each.instance.connector, each.instance.task)
            for each in self.worker.pending
            if not isinstance(each, instance_effects.RequestTaskConfigs)
        ]
        assert len(changing) == len(set(changing))

    @rule(task_count=st.integers(0, 3))
    def converge(self, task_count: int) -> None:
        """Complete all operations. Check that exactly the desired connectors and tasks run.

        Each request for task configurations returns `task_count` configurations.
        """
        self.worker.settle(task_count)
        connectors = self.worker.core.snapshot.connectors
        assert {name for name, _ in self.worker.alive} <= set(connectors)
        current = {id_ for name in connectors for id_ in self.worker.core.instances(name)}
        assert {start.instance for start in self.worker.alive.values()} <= current
        for name, state in connectors.items():
            assert self.worker.core.is_settled(name)
            self._check_connector(name, state.target)
            expected = range(0 if state.target is TargetState.STOPPED else len(state.task_configs))
            for task in expected:
                self._check_task(name, task, state)
            assert {task for each, task in self.worker.alive if each == name and task is not None} <= set(expected)
            if state.target is TargetState.STOPPED:
                assert not self.worker.status(name).tasks

    def _check_connector(self, name: str, target: TargetState) -> None:
        status = self.worker.status(name).connector
        assert status is not None
        if status.state is State.FAILED:
            assert target is not TargetState.STOPPED
            return
        assert status.state.value == {"STARTED": "RUNNING"}.get(target.value, target.value)
        assert ((name, None) in self.worker.alive) is (target is TargetState.STARTED)
        if target is TargetState.STARTED:
            start = self.worker.alive[name, None]
            assert isinstance(start, instance_effects.StartConnector)
            state = self.worker.core.snapshot.connectors[name]
            assert start.config == state.config
            assert state.applied_config in (None, state.config)

    def _check_task(self, name: str, task: int, state: Any) -> None:
        if self.worker.status(name).tasks[task].state is State.FAILED:
            return
        start = self.worker.alive[name, task]
        assert isinstance(start, instance_effects.StartTask)
        assert start.task_config == state.task_configs[task]
        assert start.connector_config == state.applied_config
        assert self.worker.paused[start.instance] is (state.target is TargetState.PAUSED)


TestHerderMachine = HerderMachine.TestCase
TestHerderMachine.settings = settings(max_examples=examples(200), stateful_step_count=60, deadline=None)


def failing_world(**restart: str) -> SimulatedWorker:
    worker = SimulatedWorker()
    worker.change(PutConnector("c", {f"errors.restart.{key}": value for key, value in restart.items()}))
    return worker


RESTARTS = {"max.attempts": "2", "backoff.initial.ms": "100", "backoff.max.ms": "150"}


def test_failed_connector_is_restarted_with_backoff_until_errors_restart_max_attempts_is_reached() -> None:
    worker = failing_world(**RESTARTS)
    worker.complete(0, None, succeeds=False)
    for attempt, delay_ms in ((1, 100), (2, 150)):
        status = worker.statuses.get("c").connector
        assert status is not None
        text = f"utomatic restart {attempt} of 2 follows in {delay_ms} ms (errors.restart.max.attempts)"
        assert status.trace == f"trace\nA{text}."
        (later,) = worker.delayed
        assert later == instance_effects.RestartLater(later.instance, delay_ms, f"a{text}")
        worker.delayed.clear()
        worker.carry_out(worker.core.restart_due(later.instance))
        worker.complete(0, None, succeeds=True)  # the stop of the failed connector
        worker.complete(0, None, succeeds=False)
    status = worker.statuses.get("c").connector
    assert status is not None
    text = "ll automatic restarts have failed (errors.restart.max.attempts=2), restart it manually"
    assert (status.state, status.trace, worker.pending) == (State.FAILED, f"trace\nA{text}.", [])
    (later,) = worker.delayed
    assert later == instance_effects.RestartLater(later.instance, None, f"a{text}")


def test_count_of_automatic_restarts_is_reset_after_a_restarted_connector_has_run_long_enough() -> None:
    worker = failing_world(**RESTARTS)
    worker.complete(0, None, succeeds=False)
    worker.carry_out(worker.core.restart_due(worker.delayed.pop().instance))
    worker.complete(0, None, succeeds=True)
    worker.complete(0, None, succeeds=True)
    (watch,) = worker.delayed
    assert watch == instance_effects.WatchRestarted(watch.instance, 150)
    worker.core.ran_long_enough(watch.instance)
    worker.delayed.clear()
    worker.carry_out(worker.core.state_changed(watch.instance, "FAILED", "later"))
    (later,) = worker.delayed
    assert isinstance(later, instance_effects.RestartLater)
    assert (later.instance, later.delay_ms) == (watch.instance, 100)


def kill_task(worker: SimulatedWorker) -> list[int | None]:
    """Kill the process of task 0 of the connector, and restart the task. Return the delays of the restarts."""
    id_ = worker.alive.pop(("c", 0)).instance
    worker.carry_out(worker.core.state_changed(id_, "FAILED", "killed by SIGKILL", was_killed=True))
    delays = []
    for later in worker.delayed:
        assert isinstance(later, instance_effects.RestartLater)
        delays.append(later.delay_ms)
        if later.delay_ms is not None:
            worker.carry_out(worker.core.restart_due(later.instance))
    worker.delayed.clear()
    worker.settle(1)
    return delays


def killable_world(**config: str) -> SimulatedWorker:
    worker = SimulatedWorker()
    worker.change(PutConnector("c", config))
    worker.settle(1)
    return worker


def test_task_whose_process_was_killed_is_restarted_with_backoff_up_to_five_times_in_one_hour() -> None:
    worker = killable_world()
    for delay_ms in (1_000, 2_000, 4_000, 8_000, 16_000):
        assert kill_task(worker) == [delay_ms]
        assert worker.alive["c", 0]
    assert [kill.delay_ms for kill in worker.kills] == [3_600_000] * 5
    worker.core.kill_forgotten(worker.kills[0].instance)  # an hour after the first kill
    assert kill_task(worker) == [16_000]
    assert kill_task(worker) == [None]
    status = worker.statuses.get("c").tasks[0]
    assert status.state is State.FAILED
    assert "Its process was killed more than 5 times in one hour, restart it manually" in str(status.trace)
    worker.carry_out(worker.core.restart("c", RestartPlan(connector=False, tasks=[0])))
    worker.settle(1)
    assert kill_task(worker) == [1_000]


@pytest.mark.parametrize("is_deleted", [False, True])
def test_kills_before_a_restart_or_a_deletion_do_not_raise_the_limit_of_restarts_after_kills(
    *, is_deleted: bool
) -> None:
    worker = killable_world()
    for _ in range(5):
        kill_task(worker)
    earlier = list(worker.kills)
    if is_deleted:
        worker.change(DeleteConnector("c"))
        worker.settle(1)
        worker.change(PutConnector("c", {}))
    else:
        worker.carry_out(worker.core.restart("c", RestartPlan(connector=False, tasks=[0])))
    worker.settle(1)
    for _ in range(5):
        assert kill_task(worker) != [None]
    for kill in earlier:  # an hour after the kills before the restart
        worker.core.kill_forgotten(kill.instance)
    assert kill_task(worker) == [None]
    for kill in worker.kills[5:]:
        worker.core.kill_forgotten(kill.instance)
    worker.carry_out(worker.core.restart("c", RestartPlan(connector=False, tasks=[0])))
    worker.settle(1)
    assert kill_task(worker) == [1_000]


def test_status_of_a_killed_task_says_when_it_is_restarted() -> None:
    worker = killable_world(**{"errors.restart.backoff.initial.ms": "70"})
    worker.carry_out(worker.core.state_changed(worker.alive["c", 0].instance, "FAILED", "killed", was_killed=True))
    status = worker.statuses.get("c").tasks[0]
    text = "Automatic restart 1 of at most 5 in one hour follows in 70 ms, because its process was killed."
    assert (status.state, status.trace) == (State.FAILED, f"killed\n{text}")


def test_killed_task_is_not_restarted_if_errors_restart_max_attempts_is_zero() -> None:
    worker = killable_world(**{"errors.restart.max.attempts": "0"})
    assert kill_task(worker) == []


def test_task_that_fails_with_an_error_after_a_kill_is_not_restarted_by_default() -> None:
    worker = killable_world()
    kill_task(worker)
    worker.crash(worker.alive["c", 0].instance)
    assert worker.delayed == []


def test_task_that_is_killed_while_it_starts_is_restarted() -> None:
    worker = killable_world()
    worker.carry_out(worker.core.restart("c", RestartPlan(connector=False, tasks=[0])))
    worker.complete(0, 1, succeeds=True)
    (start,) = worker.pending
    worker.pending.clear()
    worker.carry_out(worker.core.start_failed(start.instance, "killed", was_killed=True))
    (later,) = worker.delayed
    assert isinstance(later, instance_effects.RestartLater)
    assert later.delay_ms == 1_000


def test_automatic_restart_is_cancelled_by_a_restart_request_of_the_user() -> None:
    worker = failing_world(**RESTARTS)
    worker.complete(0, None, succeeds=False)
    worker.carry_out(worker.core.restart("c", RestartPlan(connector=True, tasks=[])))
    worker.complete(0, None, succeeds=True)
    worker.complete(0, None, succeeds=True)
    assert worker.core.restart_due(worker.delayed[0].instance) == []


def test_failed_connector_is_not_restarted_automatically_by_default() -> None:
    worker = failing_world()
    worker.complete(0, None, succeeds=False)
    assert worker.delayed == []


def instance_of(worker: SimulatedWorker, task: int | None) -> InstanceId:
    return worker.alive["c", task].instance


@pytest.mark.parametrize("task", [None, 1])
def test_connector_or_task_is_restarted_when_a_value_from_a_config_provider_expires(task: int | None) -> None:
    worker = running_worker()
    before = {key: start.instance for key, start in worker.alive.items()}
    worker.carry_out(worker.core.values_expired(before["c", task]))
    worker.settle()
    assert {key for key, start in worker.alive.items() if start.instance != before[key]} == {("c", task)}
    assert worker.core.values_expired(before["c", task]) == []  # the connector or task has already been restarted


def test_expired_config_provider_value_causes_no_restart_if_config_action_reload_is_none() -> None:
    worker = running_worker(**{"config.action.reload": "none"})
    assert worker.core.values_expired(instance_of(worker, None)) == []
    assert worker.core.values_expired(instance_of(worker, 0)) == []


def test_expired_config_provider_value_restarts_a_failed_connector_but_not_a_failed_task() -> None:
    worker = running_worker()
    connector, task = instance_of(worker, None), instance_of(worker, 0)
    worker.crash(connector)
    worker.crash(task)
    assert worker.core.values_expired(task) == []
    worker.carry_out(worker.core.values_expired(connector))
    worker.settle()
    assert set(worker.alive) == {("c", None), ("c", 1)}


def test_connector_restarts_after_its_start_if_a_config_provider_value_expired_during_the_start() -> None:
    worker = SimulatedWorker()
    worker.change(PutConnector("c", {}))
    (start,) = worker.pending
    worker.carry_out(worker.core.values_expired(start.instance))
    worker.settle()
    assert instance_of(worker, None) != start.instance
