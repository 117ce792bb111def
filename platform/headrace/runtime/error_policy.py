"""The `errors.*` keys of a connector, which determine how the platform handles failed records (KIP-298).

The configuration definition, `headrace.plugins.connector_config`, contains the keys' defaults. This module does no I/O.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING

from headrace.api.errors import ConfigError, ConnectError, DataError, RetriableError, UnknownField
from headrace.plugins.connector_config import framework_value
from headrace.runtime import traces

if TYPE_CHECKING:
    from random import Random

    from headrace.api.record_access import FailedRecord
    from headrace.runtime.error_counters import ErrorCounters

log = logging.getLogger(__name__)

RETRY_DELAY_MIN_MS = 300
_QUEUE = "errors.deadletterqueue."
_JAVA_NAMES: dict[type[BaseException], str] = {
    ConnectError: "org.apache.kafka.connect.errors.ConnectException",
    DataError: "org.apache.kafka.connect.errors.DataException",
    UnknownField: "org.apache.kafka.connect.errors.DataException",
    RetriableError: "org.apache.kafka.connect.errors.RetriableException",
    ConfigError: "org.apache.kafka.common.config.ConfigException",
}
"""The classes of Kafka Connect's errors. Tools that read a dead letter queue compare the class with these names."""
_PYTHON_NAMES = {java_name: kind.__name__ for kind, java_name in reversed(_JAVA_NAMES.items())}


class Stage(StrEnum):
    """The stage in which an error occurred. The names of the stages are those of KIP-298."""

    TASK_PUT = "TASK_PUT"
    TASK_POLL = "TASK_POLL"
    TRANSFORMATION = "TRANSFORMATION"
    KEY_CONVERTER = "KEY_CONVERTER"
    VALUE_CONVERTER = "VALUE_CONVERTER"
    HEADER_CONVERTER = "HEADER_CONVERTER"
    KAFKA_PRODUCE = "KAFKA_PRODUCE"
    KAFKA_CONSUME = "KAFKA_CONSUME"


class ToleranceExceeded(ConnectError):
    """A record failed, and `errors.tolerance=none`. This error fails the task. Its cause is the original error."""


@dataclass(frozen=True, slots=True)
class Failure:
    """An error of one record."""

    stage: Stage
    class_name: str
    error: Exception
    attempts: int
    transform: str = ""
    """The alias of the transform that failed, or whose predicate failed."""

    @property
    def message(self) -> str:
        """The error's message, after the transform's alias."""
        return self._prefix + traces.message_of(self.error)

    @property
    def typed_message(self) -> str:
        """The error's class and message, after the transform's alias."""
        return f"{self._prefix}{self.error_name}: {traces.message_of(self.error)}"

    @property
    def error_name(self) -> str:
        """The name of the error's Python class, without its module."""
        return type(self.error).__name__

    @property
    def error_class(self) -> str:
        """The name of the error's class in Kafka Connect or, if there is none, the name of its Python class."""
        kind = type(self.error)
        return _JAVA_NAMES.get(kind) or f"{kind.__module__}.{kind.__qualname__}"

    @property
    def trace(self) -> str:
        """The stack trace of the error."""
        return traces.trace_of(self.error)

    @property
    def traceback(self) -> str:
        """Python's traceback of the error."""
        return traces.traceback_of(self.error)

    @property
    def _prefix(self) -> str:
        return f"transform {self.transform}: " if self.transform else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedFailure(Failure):
    """An error of one record that occurred in another process, which described it in a `FailedRecord`."""

    record: FailedRecord

    @classmethod
    def of(cls, record: FailedRecord) -> DescribedFailure:
        """Return the failure of a record."""
        return cls(Stage(record.stage), record.class_name, ConnectError(record.reason), 1, record=record)

    @property
    def message(self) -> str:
        """The error's message."""
        return traces.masked_text(self.record.reason)

    @property
    def typed_message(self) -> str:
        """The error's class and message, after the transform's alias."""
        prefix, separator, rest = self.message.partition(": ")
        if self.stage is Stage.TRANSFORMATION and prefix.startswith("transform "):
            return f"{prefix}{separator}{self.error_name}: {rest}"
        return f"{self.error_name}: {self.message}"

    @property
    def error_name(self) -> str:
        """The name of the error's Python class, without its module."""
        name = self.record.error_class
        return _PYTHON_NAMES.get(name) or name.rpartition(".")[2]

    @property
    def error_class(self) -> str:
        """The name of the error's class."""
        return self.record.error_class

    @property
    def trace(self) -> str:
        """The stack trace, or the class and the message if the record has none."""
        return traces.masked_text(self.record.trace or f"{self.record.error_class}: {self.record.reason}")

    @property
    def traceback(self) -> str:
        """The stack trace."""
        return self.trace


