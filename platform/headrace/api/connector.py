"""Connectors: they read the configuration, monitor the external system, and define the configurations of their tasks.

The platform creates an instance, sets `context` and `config`, and calls `start` and `task_configs`. It calls
`task_configs` again after each `context.request_task_reconfiguration`, and finally calls `stop`. An instance runs in a
separate process, not in the worker.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any, ClassVar, Protocol, cast

from headrace.api.config_def import ConfigValue
from headrace.api.errors import ConfigError
from headrace.api.plugin import C, Plugin
from headrace.api.record_access import RecordReader
from headrace.api.task import OffsetReader, SelfReadingSinkTask, SinkTask, SourceTask, Task


class ConnectorContext(Protocol):
    """The platform's interface for a connector."""

    @property
    def connector_name(self) -> str: ...
    @property
    def props(self) -> Mapping[str, str]:
        """The connector's configuration as strings, with resolved variables."""

    @property
    def offsets(self) -> OffsetReader:
        """Reads the source offsets of the connector. A sink connector has no source offsets."""

    def request_task_reconfiguration(self) -> None:
        """Request that the platform calls `task_configs` again; callable from any thread."""

    def raise_error(self, error: Exception) -> None:
        """Fail the connector from one of its own threads."""


class AlterOffsetsContext(Protocol):
    """The platform's interface for `Connector.alter_offsets`."""

    @property
    def connector_name(self) -> str: ...
    @property
    def props(self) -> Mapping[str, str]:
        """The connector's configuration as strings, with resolved variables."""

    @property
    def client_properties(self) -> Mapping[str, str]:
        """The properties of the consumers of the sink connector's tasks."""

    @property
    def is_reset(self) -> bool:
        """Whether all offsets are to be removed, including those that only the external system stores."""

    @property
    def changes_topics(self) -> bool:
        """Whether a transform of the connector may change the topic of a record. Creates the transforms to find out."""

    def record_reader(self) -> RecordReader:
        """Return a reader of the topics, with the consumer properties of the sink connector."""


class ExactlyOnceSupport(Enum):
    """Whether a source connector supports exactly-once delivery with a given configuration."""

    SUPPORTED = "supported"
    UNSUPPORTED = "unsupported"


class Connector(Plugin[C]):
    """The base class of `SourceConnector` and `SinkConnector`; derive from one of these."""

    abstract = True
    task_class: ClassVar[type[Task[Any]]]
    java_task_class: ClassVar[str] = ""
    """The Java class that `task.class` names in task configurations, so that Apache Kafka's workers can run the tasks.

    Set it only if the tasks of that Java class accept the configurations that `task_configs` returns.
    """
    context: ConnectorContext
    offsets_context: AlterOffsetsContext
    """Set before `alter_offsets` is called, on an instance that was not started."""

    def start(self, config: C) -> None:
        """Start the connector; `config` is also `self.config`. Raises ConnectError if the connector cannot start."""

    def stop(self) -> None:
        """Stop the connector and release its resources. Called once, even if the start has failed."""

    def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
        """Return one configuration per task, at most `max_tasks`. The platform adds connector name and class names.

        By default, a source has one task, and a sink has `max_tasks` tasks. All tasks have the connector's
        configuration.
        """
        raise NotImplementedError(f"{type(self).__qualname__} does not define task_configs")

    def validate_config(self, config: C) -> Iterable[ConfigError]:
        """Return the errors that `config_model` cannot find, for example because a server does not respond.

        The platform calls this method on an instance that was not started, and only if `config_model` accepts the
        configuration. An error with another text than that of Kafka's ConfigException is `ConfigError.with_text`. The
        method may also raise ConfigError.
        """
        return ()

    def warnings(self, config: C) -> Iterable[str]:
        """Return a text for each part of a valid configuration that probably does not have the intended effect.

        The platform logs the texts when it starts the connector, and validation returns them. The method is called
        often, also on an instance that was not started: it must not open connections. By default, the configuration's
        `warnings_about_keys` are returned.
        """
        return config.warnings_about_keys()

    def validate(self, props: Mapping[str, str], values: dict[str, ConfigValue]) -> None:
        """Check parts of a configuration of which other parts may be invalid. Add the errors to `values`.

        Use `validate_config` instead if the whole configuration must be valid before the check. The platform calls this
        method on an instance that was not started, with the validation result of `config_model`.
        """

    @classmethod
    def shared_modules(cls, props: Mapping[str, str]) -> Sequence[str]:
        """Return modules with slow imports that all processes of a connector with these properties need.

        The platform imports them once in the fork server, and every process of the connector inherits them. Importing
        them must not start threads, open files or open connections. `props` is not validated yet.
        """
        return ()

    @classmethod
    def required_extra(cls, props: Mapping[str, str]) -> str:
        """Return the extra of the connector's distribution that a connector with these properties needs, "" for none.

        If one of the packages that this extra installs is missing, the error names the extra. `props` is not validated.
        """
        return ""

    def alter_offsets(self, config: C, offsets: Mapping[Any, Mapping[str, Any] | None]) -> bool | str:
        """Validate offsets that a user wants to set. Raises ConnectError to reject them.

        Return True if only the platform manages the offsets, or if this method has also changed the offsets in the
        external system. In these cases, a text instead of True is appended to the message of the REST response.
        Otherwise, return False. For sources, keys are source partitions as tuples of sorted items. For sinks, keys are
        (topic, partition) and values contain ``kafka_offset``. The value None resets the offset. If
        `offsets_context.is_reset` is true, `offsets` contains the partitions with offsets that the platform stores.
        """
        return False


