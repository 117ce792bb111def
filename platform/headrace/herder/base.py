"""The base class of the standalone and the distributed herder, with the requests that both execute.

A request that changes a connector first appends the change to the config store, then waits until no operation of the
connector is in progress in this worker. A hung connector does not delay requests for other connectors.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from headrace.herder import core
from headrace.herder.errors import AlreadyExistsError, BadRequestError, NotFoundError
from headrace.herder.herder import ConnectorInfo, ConnectorStatus, OffsetPairs, TaskCounters, WorkerMetrics
from headrace.herder.instances import Instances
from headrace.herder.plugin_calls import PluginCalls
from headrace.metrics import logs
from headrace.runtime.worker_config import WorkerConfig
from headrace.stores.config_store import (
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

if TYPE_CHECKING:
    from headrace.herder.group_offsets import GroupOffsets

log = logging.getLogger(__name__)


class BaseHerder:
    """The connectors of one worker or of a group. The subclass starts and stops the stores and the instances."""

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

    async def _prepare_change(self) -> None:
        """Wait until this worker can change a connector. Raises ForwardError if only another worker can."""

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

    def task_configs(self, name: str) -> Sequence[Mapping[str, str]]:
        """Return the configurations of a connector's tasks. Raises NotFoundError."""
        return self._state(name).task_configs

    def topics(self, name: str) -> list[str]:
        """Return the topics that a connector has used. Raises NotFoundError."""
        self._state(name)
        return self._statuses.topics(name)

    def reset_topics(self, name: str) -> None:
        """Clear the list of topics that a connector has used. Raises NotFoundError."""
        self._state(name)
        self._statuses.reset_topics(name)

    def metrics(self) -> WorkerMetrics:
        """Return the measurements of the worker."""
        statuses = [self.status(name) for name in self.names() if self._statuses.get(name).connector is not None]
        classes = {name: state.config.get("connector.class", "") for name, state in self._snapshot.connectors.items()}
        starts = self._instances.starts
        tasks = [TaskCounters(*counted) for counted in self._instances.worker.counters()]
        return WorkerMetrics(statuses, classes, tasks, starts["connector"], starts["task"])

    # Changing

    async def put(
        self, name: str, config: Mapping[str, str], *, target: TargetState | None = None, replace: bool = True
    ) -> bool:
        """Create or reconfigure a connector; return True if created. Raises BadRequestError, AlreadyExistsError."""
        await self._prepare_change()
        kind = await self._plugins.kind_of(config)
        async with self._lock(name):
            is_new = name not in self._snapshot.connectors
            if not is_new and not replace:
                raise AlreadyExistsError(f"Connector {name} already exists")
            await self._put(name, config, kind, target)
        await self._instances.settled(name)
        return is_new

    async def patch(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Change configuration keys; the value None removes a key (KIP-477). Raises NotFoundError, BadRequestError."""
        await self._prepare_change()
        while True:
            before = self._state(name).config
            config = {key: value for key, value in {**before, **changes}.items() if value is not None}
            if config.setdefault("name", name) != name:
                raise BadRequestError(f"The name of connector {name} cannot be changed (to {config['name']})")
            kind = await self._plugins.kind_of(config)
            async with self._lock(name):
                if self._state(name).config is before:  # otherwise, patch the new configuration
                    await self._put(name, config, kind, None)
                    break
        await self._instances.settled(name)

    async def delete(self, name: str) -> None:
        """Stop and delete a connector; its offsets are kept. Raises NotFoundError."""
        await self._prepare_change()
        async with self._lock(name):
            self._state(name)
            await self._configs.append(DeleteConnector(name))
        await self._instances.settled(name)

    async def set_target(self, name: str, target: TargetState) -> None:
        """Pause, resume or stop a connector. Raises NotFoundError."""
        if target is TargetState.STOPPED:
            await self._prepare_change()
        async with self._lock(name):
            self._state(name)
            status = self._statuses.get(name).connector
            if status is not None and status.state is State.FAILED and target is not TargetState.STOPPED:
                log.error("Connector %s: cannot transition to %s since it has failed", name, target)
            if target is TargetState.STOPPED:
                await self._configs.append(PutTaskConfigs(name, ()))
            await self._configs.append(PutTargetState(name, target))
        await self._instances.settled(name)

    async def restart(self, name: str, *, include_tasks: bool, only_failed: bool) -> ConnectorStatus:
        """Restart the selected instances (KIP-745); return the status at the beginning. Raises NotFoundError."""
        await self._instances.settled(name)
        self._state(name)
        await self._configs.append(RequestRestart(name, include_tasks, only_failed))
        status = self.status(name)
        await self._instances.settled(name)
        return status

    async def restart_task(self, name: str, number: int) -> None:
        """Restart one task. Raises NotFoundError."""
        await self._instances.settled(name)
        if not 0 <= number < len(self._state(name).task_configs):
            raise NotFoundError(f"Task {name}-{number} not found")
        self._instances.carry_out(self._instances.core.restart(name, core.RestartPlan(connector=False, tasks=[number])))
        await self._instances.settled(name)

    async def _put(self, name: str, config: Mapping[str, str], kind: str, target: TargetState | None) -> None:
        self._types[config["connector.class"]] = kind
        await self._configs.append(PutConnector(name, dict(config), target))

    # Offsets

    async def offsets(self, name: str) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
        """Return the committed offsets of a connector (KIP-875). Raises NotFoundError, HerderError."""
        state = self._state(name)
        if self._type_of(self._state(name)) == "sink":
            return await self._group_offsets.read(name, state.config)
        return [*await self._offsets.read_all(name)]

    async def alter_offsets(self, name: str, offsets: OffsetPairs) -> bool:
        """Set offsets of a stopped connector; return the result of its `alter_offsets`. Raises HerderError."""
        await self._prepare_change()
        async with self._lock(name):
            config = self._stopped_config(name)
            result = await self._plugins.alter_offsets(name, config, offsets)
            if self._type_of(self._state(name)) == "sink":
                await self._group_offsets.alter(name, config, offsets)
            else:
                await self._offsets.write(name, offsets)
        return result

    async def reset_offsets(self, name: str) -> bool:
        """Remove all offsets of a stopped connector; return the result of its `alter_offsets`. Raises HerderError."""
        await self._prepare_change()
        async with self._lock(name):
            config = self._stopped_config(name)
            if self._type_of(self._state(name)) == "sink":
                result = await self._plugins.alter_offsets(name, config, [])
                await self._group_offsets.reset(name, config)
            else:
                offsets = [(partition, None) for partition, _ in await self._offsets.read_all(name)]
                result = await self._plugins.alter_offsets(name, config, offsets)
                await self._offsets.write(name, offsets)
        return result

    def _stopped_config(self, name: str) -> Mapping[str, str]:
        state = self._state(name)
        if state.target is not TargetState.STOPPED or self._instances.core.instances(name):
            raise BadRequestError(
                "Connectors must be in the STOPPED state before their offsets can be modified. This can be done for "
                f"the specified connector by issuing a 'PUT' request to the '/connectors/{name}/stop' endpoint"
            )
        return state.config

    @cached_property
    def _group_offsets(self) -> GroupOffsets:
        from headrace.herder.group_offsets import GroupOffsets  # a late import: it loads the client

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
        await self._instances.worker.set_log_level(logger, level, now_ms)
        return affected

    # Details

    @property
    def _snapshot(self) -> ConfigSnapshot:
        return self._instances.core.snapshot

    def _type_of(self, state: ConnectorState) -> str:
        return self._types.get(state.config.get("connector.class", ""), "unknown")

    def _state(self, name: str) -> ConnectorState:
        try:
            return self._snapshot.connectors[name]
        except KeyError:
            raise NotFoundError(f"Connector {name} not found") from None

    def _lock(self, name: str) -> asyncio.Lock:
        """Return the lock that serializes changes of a connector; it does not cover the operations that follow."""
        lock = self._locks.get(name)
        if lock is None:
            lock = self._locks[name] = asyncio.Lock()
        return lock
