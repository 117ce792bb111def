"""A connector instance in its host process, and the validation of connector configurations.

All calls of one instance run in one thread, in order. A call that hangs blocks only that thread. The worker waits with
a timeout, and then replaces the whole process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import suppress
from typing import Any, TypeVar

from headrace.api.config import ConfigType, config_def
from headrace.api.connector import Connector, SinkConnector, SourceConnector
from headrace.api.errors import ConnectError
from headrace.metrics import logs
from headrace.metrics.logged_warnings import logged_warnings
from headrace.plugins import missing_modules, registry
from headrace.plugins.connector_config import framework_value
from headrace.plugins.creation import mask_passwords
from headrace.plugins.variables import ConfigResolver, UnresolvedVariable, VariableRestorer
from headrace.runtime import client_configs, messages
from headrace.runtime.channel import Channel, ChannelClosed, RemoteError, message_of
from headrace.runtime.record_access.pipeline import any_changes_topics
from headrace.runtime.record_access.reader import KafkaRecordReader
from headrace.runtime.spec import ConnectorSpec, InstanceId, TaskSpec
from headrace.runtime.task_plugins import Plugins, task_class_name, use_plugin_path
from headrace.runtime.traces import trace_of
from headrace.stores.offset_keys import requested_partitions

log = logging.getLogger(__name__)
_T = TypeVar("_T")


class TooManyTasksError(Exception):
    """A connector returned more tasks than `tasks.max`, and `tasks.max.enforce` is true (KIP-1004)."""


class WorkerConnector:
    """Runs one connector instance."""

    def __init__(self, channel: Channel, instance: InstanceId, spec: ConnectorSpec) -> None:
        self.spec = spec
        self.instance = instance
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"connector-{spec.name}")
        self._connector: Connector
        self._is_requested = False  # a reconfiguration is requested, and the request is not sent yet
        self._sending: asyncio.Task[None] | None = None
        self._resolved: dict[str, str] = {}
        self._variables: VariableRestorer
        self._unresolved: list[UnresolvedVariable] = []

    async def start(self) -> str:
        """Create and start the connector. Return its version. Raises every exception of the plug-in."""
        await self._call(self._start)
        return str(type(self._connector).version)

    async def task_configs(self) -> list[dict[str, str]]:
        """Generate the task configurations. Raises every exception of the plug-in."""
        return await self._call(self._task_configs)

    async def stop(self) -> None:
        """Stop the connector."""
        await self._call(self._stop)
        self._thread.shutdown(wait=False)

    # Runs in the connector's thread

    def _start(self) -> None:
        self._resolved, resolver = _resolve(self.spec.config, self.spec.worker)
        self._unresolved = resolver.unresolved
        if resolver.ttl_ms is not None:
            self.notify(messages.ValuesExpire(self.instance, resolver.ttl_ms))
        self._connector = registry.find("connector", self._resolved["connector.class"])()
        mask_passwords(type(self._connector), self._resolved)
        self._connector.context = _Context(self, self._resolved)
        self._connector.config = self._connector.config_model.parse(self._resolved)
        self._variables = VariableRestorer(self.spec.config, self._resolved, self._secret_keys())
        for warning in self._connector.warnings(self._connector.config):
            log.warning("Connector %s: %s", self.spec.name, warning)
        self._connector.start(self._connector.config)

    def _stop(self) -> None:
        if hasattr(self, "_connector"):  # otherwise the start has failed before the connector existed
            self._connector.stop()

    def _task_configs(self) -> list[dict[str, str]]:
        maximum = framework_value(self._resolved, "tasks.max")
        configs = self._connector.task_configs(maximum)
        if len(configs) > maximum:
            self._check_task_count(len(configs), maximum)
        return [self._completed(config) for config in configs]

    def _check_task_count(self, count: int, maximum: int) -> None:
        name = self.spec.name
        text = f"The connector {name} has generated {count} tasks, which is greater than {maximum}, the maximum"
        if framework_value(self._resolved, "tasks.max.enforce"):
            raise TooManyTasksError(f"{text} number of tasks it is configured to create (tasks.max).")
        log.warning(
            "%s number of tasks it is configured to create (tasks.max). All of them are started, because "
            "tasks.max.enforce=false",
            text,
        )

    def _completed(self, config: Mapping[str, str]) -> dict[str, str]:
        """Return a task's configuration with the platform's keys added and resolved values replaced with variables."""
        completed = self._variables.restore({key: str(value) for key, value in config.items() if value is not None})
        completed["task.class"] = task_class_name(type(self._connector), self.spec.config["connector.class"])
        if isinstance(self._connector, SinkConnector):
            for key in ("topics", "topics.regex"):
                if key in self.spec.config:
                    completed[key] = self.spec.config[key]
        return completed

    def _secret_keys(self) -> list[str]:
        """Return the keys of the configuration whose type or name shows that they contain secrets."""
        definitions = config_def(self._connector.config_model).keys
        return [
            key
            for key in self.spec.config
            if logs.is_secret_key(key) or (key in definitions and definitions[key].type is ConfigType.PASSWORD)
        ]

    async def _call(self, function: Callable[[], _T]) -> _T:
        def in_context() -> _T:
            logs.connector_context.set(logs.context(self.spec.name, "worker"))
            try:
                return function()
            except Exception as error:
                for unresolved in self._unresolved:  # it may have caused the error
                    error.add_note(str(unresolved))
                if hasattr(self, "_connector"):
                    connector = type(self._connector)
                    missing_modules.add_note(error, connector, lambda: connector.required_extra(self._resolved))
                raise

        return await self._loop.run_in_executor(self._thread, _returnable, in_context)

    def request(self, message: messages.Request[_T]) -> _T:
        """Send a request to the worker and return its response. Called in the connector's thread."""
        return asyncio.run_coroutine_threadsafe(self._channel.request(message), self._loop).result()

    def notify(self, message: messages.Notification) -> None:
        """Send a message to the worker; callable from any thread."""
        self._loop.call_soon_threadsafe(self._channel.notify, message)

    def request_reconfiguration(self) -> None:
        """Let the worker call `task_configs` again; callable from any thread.

        All calls during a pending request together cause only one further request.
        """
        if not self._is_requested:
            self._is_requested = True
            self._loop.call_soon_threadsafe(self._start_sending)

    def _start_sending(self) -> None:
        if self._sending is None or self._sending.done():
            self._sending = self._loop.create_task(self._send_requests())

    async def _send_requests(self) -> None:
        while self._is_requested:
            self._is_requested = False
            with suppress(RemoteError, ChannelClosed):  # this instance has been replaced, or the worker has exited
                await self._channel.request(messages.ReconfigurationRequested(self.instance))


