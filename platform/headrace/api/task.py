"""Tasks: the units of work of a connector, each in a separate process.

The platform calls all methods of a task from one thread, and `stop` last, with these exceptions: `wake_up`, and `stop`,
`pause` and `resume` of a `SelfReadingSinkTask`, are called from another thread while `poll`, `put` or `run` is running.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from headrace.api.plugin import Plugin
from headrace.data.batch import SinkBatch, SourceBatch
from headrace.data.records import SinkRecord, SourceRecord

TopicPartition = tuple[str, int]


class OffsetReader(Protocol):
    """Reads the committed source offsets of a source task's connector."""

    def read(self, partition: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the last committed offset of that source partition, or None."""

    def read_all(self, partitions: Iterable[Mapping[str, Any]]) -> list[dict[str, Any] | None]:
        """Return the last committed offsets, in the order of `partitions`."""


class SourceTaskContext(Protocol):
    """The interface of the platform for a source task."""

    @property
    def offsets(self) -> OffsetReader: ...
    @property
    def props(self) -> Mapping[str, str]: ...


class ErrantRecordReporter(Protocol):
    """Sends records that a sink cannot store to the dead letter queue."""

    def report(self, record: SinkRecord, error: Exception) -> None:
        """Report one record; returns when the report is durable. Raises ConnectError if errors are not tolerated."""


class SinkTaskContext(Protocol):
    """The interface of the platform for a sink task."""

    @property
    def props(self) -> Mapping[str, str]: ...
    @property
    def assignment(self) -> frozenset[TopicPartition]: ...
    @property
    def errant_record_reporter(self) -> ErrantRecordReporter | None: ...
    def pause(self, *partitions: TopicPartition) -> None: ...
    def resume(self, *partitions: TopicPartition) -> None: ...
    def seek(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Set the offsets at which consumption continues (``context.offset`` in Kafka Connect)."""

    def request_commit(self) -> None:
        """Request an offset commit as soon as possible, without waiting for the commit interval."""

    def timeout(self, timeout_ms: int) -> None:
        """Set the delay before the platform retries a call that raises RetriableError."""


class SelfReadingSinkTaskContext(Protocol):
    """The interface of the platform for a `SelfReadingSinkTask`."""

    @property
    def props(self) -> Mapping[str, str]:
        """The task's configuration, including the effective configuration of the key and value converters."""

    @property
    def client_properties(self) -> Mapping[str, str]:
        """The resolved consumer properties, including ``bootstrap.servers`` and ``group.id``."""

    @property
    def topics(self) -> tuple[str, ...]:
        """The names of the topics; empty if `topics_regex` is set."""

    @property
    def topics_regex(self) -> str | None:
        """The Java regular expression that matches the whole names of the topics; None if `topics` is set."""

    @property
    def pause_requested(self) -> bool: ...
    def committed_offsets(self) -> Mapping[TopicPartition, int]:
        """Return the committed offsets of the connector's consumer group (the next offsets to consume)."""

    def report_offsets(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Report that all records before these offsets are durable; the platform commits the offsets for the group."""


class Task(Plugin):
    """The base class of all tasks; derive from `SourceTask`, `SinkTask` or `SelfReadingSinkTask`."""

    abstract = True

    def start(self, config: Any) -> None:
        """Start the task; `config` is an instance of `config_model`, parsed from the task's configuration."""

    def stop(self) -> None:
        """Release all resources; this is the last call, also after a failed start."""

    def wake_up(self) -> None:
        """Interrupt a blocking call because the task is about to stop; called from another thread. Optional."""


class SourceTask(Task):
    """Reads records from an external system.

    The platform polls the task, applies transforms and converters, writes to topics and commits source offsets.
    """

    abstract = True
    context: SourceTaskContext

    def poll(self) -> SourceBatch | Sequence[SourceBatch] | Sequence[SourceRecord] | None:
        """Return the next records; if there are none, block for at most a second and return None."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define poll")

    def commit(self) -> None:
        """Called after a commit of source offsets: all records polled before the last flush are committed."""

    def commit_batch(self, batch: SourceBatch) -> None:
        """Called when the broker has acknowledged the batch; records dropped by transforms count as acknowledged."""


class SinkTask(Task):
    """Writes records to an external system.

    The platform consumes topics, applies converters and transforms, and commits the offsets that `pre_commit` returns.
    """

    abstract = True
    context: SinkTaskContext

    def open(self, partitions: Sequence[TopicPartition]) -> None:
        """Called when these partitions are assigned to the task."""

    def close(self, partitions: Sequence[TopicPartition]) -> None:
        """Called when these partitions are revoked from the task."""

    def put_batch(self, batch: SinkBatch) -> None:
        """Store a batch, or buffer it until `flush`. Raises RetriableError to receive the same batch again."""
        self.put(batch.to_records())

    def put(self, records: Sequence[SinkRecord]) -> None:
        """Store records, or buffer them until `flush`; override this method or `put_batch`."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define put")

    def put_nothing(self) -> None:
        """Called if no records have arrived for a while, so that the task can do time-based work."""

    def flush(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Make all records before these offsets durable."""

    def pre_commit(self, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """Make records durable, and return the offsets that may be committed, at most `offsets`."""
        self.flush(offsets)
        return offsets


class SelfReadingSinkTask(Task):
    """A sink task that consumes topics itself: the platform runs no consumer, converter or transform for it."""

    abstract = True
    context: SelfReadingSinkTaskContext

    def run(self) -> None:
        """Run until `stop` is called; check `context.pause_requested` between steps."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define run")

    def stop(self) -> None:
        """Request that `run` releases its resources and returns soon; called from another thread."""

    def pause(self) -> None:
        """Pause soon; may be called from another thread."""

    def resume(self) -> None:
        """Resume; may be called from another thread."""
