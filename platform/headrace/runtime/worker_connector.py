"""A connector instance in its host process, and the validation of connector configurations.

All calls of one instance run in one thread, in order. A call that hangs blocks only that thread; the worker waits with
a timeout and then replaces the whole process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from headrace.api.connector import Connector, SinkConnector, SourceConnector
from headrace.api.errors import ConnectError
from headrace.metrics import logs
from headrace.plugins import registry
from headrace.plugins.variables import ConfigResolver, unresolved_variables
from headrace.runtime.channel import Channel
from headrace.runtime.spec import ConnectorSpec
from headrace.runtime.task_plugins import class_path, use_plugin_path

log = logging.getLogger(__name__)
_T = TypeVar("_T")


class TooManyTasksError(Exception):
    """A connector returned more tasks than `tasks.max`, and `tasks.max.enforce` is true (KIP-1004)."""


class WorkerConnector:
    """Runs one connector instance; serves `task_configs` and `stop`."""

    def __init__(self, channel: Channel, unit_id: str, spec: ConnectorSpec) -> None:
        self.spec = spec
        self._channel = channel
        self._unit_id = unit_id
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"connector-{spec.name}")
        self._connector: Connector
        self._resolved: dict[str, str] = {}

    async def start(self) -> None:
        """Create and start the connector. Raises every exception of the plug-in."""
        await self._call(self._start)

    async def handle(self, method: str, arguments: list[Any]) -> Any:
        """Handle a call from the worker."""
        match method, arguments:
            case "task_configs", []:
                return await self._call(self._task_configs)
        raise ValueError(f"unknown call {method}")

    async def stop(self) -> None:
        """Stop the connector."""
        await self._call(self._connector.stop)
        self._thread.shutdown(wait=False)

    # the connector's thread

    def _start(self) -> None:
        self._resolved = resolved(self.spec.config, self.spec.worker)
        self._connector = registry.find("connector", self._resolved["connector.class"])()
        self._connector.context = _Context(self, self._resolved)
        self._connector.config = self._connector.config_model.parse(self._resolved)
        self._connector.start(self._connector.config)

    def _task_configs(self) -> list[dict[str, str]]:
        maximum = int(self._resolved.get("tasks.max", 1))
        configs = self._connector.task_configs(maximum)
        if len(configs) > maximum:
            self._complain_of_too_many(len(configs), maximum)
        return [self._completed(config) for config in configs]

    def _complain_of_too_many(self, count: int, maximum: int) -> None:
        name = self.spec.name
        text = f"The connector {name} has generated {count} tasks, which is greater than {maximum}, the maximum"
        if self._resolved.get("tasks.max.enforce", "true").strip().lower() == "true":
            raise TooManyTasksError(f"{text} number of tasks it is configured to create (tasks.max).")
        log.warning(
            "%s number of tasks it is configured to create (tasks.max). All of them are started, because "
            "tasks.max.enforce=false",
            text,
        )

    def _completed(self, config: Mapping[str, str]) -> dict[str, str]:
        """The task's configuration with what the platform adds, variables put back in the place of secrets."""
        completed = {key: self._unresolved(key, str(value)) for key, value in config.items() if value is not None}
        completed["task.class"] = class_path(self._connector.task_class)
        if isinstance(self._connector, SinkConnector):
            for key in ("topics", "topics.regex"):
                if key in self.spec.config:
                    completed[key] = self.spec.config[key]
        return completed

    def _unresolved(self, key: str, value: str) -> str:
        raw = self.spec.config.get(key)
        return raw if raw is not None and raw != value and self._resolved.get(key) == value else value

    async def _call(self, function: Callable[[], _T]) -> _T:
        def in_context() -> _T:
            logs.connector_context.set(logs.context(self.spec.name, "worker"))
            return function()

        return await self._loop.run_in_executor(self._thread, in_context)

    def call_worker(self, method: str, *arguments: Any) -> Any:
        """Call the worker and return its response; called in the connector's thread."""
        call = self._channel.call(method, self._unit_id, *arguments)
        return asyncio.run_coroutine_threadsafe(call, self._loop).result()

    def notify(self, method: str, *arguments: Any) -> None:
        """Send a message to the worker; callable from any thread."""
        self._loop.call_soon_threadsafe(self._channel.notify, method, self._unit_id, *arguments)