class _Context:
    """The platform's interface for a connector instance."""

    def __init__(self, worker_connector: WorkerConnector, props: Mapping[str, str]) -> None:
        self._worker_connector = worker_connector
        self._instance = worker_connector.instance
        self.connector_name = worker_connector.spec.name
        self.props = props
        self.offsets = self

    def read(self, partition: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the last committed offset of a source partition."""
        return self.read_all([partition])[0]

    def read_all(self, partitions: Iterable[Mapping[str, Any]]) -> list[dict[str, Any] | None]:
        """Return the last committed offsets of source partitions."""
        wanted = requested_partitions(partitions)
        return self._worker_connector.request(messages.ReadOffsets(self._instance, wanted))

    def request_task_reconfiguration(self) -> None:
        """Request a new call of `task_configs`."""
        self._worker_connector.request_reconfiguration()

    def raise_error(self, error: Exception) -> None:
        """Fail the connector."""
        self._worker_connector.notify(messages.StateChanged(self._instance, "FAILED", trace_of(error)))


def _returnable(function: Callable[..., _T], *arguments: Any) -> _T:
    """Call a function that runs plug-in code. Raise only exceptions that an asyncio future can store.

    A future cannot store StopIteration, and it would handle CancelledError as its own cancellation.
    """
    try:
        return function(*arguments)
    except (StopIteration, CancelledError) as error:
        raise RuntimeError(f"the plug-in raised {type(error).__name__}: {message_of(error)}") from error
    except (Exception, SystemExit, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise RuntimeError(f"the plug-in raised {type(error).__name__}: {message_of(error)}") from error


async def _in_thread(function: Callable[..., _T], *arguments: Any) -> _T:
    """Run a function that runs plug-in code in a separate thread."""
    return await asyncio.to_thread(_returnable, function, *arguments)


def resolved(config: Mapping[str, str], worker: Mapping[str, str]) -> dict[str, str]:
    """Return the configuration with variables resolved. From now on, their values are masked in this process's log."""
    return _resolve(config, worker)[0]


def _resolve(config: Mapping[str, str], worker: Mapping[str, str]) -> tuple[dict[str, str], ConfigResolver]:
    use_plugin_path(worker)
    with ConfigResolver.from_worker(worker) as resolver:
        values = resolver.resolve(config)
        logs.secrets.add(resolver.resolved_values)
    logs.mask_secrets_of(worker)
    logs.mask_secrets_of(values)
    return values, resolver


async def validate(config: dict[str, str | None], worker: dict[str, str], plugin: str | None) -> dict[str, Any]:
    """Validate a configuration in a separate thread. Return what `validate_config` returns."""
    return await _in_thread(validate_config, config, worker, plugin)


async def shared_modules(config: dict[str, str], worker: dict[str, str]) -> list[str]:
    """Return the modules that all processes of the connector import. Raises every exception of the plug-in."""
    return await _in_thread(_shared_modules, config, worker)


def _shared_modules(config: Mapping[str, str], worker: Mapping[str, str]) -> list[str]:
    values = resolved(config, worker)
    return list(registry.find("connector", values.get("connector.class", "")).shared_modules(values))


async def resolve_config(config: dict[str, str], worker: dict[str, str]) -> dict[str, str]:
    """Return the configuration with variables replaced. Raises every exception of a config provider."""
    return await _in_thread(resolved, config, worker)


async def connector_type(config: dict[str, str], worker: dict[str, str]) -> str:
    """Return "source" or "sink". Raises every exception of the plug-in."""

    def find() -> str:
        found = registry.find("connector", resolved(config, worker).get("connector.class", ""))
        return "sink" if issubclass(found, SinkConnector) else "source"

    return await _in_thread(find)


async def connector_version(config: dict[str, str], worker: dict[str, str]) -> str:
    """Return the version of a connector's class. Raises every exception of the plug-in."""

    def find() -> str:
        return str(registry.find("connector", resolved(config, worker).get("connector.class", "")).version)

    return await _in_thread(find)


class _OffsetsContext:
    """The platform's interface for `Connector.alter_offsets`."""

    def __init__(self, spec: ConnectorSpec, props: Mapping[str, str], is_reset: bool) -> None:
        self._spec = spec
        self.connector_name = spec.name
        self.props = props
        self.is_reset = is_reset

    @property
    def changes_topics(self) -> bool:
        """Whether a transform may change the topic of a record."""
        config = {**self._spec.config, "name": self.connector_name}
        task = TaskSpec(
            connector=self.connector_name, number=0, config=config, connector_config=config, worker=self._spec.worker
        )
        return any_changes_topics(Plugins(task))

    @property
    def client_properties(self) -> Mapping[str, str]:
        """The properties of a consumer."""
        config = {**self.props, "name": self.connector_name}
        return client_configs.consumer_properties(self._spec.worker, config, f"{self.connector_name}-offsets")

    def record_reader(self) -> KafkaRecordReader:
        """Return a reader of the topics."""
        return KafkaRecordReader.from_consumer_properties(self.client_properties)


async def alter_offsets(spec: ConnectorSpec, offsets: Sequence[messages.OffsetPair], is_reset: bool) -> bool | str:
    """Let a connector that is not running check altered offsets. Raises every exception of the plug-in."""
    return await _in_thread(_alter_offsets, spec, offsets, is_reset)


def _alter_offsets(spec: ConnectorSpec, offsets: Sequence[messages.OffsetPair], is_reset: bool) -> bool | str:
    values = resolved(spec.config, spec.worker)
    connector: Connector = registry.find("connector", values["connector.class"])()
    config = connector.config_model.parse(values)
    try:
        keyed = dict(_keyed(isinstance(connector, SourceConnector), offsets))
    except (TypeError, ValueError) as error:
        raise ConnectError(f"The request has a partition that is not a JSON object: {error}") from None
    connector.offsets_context = _OffsetsContext(spec, values, is_reset)
    result = connector.alter_offsets(config, keyed)
    return result if isinstance(result, str) else bool(result)


def _keyed(source: bool, offsets: Sequence[messages.OffsetPair]) -> Iterator[tuple[Any, Any]]:
    for partition, offset in offsets:
        if source:
            yield tuple(sorted(partition.items())), offset
        else:
            yield (str(partition.get("kafka_topic")), int(partition.get("kafka_partition", -1))), offset


async def list_plugins(worker: dict[str, str], connectors_only: bool) -> list[dict[str, str]]:
    """`GET /connector-plugins`."""
    return await _in_thread(_list_plugins, worker, connectors_only)


def _list_plugins(worker: dict[str, str], connectors_only: bool) -> list[dict[str, str]]:
    use_plugin_path(worker)
    shown = [kind for kind in registry.Kind if kind is not registry.Kind.CONFIG_PROVIDER]
    kinds = [registry.Kind.CONNECTOR] if connectors_only else shown
    infos = registry.default().describe(kinds)
    return [{"class": info.class_name, "type": info.type, "version": info.version} for info in infos]


def validate_config(config: Mapping[str, str | None], worker: Mapping[str, str], plugin: str | None) -> dict[str, Any]:
    """Validate a configuration. Raises ConnectError.

    Return the REST API's format with `type`, `warnings` and `connector_warnings` added. `connector_warnings` also
    contains the warnings that the connector logs during the validation.
    """
    from headrace.plugins.validation import validate_connector
    from headrace.runtime.client_overrides import override_problems

    nulls = {key: value for key, value in config.items() if value is None}
    values, resolver = _resolve({key: value for key, value in config.items() if value is not None}, worker)
    with_nulls = {**values, **nulls}
    with logged_warnings() as logged:
        result = validate_connector(
            with_nulls,
            worker,
            originals=config,
            plugin=plugin,
            client_overrides=lambda found: override_problems(found, with_nulls, worker),
            unresolved=resolver.unresolved,
        )
    return {
        **result.as_json(),
        "type": result.type,
        "warnings": list(map(logs.secrets.mask, result.warnings)),
        "connector_warnings": [*map(logs.secrets.mask, result.connector_warnings), *logged],
    }


async def plugin_config(worker: dict[str, str], plugin: str) -> list[dict[str, Any]]:
    """`GET /connector-plugins/P/config`. Raises PluginNotFoundError."""
    from headrace.plugins import validation

    use_plugin_path(worker)
    return await _in_thread(validation.plugin_config, plugin)