class SourceConnector(Connector[C]):
    """A connector whose tasks read from an external system; the platform writes the records to topics."""

    abstract = True
    task_class: ClassVar[type[SourceTask[Any]]]

    def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
        """Return the connector's configuration for one task."""
        return [self.config.originals]

    def exactly_once_support(self, config: C) -> ExactlyOnceSupport | None:
        """Return whether exactly-once delivery is supported with that configuration, or None if this is unknown."""
        return None

    def can_define_transaction_boundaries(self, config: C) -> bool:
        """Whether ``transaction.boundary=connector`` works with that configuration."""
        return False


class SinkConnector(Connector[C]):
    """A connector whose tasks write records from topics to an external system."""

    abstract = True
    task_class: ClassVar[type[SinkTask[Any]] | type[SelfReadingSinkTask[Any]]]
    supports_transforms: ClassVar[bool] = True
    """If false, validation rejects ``transforms`` and ``predicates`` for this connector."""

    def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
        """Return the connector's configuration for each of `max_tasks` tasks."""
        return [self.config.originals for _ in range(max_tasks)]


def connector_for(task_class: type[Task[Any]]) -> type[Connector[Any]]:
    """Return a connector class for a task class that needs no connector class of its own. Both have the same name.

    The task class may define the class methods ``task_configs(config, max_tasks)``, as source functions do,
    ``validate_config(config)`` and ``warnings(config)``.
    """
    return _connector_for(cast("Any", task_class))


@cache
def _connector_for(task_class: Any) -> type[Connector[Any]]:
    base: Any = SourceConnector if issubclass(task_class, SourceTask) else SinkConnector
    body: dict[str, Any] = {
        "__doc__": task_class.__doc__,
        "__module__": task_class.__module__,
        "__qualname__": task_class.__qualname__,
        "task_class": task_class,
        "java_names": task_class.java_names,
        "version": task_class.version,
    }
    if hasattr(task_class, "task_configs"):
        body["task_configs"] = lambda self, max_tasks: task_class.task_configs(self.config, max_tasks)
    for name in ("validate_config", "warnings"):
        if inspect.ismethod(getattr(task_class, name, None)):
            body[name] = staticmethod(getattr(task_class, name))
    connector: type[Connector[Any]] = type(task_class.__name__, (base,), body)
    connector.config_model = task_class.config_model
    return connector
