"""The standalone herder: one worker runs everything, with configurations and statuses in memory and offsets in a file.

`HerderCore` decides which instances start and stop; this class carries out its effects with the worker and reports the
results. A request that changes a connector first appends the change to the config store, then waits until no operation
of the connector is in progress. A hung connector does not delay other connectors. No plug-in code runs in this process.
"""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from headrace.herder import core
from headrace.herder.errors import AlreadyExistsError, BadRequestError, NotFoundError
from headrace.herder.herder import (
    ConnectorInfo,
    ConnectorStatus,
    OffsetPairs,
    StartCounts,
    TaskCounters,
    WorkerMetrics,
)
from headrace.herder.plugin_calls import PluginCalls
from headrace.herder.traces import exception_line
from headrace.metrics import logs
from headrace.runtime.channel import RemoteError
from headrace.runtime.messages import InstanceState, OffsetPair
from headrace.runtime.spec import InstanceId, TaskSpec
from headrace.runtime.worker import Events, Worker
from headrace.runtime.worker_config import WorkerConfig
from headrace.stores.config_store import (
    ConfigChange,
    ConfigSnapshot,
    ConfigStore,
    ConnectorState,
    DeleteConnector,
    MemoryConfigStore,
    PutConnector,
    PutTargetState,
    PutTaskConfigs,
    RequestRestart,
    TargetState,
)
from headrace.stores.offset_store import OffsetStore
from headrace.stores.status_store import MemoryStatusStore, State, Status, StatusStore

if TYPE_CHECKING:
    from headrace.herder.group_offsets import GroupOffsets

log = logging.getLogger(__name__)


