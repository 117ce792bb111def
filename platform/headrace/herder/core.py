"""Compares the desired state of connectors with the running instances, and decides what to start and stop.

The desired state comes from the config store's log and, in a distributed worker, from the assignment of the worker. The
caller reports every change and the result of every effect. Each method returns the effects to carry out, in order.
Effects of different instances may be carried out concurrently.

An instance is the connector itself (task None) or a task. The states of an instance:

    STARTING -> RUNNING -> STOPPING -> (removed)
            \\-> FAILED  -/

At most one operation of an instance is in progress: while it is STARTING or STOPPING, changes of the desired state have
no effect until the result of the operation arrives. A start that is no longer wanted is aborted if it hangs. An
instance is replaced if the configuration with which it was started is not the current one. A failed instance stays
as it is until a restart, a new configuration or a stop.

As in Kafka Connect, a paused connector has no connector instance, and its tasks run but are paused. A stopped connector
has no instances. Tasks run with the configuration that the connector had when their configurations were generated.

The statuses are those that Kafka Connect stores: an instance has its first status when it runs or fails, and the status
UNASSIGNED when it has been stopped, even if it is then started again. `ShowStarting` reports instances that have no
status yet. This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from headrace.api.errors import ConfigError
from headrace.herder.assignment import Assignment
from headrace.herder.instance_effects import (
    AbortStart,
    Effect,
    ForgetKill,
    PauseTask,
    PutStatus,
    RemoveStatus,
    RequestTaskConfigs,
    RestartLater,
    ResumeTask,
    RetryTaskConfigs,
    ShowStarting,
    StartConnector,
    StartTask,
    StopInstance,
    StoreTaskConfigs,
    WatchRestarted,
)
from headrace.herder.restart_plan import RestartPlan
from headrace.plugins.connector_config import framework_value
from headrace.runtime.messages import InstanceState
from headrace.runtime.restart_policy import RestartPolicy
from headrace.runtime.spec import InstanceId
from headrace.stores.config_store import ConfigSnapshot, ConnectorState, TargetState
from headrace.stores.status_store import State, Status

RETRY_BACKOFF_MIN_MS = 250
RETRY_BACKOFF_MAX_MS = 60_000
HOUR_MS = 3_600_000


def is_outdated(status: Status | None, worker_id: str, generation: int) -> bool:
    """Whether a status in the status topic may be replaced by the owner of the instance, `worker_id`.

    If a worker was paused or its writes were delayed, its status may follow the status of the new owner. A removed
    status (None) is outdated, too, because a former leader may have removed it. A status with a later generation is not
    outdated, because it comes from a newer owner.
    """
    return status is None or (status.worker_id != worker_id and status.generation <= generation)


class _Phase(Enum):
    STARTING = auto()
    RUNNING = auto()
    FAILED = auto()
    STOPPING = auto()


@dataclass(slots=True)
class _Instance:
    id: InstanceId
    config_offset: int
    is_paused: bool
    phase: _Phase = _Phase.STARTING
    state: State = State.UNASSIGNED
    trace: str | None = None
    version: str | None = None
    must_restart: bool = False
    was_killed: bool = False  # a signal ended its process
    is_aborting: bool = False  # the start is no longer wanted
    is_shown_restarting: bool = False
    start_failure: str | None = None  # the trace of a failed start
    run_with: _TaskInputs | None = None


class _TaskInputs(NamedTuple):
    """The inputs of a task: a task whose inputs have not changed is not restarted."""

    task_count: int
    task_config: Mapping[str, str]
    connector_config: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class _Desired:
    config_offset: int
    is_paused: bool


@dataclass(slots=True)
class _Connector:
    """The instances of a connector that this worker runs."""

    instances: dict[int | None, _Instance] = field(default_factory=dict)
    shown: State | None = None  # the connector's stored status while it has no instance
    shown_config_offset: int = -1  # the offset of the configuration for which `shown` was stored
    version: str | None = None  # the version of the last connector instance
    requested: InstanceId | None = None  # the instance that generates task configurations
    must_request_again: bool = False
    generated: Sequence[Mapping[str, str]] | None = None  # by the current instance of the connector
    repaired: tuple[object, object] | None = None  # the last mismatch for which task configurations were requested
    retrying: InstanceId | None = None  # the instance whose RetryTaskConfigs is pending
    retry_backoff_ms: int = RETRY_BACKOFF_MIN_MS
    is_coalescing: bool = False  # `retrying` waits because of a request that arrived during the last one
    restarts: dict[int | None, int] = field(default_factory=dict)  # numbers of successive automatic restarts
    kills: dict[int | None, set[InstanceId]] = field(default_factory=dict)  # killed and restarted in the last hour


class HerderCore:
    """The instances of one worker."""

    def __init__(self, snapshot: ConfigSnapshot | None = None) -> None:
        self.snapshot = snapshot or ConfigSnapshot()
        self._assignment: Assignment | None = None  # None: everything, as in a standalone worker
        self._connectors: dict[str, _Connector] = {}
        self._generation = 0

    # Queries

    def is_settled(self, connector: str) -> bool:
        """Whether no operation of the connector is in progress."""
        local = self._connectors.get(connector)
        if local is None:
            return True
        phases = {instance.phase for instance in local.instances.values()}
        return local.requested is None and not phases & {_Phase.STARTING, _Phase.STOPPING}

    def instances(self, connector: str) -> list[InstanceId]:
        """Return the instances of a connector that have not been stopped, including failed instances."""
        local = self._connectors.get(connector)
        return [] if local is None else [instance.id for instance in local.instances.values()]

    def start_failure(self, connector: str, task: int | None) -> str | None:
        """Return the trace of an instance that failed to start, or None if the instance did not fail to start."""
        local = self._connectors.get(connector)
        instance = None if local is None else local.instances.get(task)
        return None if instance is None else instance.start_failure

    def shown_without_instance(self, connector: str) -> State | None:
        """Return the status of a paused or stopped connector, or None if the connector has an instance."""
        local = self._connectors.get(connector)
        return None if local is None else local.shown

    def runs(self, connector: str, assignment: Assignment) -> bool:
        """Whether the connector has an instance that `assignment` contains and that has not been stopped."""
        return any(assignment.contains(connector, id_.task) for id_ in self.instances(connector))

    # Changes of the desired state

    def on_snapshot(self, snapshot: ConfigSnapshot) -> list[Effect]:
        """Handle a new state of the config store."""
        changed = [
            name
            for name in {**self.snapshot.connectors, **snapshot.connectors}
            if (old := self.snapshot.connectors.get(name)) is not (new := snapshot.connectors.get(name)) and old != new
        ]
        before, self.snapshot = self.snapshot, snapshot
        effects = [effect for name in changed for effect in self._reconcile(name)]
        return [*effects, *(effect for name in changed for effect in self._repair_task_configs(before, name))]

    def assign(self, assignment: Assignment) -> list[Effect]:
        """Handle a new assignment of a worker in a group."""
        before, self._assignment = self._assignment, assignment
        names = {**self.snapshot.connectors, **self._connectors}
        if before is not None:
            changed = (before - assignment) | (assignment - before)
            affected = changed.connectors | {name for name, _ in changed.tasks}
            names = {name: names[name] for name in names if name in affected}
        return [effect for name in names for effect in self._reconcile(name)]

    def restart(self, connector: str, plan: RestartPlan, *, shows_restarting: bool = False) -> list[Effect]:
        """Restart the selected instances that this worker runs.

        With `shows_restarting` (KIP-745), the instances have the status RESTARTING from their stop until they run
        again.
        """
        local = self._connectors.get(connector)
        if local is None:
            return []
        effects: list[Effect] = []
        if plan.connector and local.shown is not None:
            effects += self._restarted_without_instance(local, connector, shows_restarting=shows_restarting)
        for task in [*([None] if plan.connector else []), *plan.tasks]:
            instance = local.instances.get(task)
            local.restarts.pop(task, None)
            local.kills.pop(task, None)
            if instance is not None and instance.phase is not _Phase.STOPPING:
                instance.must_restart, instance.is_shown_restarting = True, shows_restarting
        return [*effects, *self._reconcile(connector)]

    def _restarted_without_instance(self, local: _Connector, name: str, *, shows_restarting: bool) -> list[Effect]:
        """Return the statuses for the restart of a paused or stopped connector, which has no instance to restart."""
        assert local.shown is not None
        states = [State.UNASSIGNED, *([State.RESTARTING] if shows_restarting else [])]
        return [*(PutStatus(name, None, state) for state in states), _status_of_shown(local, name)]

    def status_replaced(self, connector: str, task: int | None) -> list[Effect]:
        """Handle that another worker's outdated status has replaced the status of one of this worker's instances."""
        local, state = self._connectors.get(connector), self.snapshot.connectors.get(connector)
        if local is None or state is None:
            return []
        instance = local.instances.get(task)
        if instance is not None:
            has_status = instance.phase is not _Phase.STOPPING and instance.state is not State.UNASSIGNED
            return [_status_of(instance)] if has_status else []
        if task is None and local.shown is not None:
            return [PutStatus(connector, None, local.shown, version=local.version)]
        return []

    # Results of effects, and reports of instances; those of replaced instances have no effect

    def started(self, id_: InstanceId, version: str | None) -> list[Effect]:
        """Handle the successful start of an instance."""
        instance = self._current(id_)
        if instance is None or instance.phase is not _Phase.STARTING:
            return []
        instance.version = version
        if id_.task is None:
            self._connectors[id_.connector].version = version
        has_failed = instance.state is State.FAILED
        instance.phase = _Phase.FAILED if has_failed else _Phase.RUNNING
        if id_.task is None and not has_failed:
            instance.state = State.RUNNING
        effects: list[Effect] = self._restart_later(instance) if has_failed else self._watch_restarted(instance)
        if instance.state is State.UNASSIGNED:
            effects.append(ShowStarting(id_, version))
        else:
            effects.append(_status_of(instance))
        if id_.task is None and not has_failed:
            effects += self.task_configs_needed(id_)
        return [*effects, *self._reconcile(id_.connector)]

    def start_failed(self, id_: InstanceId, trace: str, *, was_killed: bool = False) -> list[Effect]:
        """Handle the failed start of an instance. `was_killed` is true if a signal ended its process."""
        instance = self._current(id_)
        if instance is None or instance.phase is not _Phase.STARTING:
            return []
        if instance.is_aborting:
            return self.stopped(id_)
        instance.start_failure = trace
        instance.was_killed |= was_killed
        return [*self._fail(instance, trace, restarts=True), *self._reconcile(id_.connector)]

    def stopped(self, id_: InstanceId) -> list[Effect]:
        """Handle the end of an instance that was stopped."""
        instance = self._current(id_)
        if instance is None:
            return []
        del self._connectors[id_.connector].instances[id_.task]
        return [*self._statuses_after_end(instance), *self._reconcile(id_.connector)]

    def process_ended(self, id_: InstanceId) -> list[Effect]:
        """Handle that an instance's process ended through no fault of the instance.

        If it has not failed, start it again.
        """
        instance = self._current(id_)
        return [] if instance is None or instance.phase is _Phase.FAILED else self.stopped(id_)

    def state_changed(
        self, id_: InstanceId, state: InstanceState, trace: str | None, *, was_killed: bool = False
    ) -> list[Effect]:
        """Handle the state of an instance. `was_killed` is true if a signal ended its process."""
        instance = self._current(id_)
        if instance is None or instance.phase is _Phase.STOPPING or instance.state is State.FAILED:
            return []
        instance.was_killed |= was_killed
        if instance.phase is _Phase.STARTING:  # `started` follows and stores the status, with the version
            instance.state = State.UNASSIGNED if state == "STOPPED" else State(state)
            instance.trace = trace
            return [ShowStarting(id_)]
        if state == "FAILED":
            return [*self._fail(instance, trace or "", restarts=True), *self._reconcile(id_.connector)]
        instance.state = State.UNASSIGNED if state == "STOPPED" else State(state)
        return [_status_of(instance)]

    # Automatic restarts

    def values_expired(self, id_: InstanceId) -> list[Effect]:
        """Restart an instance that uses an expired value of a config provider (KIP-297).

        With config.action.reload=none, the instance continues with the old value. A failed task stays failed.
        """
        instance, state = self._current(id_), self.snapshot.connectors.get(id_.connector)
        if instance is None or state is None or instance.phase is _Phase.STOPPING or not _reloads(state.config):
            return []
        if id_.task is not None and instance.state is State.FAILED:
            return []
        instance.must_restart = True
        restarting = PutStatus(id_.connector, id_.task, State.RESTARTING, id_.generation)
        return [restarting, *self._reconcile(id_.connector)]

    def restart_due(self, id_: InstanceId) -> list[Effect]:
        """Handle the end of the delay of `RestartLater`."""
        instance = self._current(id_)
        if instance is None or instance.phase is not _Phase.FAILED:
            return []
        instance.must_restart = True
        restarting = PutStatus(id_.connector, id_.task, State.RESTARTING, id_.generation)
        return [restarting, *self._reconcile(id_.connector)]

    def ran_long_enough(self, id_: InstanceId) -> None:
        """Handle the end of the delay of `WatchRestarted`.

        After a later failure, all restart attempts are available again.
        """
        instance = self._current(id_)
        if instance is not None and instance.phase is _Phase.RUNNING:
            self._connectors[id_.connector].restarts.pop(id_.task, None)

    def _restart_later(self, instance: _Instance) -> list[Effect]:
        id_ = instance.id
        state, local = self.snapshot.connectors.get(id_.connector), self._connectors[id_.connector]
        policy = RestartPolicy.from_config({} if state is None else state.config, was_killed=instance.was_killed)
        if not policy.is_enabled:
            return []
        kills = local.kills.setdefault(id_.task, set())
        attempt = 1 + (len(kills) if policy.is_per_hour else local.restarts.get(id_.task, 0))
        delay_ms = policy.delay_ms(attempt)
        text = policy.describe(attempt, delay_ms)
        instance.trace = f"{(instance.trace or '').rstrip()}\n{text[0].upper()}{text[1:]}."
        effects: list[Effect] = [RestartLater(id_, delay_ms, text)]
        if delay_ms is None:
            return effects
        if policy.is_per_hour:
            kills.add(id_)
            return [*effects, ForgetKill(id_, HOUR_MS)]
        local.restarts[id_.task] = attempt
        return effects

    def kill_forgotten(self, id_: InstanceId) -> None:
        """Handle the end of the delay of `ForgetKill`."""
        local = self._connectors.get(id_.connector)
        if local is not None:
            local.kills.get(id_.task, set()).discard(id_)

    def _watch_restarted(self, instance: _Instance) -> list[Effect]:
        id_ = instance.id
        if id_.task not in self._connectors[id_.connector].restarts:
            return []
        state = self.snapshot.connectors.get(id_.connector)
        policy = RestartPolicy.from_config({} if state is None else state.config)
        return [WatchRestarted(id_, policy.backoff_max_ms)]

    # Task configurations

    def task_configs_needed(self, id_: InstanceId) -> list[Effect]:
        """Request task configurations, because the connector has started or has requested it, or a delay has passed."""
        instance = self._current(id_)
        if instance is None or instance.phase is not _Phase.RUNNING:
            return []
        local = self._connectors[id_.connector]
        if local.requested == id_:
            local.must_request_again = True
            return []
        if local.retrying == id_ and local.is_coalescing:
            return []
        local.requested, local.must_request_again = id_, False
        return [RequestTaskConfigs(id_)]

    def retry_due(self, id_: InstanceId) -> list[Effect]:
        """Handle the end of the delay of `RetryTaskConfigs`."""
        local = self._connectors.get(id_.connector)
        if local is not None and local.retrying == id_:
            local.retrying, local.is_coalescing = None, False
        return self.task_configs_needed(id_)

    def task_configs_generated(self, id_: InstanceId, configs: Sequence[Mapping[str, str]]) -> list[Effect]:
        """Handle generated task configurations. If they are equal to the stored ones, nothing changes.

        If the connector has requested a reconfiguration meanwhile, task configurations are requested again after a
        back-off, because a connector may request this in each call of `task_configs`.
        """
        state, local = self._completed_request(id_)
        if state is None or local is None:
            return []
        local.generated = [dict(config) for config in configs]
        effects: list[Effect] = []
        if list(configs) != list(state.task_configs) or state.config != state.applied_config:
            effects.append(StoreTaskConfigs(id_.connector, configs))
        if not local.must_request_again:
            local.retry_backoff_ms = RETRY_BACKOFF_MIN_MS
            return effects
        local.is_coalescing = True
        return [*effects, *self._retry_later(local, id_)]

    def task_configs_failed(self, id_: InstanceId, trace: str, *, is_fatal: bool) -> list[Effect]:
        """Handle a failure to generate task configurations: fail the connector, or retry with a back-off."""
        state, local = self._completed_request(id_)
        if state is None or local is None:
            return []
        if is_fatal:
            return [*self._fail(local.instances[None], trace), *self._reconcile(id_.connector)]
        return self._retry_later(local, id_)

    def task_configs_rejected(self, name: str, configs: Sequence[Mapping[str, str]], trace: str) -> list[Effect]:
        """Fail the connector that has generated these task configurations, because they can never be stored."""
        local = self._connectors.get(name)
        instance = None if local is None else local.instances.get(None)
        if local is None or instance is None or instance.phase is not _Phase.RUNNING:
            return []
        if local.generated != [dict(config) for config in configs]:
            return []  # the connector has generated others since
        return [*self._fail(instance, trace), *self._reconcile(name)]

    def _retry_later(self, local: _Connector, id_: InstanceId) -> list[Effect]:
        if local.retrying == id_:
            return []
        local.retrying = id_
        delay_ms, local.retry_backoff_ms = (
            local.retry_backoff_ms,
            min(2 * local.retry_backoff_ms, RETRY_BACKOFF_MAX_MS),
        )
        return [RetryTaskConfigs(id_, delay_ms)]

    def _repair_task_configs(self, before: ConfigSnapshot, name: str) -> list[Effect]:
        """Request task configurations again if the stored ones differ from those that the connector generated last.

        A former leader may write old task configurations after those of the current leader. It may also write a commit
        of which some task configurations are missing. If a new request did not change the difference, there is no
        further request.
        """
        state, known, local = (
            self.snapshot.connectors.get(name),
            before.connectors.get(name),
            self._connectors.get(name),
        )
        if state is None or local is None or (known and known.task_configs_offset == state.task_configs_offset):
            return []
        instance = local.instances.get(None)
        if instance is None or local.generated is None or state.target is TargetState.STOPPED:
            return []
        is_incomplete = state.applied_config is None
        mismatch = (list(state.task_configs), local.generated)
        if not is_incomplete and (mismatch[0] == mismatch[1] or local.repaired == mismatch):
            return []
        local.repaired = mismatch
        return self.task_configs_needed(instance.id)

    def _completed_request(self, id_: InstanceId) -> tuple[ConnectorState | None, _Connector | None]:
        """Complete a request for task configurations. Return the connector unless the response is outdated."""
        local = self._connectors.get(id_.connector)
        if local is None or local.requested != id_:
            return None, None
        local.requested = None
        instance, state = local.instances.get(None), self.snapshot.connectors.get(id_.connector)
        if instance is None or instance.id != id_ or instance.phase is not _Phase.RUNNING:
            return None, None  # the instance is being stopped, for example because it has an old configuration
        return state, local

    # Reconciliation

    def _reconcile(self, name: str) -> list[Effect]:
        state = self.snapshot.connectors.get(name)
        local = self._connectors.get(name)
        if local is None:
            if state is None:
                return []
            local = self._connectors[name] = _Connector()
        tasks = {task for task in local.instances if task is not None}
        if state is not None:
            tasks |= set(range(len(state.task_configs)))
        effects = [effect for task in (None, *sorted(tasks)) for effect in self._reconcile_instance(local, name, task)]
        if state is None and not local.instances:
            del self._connectors[name]
            unassigned = [] if local.shown is None else [PutStatus(name, None, State.UNASSIGNED)]
            return [*effects, *unassigned, RemoveStatus(name, None)]
        return [*effects, *self._status_without_instance(local, name)]

    def _reconcile_instance(self, local: _Connector, name: str, task: int | None) -> list[Effect]:
        instance, desired = local.instances.get(task), self._desired(name, task)
        if instance is None:
            return [] if desired is None else self._start(local, name, task, desired)
        if desired is not None and task is not None and instance.run_with == self._inputs(name, task):
            instance.config_offset = desired.config_offset  # the leader has only written the same configurations again
        is_outdated_config = desired is not None and instance.config_offset != desired.config_offset
        match instance.phase:
            case _Phase.STARTING if desired is None or instance.must_restart or is_outdated_config:
                was_aborting, instance.is_aborting = instance.is_aborting, True
                return [] if was_aborting else [AbortStart(instance.id)]
            case _Phase.RUNNING if desired is None or instance.must_restart:
                return self._stop(instance)
            case _Phase.RUNNING if is_outdated_config:
                return self._stop(instance)
            case _Phase.RUNNING if desired is not None and instance.is_paused != desired.is_paused:
                instance.is_paused = desired.is_paused
                return [PauseTask(instance.id) if desired.is_paused else ResumeTask(instance.id)]
            case _Phase.FAILED if instance.must_restart or not self._keeps_failed(instance, desired):
                return self._stop(instance)
        return []

    def _keeps_failed(self, instance: _Instance, desired: _Desired | None) -> bool:
        """Whether a failed instance stays as it is. A failed connector stays as it is even if it is paused."""
        name, task = instance.id.connector, instance.id.task
        if desired is not None:
            return instance.config_offset == desired.config_offset
        state = self.snapshot.connectors.get(name)
        is_paused_connector = task is None and state is not None and state.target is TargetState.PAUSED
        return is_paused_connector and self._is_assigned(name, task)

    def _desired(self, name: str, task: int | None) -> _Desired | None:
        state = self.snapshot.connectors.get(name)
        if state is None or not self._is_assigned(name, task):
            return None
        if task is None:
            return _Desired(state.config_offset, False) if state.target is TargetState.STARTED else None
        if state.target is TargetState.STOPPED or task >= len(state.task_configs):
            return None
        return _Desired(state.task_configs_offset, state.target is TargetState.PAUSED)

    def _is_assigned(self, name: str, task: int | None) -> bool:
        return self._assignment is None or self._assignment.contains(name, task)

    def _start(self, local: _Connector, name: str, task: int | None, desired: _Desired) -> list[Effect]:
        self._generation += 1
        id_ = InstanceId(name, task, self._generation)
        local.instances[task] = _Instance(id_, desired.config_offset, desired.is_paused)
        state = self.snapshot.connectors[name]
        if task is None:
            local.shown, local.retry_backoff_ms, local.generated = None, RETRY_BACKOFF_MIN_MS, None
            local.is_coalescing = False
            return [ShowStarting(id_), StartConnector(id_, state.config)]
        inputs = local.instances[task].run_with = self._inputs(name, task)
        return [ShowStarting(id_), StartTask(id_, *inputs, desired.is_paused)]

    def _inputs(self, name: str, task: int) -> _TaskInputs:
        state = self.snapshot.connectors[name]
        applied = state.config if state.applied_config is None else state.applied_config
        return _TaskInputs(len(state.task_configs), state.task_configs[task], applied)

    def _stop(self, instance: _Instance) -> list[Effect]:
        instance.phase = _Phase.STOPPING
        return [StopInstance(instance.id)]

    def _fail(self, instance: _Instance, trace: str, *, restarts: bool = False) -> list[Effect]:
        instance.phase, instance.state, instance.trace = _Phase.FAILED, State.FAILED, trace
        effects = self._restart_later(instance) if restarts else []
        return [_status_of(instance), *effects]

    def _status_without_instance(self, local: _Connector, name: str) -> list[Effect]:
        """Return the effect that stores the status of a connector without an instance, if the status has changed."""
        state = self.snapshot.connectors.get(name)
        if state is None or None in local.instances:
            return []
        if not self._is_assigned(name, None):
            was_shown, local.shown = local.shown, None
            return [] if was_shown is None else [PutStatus(name, None, State.UNASSIGNED)]
        shown = State.PAUSED if state.target is TargetState.PAUSED else State.STOPPED
        is_new_config = local.shown_config_offset != state.config_offset
        if shown is local.shown and not is_new_config:
            return []
        replaced: list[Effect] = []
        if local.shown is not None and is_new_config:  # Kafka Connect replaces the instance of a paused connector
            replaced, local.version = [PutStatus(name, None, State.UNASSIGNED)], None
        local.shown, local.shown_config_offset = shown, state.config_offset
        return [*replaced, _status_of_shown(local, name)]

    def _statuses_after_end(self, instance: _Instance) -> list[Effect]:
        """Return the statuses of an instance that has been stopped."""
        name, task, generation = instance.id.connector, instance.id.task, instance.id.generation
        state, desired = self.snapshot.connectors.get(name), self._desired(name, task)
        if task is None and desired is None and state is not None and self._is_assigned(name, None):
            return []  # the connector is paused or stopped: its status follows
        effects: list[Effect] = []
        if task is None or instance.state is not State.FAILED:
            effects.append(PutStatus(name, task, State.UNASSIGNED, generation))
        if desired is not None and instance.is_shown_restarting:
            effects.append(PutStatus(name, task, State.RESTARTING, generation))
        is_stopped = state is not None and state.target is TargetState.STOPPED
        if task is not None and (state is None or is_stopped or task >= len(state.task_configs)):
            effects.append(RemoveStatus(name, task))
        return effects

    def _current(self, id_: InstanceId) -> _Instance | None:
        local = self._connectors.get(id_.connector)
        instance = None if local is None else local.instances.get(id_.task)
        return instance if instance is not None and instance.id == id_ else None


def _reloads(config: Mapping[str, str]) -> bool:
    """Whether config.action.reload is restart. A value that contains a variable is treated as not set."""
    try:
        return bool(framework_value(config, "config.action.reload") == "restart")
    except ConfigError:
        return True


def _status_of_shown(local: _Connector, name: str) -> PutStatus:
    assert local.shown is not None
    return PutStatus(name, None, local.shown, version=local.version)


def _status_of(instance: _Instance) -> PutStatus:
    id_ = instance.id
    trace = instance.trace if instance.state is State.FAILED else None
    return PutStatus(id_.connector, id_.task, instance.state, id_.generation, trace, instance.version)
