"""Tasks: the units of work of a connector, each in a process of its own.

A task's methods are called from one thread, `stop` as the last of them. Only `wake_up`, and for a task that reads by
itself `stop`, `pause` and `resume`, come from another thread while `poll`, `put` or `run` is under way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from headrace.api.plugin import Plugin
from headrace.data.batch import SinkBatch, SourceBatch
from headrace.data.records import SinkRecord, SourceRecord

TopicPartition = tuple[str, int]


class OffsetReader(Protocol):
    """Where a source task finds out how far its connector came."""

    def read(self, partition: Mapping[str, Any]) -> dict[str, Any] | None:
        """The last committed offset of that source partition, None if there is none."""

    def read_all(self, partitions: Iterable[Mapping[str, Any]]) -> list[dict[str, Any] | None]:
        """The last committed offsets, in the order asked for."""


class SourceTaskContext(Protocol):
    """What the platform gives to a source task."""

    @property
    def offsets(self) -> OffsetReader: ...
    @property
    def props(self) -> Mapping[str, str]: ...


class ErrantRecordReporter(Protocol):
    """Hands records that the sink cannot store to the dead letter queue."""

    def report(self, record: SinkRecord, error: Exception) -> None:
        """Report one record; returns when it is safe to go on. Raises ConnectError when errors are not tolerated."""


class SinkTaskContext(Protocol):
    """What the platform gives to a sink task."""

    @property
    def props(self) -> Mapping[str, str]: ...
    @property
    def assignment(self) -> frozenset[TopicPartition]: ...
    @property
    def errant_record_reporter(self) -> ErrantRecordReporter | None: ...
    def pause(self, *partitions: TopicPartition) -> None: ...
    def resume(self, *partitions: TopicPartition) -> None: ...
    def seek(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Go on reading at these offsets (Connect's ``context.offset``)."""

    def request_commit(self) -> None:
        """Commit soon instead of at the next interval."""

    def timeout(self, timeout_ms: int) -> None:
        """How long to wait before the call that just raised RetriableError is repeated."""


class SelfReadingSinkTaskContext(Protocol):
    """What the platform gives to a sink task that reads topics by itself."""

    @property
    def props(self) -> Mapping[str, str]:
        """The task's configuration, with the settings of the key and value converters that are in force."""

    @property
    def client_properties(self) -> Mapping[str, str]:
        """The resolved consumer properties, ``bootstrap.servers`` and ``group.id`` included."""

    @property
    def topics(self) -> tuple[str, ...]:
        """The topics by name; empty when `topics_regex` is set."""

    @property
    def topics_regex(self) -> str | None:
        """Java's regular expression for the topics, matched as a whole; None when `topics` is set."""

    @property
    def pause_requested(self) -> bool: ...
    def committed_offsets(self) -> Mapping[TopicPartition, int]:
        """The next offsets that the connector's group has committed."""

    def report_offsets(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Say that everything before these offsets is stored; the platform commits them for the group."""


class Task(Plugin):
    """The base of all tasks; derive from one of the three below."""

    abstract = True

    def start(self, config: Any) -> None:
        """Open what the task needs; `config` is an instance of `config_model`, parsed from the task's configuration."""

    def stop(self) -> None:
        """Release everything; the last call, also after a failed start."""

    def wake_up(self) -> None:
        """Cut a blocking call short because the task is to stop; called from another thread, may do nothing."""


class SourceTask(Task):
    """Reads from outside. The platform polls, transforms, converts, writes to topics and commits source offsets."""

    abstract = True
    context: SourceTaskContext

    def poll(self) -> SourceBatch | Sequence[SourceBatch] | Sequence[SourceRecord] | None:
        """The next records; blocks for a second at most when there are none, then returns None."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define poll")

    def commit(self) -> None:
        """Everything that was polled before the last flush is committed."""

    def commit_batch(self, batch: SourceBatch) -> None:
        """The broker has acknowledged the batch (what transforms dropped counts as acknowledged)."""


class SinkTask(Task):
    """Writes outside. The platform reads topics, converts, transforms, and commits offsets when `pre_commit` says."""

    abstract = True
    context: SinkTaskContext

    def open(self, partitions: Sequence[TopicPartition]) -> None:
        """These partitions are the task's from now on."""

    def close(self, partitions: Sequence[TopicPartition]) -> None:
        """These partitions are the task's no more."""

    def put_batch(self, batch: SinkBatch) -> None:
        """Store a batch, or keep it until `flush`. Raises RetriableError to get the same batch again."""
        self.put(batch.to_records())

    def put(self, records: Sequence[SinkRecord]) -> None:
        """Store records one by one, or keep them until `flush`; override this or `put_batch`."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define put")

    def put_nothing(self) -> None:
        """Called when no records came for a while: the place for time-based work."""

    def flush(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Make everything before these next offsets durable."""

    def pre_commit(self, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """The next offsets that may be committed, out of `offsets`, after making them durable."""
        self.flush(offsets)
        return offsets


class SelfReadingSinkTask(Task):
    """A sink task that consumes topics by itself: no consumer, converter or transform runs for it."""

    abstract = True
    context: SelfReadingSinkTaskContext

    def run(self) -> None:
        """Work until `stop` is called; look at `context.pause_requested` between steps."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define run")

    def stop(self) -> None:
        """Make `run` come to its end soon and release everything there; called from another thread."""

    def pause(self) -> None:
        """Come to rest soon; may be called from another thread."""

    def resume(self) -> None:
        """Go on; may be called from another thread."""
