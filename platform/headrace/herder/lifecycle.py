"""Starts and stops a connector's instance and tasks according to its target state.

The caller must hold the connector's lock for all functions except `reconfigure_later` and `cancel`. When a connector is
paused, its instance is stopped, as in Kafka Connect, and its tasks are paused; a stopped connector has no instance and
no tasks.
"""

from __future__ import annotations

import asyncio
import logging
import traceback
from collections.abc import Coroutine, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.herder.states import State, StatusStore, TargetState
from headrace.metrics import logs
from headrace.runtime.channel import RemoteError
from headrace.runtime.spec import TaskSpec
from headrace.runtime.worker import CallTimeout, Instance, Worker

log = logging.getLogger(__name__)

_RETRY_DELAY_MIN_S, _RETRY_DELAY_MAX_S = 0.25, 60.0
_FAILURES = (RemoteError, CallTimeout, OSError)  # what was raised there; no answer; no process, PeerGone among them


@dataclass(slots=True)
class Connector:
    """One connector: its configuration and target state, and its running instance and tasks."""

    name: str
    config: dict[str, str]
    target: TargetState
    kind: str
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    instance: Instance | None = None
    task_configs: list[dict[str, str]] = field(default_factory=list)
    applied_config: dict[str, str] = field(default_factory=dict)  # what the running tasks were started with
    tasks: dict[int, Instance] = field(default_factory=dict)
    topics: dict[str, None] = field(default_factory=dict)
    retry: asyncio.Task[None] | None = None


