"""Carries out the effects of `HerderCore` with the worker, and reports the results and the events of instances to it.

Operations of different connectors run concurrently: a hung connector does not delay the others. No plug-in code runs in
this process.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from headrace.herder import core, instance_effects
from headrace.herder.assignment import Assignment
from headrace.herder.herder import StartCounts
from headrace.metrics import logs
from headrace.metrics.elapsed import ms_since
from headrace.runtime.channel import RemoteError
from headrace.runtime.messages import InstanceState, OffsetPair
from headrace.runtime.spec import InstanceId, TaskSpec
from headrace.runtime.traces import exception_line, trace_of
from headrace.runtime.worker import CallTimeout, Events, ProcessKilled, StartTerminated, Worker
from headrace.runtime.worker_config import WorkerConfig
from headrace.stores.offset_store import OffsetStore
from headrace.stores.status_records import StatusKey
from headrace.stores.status_store import State, Status, StatusStore

log = logging.getLogger(__name__)

VALUE_TTL_MIN_MS = 1_000  # shorter times to live would restart a connector without pause

StoreTaskConfigs = Callable[[str, Sequence[Mapping[str, str]]], Awaitable[None]]


class Instances:
    """The connector instances and tasks of one worker.

    `store_task_configs` stores the task configurations that a connector generated. `status_generation` returns the
    generation for a status of this worker. By default, it is the generation of the instance. If `removes_statuses` is
    false, statuses of instances that no longer exist are kept: in a group of workers, the leader removes them.
    `may_commit` returns whether a task may commit offsets. By default, every task may.

    If another worker has written a status of an instance of this worker in another generation, `check_writer` receives
    that worker's id and the connector's name. It calls `report_foreign_worker` if that worker is not in the group.
    """

    def __init__(
        self,
        config: WorkerConfig,
        worker_id: str,
        make_worker: Callable[[Events], Worker],
        *,
        statuses: StatusStore,
        offsets: OffsetStore,
        store_task_configs: StoreTaskConfigs,
        status_generation: Callable[[], int] | None = None,
        removes_statuses: bool = True,
        may_commit: Callable[[InstanceId], bool] = lambda _: True,
        check_writer: Callable[[str, str], None] = lambda _worker_id, _connector: None,
    ) -> None:
        self.core = core.HerderCore()
        self.worker = make_worker(self)
        self.starts = {"connector": StartCounts(), "task": StartCounts()}
        self._config = config
        self.worker_id = worker_id
        self._statuses = statuses
        self._offsets = offsets
        self._store_task_configs = store_task_configs
        self._status_generation = status_generation
        self._removes_statuses = removes_statuses
        self._may_commit = may_commit
        self._check_writer = check_writer
        self._operations: dict[str, dict[asyncio.Task[None], instance_effects.Effect]] = {}
        self._is_stopping = False
        self._rewritten: dict[tuple[StatusKey, str], int] = {}
        """The generation in which a status was rewritten after another worker had written it in the same generation."""
        self._foreign_workers = set[str]()

    async def stop(self) -> None:
        """Stop all tasks (which commit their offsets) and connectors. From now on, carry out no effects."""
        self._is_stopping = True
        operations = {task: effect for each in self._operations.values() for task, effect in each.items()}
        for operation, effect in operations.items():
            if not isinstance(effect, instance_effects.StopInstance):
                operation.cancel()
        await asyncio.gather(self.worker.stop_all(), *operations, return_exceptions=True)

    async def settled(self, connector: str) -> None:
        """Wait until no operation of a connector is in progress."""
        while operations := self._operations.get(connector):
            await asyncio.wait(list(operations))

    async def wait_until_ended(self, instance: InstanceId) -> None:
        """Wait until an instance has been stopped, or no operation of its connector is in progress."""
        name = instance.connector
        while instance in self.core.instances(name) and (operations := self._operations.get(name)):
            await asyncio.wait(list(operations), return_when=asyncio.FIRST_COMPLETED)

    async def wait_until_stopped(self, assignment: Assignment) -> None:
        """Wait until none of these connectors and tasks has an instance in this worker."""
        while running := [name for name in self._operations if self.core.runs(name, assignment)]:
            await asyncio.wait([task for name in running for task in self._operations[name]])

    # Events of the worker (runtime.worker.Events)

    def state_changed(
        self, instance: InstanceId, state: InstanceState, trace: str | None, *, was_killed: bool = False
    ) -> None:
        """Handle the state of an instance. `was_killed` is true if a signal ended its process."""
        _debug(instance, "reports state %s", state)
        effects = self.core.state_changed(instance, state, trace, was_killed=was_killed)
        if effects and state == "FAILED":
            context, reason = logs.context(instance.connector), exception_line(trace or "")
            log.error("%s%s %s: failed: %s", context, _kind(instance), instance.name, reason)
        self.carry_out(effects)

    def topic_used(self, instance: InstanceId, topic: str) -> None:
        """Add a topic to the list of topics that the task's connector has used."""
        if instance.connector in self.core.snapshot.connectors and self._config["topic.tracking.enable"]:
            self._statuses.add_topic(instance.connector, topic, instance.task or 0)

    def reconfiguration_requested(self, instance: InstanceId) -> None:
        """Handle a connector's request to reconfigure its tasks."""
        _debug(instance, "requests new task configurations")
        self.carry_out(self.core.task_configs_needed(instance))

    def values_expire(self, instance: InstanceId, ttl_ms: int) -> None:
        """Restart an instance when a value of a config provider expires, with config.action.reload=restart."""
        self._call_later(max(ttl_ms, VALUE_TTL_MIN_MS), lambda: self._restart_expired(instance))

    def _restart_expired(self, instance: InstanceId) -> None:
        if effects := self.core.values_expired(instance):
            log.info(
                "%s%s %s: restarting, because a value from a config provider has expired (config.action.reload)",
                logs.context(instance.connector),
                _kind(instance),
                instance.name,
            )
        self.carry_out(effects)

    def instance_ended(self, instance: InstanceId) -> None:
        """Start an instance again whose process ended through no fault of the instance."""
        self.carry_out(self.core.process_ended(instance))

    def status_read(self, key: StatusKey, status: Status | None) -> None:
        """Handle a status in the status topic: write this worker's status again if another worker has replaced it."""
        generation = 0 if self._status_generation is None else self._status_generation()
        effects = self.core.status_replaced(key.connector, key.task)
        if effects and status is not None and status.worker_id != self.worker_id:
            if status.generation == generation:
                if self._rewritten.get((key, status.worker_id)) == generation:
                    self.report_foreign_worker(status.worker_id, key.connector)
                    return
                self._rewritten[key, status.worker_id] = generation
            elif status.state is not State.UNASSIGNED:  # which a former owner writes when it stops
                self._check_writer(status.worker_id, key.connector)
        if core.is_outdated(status, self.worker_id, generation):
            self.carry_out(effects)

    def report_foreign_worker(self, worker_id: str, connector: str) -> None:
        """Log once that a worker of another group runs the same connector as this worker."""
        if worker_id not in self._foreign_workers:
            self._foreign_workers.add(worker_id)
            log.error(
                "Status topic: worker %s writes statuses of the same connectors as this worker, for example of %s. "
                "Another group uses this status topic, and both groups may run the same connectors: set another "
                "status.storage.topic, config.storage.topic and offset.storage.topic for each group",
                worker_id,
                connector,
            )

    def confirm_task(self, instance: InstanceId) -> None:
        """Raise LookupError if another worker may run the task."""
        if not self._may_commit(instance):
            raise LookupError(
                f"Task {instance.name}: its offsets are not committed, because this worker has lost its membership in "
                "the group, and another worker may run the task"
            )

    async def commit_offsets(self, instance: InstanceId, offsets: Sequence[OffsetPair]) -> None:
        """Write a task's offsets, and wait until they are durable.

        Raises LookupError if another worker may run the task: it may have committed later offsets, or a user may have
        reset them.
        """
        self.confirm_task(instance)
        started = time.monotonic()
        await self._offsets.write(instance.connector, offsets)
        _debug(instance, "stored offsets of %d source partitions in %d ms", len(offsets), ms_since(started))

    async def read_offsets(self, instance: InstanceId, partitions: list[dict[Any, Any]]) -> list[dict[str, Any] | None]:
        """Return the committed offsets of these source partitions."""
        return await self._offsets.read(instance.connector, partitions)

    # Effects of HerderCore

    def carry_out(self, effects: Iterable[instance_effects.Effect]) -> None:
        """Carry out effects of `HerderCore`. Starts and stops continue in the background."""
        if self._is_stopping:
            return
        for effect in effects:
            self._carry_out_one(effect)

    def _carry_out_one(self, effect: instance_effects.Effect) -> None:
        match effect:
            case instance_effects.PutStatus(name, None, State.PAUSED | State.STOPPED, version=None):
                self._run(name, effect, self._put_status_with_version(effect))
            case instance_effects.PutStatus():
                self._put_status(effect)
            case instance_effects.ShowStarting(instance, version):
                generation = self._generation_of(instance.generation)
                status = Status(State.UNASSIGNED, self.worker_id, generation, version=version)
                self._statuses.show_starting(instance.connector, instance.task, status)
            case instance_effects.RemoveStatus(name, task):
                if self._removes_statuses:
                    self._statuses.remove(name, task)
            case instance_effects.PauseTask(instance):
                self.worker.pause_task(instance)
            case instance_effects.ResumeTask(instance):
                self.worker.resume_task(instance)
            case instance_effects.StartConnector(instance) | instance_effects.StartTask(instance):
                self._run(instance.connector, effect, self._start(effect))
            case instance_effects.StopInstance(instance):
                self._run(instance.connector, effect, self._stop(instance))
            case instance_effects.AbortStart(instance):
                self._run(instance.connector, effect, self.worker.abort_start(instance))
            case instance_effects.RequestTaskConfigs(instance):
                self._run(instance.connector, effect, self._request_task_configs(instance))
            case instance_effects.RetryTaskConfigs(instance, delay_ms):
                _debug(instance, "generating task configurations again in %d ms", delay_ms)
                self._call_later(delay_ms, lambda: self.carry_out(self.core.retry_due(instance)))
            case instance_effects.RestartLater(instance, delay_ms, text):
                level = logging.INFO if delay_ms is not None else logging.ERROR
                context, kind = logs.context(instance.connector), _kind(instance)
                log.log(level, "%s%s %s: %s", context, kind, instance.name, text)
                if delay_ms is not None:
                    self._call_later(delay_ms, lambda: self.carry_out(self.core.restart_due(instance)))
            case instance_effects.ForgetKill(instance, delay_ms):
                self._call_later(delay_ms, lambda: self.core.kill_forgotten(instance))
            case instance_effects.WatchRestarted(instance, delay_ms):
                self._call_later(delay_ms, lambda: self.core.ran_long_enough(instance))
            case instance_effects.StoreTaskConfigs(name, configs):
                self._run(name, effect, self._store(name, configs))

    def _generation_of(self, instance_generation: int) -> int:
        return instance_generation if self._status_generation is None else self._status_generation()

    def _put_status(self, put: instance_effects.PutStatus) -> None:
        generation = self._generation_of(put.generation)
        status = Status(put.state, self.worker_id, generation, put.trace, put.version)
        self._statuses.put(put.connector, put.task, status)

    async def _put_status_with_version(self, put: instance_effects.PutStatus) -> None:
        """Store the status of a connector that is paused or stopped and that this worker has never started."""
        state = self.core.snapshot.connectors.get(put.connector)
        try:
            version = None if state is None else await self.worker.connector_version(state.config)
        except (RemoteError, CallTimeout, OSError):  # the class cannot be loaded
            version = None
        if self.core.shown_without_instance(put.connector) is put.state:  # otherwise a later status has replaced it
            self._put_status(replace(put, version=version))

    def put_unassigned(self, assignment: Assignment) -> None:
        """Store the status UNASSIGNED for instances of this worker, which has stopped. Failed tasks stay failed."""
        instances = [(name, None) for name in sorted(assignment.connectors)] + sorted(assignment.tasks)
        for name, task in instances:
            statuses = self._statuses.get(name)
            known = statuses.connector if task is None else statuses.tasks.get(task)
            if task is None or known is None or known.state is not State.FAILED:
                self._put_status(instance_effects.PutStatus(name, task, State.UNASSIGNED))

    def _call_later(self, delay_ms: int, callback: Callable[[], None]) -> None:
        asyncio.get_running_loop().call_later(delay_ms / 1000, callback)

    def _run(self, connector: str, effect: instance_effects.Effect, operation: Coroutine[Any, Any, None]) -> None:
        """Carry out an operation of a connector concurrently."""
        running = self._operations.setdefault(connector, {})
        task = asyncio.ensure_future(operation)
        running[task] = effect

        def complete(_task: asyncio.Task[None]) -> None:
            del running[task]
            if not running and self._operations.get(connector) is running:
                del self._operations[connector]
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("Connector %s: %s failed", connector, type(effect).__name__, exc_info=error)

        task.add_done_callback(complete)

    async def _start(self, start: instance_effects.StartConnector | instance_effects.StartTask) -> None:
        instance, name = start.instance, start.instance.connector
        kind, started = _kind(instance).lower(), time.monotonic()
        _debug(instance, "starting as instance %d", instance.generation)
        try:
            if isinstance(start, instance_effects.StartConnector):
                version = await self.worker.start_connector(instance, start.config)
            else:
                version = await self.worker.start_task(instance, self._spec(start))
        except Exception as error:  # noqa: BLE001 - whatever it is, only this instance fails
            trace = _trace(error)
            self.starts[kind] = self.starts[kind].plus(is_success=False)
            if not isinstance(error, StartTerminated):  # which the worker has logged
                scope = "worker" if instance.task is None else f"task-{instance.task}"
                context = logs.context(name, scope)
                log.error(
                    "%s%s %s: failed to start: %s", context, _kind(instance), instance.name, exception_line(trace)
                )
            self.carry_out(self.core.start_failed(instance, trace, was_killed=isinstance(error, ProcessKilled)))
        else:
            _debug(instance, "started version %s in %d ms", version, ms_since(started))
            self.starts[kind] = self.starts[kind].plus(is_success=True)
            self.carry_out(self.core.started(instance, version))

    def _spec(self, start: instance_effects.StartTask) -> TaskSpec:
        assert start.instance.task is not None
        return TaskSpec(
            connector=start.instance.connector,
            number=start.instance.task,
            task_count=start.task_count,
            config=dict(start.task_config),
            connector_config=dict(start.connector_config),
            worker=self._config.properties,
            paused=start.is_paused,
        )

    async def _stop(self, instance: InstanceId) -> None:
        started = time.monotonic()
        _debug(instance, "stopping")
        await self.worker.stop(instance)
        _debug(instance, "stopped after %d ms", ms_since(started))
        self.carry_out(self.core.stopped(instance))

    async def _request_task_configs(self, instance: InstanceId) -> None:
        started = time.monotonic()
        try:
            configs = await self.worker.task_configs(instance)
        except Exception as error:  # noqa: BLE001 - whatever it is, the connector continues with its current tasks
            trace = _trace(error)
            is_fatal = isinstance(error, RemoteError) and error.kind == "TooManyTasksError"
            effects = self.core.task_configs_failed(instance, trace, is_fatal=is_fatal)
            reason = exception_line(trace)
            text = str(error) if is_fatal else f"failed to generate task configurations, retrying: {reason}"
            if effects:
                log.error("%sConnector %s: %s", logs.context(instance.connector), instance.connector, text)
        else:
            _debug(instance, "generated %d task configurations in %d ms", len(configs), ms_since(started))
            effects = self.core.task_configs_generated(instance, configs)
        self.carry_out(effects)

    def task_configs_rejected(self, name: str, configs: Sequence[Mapping[str, str]], error: Exception) -> None:
        """Fail a connector whose task configurations can never be stored."""
        text = f"The task configurations of connector {name} cannot be stored: {error}"
        if effects := self.core.task_configs_rejected(name, configs, logs.secrets.mask(text)):
            log.error("%sConnector %s: failed: %s", logs.context(name), name, text)
        self.carry_out(effects)

    async def _store(self, name: str, configs: Sequence[Mapping[str, str]]) -> None:
        await self._store_task_configs(name, configs)


def _debug(instance: InstanceId, text: str, *arguments: object) -> None:
    if log.isEnabledFor(logging.DEBUG):
        context = logs.context(instance.connector, "worker" if instance.task is None else f"task-{instance.task}")
        log.debug("%s%s %s: %s", context, _kind(instance), instance.name, text % arguments)


def _kind(instance: InstanceId) -> str:
    return "Connector" if instance.task is None else "Task"


def _trace(error: BaseException) -> str:
    return error.trace if isinstance(error, RemoteError) else trace_of(error)
