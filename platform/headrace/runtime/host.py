"""A child process that runs tasks or connector instances; the worker calls it over a channel.

The main thread runs an event loop, which owns the channel and the clients' sockets. Each unit (a task or a connector
instance) has its own thread, and only this thread runs its plug-in code, so the host responds even if a unit hangs.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from typing import Any, Protocol

import msgspec

from headrace.api.task import SelfReadingSinkTask, SinkTask, SourceTask, Task
from headrace.metrics import logs
from headrace.plugins import registry
from headrace.runtime import worker_connector
from headrace.runtime.channel import Channel
from headrace.runtime.spec import ConnectorSpec, TaskSpec
from headrace.runtime.task_plugins import Plugins
from headrace.runtime.worker_self_reading_sink_task import WorkerSelfReadingSinkTask
from headrace.runtime.worker_sink_task import WorkerSinkTask
from headrace.runtime.worker_source_task import WorkerSourceTask
from headrace.runtime.worker_task import WorkerTask

log = logging.getLogger(__name__)

_TASK_UNITS: tuple[tuple[type[Task], type[WorkerTask]], ...] = (
    (SourceTask, WorkerSourceTask),
    (SinkTask, WorkerSinkTask),
    (SelfReadingSinkTask, WorkerSelfReadingSinkTask),
)


class Unit(Protocol):
    """A task or connector instance that a host runs."""

    async def handle(self, method: str, arguments: list[Any]) -> Any:
        """Handle a call from the worker."""

    async def stop(self) -> None:
        """Shut down cleanly."""


class Host:
    """The units of this process, by id, and the calls that the worker may make.

    `start_task(id, spec)`, `start_connector(id, spec)`, `tell(id, method, arguments)`, `stop(id)`, `log_level(logger,
    level, now_ms)`, `exit()`; and, without a unit, `validate`, `shared_modules`, `alter_offsets`, `list_plugins`,
    `plugin_config`.
    """

    def __init__(self) -> None:
        self.channel: Channel
        self._units: dict[str, Unit] = {}
        self._exit = asyncio.Event()

    async def run(self, end: socket.socket) -> None:
        """Serve calls until `exit` is called or the worker exits."""
        self.channel = await Channel.open(end, self._handle)
        closed = asyncio.ensure_future(self.channel.closed.wait())
        leave = asyncio.ensure_future(self._exit.wait())
        await asyncio.wait({closed, leave}, return_when=asyncio.FIRST_COMPLETED)
        closed.cancel()
        leave.cancel()
        self.channel.close()

    async def _handle(self, method: str, arguments: list[Any]) -> Any:
        match method, arguments:
            case "start_task", [unit_id, spec]:
                return await self._start_task(unit_id, msgspec.convert(spec, TaskSpec))
            case "start_connector", [unit_id, spec]:
                return await self._start_connector(unit_id, msgspec.convert(spec, ConnectorSpec))
            case "tell", [unit_id, inner, inner_arguments]:
                return await self._unit(unit_id).handle(inner, inner_arguments)
            case "stop", [unit_id]:
                unit = self._units.get(unit_id)
                if unit is not None:
                    await unit.stop()
                    self._units.pop(unit_id, None)
            case "validate", [config, worker, plugin]:
                return await worker_connector.validate(config, worker, plugin)
            case "shared_modules", [config, worker]:
                return await worker_connector.shared_modules(config, worker)
            case "alter_offsets", [spec, offsets]:
                return await worker_connector.alter_offsets(msgspec.convert(spec, ConnectorSpec), offsets)
            case "list_plugins", [worker, connectors_only]:
                return await worker_connector.list_plugins(worker, connectors_only)
            case "plugin_config", [worker, plugin]:
                return await worker_connector.plugin_config(worker, plugin)
            case "log_level", [logger, level, now_ms]:
                return logs.set_level(logger, level, now_ms)
            case "exit", []:
                self._exit.set()
            case _:
                raise ValueError(f"unknown call {method}")
        return None

    async def _start_task(self, unit_id: str, spec: TaskSpec) -> None:
        logs.set_process_context(spec.connector, f"task-{spec.number}")
        plugins = Plugins(spec)
        task = plugins.make_task()
        unit_class = next((unit for kind, unit in _TASK_UNITS if isinstance(task, kind)), None)
        if unit_class is None:
            raise TypeError(f"{type(task).__qualname__} is neither a source nor a sink task")
        self._units[unit_id] = unit = unit_class(self.channel, unit_id, spec, plugins, task)
        unit.launch()

    async def _start_connector(self, unit_id: str, spec: ConnectorSpec) -> None:
        unit = worker_connector.WorkerConnector(self.channel, unit_id, spec)
        self._units[unit_id] = unit
        await unit.start()

    def _unit(self, unit_id: str) -> Unit:
        try:
            return self._units[unit_id]
        except KeyError:
            raise LookupError(f"unit {unit_id} is not running in this process") from None


def serve(end: socket.socket) -> None:
    """Run a host in this thread; returns without waiting for hung threads of plug-ins."""
    registry.log_plugin_path_problems_at_debug()  # the check of the worker's converters, its first process, warns of it
    loop = _new_loop()
    try:
        loop.run_until_complete(_serve(end))
    finally:
        loop.close()


async def _serve(end: socket.socket) -> None:
    await Host().run(end)
    leftovers = asyncio.all_tasks() - {asyncio.current_task()}
    for task in leftovers:
        task.cancel()
    await asyncio.gather(*leftovers, return_exceptions=True)


def _new_loop() -> asyncio.AbstractEventLoop:
    if sys.platform == "win32":
        return asyncio.new_event_loop()
    import uvloop

    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop
