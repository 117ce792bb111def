"""A child process that runs connector instances and tasks. The worker sends messages to it over a channel.

The main thread runs an event loop, which owns the channel and the clients' sockets. Each instance (of a connector or a
task) has its own thread, and only this thread runs its plug-in code, so the host responds even if an instance hangs.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from typing import Any, TypeVar

from headrace.api.task import SelfReadingSinkTask, SinkTask, SourceTask, Task
from headrace.metrics import logs
from headrace.plugins import registry
from headrace.runtime import background_modules, messages, worker_connector
from headrace.runtime.channel import Channel
from headrace.runtime.event_loops import new_loop
from headrace.runtime.spec import InstanceId
from headrace.runtime.task_plugins import Plugins
from headrace.runtime.worker_connector import WorkerConnector
from headrace.runtime.worker_self_reading_sink_task import WorkerSelfReadingSinkTask
from headrace.runtime.worker_sink_task import WorkerSinkTask
from headrace.runtime.worker_source_task import WorkerSourceTask
from headrace.runtime.worker_task import WorkerTask

log = logging.getLogger(__name__)
_T = TypeVar("_T")

_WORKER_TASKS: tuple[tuple[type[Task], type[WorkerTask]], ...] = (
    (SourceTask, WorkerSourceTask),
    (SinkTask, WorkerSinkTask),
    (SelfReadingSinkTask, WorkerSelfReadingSinkTask),
)


class Host:
    """The instances of this process by id, and the handlers of the worker's messages."""

    def __init__(self) -> None:
        self.channel: Channel
        self._connectors: dict[InstanceId, WorkerConnector] = {}
        self._tasks: dict[InstanceId, WorkerTask] = {}
        self._exit = asyncio.Event()

    async def run(self, end: socket.socket) -> None:
        """Handle messages until the worker sends `Exit` or exits."""
        self.channel = await Channel.open(end, messages.WorkerMessage, self._handle)
        closed = asyncio.ensure_future(self.channel.closed.wait())
        leave = asyncio.ensure_future(self._exit.wait())
        await asyncio.wait({closed, leave}, return_when=asyncio.FIRST_COMPLETED)
        closed.cancel()
        leave.cancel()
        self.channel.close()

    async def _handle(self, message: messages.WorkerMessage) -> Any:
        match message:
            case messages.StartConnector() | messages.StartTask() | messages.StopInstance():
                return await self._start_or_stop(message)
            case messages.TaskConfigsRequest(instance):
                return await _known(self._connectors, instance).task_configs()
            case messages.PauseTask(instance):
                _known(self._tasks, instance).set_paused(True)
            case messages.ResumeTask(instance):
                _known(self._tasks, instance).set_paused(False)
            case messages.SetLogLevel(logger, level, now_ms):
                logs.set_level(logger, level, now_ms)
            case messages.Ping():
                return None
            case messages.Exit():
                self._exit.set()
            case _:
                return await _call_plugin(message)
        return None

    async def _start_or_stop(
        self, message: messages.StartConnector | messages.StartTask | messages.StopInstance
    ) -> str | None:
        match message:
            case messages.StartConnector(instance, connector_spec):
                connector = WorkerConnector(self.channel, instance, connector_spec)
                self._connectors[instance] = connector
                return await connector.start()
            case messages.StartTask():
                return self._start_task(message)
            case messages.StopInstance(instance):
                running = self._connectors.get(instance) or self._tasks.get(instance)
                if running is not None:
                    await running.stop()
                    self._connectors.pop(instance, None)
                    self._tasks.pop(instance, None)
        return None

    def _start_task(self, start: messages.StartTask) -> str:
        spec = start.spec
        if threading.current_thread() is threading.main_thread():  # false with task.isolation=thread
            logs.set_process_context(spec.connector, f"task-{spec.number}")
        plugins = Plugins(spec)
        task = plugins.make_task()
        kind = next((worker_task for kind, worker_task in _WORKER_TASKS if isinstance(task, kind)), None)
        if kind is None:
            raise TypeError(f"{type(task).__qualname__} is neither a source nor a sink task")
        if plugins.ttl_ms is not None:
            self.channel.notify(messages.ValuesExpire(start.instance, plugins.ttl_ms))
        self._tasks[start.instance] = worker_task = kind(self.channel, start.instance, spec, plugins, task)
        worker_task.launch()
        return str(type(task).version)


def _known(instances: dict[InstanceId, _T], instance: InstanceId) -> _T:
    try:
        return instances[instance]
    except KeyError:
        raise LookupError(f"{instance.name} is not running in this process") from None


async def _call_plugin(message: messages.WorkerMessage) -> Any:
    """Handle a message that concerns no running instance."""
    match message:
        case messages.Validate(config, worker, plugin):
            return await worker_connector.validate(config, worker, plugin)
        case messages.SharedModulesRequest(config, worker):
            return await worker_connector.shared_modules(config, worker)
        case messages.ResolveConfig(config, worker):
            return await worker_connector.resolve_config(config, worker)
        case messages.ConnectorTypeRequest(config, worker):
            return await worker_connector.connector_type(config, worker)
        case messages.ConnectorVersionRequest(config, worker):
            return await worker_connector.connector_version(config, worker)
        case messages.AlterOffsets(spec, offsets, is_reset):
            return await worker_connector.alter_offsets(spec, offsets, is_reset)
        case messages.ListPlugins(worker, connectors_only):
            return await worker_connector.list_plugins(worker, connectors_only)
        case messages.DescribePlugin(worker, plugin):
            return await worker_connector.plugin_config(worker, plugin)
        case messages.RunModule(worker, module):
            return await background_modules.run_module(worker, module)
    raise ValueError(f"unknown message {type(message).__name__}")


def serve(end: socket.socket) -> None:
    """Run a host in this thread. The function returns without waiting for hung threads of plug-ins."""
    registry.log_plugin_path_problems_at_debug()  # the worker's converter check has logged them as warnings
    loop = new_loop()
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