class StandaloneHerder:
    """All connectors of a standalone worker; call `start` first and `stop` last."""

    def __init__(
        self,
        config: WorkerConfig,
        offsets: OffsetStore,
        worker_id: str,
        make_worker: Callable[[Events], Worker],
    ) -> None:
        self.config = config
        self.ready = False
        self._worker_id = worker_id
        self._worker = make_worker(self)
        self._plugins = PluginCalls(self._worker)
        self._core = core.HerderCore()
        self._configs: ConfigStore = MemoryConfigStore()
        self._statuses: StatusStore = MemoryStatusStore()
        self._offsets = offsets
        self._types: dict[str, str] = {}
        self._topics: dict[str, dict[str, None]] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._operations: dict[str, dict[asyncio.Task[None], core.Effect]] = {}
        self._starts = {"connector": StartCounts(), "task": StartCounts()}
        self._is_stopping = False

    async def start(self) -> None:
        """Read the stores."""
        await self._statuses.start()
        snapshot = await self._configs.start(self._on_config_change)
        self._carry_out(self._core.on_snapshot(snapshot))

    async def stop(self) -> None:
        """Stop all tasks (which commit their offsets) and connectors, then end all processes."""
        self._is_stopping = True
        operations = {task: effect for each in self._operations.values() for task, effect in each.items()}
        for operation, effect in operations.items():
            if not isinstance(effect, core.StopInstance):
                operation.cancel()
        await asyncio.gather(self._worker.stop_all(), *operations, return_exceptions=True)
        await self._configs.stop()
        await self._statuses.stop()
        await self._worker.close()

    # Reading

    def names(self) -> list[str]:
        """Return the names of all connectors, in order of their creation."""
        return list(self._snapshot.connectors)

    def connector_config(self, name: str) -> Mapping[str, str]:
        """Return a connector's configuration as it was submitted. Raises NotFoundError."""
        return self._state(name).config

    def info(self, name: str) -> ConnectorInfo:
        """Describe a connector. Raises NotFoundError."""
        state = self._state(name)
        return ConnectorInfo(name, state.config, len(state.task_configs), self._types[name])

    def status(self, name: str) -> ConnectorStatus:
        """Return the statuses of a connector and its tasks. Raises NotFoundError."""
        statuses = self._statuses.get(name)
        if name not in self._snapshot.connectors or statuses.connector is None:
            raise NotFoundError(f"No status found for connector {name}")
        return ConnectorStatus(name, statuses.connector, statuses.tasks, self._types[name])

    def task_status(self, name: str, task: int) -> Status:
        """Return the status of a task. Raises NotFoundError."""
        status = self._statuses.get(name).tasks.get(task)
        if name not in self._snapshot.connectors or status is None:
            raise NotFoundError(f"No status found for task {name}-{task}")
        return status

    def task_configs(self, name: str) -> Sequence[Mapping[str, str]]:
        """Return the configurations of a connector's tasks. Raises NotFoundError."""
        return self._state(name).task_configs

    def topics(self, name: str) -> list[str]:
        """Return the topics that a connector has used. Raises NotFoundError."""
        self._state(name)
        return list(self._topics.get(name, ()))

    def reset_topics(self, name: str) -> None:
        """Clear the list of topics that a connector has used. Raises NotFoundError."""
        self._state(name)
        self._topics.pop(name, None)

    def metrics(self) -> WorkerMetrics:
        """Return the measurements of the worker."""
        statuses = [self.status(name) for name in self.names() if self._statuses.get(name).connector is not None]
        classes = {name: state.config.get("connector.class", "") for name, state in self._snapshot.connectors.items()}
        tasks = [TaskCounters(*counted) for counted in self._worker.counters()]
        return WorkerMetrics(statuses, classes, tasks, self._starts["connector"], self._starts["task"])

    # Changing

    async def put(
        self, name: str, config: Mapping[str, str], *, target: TargetState | None = None, replace: bool = True
    ) -> bool:
        """Create or reconfigure a connector; return True if created. Raises BadRequestError, AlreadyExistsError."""
        kind = await self._plugins.kind_of(config)
        async with self._lock(name):
            is_new = name not in self._snapshot.connectors
            if not is_new and not replace:
                raise AlreadyExistsError(f"Connector {name} already exists")
            await self._put(name, config, kind, target)
        await self._settled(name)
        return is_new

    async def patch(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Change configuration keys; the value None removes a key (KIP-477). Raises NotFoundError, BadRequestError."""
        while True:
            before = self._state(name).config
            config = {key: value for key, value in {**before, **changes}.items() if value is not None}
            if config.setdefault("name", name) != name:
                raise BadRequestError(f"The name of connector {name} cannot be changed (to {config['name']})")
            kind = await self._plugins.kind_of(config)
            async with self._lock(name):
                if self._state(name).config is before:  # otherwise, repeat it with the result of the other change
                    await self._put(name, config, kind, None)
                    break
        await self._settled(name)

    async def delete(self, name: str) -> None:
        """Stop and delete a connector; its offsets are kept. Raises NotFoundError."""
        async with self._lock(name):
            self._state(name)
            await self._configs.append(DeleteConnector(name))
            self._topics.pop(name, None)
        await self._settled(name)

    async def set_target(self, name: str, target: TargetState) -> None:
        """Pause, resume or stop a connector. Raises NotFoundError."""
        async with self._lock(name):
            self._state(name)
            status = self._statuses.get(name).connector
            if status is not None and status.state is State.FAILED and target is not TargetState.STOPPED:
                log.error("Connector %s: cannot transition to %s since it has failed", name, target)
            if target is TargetState.STOPPED:
                await self._configs.append(PutTaskConfigs(name, ()))
            await self._configs.append(PutTargetState(name, target))
        await self._settled(name)

    async def restart(self, name: str, *, include_tasks: bool, only_failed: bool) -> ConnectorStatus:
        """Restart the selected instances (KIP-745); return the status at the beginning. Raises NotFoundError."""
        await self._settled(name)
        self._state(name)
        await self._configs.append(RequestRestart(name, include_tasks, only_failed))
        status = self.status(name)
        await self._settled(name)
        return status

    async def restart_task(self, name: str, number: int) -> None:
        """Restart one task. Raises NotFoundError."""
        await self._settled(name)
        if not 0 <= number < len(self._state(name).task_configs):
            raise NotFoundError(f"Task {name}-{number} not found")
        self._carry_out(self._core.restart(name, core.RestartPlan(connector=False, tasks=[number])))
        await self._settled(name)

    async def _put(self, name: str, config: Mapping[str, str], kind: str, target: TargetState | None) -> None:
        self._types[name] = kind
        await self._configs.append(PutConnector(name, dict(config), target))

    # Offsets

    async def offsets(self, name: str) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        """Return the committed offsets of a connector (KIP-875). Raises NotFoundError, HerderError."""
        state = self._state(name)
        if self._types[name] == "sink":
            return await self._group_offsets.read(name, state.config)
        return [*await self._offsets.read_all(name)]

    async def alter_offsets(self, name: str, offsets: OffsetPairs) -> bool:
        """Set offsets of a stopped connector; return the result of its `alter_offsets`. Raises HerderError."""
        async with self._lock(name):
            config = self._stopped_config(name)
            result = await self._plugins.alter_offsets(name, config, offsets)
            if self._types[name] == "sink":
                await self._group_offsets.alter(name, config, offsets)
            else:
                await self._offsets.write(name, offsets)
        return result

    async def reset_offsets(self, name: str) -> bool:
        """Remove all offsets of a stopped connector; return the result of its `alter_offsets`. Raises HerderError."""
        async with self._lock(name):
            config = self._stopped_config(name)
            if self._types[name] == "sink":
                result = await self._plugins.alter_offsets(name, config, [])
                await self._group_offsets.reset(name, config)
            else:
                offsets = [(partition, None) for partition, _ in await self._offsets.read_all(name)]
                result = await self._plugins.alter_offsets(name, config, offsets)
                await self._offsets.write(name, offsets)
        return result

    def _stopped_config(self, name: str) -> Mapping[str, str]:
        state = self._state(name)
        if state.target is not TargetState.STOPPED or self._core.instances(name):
            raise BadRequestError(
                "Connectors must be in the STOPPED state before their offsets can be modified. This can be done for "
                f"the specified connector by issuing a 'PUT' request to the '/connectors/{name}/stop' endpoint"
            )
        return state.config

    @cached_property
    def _group_offsets(self) -> GroupOffsets:
        from headrace.herder.group_offsets import GroupOffsets  # on first use: its client takes time to import

        return GroupOffsets(self.config.properties)

    # Requests that concern no running connector

    async def cluster_id(self) -> str | None:
        """Return the Kafka cluster's id; None if the cluster cannot be reached."""
        return await self._group_offsets.cluster_id()

    async def plugins(self, *, connectors_only: bool) -> list[dict[str, str]]:
        """List the available plug-ins in the REST API's format. Raises HerderError."""
        return await self._plugins.all(connectors_only=connectors_only)

    async def plugin_config(self, plugin: str) -> list[dict[str, Any]]:
        """Return the key definitions of a plug-in in the REST API's format. Raises NotFoundError, HerderError."""
        return await self._plugins.config_of(plugin)

    async def validate(self, plugin: str, config: Mapping[str, str | None]) -> dict[str, Any]:
        """Validate a configuration for a plug-in; return the REST API's format. Raises HerderError."""
        return await self._plugins.validate_for(plugin, config)

    async def set_log_level(self, logger: str, level: str) -> list[str]:
        """Set a log level in all processes of the worker; return the loggers that changed. Raises KeyError."""
        now_ms = time.time_ns() // 1_000_000
        affected = logs.set_level(logger, level, now_ms)
        await self._worker.set_log_level(logger, level, now_ms)
        return affected

    # Events of the worker (runtime.worker.Events)

    def state_changed(self, instance: InstanceId, state: InstanceState, trace: str | None) -> None:
        """Handle the state that an instance reports."""
        effects = self._core.state_changed(instance, state, trace)
        if effects and state == "FAILED":
            kind = "Connector" if instance.task is None else "Task"
            reason = exception_line(trace or "")
            log.error("%s%s %s: failed: %s", logs.context(instance.connector), kind, instance.name, reason)
        self._carry_out(effects)

    def topic_used(self, instance: InstanceId, topic: str) -> None:
        """Add a topic to those that the task's connector has used."""
        if instance.connector in self._snapshot.connectors:
            self._topics.setdefault(instance.connector, {})[topic] = None

    def reconfiguration_requested(self, instance: InstanceId) -> None:
        """Handle a connector's request to reconfigure its tasks."""
        self._carry_out(self._core.task_configs_needed(instance))

    async def commit_offsets(self, instance: InstanceId, offsets: Sequence[OffsetPair]) -> None:
        """Write a task's offsets; returns when they are durable."""
        await self._offsets.write(instance.connector, offsets)

    async def read_offsets(self, instance: InstanceId, partitions: list[dict[Any, Any]]) -> list[dict[str, Any] | None]:
        """Return the committed offsets of these source partitions."""
        return await self._offsets.read(instance.connector, partitions)

    # Effects of the core

    def _on_config_change(self, change: ConfigChange, snapshot: ConfigSnapshot) -> None:
        effects = self._core.on_snapshot(snapshot)
        if isinstance(change, RequestRestart):
            plan = core.plan_restart(
                self._statuses.get(change.connector),
                include_tasks=change.include_tasks,
                only_failed=change.only_failed,
            )
            effects += self._core.restart(change.connector, plan)
        self._carry_out(effects)

    def _carry_out(self, effects: Iterable[core.Effect]) -> None:
        if self._is_stopping:
            return
        for effect in effects:
            self._carry_out_one(effect)

    def _carry_out_one(self, effect: core.Effect) -> None:
        match effect:
            case core.PutStatus(name, task, state, generation, trace, version):
                self._statuses.put(name, task, Status(state, self._worker_id, generation, trace, version))
            case core.RemoveStatus(name, task):
                self._statuses.remove(name, task)
                if task is None and name not in self._snapshot.connectors:
                    self._types.pop(name, None)
                    self._locks.pop(name, None)
            case core.PauseTask(instance):
                self._worker.pause_task(instance)
            case core.ResumeTask(instance):
                self._worker.resume_task(instance)
            case core.StartConnector(instance) | core.StartTask(instance):
                self._run(instance.connector, effect, self._start(effect))
            case core.StopInstance(instance):
                self._run(instance.connector, effect, self._stop(instance))
            case core.RequestTaskConfigs(instance):
                self._run(instance.connector, effect, self._request_task_configs(instance))
            case core.RetryTaskConfigs(instance, delay_ms):
                retry = self._core.retry_due
                loop = asyncio.get_running_loop()
                loop.call_later(delay_ms / 1000, lambda: self._carry_out(retry(instance)))
            case core.StoreTaskConfigs(name, configs):
                self._run(name, effect, self._store_task_configs(name, configs))

    def _run(self, connector: str, effect: core.Effect, operation: Coroutine[Any, Any, None]) -> None:
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

    async def _settled(self, connector: str) -> None:
        """Wait until no operation of a connector is in progress."""
        while operations := self._operations.get(connector):
            await asyncio.wait(list(operations))

    async def _start(self, start: core.StartConnector | core.StartTask) -> None:
        instance, name = start.instance, start.instance.connector
        kind = "connector" if instance.task is None else "task"
        try:
            if isinstance(start, core.StartConnector):
                version = await self._worker.start_connector(instance, start.config)
            else:
                version = await self._worker.start_task(instance, self._spec(start))
        except Exception as error:  # noqa: BLE001 - whatever it is, only this instance fails
            self._starts[kind] = self._starts[kind].plus(is_success=False)
            scope = "worker" if instance.task is None else f"task-{instance.task}"
            context = logs.context(name, scope)
            log.error("%s%s %s: failed to start: %s", context, kind.capitalize(), instance.name, error)
            self._carry_out(self._core.start_failed(instance, _trace(error)))
        else:
            self._starts[kind] = self._starts[kind].plus(is_success=True)
            self._carry_out(self._core.started(instance, version))

    def _spec(self, start: core.StartTask) -> TaskSpec:
        assert start.instance.task is not None
        return TaskSpec(
            connector=start.instance.connector,
            number=start.instance.task,
            config=dict(start.task_config),
            connector_config=dict(start.connector_config),
            worker=self.config.properties,
            paused=start.is_paused,
        )

    async def _stop(self, instance: InstanceId) -> None:
        await self._worker.stop(instance)
        self._carry_out(self._core.stopped(instance))

    async def _request_task_configs(self, instance: InstanceId) -> None:
        try:
            configs = await self._worker.task_configs(instance)
        except Exception as error:  # noqa: BLE001 - whatever it is, the connector continues with its current tasks
            is_fatal = isinstance(error, RemoteError) and error.kind == "TooManyTasksError"
            effects = self._core.task_configs_failed(instance, _trace(error), is_fatal=is_fatal)
            text = str(error) if is_fatal else f"failed to generate task configurations, retrying: {error}"
            if effects:
                log.error("%sConnector %s: %s", logs.context(instance.connector), instance.connector, text)
        else:
            effects = self._core.task_configs_generated(instance, configs)
        self._carry_out(effects)

    async def _store_task_configs(self, name: str, configs: Sequence[Mapping[str, str]]) -> None:
        await self._configs.append(PutTaskConfigs(name, configs))

    # Details

    @property
    def _snapshot(self) -> ConfigSnapshot:
        return self._core.snapshot

    def _state(self, name: str) -> ConnectorState:
        try:
            return self._snapshot.connectors[name]
        except KeyError:
            raise NotFoundError(f"Connector {name} not found") from None

    def _lock(self, name: str) -> asyncio.Lock:
        """Return the lock that serializes changes of a connector; it does not cover the operations that follow."""
        return self._locks.setdefault(name, asyncio.Lock())


def _trace(error: BaseException) -> str:
    text = error.trace if isinstance(error, RemoteError) else "".join(traceback.format_exception(error))
    return logs.secrets.mask(text)