def tolerance_exceeded(failure: Failure, record: str) -> ToleranceExceeded:
    """Return the error that fails the task. `record` is a description of the failed record."""
    exceeded = ToleranceExceeded(
        f"Tolerance exceeded in error handler: {record}, stage {failure.stage.value}, "
        f"class {failure.class_name}: {failure.typed_message}"
    )
    exceeded.__cause__ = failure.error
    return exceeded


@dataclass(frozen=True, slots=True)
class ErrorPolicy:
    """How a connector handles errors of its records."""

    retry_timeout_ms: int
    retry_delay_max_ms: int
    tolerate: bool
    log: bool
    log_messages: bool

    @classmethod
    def from_config(cls, config: Mapping[str, str]) -> ErrorPolicy:
        """Read the keys of a connector's configuration. Raises ConfigError."""
        value = partial(framework_value, config)
        return cls(
            retry_timeout_ms=value("errors.retry.timeout"),
            retry_delay_max_ms=value("errors.retry.delay.max.ms"),
            tolerate=value("errors.tolerance") == "all",
            log=value("errors.log.enable"),
            log_messages=value("errors.log.include.messages"),
        )

    def retry_delay_ms(self, attempt: int, elapsed_ms: int, rng: Random) -> int | None:
        """Return the delay before attempt number `attempt` + 1, or None if there are no more attempts.

        The delay doubles. Once it exceeds the maximum, it is a random value below the maximum, so that many tasks do
        not retry at the same time.
        """
        if self.retry_timeout_ms == 0 or 0 <= self.retry_timeout_ms <= elapsed_ms:
            return None
        delay_ms = RETRY_DELAY_MIN_MS << min(attempt - 1, 40)
        if delay_ms > self.retry_delay_max_ms:
            delay_ms = rng.randrange(self.retry_delay_max_ms) if self.retry_delay_max_ms > 0 else 0
        return delay_ms if self.retry_timeout_ms < 0 else min(delay_ms, self.retry_timeout_ms - elapsed_ms)


@dataclass(frozen=True, slots=True)
class DeadLetterQueueConfig:
    """The `errors.deadletterqueue.*` keys of a sink."""

    topic: str
    replication_factor: int
    with_context_headers: bool

    @classmethod
    def from_config(cls, config: Mapping[str, str]) -> DeadLetterQueueConfig | None:
        """Read the keys of a sink's configuration. Return None if it has no dead letter queue. Raises ConfigError."""
        value = partial(framework_value, config)
        topic: str = value(_QUEUE + "topic.name")
        if not topic:
            return None
        return cls(topic, value(_QUEUE + "topic.replication.factor"), value(_QUEUE + "context.headers.enable"))


class ErrorLog:
    """Counts the failed records of a task, and logs them if `errors.log.enable` is true."""

    def __init__(self, task: str, policy: ErrorPolicy, counters: ErrorCounters) -> None:
        self._task = task
        self._policy = policy
        self._counters = counters

    def add(self, failure: Failure, record: str, value: object = None) -> None:
        """Add a failed record, which `record` describes. With `errors.log.include.messages`, its value is logged.

        The middle of a long error message or stack trace is omitted, as in the context headers of a DLQ record.
        """
        self._counters.add_failed_records(are_skipped=self._policy.tolerate)
        log.debug(
            "Task %s: %s failed in stage %s, class %s, with %s after %d attempts",
            self._task,
            record,
            failure.stage.value,
            failure.class_name,
            failure.error_name,  # the error's message may contain the record
            failure.attempts,
        )
        if not self._policy.log:
            return
        self._counters.add_logged()
        log.error(
            "Error encountered in task %s. Executing stage '%s' with class '%s', where %s%s: %s\n%s",
            self._task,
            failure.stage.value,
            failure.class_name,
            record,
            f", record value {value!r}" if self._policy.log_messages and value is not None else "",
            failure.message,
            failure.traceback.rstrip("\n"),
        )
