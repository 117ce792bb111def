"""The worker: runs connector instances and tasks in child processes, and handles the messages of these processes.

The worker never calls plug-in code. Its event loop continues even if a child process hangs, crashes or sends invalid
data. Every request to a child has a timeout. A child that exceeds the timeout is killed and reported.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, TypeVar

import msgspec

from headrace.runtime import messages
from headrace.runtime.background_modules import BackgroundModules
from headrace.runtime.channel import ChannelClosed, RemoteError
from headrace.runtime.processes import ForkServerDied, HostProcess, Processes, ThreadHosts
from headrace.runtime.spec import ConnectorSpec, InstanceId, TaskSpec
from headrace.runtime.task_metrics import TaskMeter, TaskMetrics
from headrace.runtime.validator_pool import ValidatorPool
from headrace.runtime.worker_config import WorkerConfig

log = logging.getLogger(__name__)

EXIT_TIMEOUT_S = 1.0
PING_TIMEOUT_S = 1.0

R = TypeVar("R")
_HostKey: TypeAlias = tuple[str, str]
"""The key of a shared host: ("plugin", class of its connectors), ("tasks", connector) or ("threads", "")."""


class CallTimeout(Exception):
    """A call into a child process timed out, and the process was killed."""


class ProcessKilled(ChannelClosed):
    """A signal that the worker did not send ended the process of an instance during a request."""


class StartTerminated(Exception):
    """A start was no longer wanted and did not end within the timeout, and the worker terminated it and logged this."""


class Events(Protocol):
    """The events of instances that the worker reports to the herder."""

    def state_changed(
        self, instance: InstanceId, state: messages.InstanceState, trace: str | None, *, was_killed: bool = False
    ) -> None: ...
    def topic_used(self, instance: InstanceId, topic: str) -> None: ...
    def reconfiguration_requested(self, instance: InstanceId) -> None: ...
    def values_expire(self, instance: InstanceId, ttl_ms: int) -> None: ...
    def instance_ended(self, instance: InstanceId) -> None: ...
    def confirm_task(self, instance: InstanceId) -> None: ...
    async def commit_offsets(self, instance: InstanceId, offsets: Sequence[messages.OffsetPair]) -> None: ...
    async def read_offsets(
        self, instance: InstanceId, partitions: list[dict[Any, Any]]
    ) -> list[dict[str, Any] | None]: ...


@dataclass(slots=True, eq=False)
class _Instance:
    """One running connector or task. For a connector, `plugin` is its class."""

    id: InstanceId
    plugin: str = ""
    host: HostProcess | None = None
    calls: int = 0  # requests whose response is pending
    is_started: bool = False
    stopping: bool = False  # the worker stops it and ignores the states that it reports
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    start_ended: asyncio.Event = field(default_factory=asyncio.Event)
    is_aborted: bool = False  # the start is not repeated if the process ends
    is_terminated: bool = False  # the worker has killed the process because of the aborted start


class Worker:
    """Runs the instances of one herder; call `close()` last."""

    def __init__(self, config: WorkerConfig, events: Events, processes: Processes) -> None:
        self.config = config
        self._events = events
        self._isolation: str = config["task.isolation"]
        self._processes = processes
        self._threads = ThreadHosts()
        self._instances: dict[InstanceId, _Instance] = {}
        self._shared: dict[_HostKey, asyncio.Task[HostProcess]] = {}  # hosts of more than one instance
        self._suspects: set[str] = set()  # connectors that may have ended a shared host: each gets its own host
        self._members: dict[tuple[str, int | None], tuple[HostProcess, str]] = {}  # of sink tasks; see `_dead_member`
        self._validators = ValidatorPool(lambda: self._spawn("validator"), self._request)
        self._modules = BackgroundModules(self._spawn, self.config.properties)
        self._watchers: set[asyncio.Task[None]] = set()
        self._hosts: set[HostProcess] = set()  # all running processes
        self._meters: dict[InstanceId, TaskMeter] = {}
        self._log_levels: dict[str, messages.SetLogLevel] = {}

    @property
    def call_timeout_s(self) -> float:
        """The timeout of a call into a connector."""
        return float(self.config["connector.validation.timeout.ms"]) / 1000

    async def close(self) -> None:
        """End all child processes that still run."""
        self._modules.close()
        await self._processes.close()
        for watcher in self._watchers:
            watcher.cancel()

    def task_metrics(self) -> list[TaskMetrics]:
        """Return the measurements of every task that was started and not stopped, including failed tasks."""
        now_s = time.monotonic()
        return [meter.metrics(now_s) for meter in self._meters.values()]

    # Instances

    async def start_connector(self, id_: InstanceId, config: Mapping[str, str]) -> str:
        """Start a connector instance. Return its version. Raises RemoteError, CallTimeout, OSError."""
        spec = ConnectorSpec(name=id_.connector, config=dict(config), worker=self.config.properties)
        plugin = spec.config.get("connector.class", "")
        return await self._start(_Instance(id_, plugin), messages.StartConnector(id_, spec))

    async def start_task(self, id_: InstanceId, spec: TaskSpec) -> str:
        """Start a task, which reports its state, and return its version. Raises RemoteError, CallTimeout, OSError.

        If an earlier process of a sink task was killed or has crashed, the task first removes the member that this
        process has left in the consumer group. Otherwise, the group would wait until the member's session expires.
        """
        spec = msgspec.structs.replace(spec, dead_member=self._dead_member(id_))
        self._meters[id_] = TaskMeter(spec.connector, spec.number)
        try:
            return await self._start(_Instance(id_), messages.StartTask(id_, spec))
        except BaseException:
            self._meters.pop(id_, None)
            raise

    def _dead_member(self, id_: InstanceId) -> str:
        """Return the member that an earlier process of a sink task has left in its group, or an empty string.

        A task that did not stop may still run in a process that it shares with other tasks. Its member must stay.
        """
        host, member_id = self._members.get((id_.connector, id_.task), (None, ""))
        return member_id if host is not None and host.ended.done() else ""

    async def task_configs(self, id_: InstanceId) -> list[dict[str, str]]:
        """Request the task configurations of a connector. Raises RemoteError, CallTimeout, ChannelClosed."""
        instance = self._instances.get(id_)
        if instance is None or instance.host is None:
            raise ChannelClosed(f"Connector {id_.name} is not running")
        return await self._call(instance, instance.host, messages.TaskConfigsRequest(id_))

    def pause_task(self, id_: InstanceId) -> None:
        """Pause a task."""
        self._notify(id_, messages.PauseTask(id_))

    def resume_task(self, id_: InstanceId) -> None:
        """Resume a task."""
        self._notify(id_, messages.ResumeTask(id_))

    async def stop(self, id_: InstanceId) -> None:
        """Stop a connector or task. After `task.shutdown.graceful.timeout.ms`, kill it."""
        if (instance := self._instances.get(id_)) is not None:
            await self._stop([instance])
        self._meters.pop(id_, None)

    async def abort_start(self, id_: InstanceId) -> None:
        """Kill a connector or task if its start does not end within `task.shutdown.graceful.timeout.ms`."""
        instance = self._instances.get(id_)
        if instance is None:
            return
        instance.is_aborted = True
        try:
            await asyncio.wait_for(instance.start_ended.wait(), self._graceful_timeout_s)
        except TimeoutError:
            log.warning(
                "%s %s: its start is no longer wanted, but did not end within task.shutdown.graceful.timeout.ms=%s; "
                "terminating it",
                _kind(id_),
                id_.name,
                self.config["task.shutdown.graceful.timeout.ms"],
            )
            instance.is_terminated = True
            if instance.host is not None:
                await self._kill_after_timeout(instance, instance.host)

    async def stop_all(self) -> None:
        """Stop all connectors and tasks concurrently. After `task.shutdown.graceful.timeout.ms`, kill them."""
        await self._stop(list(self._instances.values()))

    async def _start(self, instance: _Instance, message: messages.Request[R]) -> R:
        while True:
            self._instances[instance.id] = instance
            try:
                host = instance.host = await self._host_for(instance)
                response = await self._call(instance, host, message)
            except BaseException as error:
                await self._discard(instance)
                if instance.is_terminated and isinstance(error, Exception):
                    instance.start_ended.set()
                    raise StartTerminated(f"The start of {instance.id.name} was terminated") from error
                is_repeatable = self._is_repeatable(instance, error)
                if not is_repeatable or instance.is_aborted:
                    instance.start_ended.set()
                    raise
            else:
                instance.is_started = True
                instance.start_ended.set()
                return response

    def _is_repeatable(self, instance: _Instance, error: BaseException) -> bool:
        """Whether a start failed only because another connector, or the death of the fork server, ended the process."""
        if isinstance(error, ForkServerDied):
            return True
        host = instance.host
        if not isinstance(error, ChannelClosed | CallTimeout) or host is None:
            return False
        return host.died_with_fork_server or self._may_be_innocent(instance)

    async def _call(self, instance: _Instance, host: HostProcess, message: messages.Request[R]) -> R:
        """Send a request of an instance. If the process of the instance hangs or ends, suspect the instance.

        If the channel has closed before the request, another connector may have closed it.
        """
        is_at_risk = not host.channel.closed.is_set()
        instance.calls += is_at_risk
        try:
            return await self._request(host, message, instance)
        except ChannelClosed:
            self._find_suspects(host)
            raise
        finally:
            instance.calls -= is_at_risk

    async def _suspect_after_timeout(self, instance: _Instance, host: HostProcess) -> None:
        """Suspect an instance that did not respond, or all connectors of its process if the process does not respond.

        If the process does not respond, a thread of any of its connectors may hold the interpreter lock.
        """
        host.suspects = [instance.id.connector]
        if instance.id.task is None and self._is_shared(host) and not await self._responds(host):
            found = [each for each in self._instances.values() if each.host is host]
            host.suspects = [each.id.connector for each in found if each is instance or not each.stopping]
        self._suspects.update(host.suspects)

    async def _responds(self, host: HostProcess) -> bool:
        """Whether the event loop of a process is running and responds."""
        try:
            await asyncio.wait_for(host.channel.request(messages.Ping()), PING_TIMEOUT_S)
        except (TimeoutError, RemoteError, ChannelClosed):
            return False
        return True

    def _find_suspects(self, host: HostProcess) -> None:
        """Suspect the connectors with a request in progress when their process ended.

        If there are none, suspect all.
        """
        if host.suspects or host.died_with_fork_server:
            return
        found = [each for each in self._instances.values() if each.host is host and each.id.task is None]
        calling = [each.id.connector for each in found if each.calls]
        host.suspects = calling or [each.id.connector for each in found if not each.stopping]
        self._suspects.update(host.suspects)

    def _may_be_innocent(self, instance: _Instance) -> bool:
        """Whether another connector may have ended the process of this connector."""
        host = instance.host
        return instance.id.task is None and host is not None and host.suspects != [instance.id.connector]

    def _notify(self, id_: InstanceId, message: messages.Notification) -> None:
        instance = self._instances.get(id_)
        if instance is not None and instance.host is not None:
            instance.host.channel.notify(message)

    # Calls of plug-ins without an instance, in processes that run nothing else

    async def validate(self, config: Mapping[str, str | None], plugin: str | None = None) -> dict[str, Any]:
        """Validate a connector configuration.

        Return the result in the REST API's format. Raises RemoteError, CallTimeout.
        """
        await self._import_shared_modules({key: value for key, value in config.items() if value is not None})
        return await self._validators.request(messages.Validate(dict(config), self.config.properties, plugin))

    async def resolve(self, config: Mapping[str, str]) -> dict[str, str]:
        """Return a configuration with the variables of config providers replaced. Raises RemoteError, CallTimeout."""
        return await self._validators.request(messages.ResolveConfig(dict(config), self.config.properties))

    async def connector_type(self, config: Mapping[str, str]) -> str:
        """Return "source" or "sink". Raises RemoteError, CallTimeout."""
        return await self._validators.request(messages.ConnectorTypeRequest(dict(config), self.config.properties))

    async def connector_version(self, config: Mapping[str, str]) -> str:
        """Return the version of a connector's class. Raises RemoteError, CallTimeout."""
        return await self._validators.request(messages.ConnectorVersionRequest(dict(config), self.config.properties))

    async def _import_shared_modules(self, config: Mapping[str, str]) -> None:
        """Let the fork server import the connector's shared modules before its processes import them one by one."""
        if self._isolation == "thread":
            return
        try:
            modules = await self._validators.request(
                messages.SharedModulesRequest(dict(config), self.config.properties)
            )
        except RemoteError:
            return  # the validation that follows reports the error
        if await self._processes.share(modules):
            self._validators.close()

    async def alter_offsets(
        self, name: str, config: Mapping[str, str], offsets: Sequence[messages.OffsetPair], *, is_reset: bool = False
    ) -> bool | str:
        """Let a connector check altered offsets. Raises RemoteError, CallTimeout."""
        spec = ConnectorSpec(name=name, config=dict(config), worker=self.config.properties)
        return await self._validators.request(messages.AlterOffsets(spec, offsets, is_reset))

    async def list_plugins(self, *, connectors_only: bool) -> list[dict[str, str]]:
        """List the plug-ins in the REST API's format. Raises RemoteError, CallTimeout."""
        return await self._validators.request(messages.ListPlugins(self.config.properties, connectors_only))

    async def plugin_config(self, plugin: str) -> list[dict[str, Any]]:
        """Return the key definitions of a plug-in in the REST API's format. Raises RemoteError, CallTimeout."""
        return await self._validators.request(messages.DescribePlugin(self.config.properties, plugin))

    def set_log_level(self, logger: str, level: str, now_ms: int) -> None:
        """Set a log level in every child process, including child processes that start later."""
        self._log_levels.pop(logger, None)  # later processes receive the levels in the order of their last changes
        self._log_levels[logger] = message = messages.SetLogLevel(logger, level, now_ms)
        for host in self._hosts:
            host.channel.notify(message)

    # Processes of instances

    async def _host_for(self, instance: _Instance) -> HostProcess:
        key = self._host_key(instance)
        if key is None:
            return await self._spawn(instance.id.name)
        spawning = self._shared.get(key)
        if spawning is None or (spawning.done() and not _is_usable(_result(spawning))):
            spawning = self._shared[key] = asyncio.ensure_future(self._spawn(_host_name(key)))
            spawning.add_done_callback(_result)  # asyncio logs no error if the start that waits for it is cancelled
        return await asyncio.shield(spawning)

    def _host_key(self, instance: _Instance) -> _HostKey | None:
        """Return the key of the host that the instance shares, or None if no other instance may use its host."""
        id_ = instance.id
        if self._isolation == "thread":
            return "threads", ""
        if id_.task is None:
            return None if id_.connector in self._suspects else ("plugin", instance.plugin)
        return None if self._isolation == "process" else ("tasks", id_.connector)

    async def _spawn(self, name: str) -> HostProcess:
        hosts = self._threads if self._isolation == "thread" else self._processes
        host = await hosts.spawn(name, self._handle)
        for message in self._log_levels.values():
            host.channel.notify(message)
        self._hosts.add(host)
        log.debug("Process %s (pid %s): started", name, host.pid)
        watcher = asyncio.ensure_future(self._watch(host))
        self._watchers.add(watcher)
        watcher.add_done_callback(self._watchers.discard)
        return host

    async def _watch(self, host: HostProcess) -> None:
        reason = await self._wait_for_exit(host)
        self._hosts.discard(host)
        log.debug("Process %s (pid %s): %s", host.name, host.pid, reason)
        self._find_suspects(host)
        self._suspects.update(host.suspects)
        for instance in [each for each in self._instances.values() if each.host is host]:
            self._end(instance)
            is_terminated_start = instance.is_terminated and not instance.is_started
            if not instance.stopping and not is_terminated_start:
                self._report_end(instance, host, reason)

    async def _wait_for_exit(self, host: HostProcess) -> str:
        """Wait until a process exits, and return the reason. Kill it if only its channel closes.

        A plug-in may have closed the channel or written to it. The worker can no longer stop what runs in the process.
        """
        closed: asyncio.Future[Any] = asyncio.ensure_future(host.channel.closed.wait())
        await asyncio.wait([closed, host.ended], return_when=asyncio.FIRST_COMPLETED)
        closed.cancel()
        await asyncio.wait([host.ended], timeout=EXIT_TIMEOUT_S)
        if host.ended.done():
            return host.channel.corruption or _describe_status(host.ended.result())
        if any(each.host is host and not each.stopping for each in self._instances.values()):
            log.error(
                "Process %s (pid %s): its channel to the worker has closed, but the process still runs; killing it",
                host.name,
                host.pid,
            )
        host.kill()
        await asyncio.shield(host.ended)
        return host.channel.corruption or "killed, because its channel to the worker had closed"

    def _report_end(self, instance: _Instance, host: HostProcess, reason: str) -> None:
        """Report the unexpected end of an instance.

        The instance has failed, or it is started again if it is not at fault.
        """
        id_ = instance.id
        if host.died_with_fork_server:
            self._meters.pop(id_, None)
            if instance.is_started:  # otherwise, `_start` repeats the start
                self._events.instance_ended(id_)
            return
        if self._may_be_innocent(instance):
            if instance.is_started:  # otherwise, `_start` repeats the start
                log.warning(
                    "Connector %s: its process (pid %s), which it shares with other connectors, exited: %s; starting "
                    "the connector again",
                    id_.name,
                    host.pid,
                    reason,
                )
                self._events.instance_ended(id_)
            return
        trace = f"{_kind(id_)} {id_.name}: its process (pid {host.pid}) exited unexpectedly: {reason}"
        log.error("%s", trace)
        self._change_measured_state(id_, "FAILED")
        self._events.state_changed(id_, "FAILED", trace, was_killed=host.was_killed)

    async def _request(self, host: HostProcess, message: messages.Request[R], instance: _Instance | None = None) -> R:
        """Send a request to a process. `instance` is the instance that the request concerns, if any.

        Raises RemoteError, CallTimeout, ChannelClosed.
        """
        request, name = type(message).__name__, host.name if instance is None else instance.id.name
        try:
            return await asyncio.wait_for(host.channel.request(message), self.call_timeout_s)
        except TimeoutError:
            if instance is not None:
                await self._suspect_after_timeout(instance, host)
            host.kill()
            raise CallTimeout(
                f"{name} did not respond to {request} within connector.validation.timeout.ms="
                f"{self.config['connector.validation.timeout.ms']}; its process was killed"
            ) from None
        except ChannelClosed:
            with contextlib.suppress(TimeoutError):
                status = await asyncio.wait_for(asyncio.shield(host.ended), EXIT_TIMEOUT_S)
                raise (ProcessKilled if host.was_killed else ChannelClosed)(
                    f"The process of {name} exited during {request}: {_describe_status(status)}"
                ) from None
            raise

    @property
    def _graceful_timeout_s(self) -> float:
        return float(self.config["task.shutdown.graceful.timeout.ms"]) / 1000

    async def _stop(self, instances: list[_Instance]) -> None:
        deadline = time.monotonic() + self._graceful_timeout_s
        await asyncio.gather(*(self._stop_one(instance, deadline) for instance in instances))

    async def _stop_one(self, instance: _Instance, deadline: float) -> None:
        host = instance.host
        if host is None:
            return
        if instance.stopping:
            await self._wait_until_ended(instance, host, deadline)
            return
        instance.stopping = True
        try:
            await asyncio.wait_for(
                host.channel.request(messages.StopInstance(instance.id)), max(0.0, deadline - time.monotonic())
            )
        except TimeoutError:
            log.error(
                "Graceful stop of %s failed: it did not stop within the timeout; terminating it", instance.id.name
            )
            await self._kill_after_timeout(instance, host)
        except (RemoteError, ChannelClosed) as error:
            log.error("Stop of %s failed: %s", instance.id.name, error)
        else:
            self._members.pop((instance.id.connector, instance.id.task), None)
        await self._discard(instance)

    async def _wait_until_ended(self, instance: _Instance, host: HostProcess, deadline: float) -> None:
        """Wait until an instance has ended. Another call is stopping it, or its process exits after a failure."""
        try:
            await asyncio.wait_for(instance.ended.wait(), max(0.0, deadline - time.monotonic()))
        except TimeoutError:
            await self._kill_after_timeout(instance, host)
            self._end(instance)

    async def _kill_after_timeout(self, instance: _Instance, host: HostProcess) -> None:
        """Kill the process of an instance that does not stop, unless other tasks run in it."""
        if instance.id.task is None:
            await self._suspect_after_timeout(instance, host)
        elif self._is_shared(host):
            return
        host.kill()

    async def _discard(self, instance: _Instance) -> None:
        """Remove an instance. End its process unless other instances run in this process."""
        self._end(instance)
        host = instance.host
        if host is None or not self._is_unused(host):
            return
        for key in [key for key, spawning in self._shared.items() if _result(spawning) is host]:
            del self._shared[key]
        if not host.ended.done():
            try:
                host.channel.notify(messages.Exit())
                await asyncio.wait_for(asyncio.shield(host.ended), EXIT_TIMEOUT_S)
            except TimeoutError:
                host.kill()

    def _retire_if_failed(self, instance: _Instance, state: str) -> None:
        """End the process of a failed task, and with it the processes that its plug-in has started."""
        host = instance.host
        if state == "FAILED" and instance.id.task is not None and host is not None and not self._is_shared(host):
            instance.stopping = True
            host.channel.notify(messages.Exit())

    def _is_shared(self, host: HostProcess) -> bool:
        """Whether other instances run in the process."""
        return self._isolation == "thread" or sum(each.host is host for each in self._instances.values()) > 1

    def _is_unused(self, host: HostProcess) -> bool:
        return self._isolation != "thread" and all(each.host is not host for each in self._instances.values())

    def _end(self, instance: _Instance) -> None:
        instance.ended.set()
        self._instances.pop(instance.id, None)

    def _change_measured_state(self, id_: InstanceId, state: str) -> None:
        if (meter := self._meters.get(id_)) is not None:
            meter.change_state(state, time.monotonic())

    async def _handle(self, message: messages.HostMessage) -> Any:
        """Handle a message of a host. Notifications of abandoned instances are ignored, and their requests fail."""
        instance = self._instances.get(message.instance)
        if instance is None:
            if isinstance(message, messages.Request):
                raise LookupError("this connector or task instance has been replaced or stopped")
            return None
        match message:
            case messages.StateChanged(_, state, trace):
                if not instance.stopping:
                    self._change_measured_state(message.instance, state)
                    self._events.state_changed(message.instance, state, trace)
                    self._retire_if_failed(instance, state)
            case messages.CountersReported() | messages.LagsReported():
                if (meter := self._meters.get(message.instance)) is not None:
                    meter.handle(message)
            case messages.MemberJoined(_, member_id) if instance.host is not None:
                self._members[instance.id.connector, instance.id.task] = instance.host, member_id
            case messages.TopicUsed(_, topic):
                self._events.topic_used(message.instance, topic)
            case messages.ReconfigurationRequested():
                self._events.reconfiguration_requested(message.instance)
            case messages.ValuesExpire(_, ttl_ms):
                self._events.values_expire(message.instance, ttl_ms)
            case messages.ModuleRequested(_, module):
                self._modules.start(module)
            case messages.ConfirmTask():
                self._events.confirm_task(message.instance)
            case messages.ReadOffsets(_, partitions):
                return await self._events.read_offsets(message.instance, partitions)
            case messages.CommitOffsets(_, offsets):
                return await self._events.commit_offsets(message.instance, offsets)
        return None


def _result(spawning: asyncio.Task[HostProcess]) -> HostProcess | None:
    """Return the shared process if it has been created."""
    return spawning.result() if spawning.done() and not spawning.cancelled() and not spawning.exception() else None


def _is_usable(host: HostProcess | None) -> bool:
    """Whether a shared process exists, and the worker can send requests to it."""
    return host is not None and not host.ended.done() and not host.channel.closed.is_set()


def _host_name(key: _HostKey) -> str:
    kind, name = key
    return {"threads": "tasks", "plugin": f"connectors {name.rpartition('.')[2]}"}.get(kind, name)


def _kind(id_: InstanceId) -> str:
    return "Connector" if id_.task is None else "Task"


def _describe_status(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
