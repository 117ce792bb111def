"""Connectors: they read the configuration, watch the outside, and say which tasks there are to run.

Life of an instance: made, `context` set, `start`, then `task_configs` (again after each
`context.request_task_reconfiguration`), at the end `stop`. It lives in a process of its own, never in the worker's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any, ClassVar, Protocol

from headrace.api.config_def import ConfigValue
from headrace.api.plugin import Plugin
from headrace.api.task import SelfReadingSinkTask, SinkTask, SourceTask, Task


class ConnectorContext(Protocol):
    """What the platform gives to a connector."""

    def request_task_reconfiguration(self) -> None:
        """Ask for a new `task_configs`; callable from any thread."""

    def raise_error(self, error: Exception) -> None:
        """Fail the connector from a thread of its own."""


class ExactlyOnceSupport(Enum):
    """Whether a source connector can deliver exactly once with a given configuration."""

    SUPPORTED = "supported"
    UNSUPPORTED = "unsupported"


class Connector(Plugin):
    """The base of source and sink connectors; derive from one of these."""

    abstract = True
    task_class: ClassVar[type[Task]]
    context: ConnectorContext

    def start(self, config: Any) -> None:
        """Begin; `config` is an instance of `config_model`. Raises ConnectError when the connector cannot work."""

    def stop(self) -> None:
        """End; called once, also after a failed start."""

    def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
        """One configuration for each task, `max_tasks` at most. The platform adds the connector's name and classes."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define task_configs")

    def validate(self, props: Mapping[str, str], values: dict[str, ConfigValue]) -> None:
        """Check what keys alone cannot show (a connection, a combination) and add to the errors in `values`.

        Called on an instance that was not started, with the outcome of the checks of `config_model`.
        """

    @classmethod
    def shared_modules(cls, props: Mapping[str, str]) -> Sequence[str]:
        """Modules that all processes of a connector with these properties import, and that take long to import.

        The platform imports them once and forks these processes then. Importing them must start no thread and open
        nothing. `props` has not been checked yet.
        """
        return ()

    def alter_offsets(self, config: Any, offsets: Mapping[Any, Mapping[str, Any] | None]) -> bool:
        """Check offsets that a user wants to write. Raises ConnectError to refuse; True when the system knows them too.

        Source: keys are source partitions as tuples of sorted items. Sink: keys are (topic, partition), values hold
        ``kafka_offset``. A None value means reset.
        """
        return False


class SourceConnector(Connector):
    """A connector whose tasks read from outside and write to topics."""

    abstract = True
    task_class: ClassVar[type[SourceTask]]

    def exactly_once_support(self, config: Any) -> ExactlyOnceSupport | None:
        """Whether exactly once is possible with that configuration; None when the connector does not say."""
        return None

    def can_define_transaction_boundaries(self, config: Any) -> bool:
        """Whether ``transaction.boundary=connector`` works with that configuration."""
        return False


class SinkConnector(Connector):
    """A connector whose tasks read topics and write outside."""

    abstract = True
    task_class: ClassVar[type[SinkTask] | type[SelfReadingSinkTask]]
    supports_transforms: ClassVar[bool] = True
    """False: the platform refuses ``transforms`` and ``predicates`` for it at validation."""