class Lifecycle:
    """Starts and stops the instances and tasks of connectors."""

    def __init__(self, worker_properties: dict[str, str], statuses: StatusStore, worker: Worker) -> None:
        self._worker_properties = worker_properties
        self._statuses = statuses
        self._worker = worker
        self._background: set[asyncio.Task[None]] = set()

    def cancel(self) -> None:
        """Cancel all background operations because the worker shuts down."""
        for background in list(self._background):
            background.cancel()

    # all of a connector

    async def start(self, connector: Connector) -> None:
        """Start the instance and tasks that the connector's target state requires."""
        if connector.target is TargetState.STOPPED:
            await self.stop_tasks(connector)
        await self.start_instance(connector)
        await self.update_tasks(connector)

    async def replace_config(self, connector: Connector, config: Mapping[str, str], kind: str) -> None:
        """Apply another configuration; tasks are restarted if their configurations have changed."""
        await self.stop_instance(connector)
        connector.config, connector.kind = dict(config), kind
        await self.start(connector)

    async def stop(self, connector: Connector) -> None:
        """Stop the tasks and the instance."""
        await self.stop_tasks(connector)
        await self.stop_instance(connector)

    async def follow_target(self, connector: Connector) -> None:
        """Pause, resume or stop. A failed connector instance stays FAILED; its tasks still follow the target state."""
        if connector.target is TargetState.STOPPED:
            await self.stop(connector)
            self._statuses.set(connector.name, None, State.STOPPED)
            return
        paused = connector.target is TargetState.PAUSED
        for task in connector.tasks.values():
            self._worker.tell(task, "pause" if paused else "resume")
        if self._statuses.of(connector.name).connector.state is State.FAILED:
            log.error("Connector %s: cannot transition to %s since it has failed", connector.name, connector.target)
        elif paused:
            await self.stop_instance(connector)
            self._statuses.set(connector.name, None, State.PAUSED)
        elif connector.instance is None:
            await self.start(connector)

    # the instance

    async def start_instance(self, connector: Connector) -> None:
        """Start the instance, if the target state requires one."""
        name = connector.name
        if connector.target is not TargetState.STARTED:
            paused = connector.target is TargetState.PAUSED
            self._statuses.set(name, None, State.PAUSED if paused else State.STOPPED)
            return
        generation = self._statuses.begin(name, None)
        try:
            connector.instance = await self._worker.start_connector(name, connector.config, generation)
        except _FAILURES as error:
            self._statuses.set(name, None, State.FAILED, _trace(error))
            log.error("%sConnector %s: failed to start: %s", logs.context(name, "worker"), name, error)
            return
        self._statuses.set(name, None, State.RUNNING)

    async def stop_instance(self, connector: Connector) -> None:
        """Stop the instance, if there is one."""
        instance, connector.instance = connector.instance, None
        if connector.retry is not None:
            connector.retry.cancel()
        if instance is not None:
            await self._worker.stop_connector(instance)

    # tasks

    async def update_tasks(self, connector: Connector) -> None:
        """Request task configurations from the connector; replace the tasks if the configurations have changed."""
        if connector.instance is None:
            return
        try:
            configs = await self._worker.task_configs(connector.instance)
        except _FAILURES as error:
            if _is_too_many(error):
                self._statuses.set(connector.name, None, State.FAILED, _trace(error))
                log.error("%s%s", logs.context(connector.name), error)
                return
            log.error(
                "%sConnector %s: failed to generate task configurations, retrying: %s",
                logs.context(connector.name),
                connector.name,
                error,
            )
            connector.retry = self._in_background(self._retry_tasks(connector))
            return
        if configs == connector.task_configs and connector.config == connector.applied_config:
            return
        await self.stop_tasks(connector)
        connector.task_configs, connector.applied_config = configs, dict(connector.config)
        await self.start_tasks(connector, range(len(configs)))

    async def start_tasks(self, connector: Connector, numbers: Iterable[int]) -> None:
        """Start these tasks concurrently."""
        await asyncio.gather(*(self._start_task(connector, number) for number in numbers))

    async def stop_some_tasks(self, connector: Connector, numbers: Iterable[int]) -> None:
        """Stop those of these tasks that run, concurrently."""
        await self._worker.stop_tasks([connector.tasks.pop(n) for n in numbers if n in connector.tasks])

    async def stop_tasks(self, connector: Connector) -> None:
        """Stop all tasks and remove their configurations."""
        tasks, connector.tasks = list(connector.tasks.values()), {}
        await self._worker.stop_tasks(tasks)
        connector.task_configs = []
        self._statuses.keep_tasks(connector.name, 0)

    def reconfigure_later(self, connector: Connector) -> None:
        """Schedule a task reconfiguration that the connector has requested."""
        self._in_background(self._reconfigure(connector))

    async def _start_task(self, connector: Connector, number: int) -> None:
        name = connector.name
        generation = self._statuses.begin(name, number)
        self._statuses.set(name, number, State.UNASSIGNED)
        spec = TaskSpec(
            connector=name,
            number=number,
            config=connector.task_configs[number],
            connector_config=connector.config,
            worker=self._worker_properties,
            paused=connector.target is TargetState.PAUSED,
        )
        try:
            connector.tasks[number] = await self._worker.start_task(spec, generation)
        except _FAILURES as error:
            self._statuses.set(name, number, State.FAILED, _trace(error))
            log.error("%sTask %s-%d: failed to start: %s", logs.context(name, f"task-{number}"), name, number, error)

    async def _reconfigure(self, connector: Connector) -> None:
        async with connector.lock:
            await self.update_tasks(connector)

    async def _retry_tasks(self, connector: Connector) -> None:
        delay_s = _RETRY_DELAY_MIN_S
        while connector.instance is not None and not connector.instance.ended:
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, _RETRY_DELAY_MAX_S)
            async with connector.lock:
                if connector.instance is None:
                    return
                try:
                    await self._worker.task_configs(connector.instance)
                except _FAILURES as error:
                    if not _is_too_many(error):
                        log.error(
                            "%sConnector %s: failed to generate task configurations again, retrying: %s",
                            logs.context(connector.name),
                            connector.name,
                            error,
                        )
                        continue
                connector.retry = None
                await self.update_tasks(connector)
                return

    def _in_background(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(coroutine)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task


def _is_too_many(error: BaseException) -> bool:
    return isinstance(error, RemoteError) and error.kind == "TooManyTasksError"


def _trace(error: BaseException) -> str:
    text = error.trace if isinstance(error, RemoteError) else "".join(traceback.format_exception(error))
    return logs.secrets.mask(text)
