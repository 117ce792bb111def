"""The worker: runs connector instances and tasks in child processes, and handles the calls of these processes.

The worker never calls plug-in code. Its event loop continues whatever a child process does (hang, crash, send invalid
data): every call into a child has a timeout, and a child that exceeds it is killed and reported.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import signal
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from headrace.runtime.channel import PeerGone, RemoteError
from headrace.runtime.processes import HostProcess, Processes, ThreadHosts
from headrace.runtime.spec import ConnectorSpec, TaskSpec
from headrace.runtime.worker_config import WorkerConfig

log = logging.getLogger(__name__)

VALIDATOR_IDLE_S = 30.0
VALIDATORS_MAX = 8
EXIT_TIMEOUT_S = 1.0


class CallTimeout(Exception):
    """A call into a child process timed out; the process was killed."""


class Events(Protocol):
    """The events of instances that the worker reports to the herder."""

    def state_changed(self, instance: Instance, state: str, trace: str | None) -> None: ...
    def topic_used(self, instance: Instance, topic: str) -> None: ...
    def reconfiguration_requested(self, instance: Instance) -> None: ...
    async def commit_offsets(self, instance: Instance, offsets: list[Any]) -> None: ...
    def read_offsets(self, instance: Instance, partitions: list[dict[str, Any]]) -> list[dict[str, Any] | None]: ...


@dataclass(slots=True, eq=False)
class Instance:
    """One running connector or task; `task` is None for a connector."""

    connector: str
    task: int | None
    generation: int
    unit_id: str
    host: HostProcess | None = None
    counters: dict[str, int] = field(default_factory=dict)
    stopping: bool = False  # by the worker: what it still says of its state is no news
    ended: bool = False

    @property
    def name(self) -> str:
        return self.connector if self.task is None else f"{self.connector}-{self.task}"


class Worker:
    """Runs the instances of one herder; call `close()` last."""

    def __init__(self, config: WorkerConfig, events: Events, processes: Processes) -> None:
        self.config = config
        self._events = events
        self._isolation: str = config["task.isolation"]
        self._processes = processes
        self._threads = ThreadHosts()
        self._instances: dict[str, Instance] = {}
        self._shared: dict[str, HostProcess] = {}  # hosts of `connector` and `thread` isolation
        self._validator: HostProcess | None = None  # the one that has nothing to do
        self._validator_room = asyncio.Semaphore(VALIDATORS_MAX)
        self._validator_timer: asyncio.TimerHandle | None = None
        self._numbers = itertools.count(1)
        self._watchers: set[asyncio.Task[None]] = set()
        self._log_levels: dict[str, tuple[str, int]] = {}

    @property
    def call_timeout_s(self) -> float:
        """The timeout of a call into a connector."""
        return float(self.config["connector.validation.timeout.ms"]) / 1000

    async def close(self) -> None:
        """End all processes that still run."""
        await self._processes.close()
        for watcher in self._watchers:
            watcher.cancel()

    def counters(self) -> list[tuple[str, int, dict[str, int]]]:
        """Return (connector, task, counters) for every running task."""
        return [(i.connector, i.task, i.counters) for i in self._instances.values() if i.task is not None]

    # connectors

    async def start_connector(self, name: str, config: Mapping[str, str], generation: int) -> Instance:
        """Start a connector instance. Raises RemoteError (an error of `start`), CallTimeout, PeerGone."""
        instance = self._new_instance(name, None, generation)
        instance.host = await self._host_for(instance)
        spec = ConnectorSpec(name=name, config=dict(config), worker=self.config.properties)
        try:
            await self._call(instance.host, "start_connector", instance.unit_id, msgspec.to_builtins(spec))
        except BaseException:
            await self._discard(instance)
            raise
        return instance

    async def task_configs(self, instance: Instance) -> list[dict[str, str]]:
        """Request the task configurations of a connector. Raises RemoteError, CallTimeout, PeerGone."""
        assert instance.host is not None
        configs = await self._call(instance.host, "tell", instance.unit_id, "task_configs", [])
        return [dict(config) for config in configs]

    async def stop_connector(self, instance: Instance) -> None:
        """Stop a connector instance; kill it if it does not stop within the timeout."""
        await self._stop([instance], self._graceful_s())

    # tasks

    async def start_task(self, spec: TaskSpec, generation: int) -> Instance:
        """Start a task; events report its state. Raises RemoteError, CallTimeout, PeerGone."""
        instance = self._new_instance(spec.connector, spec.number, generation)
        instance.host = await self._host_for(instance)
        try:
            await self._call(instance.host, "start_task", instance.unit_id, msgspec.to_builtins(spec))
        except BaseException:
            await self._discard(instance)
            raise
        return instance

    def tell(self, instance: Instance, order: str) -> None:
        """Pause or resume a task."""
        if instance.host is not None and not instance.ended:
            instance.host.channel.notify("tell", instance.unit_id, order, [])

    async def stop_all(self, instances: Iterable[Instance]) -> None:
        """Stop tasks and connectors concurrently, within the same timeout."""
        await self._stop(list(instances), self._graceful_s())

    async def stop_tasks(self, instances: Iterable[Instance]) -> None:
        """Stop tasks concurrently; after `task.shutdown.graceful.timeout.ms`, kill those that still run."""
        await self._stop(list(instances), self._graceful_s())

    # validation, in a process that nothing else depends on

    async def validate(self, config: Mapping[str, str], plugin: str | None = None) -> dict[str, Any]:
        """Validate a connector configuration; return the REST API's format. Raises RemoteError, CallTimeout."""
        await self._share_modules(config)
        result: dict[str, Any] = await self._ask_validator("validate", dict(config), self.config.properties, plugin)
        return result

    async def _share_modules(self, config: Mapping[str, str]) -> None:
        """Have imported, once, what the connector's processes would each import: validation is the first of them."""
        if self._isolation == "thread":
            return
        try:
            modules = await self._ask_validator("shared_modules", dict(config), self.config.properties)
        except RemoteError:
            return  # validation says what is wrong
        if self._processes.share(modules):
            self._dismiss_validator()

    async def alter_offsets(self, name: str, config: Mapping[str, str], offsets: list[Any]) -> bool:
        """Let a connector check altered offsets. Raises RemoteError, CallTimeout."""
        spec = ConnectorSpec(name=name, config=dict(config), worker=self.config.properties)
        return bool(await self._ask_validator("alter_offsets", msgspec.to_builtins(spec), offsets))

    async def describe_plugins(self, method: str, *arguments: Any) -> Any:
        """Call `list_plugins(connectors_only)` or `plugin_config(name)` in a child process."""
        return await self._ask_validator(method, self.config.properties, *arguments)

    async def set_log_level(self, logger: str, level: str, now_ms: int) -> None:
        """Set a log level in every child process, including later ones."""
        self._log_levels[logger] = (level, now_ms)
        hosts = {id(i.host): i.host for i in self._instances.values() if i.host is not None and not i.ended}
        for host in hosts.values():
            host.channel.notify("log_level", logger, level, now_ms)

    async def _ask_validator(self, method: str, *arguments: Any) -> Any:
        """Ask a process that serves nobody else meanwhile, so that one that hangs holds nobody up."""
        async with self._validator_room:
            host = await self._take_validator()
            try:
                result = await self._call(host, method, *arguments)
            except RemoteError:
                self._keep_validator(host)
                raise
            except BaseException:
                host.kill()
                raise
            self._keep_validator(host)
            return result

    async def _take_validator(self) -> HostProcess:
        host, self._validator = self._validator, None
        if self._validator_timer is not None:
            self._validator_timer.cancel()
        if host is None or host.ended.done() or host.channel.closed.is_set():
            return await self._spawn("validator")
        return host

    def _keep_validator(self, host: HostProcess) -> None:
        """Keep one at hand for a while."""
        self._dismiss_validator()
        self._validator = host
        if self._validator_timer is not None:
            self._validator_timer.cancel()
        self._validator_timer = asyncio.get_running_loop().call_later(VALIDATOR_IDLE_S, self._dismiss_validator)

    def _dismiss_validator(self) -> None:
        host, self._validator = self._validator, None
        if host is not None:
            with contextlib.suppress(PeerGone):
                host.channel.notify("exit")

    # processes

    def _new_instance(self, connector: str, task: int | None, generation: int) -> Instance:
        scope = "connector" if task is None else str(task)
        instance = Instance(connector, task, generation, f"{connector}/{scope}#{next(self._numbers)}")
        self._instances[instance.unit_id] = instance
        return instance

    async def _host_for(self, instance: Instance) -> HostProcess:
        if self._isolation == "process" or (self._isolation == "connector" and instance.task is None):
            return await self._spawn(instance.name)
        key = "" if self._isolation == "thread" else instance.connector
        host = self._shared.get(key)
        if host is None or host.ended.done():
            host = self._shared[key] = await self._spawn(key or "tasks")
        return host

    async def _spawn(self, name: str) -> HostProcess:
        hosts = self._threads if self._isolation == "thread" else self._processes
        host = await hosts.spawn(name, self._handle)
        for logger, (level, now_ms) in self._log_levels.items():
            host.channel.notify("log_level", logger, level, now_ms)
        watcher = asyncio.ensure_future(self._watch(host))
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)
        return host

    async def _watch(self, host: HostProcess) -> None:
        status = await asyncio.shield(host.ended)
        for instance in [i for i in self._instances.values() if i.host is host and not i.ended]:
            self._end(instance)
            if instance.stopping:
                continue
            kind = "Connector" if instance.task is None else "Task"
            trace = (
                f"{kind} {instance.name}: its process (pid {host.pid}) exited unexpectedly: {_describe_status(status)}"
            )
            log.error("%s", trace)
            self._events.state_changed(instance, "FAILED", trace)

    async def _call(self, host: HostProcess, method: str, *arguments: Any) -> Any:
        try:
            return await asyncio.wait_for(host.channel.call(method, *arguments), self.call_timeout_s)
        except TimeoutError:
            host.kill()
            raise CallTimeout(
                f"{host.name} did not respond to {method} within connector.validation.timeout.ms="
                f"{self.config['connector.validation.timeout.ms']}; its process was killed"
            ) from None
        except PeerGone:
            with contextlib.suppress(TimeoutError):
                status = await asyncio.wait_for(asyncio.shield(host.ended), EXIT_TIMEOUT_S)
                raise PeerGone(
                    f"The process of {host.name} exited during {method}: {_describe_status(status)}"
                ) from None
            raise

    async def _stop(self, instances: list[Instance], timeout_s: float) -> None:
        running = [instance for instance in instances if not instance.stopping and not instance.ended]
        for instance in running:
            instance.stopping = True
        deadline = time.monotonic() + timeout_s
        await asyncio.gather(*(self._stop_one(instance, deadline) for instance in running))

    async def _stop_one(self, instance: Instance, deadline: float) -> None:
        host = instance.host
        if host is None:
            return
        try:
            await asyncio.wait_for(host.channel.call("stop", instance.unit_id), max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            log.error("Graceful stop of %s failed: it did not stop within the timeout; terminating it", instance.name)
            if not self._is_shared(host):
                host.kill()
        except (RemoteError, PeerGone) as error:
            log.error("Stop of %s failed: %s", instance.name, error)
        await self._discard(instance)

    async def _discard(self, instance: Instance) -> None:
        """Forget an instance and end its process, unless others run in it."""
        self._end(instance)
        host = instance.host
        if host is None or self._is_shared(host):
            return
        if not host.ended.done():
            try:
                host.channel.notify("exit")
                await asyncio.wait_for(asyncio.shield(host.ended), EXIT_TIMEOUT_S)
            except (TimeoutError, PeerGone):
                host.kill()

    def _retire_if_failed(self, instance: Instance, state: str) -> None:
        """A failed task has said its last word: end its process, and what its plug-in has left running below it."""
        host = instance.host
        if state == "FAILED" and instance.task is not None and host is not None and not self._is_shared(host):
            instance.stopping = True
            host.channel.notify("exit")

    def _is_shared(self, host: HostProcess) -> bool:
        return host in self._shared.values()

    def _end(self, instance: Instance) -> None:
        instance.ended = True
        self._instances.pop(instance.unit_id, None)

    def _graceful_s(self) -> float:
        return float(self.config["task.shutdown.graceful.timeout.ms"]) / 1000

    async def _handle(self, method: str, arguments: list[Any]) -> Any:
        """What children say and ask; the unit's id comes first. What an abandoned instance says is not heard."""
        unit_id, *rest = arguments
        instance = self._instances.get(unit_id)
        if instance is None and method != "commit_offsets":
            return None
        match method, rest:
            case "state", [state, trace]:
                if not _known(instance).stopping:
                    self._events.state_changed(_known(instance), state, trace)
                    self._retire_if_failed(_known(instance), state)
            case "counters", [counters]:
                _known(instance).counters = counters
            case "topic_used", [topic]:
                self._events.topic_used(_known(instance), topic)
            case "reconfigure", []:
                self._events.reconfiguration_requested(_known(instance))
            case "read_offsets", [partitions]:
                return self._events.read_offsets(_known(instance), partitions)
            case "commit_offsets", [offsets]:
                return await self._events.commit_offsets(_known(instance), offsets)
            case _:
                raise ValueError(f"unknown call {method}")
        return None


def _known(instance: Instance | None) -> Instance:
    if instance is None:
        raise LookupError("this connector or task instance has been replaced or stopped")
    return instance


def _describe_status(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
