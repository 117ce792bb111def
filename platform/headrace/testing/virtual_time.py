"""A clock and task contexts for tests that run tasks without a worker. Waits return at once and advance the clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from headrace.api.errors import ConnectError, RetriableError
from headrace.runtime.error_policy import ErrorPolicy
from headrace.runtime.registered_metrics import RegisteredMetrics
from headrace.runtime.task_plugins import Plugins
from headrace.stores.offset_keys import check_types

EQUAL_ERRORS_MAX = 100


class RepeatedRetriableError(ConnectError):
    """A call of a task raised equal RetriableErrors EQUAL_ERRORS_MAX times in a row.

    A worker would continue to retry the call. In virtual time, no other process can remove the error's cause.
    """


class RetryLimit:
    """Counts the equal RetriableErrors that one method of a task raises in a row.

    The pause and the attempt in the text of a `headrace.api.Retry` are not compared.
    """

    def __init__(self, method: str) -> None:
        self._method = method
        self._problem = ""
        self._count = 0

    def succeeded(self) -> None:
        """A call of the method succeeded."""
        self._count = 0

    def failed(self, error: Exception) -> None:
        """A call raised this error. Raises RepeatedRetriableError at the limit."""
        if not isinstance(error, RetriableError):
            return
        text = str(error)
        problem = text.partition("; retrying in ")[0]  # without the pause and the attempt in the text of a Retry
        self._count = self._count + 1 if problem == self._problem else 1
        self._problem = problem
        if self._count >= EQUAL_ERRORS_MAX:
            raise RepeatedRetriableError(
                f"{self._method} of the task raised the same RetriableError {self._count} times in a row: {text}"
            ) from error


class VirtualClock:
    """A clock that advances only when a task waits.

    After `limit_s` seconds, the clock sets `is_stopping`. From then on, every wait returns immediately.
    """

    def __init__(self, limit_s: float) -> None:
        self.now_s = 0.0
        self.limit_s = limit_s
        self.is_stopping = False

    @property
    def now_ms(self) -> int:
        """The virtual time in ms."""
        return round(self.now_s * 1000)

    def wait(self, seconds: float) -> bool:
        """Advance the clock; return False if the task is to stop."""
        if self.is_stopping:
            return False
        self.now_s += max(0.0, seconds)
        if self.now_s >= self.limit_s:
            self.is_stopping = True
        return not self.is_stopping


class VirtualContext:
    """The base class of task contexts in memory: the methods that all kinds of tasks share."""

    def __init__(self, clock: VirtualClock, plugins: Plugins) -> None:
        self.connector_name = plugins.spec.connector
        self.task_number = plugins.spec.number
        self.task_count = plugins.spec.task_count
        self.tolerates_errors = ErrorPolicy.from_config(plugins.connector_config).tolerate
        self.props = dict(plugins.task_config)
        self.metrics = RegisteredMetrics()
        self._clock = clock

    def wait(self, seconds: float) -> bool:
        """Advance the virtual clock; return False if the task is to stop."""
        return self._clock.wait(seconds)

    def monotonic(self) -> float:
        """Return the virtual time in seconds."""
        return self._clock.now_s


class StoredOffsets:
    """The stored source offsets by source partition. Tasks read them as they read offsets from an `OffsetReader`."""

    def __init__(self, offsets: Mapping[Any, Mapping[str, Any]] | None = None) -> None:
        self.offsets: dict[tuple[tuple[str, Any], ...], dict[str, Any]] = {
            partition_key(partition): dict(offset) for partition, offset in (offsets or {}).items()
        }
        for offset in self.offsets.values():
            check_types("Source offset", offset)

    def write(self, partition: Mapping[str, Any], offset: Mapping[str, Any] | None) -> None:
        """Store the offset of a source partition; None removes it."""
        if offset is None:
            self.offsets.pop(partition_key(partition), None)
        else:
            self.offsets[partition_key(partition)] = dict(offset)

    def read(self, partition: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the stored offset of that source partition, or None."""
        found = self.offsets.get(partition_key(partition))
        return None if found is None else dict(found)

    def read_all(self, partitions: Iterable[Mapping[str, Any]]) -> list[dict[str, Any] | None]:
        """Return the stored offsets, in the order of `partitions`."""
        return [self.read(partition) for partition in partitions]


def partition_key(partition: Any) -> tuple[tuple[str, Any], ...]:
    """Return a source partition as a tuple of its sorted items, which can be the key of a dict.

    Raises DataError if a worker could not store the partition.
    """
    items = dict(partition)
    check_types("Source partition", items)
    return tuple(sorted(items.items()))
