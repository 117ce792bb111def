"""Connectors: they read the configuration, monitor the external system, and define the configurations of their tasks.

Life cycle of an instance: it is created, `context` is set, then the platform calls `start`, `task_configs` (again after
each `context.request_task_reconfiguration`), and finally `stop`. It runs in a separate process, not in the worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, ClassVar, Protocol

from headrace.api.config_def import ConfigValue
from headrace.api.plugin import Plugin
from headrace.api.task import SelfReadingSinkTask, SinkTask, SourceTask, Task


class ConnectorContext(Protocol):
    """The interface of the platform for a connector."""

    def request_task_reconfiguration(self) -> None:
        """Request that the platform calls `task_configs` again; callable from any thread."""

    def raise_error(self, error: Exception) -> None:
        """Fail the connector from one of its own threads."""


class ExactlyOnceSupport(Enum):
    """Whether a source connector supports exactly-once delivery with a given configuration."""

    SUPPORTED = "supported"
    UNSUPPORTED = "unsupported"


class Connector(Plugin):
    """The base class of `SourceConnector` and `SinkConnector`; derive from one of these."""

    abstract = True
    task_class: ClassVar[type[Task]]
    context: ConnectorContext

    def start(self, config: Any) -> None:
        """Start; `config` is an instance of `config_model`. Raises ConnectError if the connector cannot start."""

    def stop(self) -> None:
        """Stop and release resources; called once, also after a failed start."""

    def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
        """Return one configuration per task, at most `max_tasks`. The platform adds connector name and class names."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define task_configs")

    def validate(self, props: Mapping[str, str], values: dict[str, ConfigValue]) -> None:
        """Check more than single keys (e.g. open a connection), and add errors to `values`.

        The platform calls this method on an instance that was not started, with the validation result of
        `config_model`.
        """

    @classmethod
    def shared_modules(cls, props: Mapping[str, str]) -> Sequence[str]:
        """Return modules with slow imports that all processes of a connector with these properties need.

        The platform imports them once in the fork server, and every process of the connector inherits them. Importing
        them must not start threads, open files or open connections. `props` is not validated yet.
        """
        return ()

    def alter_offsets(self, config: Any, offsets: Mapping[Any, Mapping[str, Any] | None]) -> bool:
        """Validate offsets that a user wants to set. Raises ConnectError to reject them.

        Return True if offsets are managed only by the platform or were also changed in the external system, otherwise
        False. For sources, keys are source partitions as tuples of sorted items. For sinks, keys are (topic, partition)
        and values contain ``kafka_offset``. The value None resets the offset.
        """
        return False


class SourceConnector(Connector):
    """A connector whose tasks read from an external system; the platform writes the records to topics."""

    abstract = True
    task_class: ClassVar[type[SourceTask]]

    def exactly_once_support(self, config: Any) -> ExactlyOnceSupport | None:
        """Return whether exactly-once delivery is supported with that configuration; None if unknown."""
        return None

    def can_define_transaction_boundaries(self, config: Any) -> bool:
        """Whether ``transaction.boundary=connector`` works with that configuration."""
        return False


class SinkConnector(Connector):
    """A connector whose tasks write records from topics to an external system."""

    abstract = True
    task_class: ClassVar[type[SinkTask] | type[SelfReadingSinkTask]]
    supports_transforms: ClassVar[bool] = True
    """If false, validation rejects ``transforms`` and ``predicates`` for this connector."""