class _Context:
    """The platform's interface for a connector instance."""

    def __init__(self, unit: WorkerConnector, props: Mapping[str, str]) -> None:
        self._unit = unit
        self.connector_name = unit.spec.name
        self.props = props
        self.offsets = self

    def read(self, partition: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the last committed offset of a source partition."""
        return self.read_all([partition])[0]

    def read_all(self, partitions: Iterable[Mapping[str, Any]]) -> list[dict[str, Any] | None]:
        """Return the last committed offsets of source partitions."""
        found: list[dict[str, Any] | None] = self._unit.call_worker("read_offsets", [dict(each) for each in partitions])
        return found

    def request_task_reconfiguration(self) -> None:
        """Request a new call of `task_configs`."""
        self._unit.notify("reconfigure")

    def raise_error(self, error: Exception) -> None:
        """Fail the connector."""
        import traceback

        self._unit.notify("state", "FAILED", logs.secrets.mask("".join(traceback.format_exception(error))))


def resolved(config: Mapping[str, str], worker: Mapping[str, str]) -> dict[str, str]:
    """Return the configuration with variables resolved; their values are masked in this process's log from now on."""
    use_plugin_path(worker)
    with ConfigResolver.from_worker(worker) as resolver:
        values = resolver.resolve(config)
        logs.secrets.add(resolver.resolved_values)
    logs.mask_secrets_of(values)
    return values


async def validate(config: dict[str, str], worker: dict[str, str], plugin: str | None) -> dict[str, Any]:
    """Validate a configuration in a separate thread; return the REST API's format plus `type` and `warnings`."""
    return await asyncio.to_thread(validate_config, config, worker, plugin)


async def shared_modules(config: dict[str, str], worker: dict[str, str]) -> list[str]:
    """Return the modules that all processes of the connector import. Raises every exception of the plug-in."""
    return await asyncio.to_thread(_shared_modules, config, worker)


def _shared_modules(config: Mapping[str, str], worker: Mapping[str, str]) -> list[str]:
    values = resolved(config, worker)
    return list(registry.find("connector", values.get("connector.class", "")).shared_modules(values))


async def alter_offsets(spec: ConnectorSpec, offsets: list[list[Any]]) -> bool:
    """Let a connector that is not running check altered offsets. Raises every exception of the plug-in."""
    return await asyncio.to_thread(_alter_offsets, spec, offsets)


def _alter_offsets(spec: ConnectorSpec, offsets: list[list[Any]]) -> bool:
    values = resolved(spec.config, spec.worker)
    connector: Connector = registry.find("connector", values["connector.class"])()
    config = connector.config_model.parse(values)
    try:
        keyed = dict(_keyed(isinstance(connector, SourceConnector), offsets))
    except (TypeError, ValueError) as error:
        raise ConnectError(f"The request has a partition that is not a JSON object: {error}") from None
    return bool(connector.alter_offsets(config, keyed))


def _keyed(source: bool, offsets: list[list[Any]]) -> Iterator[tuple[Any, Any]]:
    for partition, offset in offsets:
        if source:
            yield tuple(sorted(partition.items())), offset
        else:
            yield (str(partition.get("kafka_topic")), int(partition.get("kafka_partition", -1))), offset


async def list_plugins(worker: dict[str, str], connectors_only: bool) -> list[dict[str, str]]:
    """`GET /connector-plugins`."""
    return await asyncio.to_thread(_list_plugins, worker, connectors_only)


def _list_plugins(worker: dict[str, str], connectors_only: bool) -> list[dict[str, str]]:
    use_plugin_path(worker)
    shown = [kind for kind in registry.Kind if kind is not registry.Kind.CONFIG_PROVIDER]
    kinds = [registry.Kind.CONNECTOR] if connectors_only else shown
    infos = registry.default().describe(kinds)
    return [{"class": info.class_name, "type": info.type, "version": info.version} for info in infos]


def validate_config(config: Mapping[str, str], worker: Mapping[str, str], plugin: str | None) -> dict[str, Any]:
    """Validate a configuration; return the REST API's format plus `type` and `warnings`. Raises ConnectError."""
    from headrace.plugins.validation import validate_connector

    values = resolved(config, worker)
    result = validate_connector(values, worker, originals=config, plugin=plugin)
    warnings = [*result.warnings, *unresolved_variables(values)]
    return {**result.as_json(), "type": result.type, "warnings": warnings}


async def plugin_config(worker: dict[str, str], plugin: str) -> list[dict[str, Any]]:
    """`GET /connector-plugins/P/config`. Raises PluginNotFoundError."""
    from headrace.plugins import validation

    use_plugin_path(worker)
    return await asyncio.to_thread(validation.plugin_config, plugin)
