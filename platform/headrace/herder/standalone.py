"""The standalone herder: connectors live in memory, their source offsets in a file.

It owns the wanted state of every connector and brings the worker's instances to it. Operations on one connector follow
each other; a connector that hangs holds up nobody else. No plug-in code runs here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import traceback
from collections.abc import AsyncIterator, Awaitable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from headrace.herder.errors import AlreadyExistsError, BadRequestError, HerderError, NotFoundError
from headrace.herder.states import Board, State, TargetState
from headrace.metrics import logs
from headrace.runtime.channel import PeerGone, RemoteError
from headrace.runtime.override_policy import known_policy, refusals
from headrace.runtime.processes import Processes
from headrace.runtime.spec import TaskSpec
from headrace.runtime.worker import Hung, Instance, Worker
from headrace.runtime.worker_config import WorkerConfig
from headrace.stores.file_offsets import FileOffsetStore

if TYPE_CHECKING:
    from headrace.herder.group_offsets import GroupOffsets

log = logging.getLogger(__name__)

_RETRY_DELAY_MIN_S, _RETRY_DELAY_MAX_S = 0.25, 60.0


@dataclass(slots=True)
class Connector:
    """One connector: what its user wants, and what runs for it."""

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


class StandaloneHerder:
    """All connectors of a standalone worker."""

    def __init__(self, config: WorkerConfig, store: FileOffsetStore, worker_id: str, processes: Processes) -> None:
        self.config = config
        self.board = Board(worker_id)
        self.worker = Worker(config, self, processes)
        self.ready = False
        self._store = store
        self._store_lock = asyncio.Lock()
        self._connectors: dict[str, Connector] = {}
        self._background: set[asyncio.Task[Any]] = set()

    async def stop(self) -> None:
        """Stop every task (offsets committed) and connector, then end all processes."""
        for background in list(self._background):
            background.cancel()
        connectors = list(self._connectors.values())
        tasks = [task for connector in connectors for task in connector.tasks.values()]
        instances = [connector.instance for connector in connectors if connector.instance is not None]
        await self.worker.stop_all([*tasks, *instances])
        await self.worker.close()

    # reading

    def names(self) -> list[str]:
        """The connectors, in the order of their creation."""
        return list(self._connectors)

    def config_of(self, name: str) -> dict[str, str]:
        """A connector's configuration as it was given. Raises NotFoundError."""
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
        return self.board.shape(name, self._connectors[name].kind)

    def task_status(self, name: str, task: int) -> dict[str, Any]:
        """`GET /connectors/C/tasks/N/status`. Raises NotFoundError."""
        status = self.board.of(name).tasks.get(task) if name in self._connectors else None
        if status is None:
            raise NotFoundError(f"No status found for task {name}-{task}")
        return {"id": task, **status.shape(self.board.worker_id)}

    def task_configs(self, name: str) -> list[dict[str, Any]]:
        """`GET /connectors/C/tasks`. Raises NotFoundError."""
        configs = self._get(name).task_configs
        return [{"id": {"connector": name, "task": n}, "config": config} for n, config in enumerate(configs)]

    def topics(self, name: str) -> list[str]:
        """The topics that a connector has used. Raises NotFoundError."""
        return list(self._get(name).topics)

    def reset_topics(self, name: str) -> None:
        """Forget them. Raises NotFoundError."""
        self._get(name).topics.clear()

    # changing

    async def put(
        self, name: str, config: Mapping[str, str], *, target: TargetState | None = None, replace: bool = True
    ) -> bool:
        """Create or reconfigure a connector; True when it is new. Raises BadRequestError, AlreadyExistsError."""
        kind = await self._validated_kind(config)
        while name in self._connectors:
            if not replace:
                raise AlreadyExistsError(f"Connector {name} already exists")
            with contextlib.suppress(NotFoundError):  # deleted while its last change was waited for: it is a new one
                async with self._changing(name) as connector:
                    connector.target = target or connector.target
                    await self._replace_config(connector, config, kind)
                return False
        connector = Connector(name, dict(config), target or TargetState.STARTED, kind)
        self._connectors[name] = connector
        async with connector.lock:
            await self._start(connector)
        return True

    async def patch(self, name: str, changes: Mapping[str, str | None]) -> None:
        """Change some keys; None removes one (KIP-477). Raises NotFoundError, BadRequestError."""
        while True:
            before = self._get(name).config
            config = {key: value for key, value in {**before, **changes}.items() if value is not None}
            if config.setdefault("name", name) != name:
                raise BadRequestError(f"The name of connector {name} cannot be changed (to {config['name']})")
            kind = await self._validated_kind(config)
            async with self._changing(name) as connector:
                if connector.config is before:  # else somebody else's change came first: add this one to it
                    await self._replace_config(connector, config, kind)
                    return

    async def delete(self, name: str) -> None:
        """Stop a connector and forget it; its offsets stay. Raises NotFoundError."""
        async with self._changing(name) as connector:
            await self._stop_tasks(connector)
            await self._stop_instance(connector)
            self._connectors.pop(name, None)
            self.board.forget(name)

    async def set_target(self, name: str, target: TargetState) -> None:
        """Pause, resume or stop a connector. Raises NotFoundError."""
        async with self._changing(name) as connector:
            connector.target = target
            if target is TargetState.STOPPED:
                await self._stop_tasks(connector)
                await self._stop_instance(connector)
                self.board.set(name, None, State.STOPPED)
                return
            if self.board.of(name).connector.state is State.FAILED:
                log.error("Cannot transition connector %s to %s since it has failed", name, target)
                return
            await self._pause_or_resume(connector)

    async def restart(self, name: str, *, include_tasks: bool, only_failed: bool) -> dict[str, Any]:
        """Restart what the request covers (KIP-745); the status as it was when it began. Raises NotFoundError."""
        async with self._changing(name) as connector:
            plan = self.board.plan_restart(name, include_tasks=include_tasks, only_failed=only_failed)
            if plan.connector:
                self.board.set(name, None, State.RESTARTING)
            for number in plan.tasks:
                self.board.set(name, number, State.RESTARTING)
            status = self.board.shape(name, connector.kind)
            await self.worker.stop_tasks([connector.tasks.pop(n) for n in plan.tasks if n in connector.tasks])
            if plan.connector:
                await self._stop_instance(connector)
                await self._start_instance(connector)
            if connector.target is not TargetState.STOPPED:
                await asyncio.gather(*(self._start_task(connector, number) for number in plan.tasks))
            if plan.connector:
                await self._update_tasks(connector)
        return status

    async def restart_task(self, name: str, number: int) -> None:
        """Restart one task. Raises NotFoundError."""
        async with self._changing(name) as connector:
            if not 0 <= number < len(connector.task_configs):
                raise NotFoundError(f"Task {name}-{number} not found")
            self.board.set(name, number, State.RESTARTING)
            if (task := connector.tasks.pop(number, None)) is not None:
                await self.worker.stop_tasks([task])
            await self._start_task(connector, number)

    # offsets

    async def offsets(self, name: str) -> list[dict[str, Any]]:
        """`GET /connectors/C/offsets`. Raises NotFoundError."""
        connector = self._get(name)
        if connector.kind == "sink":
            return await self._groups.read(name, connector.config)
        return [{"partition": partition, "offset": offset} for partition, offset in self._store.of_connector(name)]

    async def alter_offsets(self, name: str, offsets: list[tuple[dict[str, Any], dict[str, Any] | None]]) -> bool:
        """Set offsets (None resets one); True when the connector says it took part. Raises HerderError."""
        async with self._changing(name) as connector:
            self._check_stopped(connector)
            took_part = await self._translated(
                self.worker.alter_offsets(name, connector.config, [list(pair) for pair in offsets])
            )
            if connector.kind == "sink":
                await self._groups.alter(name, connector.config, offsets)
            else:
                await self._write_offsets(name, offsets)
        return bool(took_part)

    async def reset_offsets(self, name: str) -> bool:
        """Remove all offsets of a connector. Raises HerderError."""
        async with self._changing(name) as connector:
            self._check_stopped(connector)
            if connector.kind == "sink":
                took_part = await self._translated(self.worker.alter_offsets(name, connector.config, []))
                await self._groups.reset(name, connector.config)
                return bool(took_part)
        offsets = [(partition, None) for partition, _ in self._store.of_connector(name)]
        return await self.alter_offsets(name, list(offsets))

    @cached_property
    def _groups(self) -> GroupOffsets:
        from headrace.herder.group_offsets import GroupOffsets  # with a client: a worker starts sooner without it

        return GroupOffsets(self.config.properties)

    async def cluster_id(self) -> str | None:
        """The Kafka cluster's id, None while it cannot be reached."""
        return await self._groups.cluster_id()

    # what the worker's children say and ask (runtime.worker.Events)

    def state_changed(self, instance: Instance, state: str, trace: str | None) -> None:
        """An instance tells its state."""
        new = State.UNASSIGNED if state == "STOPPED" else State(state)
        heard = self.board.hear(instance.connector, instance.task, instance.generation, new, trace)
        if heard and new is State.FAILED:
            what = "Connector" if instance.task is None else "Task"
            last_line = (trace or "").strip().rpartition("\n")[2]
            log.error("%s%s %s has failed: %s", logs.context(instance.connector), what, instance.name, last_line)

    def topic_used(self, instance: Instance, topic: str) -> None:
        """A task uses a topic."""
        if (connector := self._connectors.get(instance.connector)) is not None:
            connector.topics[topic] = None

    def reconfiguration_requested(self, instance: Instance) -> None:
        """A connector wants other tasks."""
        if (connector := self._connectors.get(instance.connector)) is not None and connector.instance is instance:
            self._in_background(self._reconfigure(connector))

    async def commit_offsets(self, instance: Instance, offsets: list[Any]) -> None:
        """A task's offsets: on disk before the answer."""
        await self._write_offsets(instance.connector, [(partition, offset) for partition, offset in offsets])

    def read_offsets(self, instance: Instance, partitions: list[dict[str, Any]]) -> list[dict[str, Any] | None]:
        """A task asks where its connector came to."""
        return self._store.read(instance.connector, partitions)

    # the connector's lock is held in all of these

    async def _replace_config(self, connector: Connector, config: Mapping[str, str], kind: str) -> None:
        await self._stop_instance(connector)
        connector.config, connector.kind = dict(config), kind
        await self._start(connector)

    async def _start(self, connector: Connector) -> None:
        if connector.target is TargetState.STOPPED:
            await self._stop_tasks(connector)
        await self._start_instance(connector)
        await self._update_tasks(connector)

    async def _start_instance(self, connector: Connector) -> None:
        name = connector.name
        if connector.target is TargetState.STOPPED:
            self.board.set(name, None, State.STOPPED)
            return
        generation = self.board.begin(name, None)
        if connector.target is TargetState.PAUSED:
            self.board.set(name, None, State.PAUSED)
        try:
            connector.instance = await self.worker.start_connector(name, connector.config, generation)
        except (RemoteError, Hung, PeerGone, OSError) as error:
            self.board.set(name, None, State.FAILED, _trace(error))
            log.error("%sThe connector could not be started: %s", logs.context(name, "worker"), error)
            return
        paused = connector.target is TargetState.PAUSED
        self.board.set(name, None, State.PAUSED if paused else State.RUNNING)

    async def _stop_instance(self, connector: Connector) -> None:
        instance, connector.instance = connector.instance, None
        if connector.retry is not None:
            connector.retry.cancel()
        if instance is not None:
            await self.worker.stop_connector(instance)

    async def _update_tasks(self, connector: Connector) -> None:
        """Ask the connector for its task configurations; start the new set if they have changed."""
        if connector.instance is None or connector.target is TargetState.STOPPED:
            return
        try:
            configs = await self.worker.task_configs(connector.instance)
        except (RemoteError, Hung, PeerGone) as error:
            if _is_too_many(error):
                self.board.set(connector.name, None, State.FAILED, _trace(error))
                log.error("%s%s", logs.context(connector.name), error)
                return
            log.error("%sNo task configurations, the next attempt follows: %s", logs.context(connector.name), error)
            connector.retry = self._in_background(self._retry_tasks(connector))
            return
        if configs == connector.task_configs and connector.config == connector.applied_config:
            return
        await self._stop_tasks(connector)
        connector.task_configs, connector.applied_config = configs, dict(connector.config)
        await asyncio.gather(*(self._start_task(connector, number) for number in range(len(configs))))

    async def _start_task(self, connector: Connector, number: int) -> None:
        name = connector.name
        generation = self.board.begin(name, number)
        self.board.set(name, number, State.UNASSIGNED)
        spec = TaskSpec(
            connector=name,
            number=number,
            config=connector.task_configs[number],
            connector_config=connector.config,
            worker=self.config.properties,
            paused=connector.target is TargetState.PAUSED,
        )
        try:
            connector.tasks[number] = await self.worker.start_task(spec, generation)
        except (RemoteError, Hung, PeerGone, OSError) as error:
            self.board.set(name, number, State.FAILED, _trace(error))
            log.error("%sThe task could not be started: %s", logs.context(name, f"task-{number}"), error)

    async def _stop_tasks(self, connector: Connector) -> None:
        tasks, connector.tasks = list(connector.tasks.values()), {}
        await self.worker.stop_tasks(tasks)
        connector.task_configs = []
        self.board.keep_tasks(connector.name, 0)

    async def _pause_or_resume(self, connector: Connector) -> None:
        paused = connector.target is TargetState.PAUSED
        if connector.instance is None:
            await self._start(connector)
            return
        self.board.set(connector.name, None, State.PAUSED if paused else State.RUNNING)
        for task in connector.tasks.values():
            self.worker.tell(task, "pause" if paused else "resume")

    async def _retry_tasks(self, connector: Connector) -> None:
        delay_s = _RETRY_DELAY_MIN_S
        while connector.instance is not None:
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, _RETRY_DELAY_MAX_S)
            async with connector.lock:
                if connector.instance is None:
                    return
                try:
                    await self.worker.task_configs(connector.instance)
                except (RemoteError, Hung, PeerGone) as error:
                    if not _is_too_many(error):
                        log.error("%sStill no task configurations: %s", logs.context(connector.name), error)
                        continue
                connector.retry = None
                await self._update_tasks(connector)
                return

    async def _reconfigure(self, connector: Connector) -> None:
        async with connector.lock:
            await self._update_tasks(connector)

    # smaller things

    async def _validated_kind(self, config: Mapping[str, str]) -> str:
        """Validate; "source" or "sink". Raises BadRequestError with every error."""
        if any(value is None for value in config.values()):
            nulls = [key for key, value in config.items() if value is None]
            raise BadRequestError(f"Null value supplied for config keys: {', '.join(nulls)}")
        result = await self.validate(config)
        for warning in result.get("warnings", ()):  # a misspelt key often explains an error
            log.warning("%s%s", logs.context(config.get("name", ""), "worker"), warning)
        policy = known_policy(self.config["connector.client.config.override.policy"]) or "All"
        refused = refusals(policy, self.config["connector.client.config.override.allowlist"], config)
        errors = [f"\n{line}" for line in refused] + [
            f"\n{message}" for item in result["configs"] for message in item["value"]["errors"]
        ]
        if errors:
            raise BadRequestError(
                f"Connector configuration is invalid and contains the following {len(errors)} error(s):"
                f"{''.join(errors)}\n"
                "You can also find the above list of errors at the endpoint "
                "`/connector-plugins/{connectorType}/config/validate`"
            )
        return str(result["type"])

    async def validate(self, config: Mapping[str, str]) -> dict[str, Any]:
        """`PUT /connector-plugins/P/config/validate`, with `type` and `warnings` beside. Raises HerderError."""
        if not config.get("connector.class", "").strip():
            raise BadRequestError("Connector config contains no connector type")
        result: dict[str, Any] = await self._translated(self.worker.validate(config))
        return result

    async def validate_for(self, plugin: str, config: Mapping[str, str]) -> dict[str, Any]:
        """Validate for a plug-in named in the URL, in REST's exact shape. Raises HerderError."""
        result: dict[str, Any] = await self._translated(self.worker.validate(config, plugin))
        return {key: result[key] for key in ("name", "error_count", "groups", "configs")}

    async def list_plugins(self, connectors_only: bool) -> Any:
        """`GET /connector-plugins`."""
        return await self._translated(self.worker.describe_plugins("list_plugins", connectors_only))

    async def plugin_config(self, plugin: str) -> Any:
        """`GET /connector-plugins/P/config`. Raises NotFoundError."""
        try:
            return await self._translated(self.worker.describe_plugins("plugin_config", plugin))
        except BadRequestError as error:
            raise NotFoundError(str(error)) from None

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

    async def _translated(self, call: Awaitable[Any]) -> Any:
        try:
            return await call
        except RemoteError as error:
            if error.kind in ("PluginNotFoundError", "ConfigError", "ConfigErrors", "DataError", "ConnectError"):
                raise BadRequestError(error.message) from error
            raise HerderError(error.message) from error
        except OverflowError as error:
            raise BadRequestError(f"A number in the request is too large: {error}") from None
        except (Hung, OSError) as error:  # PeerGone among the latter, and processes that cannot be had
            raise HerderError(str(error)) from error

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

    def _in_background(self, coroutine: Any) -> asyncio.Task[Any]:
        task: asyncio.Task[Any] = asyncio.ensure_future(coroutine)
        self._background.add(task)
        task.add_done_callback(self._background.discard)
        return task


def _is_too_many(error: BaseException) -> bool:
    return isinstance(error, RemoteError) and error.kind == "TooManyTasksError"


def _trace(error: BaseException) -> str:
    text = error.trace if isinstance(error, RemoteError) else "".join(traceback.format_exception(error))
    return logs.secrets.mask(text)
