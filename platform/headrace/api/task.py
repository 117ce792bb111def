"""Tasks: the units of work of a connector, each in a separate process.

The platform calls all methods of a task from one thread, and calls `stop` last. Some methods are exceptions: `wake_up`
is called from another thread while `poll`, `put` or `run` is running. The same applies to `stop`, `pause` and `resume`
of a `SelfReadingSinkTask`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from headrace.api.plugin import C, Plugin
from headrace.api.record_access import FailedRecord, RecordPipeline, RecordReader, TaskMetrics
from headrace.data.batch import SinkBatch, SourceBatch
from headrace.data.records import SinkRecord, SourceRecord
from headrace.data.sink_records import SinkRecords

if TYPE_CHECKING:
    from concurrent.futures import Future

TopicPartition = tuple[str, int]
"""A topic's name and a partition's number."""


class RecordMetadata(NamedTuple):
    """The position and timestamp (in ms) of a record that the brokers have acknowledged."""

    topic: str
    partition: int
    offset: int
    timestamp: int | None


class OffsetReader(Protocol):
    """Reads the committed source offsets of a connector.

    The methods raise DataError if a value of a source partition is not None, a bool, an int, a float or a str.
    """

    def read(self, partition: Mapping[str, Any]) -> dict[str, Any] | None:
        """Return the last committed offset of that source partition, or None."""

    def read_all(self, partitions: Iterable[Mapping[str, Any]]) -> list[dict[str, Any] | None]:
        """Return the last committed offsets, in the order of `partitions`."""


class TaskContext(Protocol):
    """The platform's interface for every kind of task."""

    @property
    def connector_name(self) -> str: ...
    @property
    def task_number(self) -> int:
        """The number of the task, from 0 to `task_count` - 1."""

    @property
    def task_count(self) -> int:
        """The number of the connector's tasks. If it changes, the platform restarts all tasks."""

    @property
    def tolerates_errors(self) -> bool:
        """Whether ``errors.tolerance`` is `all`, so that the task may skip bad records."""

    @property
    def props(self) -> Mapping[str, str]:
        """The task's configuration as strings, with resolved variables."""

    def wait(self, seconds: float) -> bool:
        """Wait for that many seconds and return True, or return False as soon as the task is to stop.

        In `headrace.testing` the time is virtual: the wait returns at once.
        """

    def monotonic(self) -> float:
        """Return a time in seconds that never goes backwards. In `headrace.testing`, this time is virtual."""

    @property
    def metrics(self) -> TaskMetrics:
        """Registers metrics of the task, which `/metrics` and the REST API show."""


class SourceTaskContext(TaskContext, Protocol):
    """The platform's interface for a source task."""

    @property
    def offsets(self) -> OffsetReader: ...

    def report_skipped(self, record: SourceRecord, error: Exception) -> None:
        """Report a record of the external system that the task skips, because it cannot read it.

        The record is counted, logged and sent to the dead letter queue as configured. Source offsets of the record's
        source partition that the task returns later are committed only after the dead letter queue has acknowledged the
        record. Raises ConnectError if ``errors.tolerance`` is `none`. If the task has to stop, the call may raise an
        error that `poll` must not catch.
        """


class ErrantRecordReporter(Protocol):
    """Sends records that a sink cannot store to the dead letter queue (KIP-610). Callable from any thread.

    Both methods return a future that is done when the report is durable; the platform commits the record's offset
    only after that. Both raise ConnectError if ``errors.tolerance`` is `none`. A report after the revocation of the
    record's partition is still written.
    """

    def report(self, record: SinkRecord, error: Exception) -> Future[None]:
        """Report one record."""

    def report_at(self, batch: SinkBatch, index: int, error: Exception) -> Future[None]:
        """Report the record at that index of a batch."""


