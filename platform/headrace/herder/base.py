"""The base class of the standalone and the distributed herder, with the requests that both execute.

A request that changes a connector first appends the change to the config store, then waits until no operation of the
connector is in progress in this worker. A hung connector does not delay requests for other connectors.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar
from weakref import WeakValueDictionary

from headrace.data.java import hash_map_copy_order, hash_map_order
from headrace.herder import log_levels, requested_offsets
from headrace.herder.errors import (
    AlreadyExistsError,
    BadRequestError,
    HerderError,
    NotFoundError,
    PayloadTooLargeError,
)
from headrace.herder.herder import (
    ConnectorInfo,
    ConnectorStatus,
    OffsetPairs,
    PutResult,
    RequestedOffsets,
    WorkerHealth,
    WorkerMetrics,
)
from headrace.herder.instances import Instances
from headrace.herder.plugin_calls import PluginCalls, ValidConfig
from headrace.herder.restart_plan import RestartPlan, plan_restart
from headrace.herder.stages import stage
from headrace.runtime.task_metrics import TaskMetrics
from headrace.runtime.traces import exception_line
from headrace.runtime.worker_config import WorkerConfig
from headrace.stores.config_store import (
    ConfigChange,
    ConfigSnapshot,
    ConfigStore,
    ConnectorState,
    DeleteConnector,
    PutConnector,
    PutTargetState,
    PutTaskConfigs,
    RequestRestart,
    TargetState,
)
from headrace.stores.offset_store import OffsetStore
from headrace.stores.status_store import State, Status, StatusStore
from headrace_broker.client.errors import ClientError, RecordTooLargeError

if TYPE_CHECKING:
    from headrace.herder.group_offsets import GroupOffsets

log = logging.getLogger(__name__)


class BaseHerder:
    """The connectors of one worker or of a group. The subclass starts and stops the stores and the instances."""

    uses_brokers: ClassVar[bool] = False

    def __init__(
        self,
        config: WorkerConfig,
        instances: Instances,
        *,
        configs: ConfigStore,
        statuses: StatusStore,
        offsets: OffsetStore,
    ) -> None:
        self.config = config
        self.ready = False
        self._instances = instances
        self._plugins = PluginCalls(instances.worker)
        self._configs = configs
        self._statuses = statuses
        self._offsets = offsets
        self._types: dict[str, str] = {}  # "source" or "sink", by connector class
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def _prepare_change(self, connector_class: str | None = None) -> None:
        """Wait until this worker can change a connector. Raises ForwardError if only another worker can.

        `connector_class` is the class whose code the change calls, if any.
        """

    def _check_membership(self) -> None:
        """Check that no other worker can be the leader. Raises HerderError."""

    # Reading

    @property
    def _broker_error(self) -> str | None:
        """The reason why the brokers do not respond, or None if they respond or the herder uses no brokers."""
        return None

    def health(self) -> WorkerHealth:
        """Return the health of the worker."""
        statuses = {name: self._statuses.get(name) for name in self.names()} if self.ready else {}
        return WorkerHealth(
            self.ready,
            self.uses_brokers,
            self._broker_error,
            [name for name, each in statuses.items() if self._has_failed_here(each.connector)],
            [
                f"{name}-{task}"
                for name, each in statuses.items()
                for task, status in each.tasks.items()
                if self._has_failed_here(status)
            ],
        )

    def _has_failed_here(self, status: Status | None) -> bool:
        return status is not None and status.state is State.FAILED and status.worker_id == self._instances.worker_id

    def names(self) -> list[str]:
        """Return the names of all connectors, in order of their creation."""
        return list(self._snapshot.connectors)

    def connector_config(self, name: str) -> Mapping[str, str]:
        """Return a connector's configuration as it was submitted. Raises NotFoundError."""
        return self._state(name).config

    def info(self, name: str) -> ConnectorInfo:
        """Describe a connector. Raises NotFoundError."""
        state = self._state(name)
        return ConnectorInfo(name, state.config, len(state.task_configs), self._type_of(state))

    def status(self, name: str) -> ConnectorStatus:
        """Return the statuses of a connector and its tasks. Raises NotFoundError."""
        statuses = self._statuses.get(name)
        if name not in self._snapshot.connectors or statuses.connector is None:
            raise NotFoundError(f"No status found for connector {name}")
        return ConnectorStatus(name, statuses.connector, statuses.tasks, self._type_of(self._state(name)))

    def task_status(self, name: str, task: int) -> Status:
        """Return the status of a task. Raises NotFoundError."""
        status = self._statuses.get(name).tasks.get(task)
        if name not in self._snapshot.connectors or status is None:
            raise NotFoundError(f"No status found for task {name}-{task}")
        return status

    async def task_metrics(self, name: str, task: int) -> TaskMetrics | None:
        """Return the measurements of a task of this worker, or None if it does not run. Raises NotFoundError."""
        self.task_status(name, task)
        found = self._instances.worker.task_metrics()
        return next((each for each in found if (each.connector, each.task) == (name, task)), None)

    def task_configs(self, name: str) -> Sequence[Mapping[str, str]]:
        """Return the configurations of a connector's tasks. Raises NotFoundError."""
        return self._state(name).task_configs

    def topics(self, name: str) -> list[str]:
        """Return the topics that a connector has used. For an unknown connector, the list is empty."""
        return self._statuses.topics(name)

    def reset_topics(self, name: str) -> None:
        """Clear the list of topics that a connector has used."""
        self._statuses.reset_topics(name)

    def metrics(self) -> WorkerMetrics:
        """Return the measurements of the worker."""
        statuses = [self._own_status(name) for name in self.names() if self._statuses.get(name).connector is not None]
        connectors = frozenset(status.name for status in statuses if self._runs(status.name, None))
        classes = {name: state.config.get("connector.class", "") for name, state in self._snapshot.connectors.items()}
        starts = self._instances.starts
        return WorkerMetrics(
            [status for status in statuses if status.tasks or status.name in connectors],
            connectors,
            {status.name: classes[status.name] for status in statuses},
            self._instances.worker.task_metrics(),
            starts["connector"],
            starts["task"],
        )

    def _own_status(self, name: str) -> ConnectorStatus:
        """Return the status of a connector with the tasks that this worker runs."""
        status = self.status(name)
        return replace(status, tasks={task: each for task, each in status.tasks.items() if self._runs(name, task)})

    def _runs(self, connector: str, task: int | None) -> bool:
        """Whether this worker, and no other worker of a group, runs a connector (task None) or task."""
        return True

    async def check(self, config: Mapping[str, str]) -> None:
        """Validate a connector's configuration. Raises BadRequestError, HerderError."""
        await self._check(config)

    # Changing

    async def put(
        self, name: str, config: Mapping[str, str], *, target: TargetState | None = None, replace: bool = True
    ) -> PutResult:
        """Create or reconfigure a connector. Raises BadRequestError, AlreadyExistsError."""
        await self._prepare_change(config.get("connector.class", ""))
        valid = await self._check(config)
        async with self._lock(name):
            is_new = name not in self._snapshot.connectors
            if not is_new and not replace:
                raise AlreadyExistsError(f"Connector {name} already exists")
            await self._put(name, config, valid.type, target)
        await self._instances.settled(name)
        return PutResult(is_new=is_new, info=self._info_after_put(name, config, valid.type), warnings=valid.warnings)

    async def patch(self, name: str, changes: Mapping[str, str | None]) -> PutResult:
        """Change configuration keys. The value None removes a key (KIP-477). Raises NotFoundError, BadRequestError."""
        await self._prepare_change(changes.get("connector.class") or self._class_of(name))
        while True:
            before = self._state(name).config
            patched = {key: value for key, value in {**before, **changes}.items() if value is not None}
            config = {key: patched[key] for key in _patched_order(before, patched)}
            if config.setdefault("name", name) != name:
                raise BadRequestError(f"The name of connector {name} cannot be changed (to {config['name']})")
            valid = await self._check(config)
            async with self._lock(name):
                if self._state(name).config is before:  # otherwise, patch the new configuration
                    await self._put(name, config, valid.type, None)
                    break
        await self._instances.settled(name)
        return PutResult(is_new=False, info=self._info_after_put(name, config, valid.type), warnings=valid.warnings)

    def _info_after_put(self, name: str, config: Mapping[str, str], kind: str) -> ConnectorInfo:
        """Describe a connector as it was submitted, even if another request has changed or deleted it meanwhile."""
        state = self._snapshot.connectors.get(name)
        return ConnectorInfo(name, config, 0 if state is None else len(state.task_configs), kind)

    async def delete(self, name: str) -> None:
        """Stop and delete a connector. Its offsets are kept. Raises NotFoundError."""
        await self._prepare_change()
        async with self._lock(name):
            self._state(name)
            await self._append(DeleteConnector(name), f"removing the config for connector {name} from the config topic")
        await self._instances.settled(name)

    async def set_target(self, name: str, target: TargetState) -> None:
        """Pause, resume or stop a connector. Raises NotFoundError.

        In a group, only the leader does this. A target state that another worker writes could follow the tombstones of
        a deletion. A new connector with the same name would then have this target state.
        """
        await self._prepare_change()
        async with self._lock(name):
            self._state(name, "Unknown connector {}")
            status = self._statuses.get(name).connector
            if status is not None and status.state is State.FAILED and target is not TargetState.STOPPED:
                log.error("Connector %s: cannot transition to %s since it has failed", name, target)
            if target is TargetState.STOPPED:
                await self._append(PutTaskConfigs(name, ()), f"writing 0 task configs for connector {name}")
            await self._append(PutTargetState(name, target), f"writing the {target} target state for connector {name}")
        await self._instances.settled(name)

    async def restart(self, name: str, *, include_tasks: bool, only_failed: bool) -> ConnectorStatus:
        """Restart the selected instances (KIP-745) and wait until they have started or failed.

        Return their statuses before the restart. Raises NotFoundError, and HerderError if `include_tasks` and
        `only_failed` are false and the connector fails to start.
        """
        await self._instances.settled(name)
        status = await self._request_restart(name, include_tasks=include_tasks, only_failed=only_failed)
        with stage(f"handling restart request for connector {name}"):
            await self._instances.settled(name)
        if not include_tasks and not only_failed:
            self._check_start(name, None)
        return status

    async def _request_restart(self, name: str, *, include_tasks: bool, only_failed: bool) -> ConnectorStatus:
        """Write a restart request to the config store. Return the statuses before the restart. Raises NotFoundError."""
        state = self._state(name, "Unknown connector: {}")
        statuses = self._statuses.get(name)
        if statuses.connector is None:
            raise NotFoundError(f"Status for connector {name} not found")
        plan = plan_restart(statuses, include_tasks=include_tasks, only_failed=only_failed)
        await self._append(
            RequestRestart(name, include_tasks, only_failed),
            f"writing restart request for connector {name} to the config topic",
        )
        connector = replace(statuses.connector, state=State.RESTARTING) if plan.connector else statuses.connector
        tasks = {
            number: replace(status, state=State.RESTARTING) if number in plan.tasks else status
            for number, status in statuses.tasks.items()
        }
        return ConnectorStatus(name, connector, tasks, self._type_of(state))

    async def restart_task(self, name: str, number: int) -> None:
        """Restart one task. Raises NotFoundError, and HerderError if the task fails to start."""
        await self._instances.settled(name)
        if not 0 <= number < len(self._state(name, "Unknown connector: {}").task_configs):
            raise NotFoundError(f"Unknown task: {name}-{number}")
        self._instances.carry_out(self._instances.core.restart(name, RestartPlan(connector=False, tasks=[number])))
        with stage(f"restarting task {name}-{number}"):
            await self._instances.settled(name)
        self._check_start(name, number)

    def _check_start(self, name: str, task: int | None) -> None:
        """Check that a connector (task None) or task did not fail to start. Raises HerderError."""
        trace = self._instances.core.start_failure(name, task)
        if trace is not None:
            instance = f"connector: {name}" if task is None else f"task: {name}-{task}"
            raise HerderError(f"Failed to start {instance}: {exception_line(trace)}")

    async def _check(self, config: Mapping[str, str]) -> ValidConfig:
        """Validate a connector's configuration. Raises BadRequestError, HerderError."""
        return await self._plugins.check(config)

    async def _put(self, name: str, config: Mapping[str, str], kind: str, target: TargetState | None) -> None:
        self._types[config["connector.class"]] = kind
        change = PutConnector(name, dict(config), target)
        await self._append(change, f"writing a config for connector {name} to the config topic")

    async def _append(self, change: ConfigChange, description: str) -> None:
        """Append a change to the config store. Raises HerderError if the config topic cannot be written."""
        try:
            with stage(description):
                await self._configs.append(change)
        except RecordTooLargeError as error:
            raise PayloadTooLargeError(f"Failed to write to config topic: {error}") from error
        except (ClientError, TimeoutError) as error:
            if isinstance(error, ClientError) and not error.retriable:
                raise HerderError(f"Failed to write to config topic: {error}") from error
            log.error("Config topic: %s failed: %s", description, error)
            raise HerderError(
                "Failed to write to config topic; this may be due to a transient error and the request can be safely "
                "retried"
            ) from error

    # Offsets

    async def offsets(self, name: str) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        """Return the committed offsets of a connector (KIP-875). Raises NotFoundError, HerderError."""
        state = self._state(name)
        if await self._is_sink(name):
            return await self._group_offsets.read(name, state.config)
        return [*await self._offsets.read_all(name)]

    async def alter_offsets(self, name: str, offsets: RequestedOffsets) -> bool | str:
        """Set offsets of a stopped connector. Return the result of its `alter_offsets`. Raises HerderError."""
        await self._prepare_change_of_offsets(name)
        async with self._lock(name):
            config = self._stopped_config(name)
            is_sink = await self._is_sink(name)
            pairs = requested_offsets.sink_offsets(offsets) if is_sink else requested_offsets.source_offsets(offsets)
            with stage(f"modifying offsets for connector {name}"):
                result = await self._plugins.alter_offsets(name, config, pairs)
                await self._check_change_of_offsets(name)
                if is_sink:
                    await self._group_offsets.alter(name, config, pairs)
                else:
                    await self._write_offsets(name, pairs)
        return result

    async def _write_offsets(self, name: str, pairs: OffsetPairs) -> None:
        try:
            await self._offsets.write(name, pairs)
        except RecordTooLargeError as error:
            raise BadRequestError(f"An offset is too large for the offsets topic: {error}") from error

    async def reset_offsets(self, name: str) -> bool | str:
        """Remove all offsets of a stopped connector. Return the result of its `alter_offsets`. Raises HerderError."""
        await self._prepare_change_of_offsets(name)
        async with self._lock(name):
            config = self._stopped_config(name)
            is_sink = await self._is_sink(name)
            with stage(f"modifying offsets for connector {name}"):
                found = await (self._group_offsets.read(name, config) if is_sink else self._offsets.read_all(name))
                offsets: OffsetPairs = [(partition, None) for partition, _ in found]
                result = await self._plugins.alter_offsets(name, config, offsets, is_reset=True)
                await self._check_change_of_offsets(name)
                if is_sink:
                    await self._group_offsets.reset(name, config)
                else:
                    await self._offsets.write(name, offsets)
        return result

    async def _prepare_change_of_offsets(self, name: str) -> None:
        """Wait until a stopped connector's tasks have ended, because they commit offsets until then.

        Raises HerderError.
        """
        await self._prepare_change(self._class_of(name))
        if self._state(name).target is TargetState.STOPPED:
            with stage(f"waiting until the tasks of connector {name} have stopped"):
                await self._wait_until_tasks_end(name)

    async def _check_change_of_offsets(self, name: str) -> None:
        """Check, after a call of the plug-in, that the connector is still stopped. Raises HerderError.

        If another worker has become the leader meanwhile, it may have started the connector.
        """
        await self._prepare_change()
        self._check_membership()
        self._stopped_config(name)

    def _stopped_config(self, name: str) -> Mapping[str, str]:
        """Return a stopped connector's configuration. Raises BadRequestError if the connector is not stopped."""
        state = self._state(name)
        if state.target is not TargetState.STOPPED or state.task_configs:
            raise BadRequestError(
                "Connectors must be in the STOPPED state before their offsets can be modified. This can be done for "
                f"the specified connector by issuing a 'PUT' request to the '/connectors/{name}/stop' endpoint"
            )
        return state.config

    async def _wait_until_tasks_end(self, name: str) -> None:
        """Wait until no worker runs a task of a stopped connector."""
        await self._instances.settled(name)

    @cached_property
    def _group_offsets(self) -> GroupOffsets:
        from headrace.herder.group_offsets import GroupOffsets  # a late import: it loads the client

        return GroupOffsets(self.config.properties)

    # Requests that concern no running connector

    async def cluster_id(self) -> str | None:
        """Return the Kafka cluster's id, or None if the cluster cannot be reached."""
        return await self._group_offsets.cluster_id()

    async def plugins(self, *, connectors_only: bool) -> list[dict[str, str]]:
        """List the available plug-ins in the REST API's format. Raises HerderError."""
        return await self._plugins.all(connectors_only=connectors_only)

    async def plugin_config(self, plugin: str) -> list[dict[str, Any]]:
        """Return the key definitions of a plug-in in the REST API's format. Raises NotFoundError, HerderError."""
        return await self._plugins.config_of(plugin)

    async def validate(self, plugin: str, config: Mapping[str, str | None]) -> dict[str, Any]:
        """Validate a configuration for a plug-in. Return the result in the REST API's format. Raises HerderError."""
        return await self._plugins.validate_for(plugin, config)

    async def set_log_level(self, logger: str, level: str) -> list[str]:
        """Set a log level in all processes of the worker. Return the loggers that have changed.

        Raises KeyError, NotFoundError.
        """
        return log_levels.set_log_level(self._instances.worker, self.config, logger, level)

    async def wait_until_started(self) -> None:
        """Wait until the worker knows the connectors of its group. Raises WorkerStoppingError."""

    async def wait_for_types(self) -> None:
        """Wait until the types of all connectors (source or sink) are known."""

    # Details

    async def _is_sink(self, name: str) -> bool:
        """Whether the connector is a sink. Raises NotFoundError, HerderError."""
        await self.wait_for_types()
        state = self._state(name)
        if (kind := self._type_of(state)) == "unknown":
            class_name = state.config.get("connector.class")
            raise HerderError(f"Connector {name}: this worker cannot load the class {class_name}; install its package")
        return kind == "sink"

    @property
    def _snapshot(self) -> ConfigSnapshot:
        return self._instances.core.snapshot

    def _type_of(self, state: ConnectorState) -> str:
        return self._types.get(state.config.get("connector.class", ""), "unknown")

    def _class_of(self, name: str) -> str:
        """Return the class of a connector, or an empty string if this worker does not know the connector."""
        state = self._snapshot.connectors.get(name)
        return "" if state is None else state.config.get("connector.class", "")

    def _state(self, name: str, message: str = "Connector {} not found") -> ConnectorState:
        try:
            return self._snapshot.connectors[name]
        except KeyError:
            raise NotFoundError(message.format(name)) from None

    def _lock(self, name: str) -> asyncio.Lock:
        """Return the lock that serializes changes of a connector. It is not held during the operations that follow."""
        lock = self._locks.get(name)
        if lock is None:
            lock = self._locks[name] = asyncio.Lock()
        return lock


def _patched_order(before: Mapping[str, str], patched: Mapping[str, str]) -> tuple[str, ...]:
    """Return the keys of a patched configuration in the order of Kafka Connect, which patches a copy of a HashMap."""
    added = [key for key in patched if key not in before]
    return tuple(key for key in hash_map_copy_order(hash_map_order(before), added) if key in patched)
