"""The standalone herder: keeps connectors in memory and their source offsets in a file.

The herder owns the target state of every connector, and starts and stops instances accordingly. Operations on one
connector are serialized; a hung connector does not delay other connectors. No plug-in code runs in this process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from headrace.herder.errors import AlreadyExistsError, BadRequestError, NotFoundError
from headrace.herder.lifecycle import Connector, Lifecycle
from headrace.herder.plugin_calls import PluginCalls
from headrace.herder.states import State, StatusStore, TargetState
from headrace.metrics import logs
from headrace.runtime.worker import Events, Instance, Worker
from headrace.runtime.worker_config import WorkerConfig
from headrace.stores.file_offsets import FileOffsetStore

if TYPE_CHECKING:
    from headrace.herder.group_offsets import GroupOffsets

log = logging.getLogger(__name__)


class StandaloneHerder:
    """All connectors of a standalone worker; `plugins` serves requests that concern no running connector."""

    def __init__(
        self, config: WorkerConfig, store: FileOffsetStore, worker_id: str, make_worker: Callable[[Events], Worker]
    ) -> None:
        self.config = config
        self.statuses = StatusStore(worker_id)
        self.worker = make_worker(self)
        self.plugins = PluginCalls(config, self.worker)
        self.ready = False
        self._store = store
        self._store_lock = asyncio.Lock()
        self._connectors: dict[str, Connector] = {}
        self._lifecycle = Lifecycle(config.properties, self.statuses, self.worker)

    async def stop(self) -> None:
        """Stop all tasks (which commit their offsets) and connectors, then end all processes."""
        self._lifecycle.cancel()
        connectors = list(self._connectors.values())
        tasks = [task for connector in connectors for task in connector.tasks.values()]
        instances = [connector.instance for connector in connectors if connector.instance is not None]
        await self.worker.stop_all([*tasks, *instances])
        await self.worker.close()

    # reading

    def names(self) -> list[str]:
        """The names of all connectors, in order of their creation."""
        return list(self._connectors)

    def config_of(self, name: str) -> dict[str, str]:
        """Return a connector's configuration as it was submitted. Raises NotFoundError."""
        return dict(self._get(name).config)

    def info(self, name: str) -> dict[str, Any]:
        """`GET /connectors/C`. Raises NotFoundError."""
        connector = self._get(name)
        tasks = [{"connector": name, "task": number} for number in range(len(connector.task_configs))]
        return {"name": name, "config": dict(connector.config), "tasks": tasks, "type": connector.kind}

    def status(self, name: str) -> dict[str, Any]:
        """`GET /connectors/C/status`. Raises NotFoundError."""
        if name not in self._connectors:
            raise NotFoundError(f"No status found for connector {name}")
        return self.statuses.shape(name, self._connectors[name].kind)

    def task_status(self, name: str, task: int) -> dict[str, Any]:
        """`GET /connectors/C/tasks/N/status`. Raises NotFoundError."""
        status = self.statuses.of(name).tasks.get(task) if name in self._connectors else None
        if status is None:
            raise NotFoundError(f"No status found for task {name}-{task}")
        return {"id": task, **status.shape(self.statuses.worker_id)}

    def task_configs(self, name: str) -> list[dict[str, Any]]:
        """`GET /connectors/C/tasks`. Raises NotFoundError."""
        configs = self._get(name).task_configs
        return [{"id": {"connector": name, "task": n}, "config": config} for n, config in enumerate(configs)]

    def topics(self, name: str) -> list[str]:
        """Return the topics that a connector has used. Raises NotFoundError."""
        return list(self._get(name).topics)

    def reset_topics(self, name: str) -> None:
        """Clear the list of topics that a connector has used. Raises NotFoundError."""
        self._get(name).topics.clear()

    # changing

    async def put(
        self, name: str, config: Mapping[str, str], *, target: TargetState | None = None, replace: bool = True
    ) -> bool:
        """Create or reconfigure a connector; return True if created. Raises BadRequestError, AlreadyExistsError."""
        kind = await self.plugins.kind_of(config)
        while name in self._connectors:
            if not replace:
                raise AlreadyExistsError(f"Connector {name} already exists")
            with contextlib.suppress(NotFoundError):  # deleted while its last change was waited for: it is a new one
                async with self._changing(name) as connector:
                    connector.target = target or connector.target
                    await self._lifecycle.replace_config(connector, config, kind)
                return False
        connector = Connector(name, dict(config), target or TargetState.STARTED, kind)
        self._connectors[name] = connector
        async with connector.lock:
            await self._lifecycle.start(connector)
        return True

    async def patch(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Change configuration keys; the value None removes a key (KIP-477). Raises NotFoundError, BadRequestError."""
        while True:
            before = self._get(name).config
            config = {key: value for key, value in {**before, **changes}.items() if value is not None}
            if config.setdefault("name", name) != name:
                raise BadRequestError(f"The name of connector {name} cannot be changed (to {config['name']})")
            kind = await self.plugins.kind_of(config)
            async with self._changing(name) as connector:
                if connector.config is before:  # else somebody else's change came first: add this one to it
                    await self._lifecycle.replace_config(connector, config, kind)
                    return

    async def delete(self, name: str) -> None:
        """Stop and delete a connector; its offsets are kept. Raises NotFoundError."""
        async with self._changing(name) as connector:
            await self._lifecycle.stop(connector)
            self._connectors.pop(name, None)
            self.statuses.forget(name)

    async def set_target(self, name: str, target: TargetState) -> None:
        """Pause, resume or stop a connector. Raises NotFoundError."""
        async with self._changing(name) as connector:
            connector.target = target
            await self._lifecycle.follow_target(connector)

    async def restart(self, name: str, *, include_tasks: bool, only_failed: bool) -> dict[str, Any]:
        """Restart the connector and tasks that the request selects (KIP-745). Raises NotFoundError.

        Return the connector's status at the beginning of the restart.
        """
        async with self._changing(name) as connector:
            plan = self.statuses.plan_restart(name, include_tasks=include_tasks, only_failed=only_failed)
            if plan.connector:
                self.statuses.set(name, None, State.RESTARTING)
            for number in plan.tasks:
                self.statuses.set(name, number, State.RESTARTING)
            status = self.statuses.shape(name, connector.kind)
            await self._lifecycle.stop_some_tasks(connector, plan.tasks)
            if plan.connector:
                await self._lifecycle.stop_instance(connector)
                await self._lifecycle.start_instance(connector)
            if connector.target is not TargetState.STOPPED:
                await self._lifecycle.start_tasks(connector, plan.tasks)
            if plan.connector:
                await self._lifecycle.update_tasks(connector)
        return status

    async def restart_task(self, name: str, number: int) -> None:
        """Restart one task. Raises NotFoundError."""
        async with self._changing(name) as connector:
            if not 0 <= number < len(connector.task_configs):
                raise NotFoundError(f"Task {name}-{number} not found")
            self.statuses.set(name, number, State.RESTARTING)
            await self._lifecycle.stop_some_tasks(connector, [number])
            await self._lifecycle.start_tasks(connector, [number])

    # offsets

    async def offsets(self, name: str) -> list[dict[str, Any]]:
        """`GET /connectors/C/offsets`. Raises NotFoundError."""
        connector = self._get(name)
        if connector.kind == "sink":
            return await self._groups.read(name, connector.config)
        return [{"partition": partition, "offset": offset} for partition, offset in self._store.of_connector(name)]

    async def alter_offsets(self, name: str, offsets: list[tuple[dict[str, Any], dict[str, Any] | None]]) -> bool:
        """Set offsets (None resets an offset); return the connector's `alter_offsets` result. Raises HerderError."""
        async with self._changing(name) as connector:
            self._check_stopped(connector)
            took_part = await self.plugins.alter_offsets(name, connector.config, offsets)
            if connector.kind == "sink":
                await self._groups.alter(name, connector.config, offsets)
            else:
                await self._write_offsets(name, offsets)
        return took_part

    async def reset_offsets(self, name: str) -> bool:
        """Remove all offsets of a connector; return its `alter_offsets` result. Raises HerderError."""
        async with self._changing(name) as connector:
            self._check_stopped(connector)
            if connector.kind == "sink":
                took_part = await self.plugins.alter_offsets(name, connector.config, [])
                await self._groups.reset(name, connector.config)
                return took_part
        offsets = [(partition, None) for partition, _ in self._store.of_connector(name)]
        return await self.alter_offsets(name, list(offsets))

    @cached_property
    def _groups(self) -> GroupOffsets:
        from headrace.herder.group_offsets import GroupOffsets  # with a client: a worker starts sooner without it

        return GroupOffsets(self.config.properties)

    async def cluster_id(self) -> str | None:
        """Return the Kafka cluster's id; None if the cluster cannot be reached."""
        return await self._groups.cluster_id()

    # what the worker's children say and ask (runtime.worker.Events)

    def state_changed(self, instance: Instance, state: str, trace: str | None) -> None:
        """Handle the new state of an instance."""
        new = State.UNASSIGNED if state == "STOPPED" else State(state)
        heard = self.statuses.hear(instance.connector, instance.task, instance.generation, new, trace)
        if heard and new is State.FAILED:
            what = "Connector" if instance.task is None else "Task"
            last_line = (trace or "").strip().rpartition("\n")[2]
            log.error("%s%s %s: failed: %s", logs.context(instance.connector), what, instance.name, last_line)

    def topic_used(self, instance: Instance, topic: str) -> None:
        """Add a topic to those that the task's connector has used."""
        if (connector := self._connectors.get(instance.connector)) is not None:
            connector.topics[topic] = None

    def reconfiguration_requested(self, instance: Instance) -> None:
        """Handle a connector's request to reconfigure its tasks."""
        if (connector := self._connectors.get(instance.connector)) is not None and connector.instance is instance:
            self._lifecycle.reconfigure_later(connector)

    async def commit_offsets(self, instance: Instance, offsets: list[Any]) -> None:
        """Write a task's offsets; returns when they are on disk."""
        await self._write_offsets(instance.connector, [(partition, offset) for partition, offset in offsets])

    def read_offsets(self, instance: Instance, partitions: list[dict[str, Any]]) -> list[dict[str, Any] | None]:
        """Return the committed offsets of the task's connector for these source partitions."""
        return self._store.read(instance.connector, partitions)

    async def _write_offsets(self, name: str, offsets: list[tuple[dict[str, Any], dict[str, Any] | None]]) -> None:
        async with self._store_lock:
            await asyncio.to_thread(self._store.write, name, offsets)

    def _check_stopped(self, connector: Connector) -> None:
        if connector.target is not TargetState.STOPPED or connector.tasks:
            raise BadRequestError(
                "Connectors must be in the STOPPED state before their offsets can be modified. This can be done for "
                "the specified connector by issuing a 'PUT' request to the "
                f"'/connectors/{connector.name}/stop' endpoint"
            )

    @contextlib.asynccontextmanager
    async def _changing(self, name: str) -> AsyncIterator[Connector]:
        """A connector that nobody else changes meanwhile. Raises NotFoundError, also when it was deleted by then."""
        connector = self._get(name)
        async with connector.lock:
            if self._get(name) is not connector:
                raise NotFoundError(f"Connector {name} not found")
            yield connector

    def _get(self, name: str) -> Connector:
        try:
            return self._connectors[name]
        except KeyError:
            raise NotFoundError(f"Connector {name} not found") from None