class SinkTaskContext(TaskContext, Protocol):
    """The platform's interface for a sink task."""

    @property
    def assignment(self) -> frozenset[TopicPartition]: ...
    @property
    def errant_record_reporter(self) -> ErrantRecordReporter | None:
        """The reporter, or None if neither a dead letter queue nor logging of errors is configured."""

    def pause(self, *partitions: TopicPartition) -> None: ...
    def resume(self, *partitions: TopicPartition) -> None: ...
    def offset(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Set the offsets at which consumption continues after the current call."""

    def request_commit(self) -> None:
        """Request an offset commit as soon as possible, without waiting for the commit interval."""

    def timeout(self, timeout_ms: int) -> None:
        """Set the delay before the platform retries a `put` that raises RetriableError."""


class ErrantRecord(NamedTuple):
    """A record that a self-reading sink cannot store: its position, the error, and the stage as KIP-298 names it."""

    topic: str
    partition: int
    offset: int
    error: Exception
    stage: str = "TASK_PUT"


class SelfReadingErrantRecordReporter(Protocol):
    """Applies ``errors.*`` to records that a self-reading sink cannot store. Callable from any thread."""

    @property
    def tolerates_errors(self) -> bool:
        """Whether ``errors.tolerance`` is `all`. Otherwise the sink raises its own error, and reports nothing."""

    @property
    def needs_records(self) -> bool:
        """Whether each failed record must be reported: it is logged, dead-lettered, or fails the task.

        Otherwise, a sink that does not know all failed records may call `count`.
        """

    def count(self, records: int) -> None:
        """Count skipped records. Call it instead of `report`, and only if `needs_records` is false."""

    def report(self, records: Iterable[ErrantRecord | FailedRecord]) -> None:
        """Count and log records, and write their original bytes to the dead letter queue if one is configured.

        Returns when the dead letter queue has acknowledged the records. Raises ConnectError if they cannot be written,
        or if errors are not tolerated. `records` may be an iterator: the platform holds only a few thousand records.
        """


class SelfReadingSinkTaskContext(TaskContext, Protocol):
    """The platform's interface for a `SelfReadingSinkTask`; `props` has the effective converter configuration."""

    @property
    def client_properties(self) -> Mapping[str, str]:
        """The resolved consumer properties, including ``bootstrap.servers`` and ``group.id``."""

    @property
    def topics(self) -> tuple[str, ...]:
        """The names of the topics. Empty if `topics_regex` is set."""

    @property
    def topics_regex(self) -> str | None:
        """The Java regular expression that matches the whole names of the topics, or None if `topics` is set."""

    @property
    def errant_record_reporter(self) -> SelfReadingErrantRecordReporter: ...
    @property
    def pause_requested(self) -> bool: ...
    def committed_offsets(self) -> Mapping[TopicPartition, int]:
        """Return the committed offsets of the connector's consumer group (the next offsets to consume)."""

    def run_module(self, module: str) -> None:
        """Let the worker run ``python -m <module>`` in a process that does not end with the task.

        Nothing happens if the worker already runs this module. The worker logs an error, and ends the process when it
        exits. Any thread of the task may call this method.
        """

    def committed_metadata(self) -> Mapping[TopicPartition, str]:
        """Return the metadata with which the offsets of the group were committed ("" for offsets without metadata)."""

    def record_reader(self) -> RecordReader:
        """Return a picklable reader of the topics, with the connector's consumer properties."""

    def record_pipeline(self, errors_max: int, *, json_texts: bool = False) -> RecordPipeline:
        """Return the connector's converters, predicates and transforms as a picklable object. Raises ConfigErrors.

        `errors_max` limits the failed records in each result. With `json_texts`, and if there are no transforms,
        schemaless JSON objects stay text until `values` of a batch is read, as with `SinkTask.accepts_json_texts`.
        """

    def report_offsets(self, offsets: Mapping[TopicPartition, int], metadata: str = "") -> None:
        """Report that all records before these offsets are durable. The platform commits the offsets for the group.

        It commits `metadata` with the offsets that have changed.
        """


class Task(Plugin[C]):
    """The base class of all tasks; derive from `SourceTask`, `SinkTask` or `SelfReadingSinkTask`.

    If a connector class would add nothing, the task class needs no connector class. Configurations then name the task
    class as ``connector.class``.
    """

    abstract = True

    def start(self, config: C) -> None:
        """Start the task; `config` is also `self.config`."""

    def stop(self) -> None:
        """Release all resources. This is the last call, even if the start has failed."""

    def wake_up(self) -> None:
        """Interrupt a blocking call, because the task is about to stop. Called from another thread. Optional.

        `context.wait` needs no `wake_up`: it returns by itself.
        """


class SourceTask(Task[C]):
    """Reads records from an external system.

    The platform polls the task, applies transforms and converters, writes to topics and commits source offsets.
    """

    abstract = True
    sets_timestamps: ClassVar[bool] = True
    """Whether the task's records have timestamps. Otherwise, the broker or the producer adds them after transforms."""
    context: SourceTaskContext

    def poll(self) -> SourceBatch | Sequence[SourceBatch] | Sequence[SourceRecord] | None:
        """Return the next records. If there are no records, block for at most a second and return None.

        If a `SourceBatch` has no records, only its offset is committed. If its offset is None, the stored offset of the
        source partition is removed.
        """
        raise NotImplementedError(f"{type(self).__qualname__} does not define poll")

    def commit(self) -> None:
        """Called after a commit of source offsets: all records that were polled before the last flush are committed."""

    def commit_record(self, record: SourceRecord, metadata: RecordMetadata | None) -> None:
        """Called for each record that the brokers have acknowledged, if the class overrides it.

        `record` is the record before transforms. `metadata` is None if the record was dropped by a transform or because
        of an error. All outstanding calls are made before `stop`.
        """


class SinkTask(Task[C]):
    """Writes records to an external system.

    The platform consumes topics, applies converters and transforms, and commits the offsets that `pre_commit` returns.
    """

    abstract = True
    context: SinkTaskContext

    accepts_json_texts: bool = False
    """If true, and if there are no transforms, schemaless JSON objects stay text until `values` of a batch is read.

    `compact` of such a batch is a `headrace.data.json_texts.JsonTexts`. `start` may set this attribute.
    """

    def open(self, partitions: Sequence[TopicPartition]) -> None:
        """Called when these partitions are assigned to the task."""

    def close(self, partitions: Sequence[TopicPartition]) -> None:
        """Called when these partitions are revoked from the task."""

    def put(self, records: SinkRecords) -> None:
        """Store records, or buffer them until `flush`.

        `records` contains what a poll returned across all assigned partitions, at most `max.poll.records`, and is empty
        if the poll returned nothing. If no record can be put, for example because the task has paused its
        partitions, the platform calls `put` without records about once a second. `records` is a sequence of SinkRecord
        objects, which are created on access; `records.batches` contains the same records as batches.

        Raises RetriableError to receive the same records again after `context.timeout`. Raises RecordErrors if only the
        listed records failed. ``errors.tolerance`` determines what happens to these records, and all other records
        count as stored. If the error of a record is a RetriableError, only this record is redelivered, before new
        records. Any other exception fails the task.
        """
        raise NotImplementedError(f"{type(self).__qualname__} does not define put")

    def flush(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Make all records before these offsets durable."""

    def pre_commit(self, offsets: Mapping[TopicPartition, int]) -> Mapping[TopicPartition, int]:
        """Make records durable, and return the offsets that may be committed. They must not exceed `offsets`."""
        self.flush(offsets)
        return offsets


class SelfReadingSinkTask(Task[C]):
    """A sink task that consumes topics itself: the platform runs no consumer, converter or transform for it."""

    abstract = True
    context: SelfReadingSinkTaskContext

    def run(self) -> None:
        """Run until `stop` is called; check `context.pause_requested` between steps."""
        raise NotImplementedError(f"{type(self).__qualname__} does not define run")

    def stop(self) -> None:
        """Request that `run` releases its resources and returns soon. Called from another thread."""

    def pause(self) -> None:
        """Request that `run` pauses soon; may be called from another thread."""

    def resume(self) -> None:
        """Request that `run` continues after a pause; may be called from another thread."""
