"""Access to topics for sinks that read them themselves, in the task's process and on other machines.

A `SelfReadingSinkTask` receives a `RecordReader` and a `RecordPipeline` from its context. Both are picklable: they
contain the resolved configuration, and the files of plug-ins that are not installed. The sink sends them to the
processes in which it reads records, for example to Spark's executors, and opens them there. The platform implements
these protocols with its own client, converters, predicates and transforms. This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self

from headrace.data.batch import SinkBatch

TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """An existing topic. `id` is None if the broker does not support topic ids."""

    id: str | None
    partitions: tuple[int, ...]


class ClusterUnavailableError(Exception):
    """The Kafka cluster does not respond, or a partition has no leader. The operation can be retried."""


class RangeReadError(Exception):
    """A range of offsets cannot be read: the log does not contain it, or its records are corrupt.

    The message names the topic, the partition and the offset.
    """


class FetchedRecords(Protocol):
    """Consecutive records of one partition, as fetched. `len` is the number of records.

    A transaction marker, an aborted record or a compacted record is not one of the records. Therefore `start` and
    `end`, the range of offsets that was read, may contain more offsets than there are records.
    """

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def start(self) -> int: ...
    @property
    def end(self) -> int: ...
    @property
    def size_bytes(self) -> int:
        """The size of the keys and values."""

    @property
    def offsets(self) -> Sequence[int]: ...
    @property
    def raw(self) -> Any:
        """The platform's columns of serialized keys, values, headers and timestamps."""

    def __len__(self) -> int: ...


class OpenRecordReader(Protocol):
    """A connected reader. Use it on one thread, and close it.

    Every method raises ClusterUnavailableError if the cluster does not respond within the client's timeouts.
    """

    def describe_topics(self, topics: Iterable[str], topics_regex: str | None) -> Mapping[str, TopicDescription]:
        """Return the existing topics among `topics`, or all topics whose whole names match the Java regex."""

    def log_bounds(
        self, partitions: Iterable[TopicPartition]
    ) -> tuple[Mapping[TopicPartition, int], Mapping[TopicPartition, int]]:
        """Return the log start offsets and the end offsets. With read_committed, the end is the last stable offset."""

    def average_record_bytes(self, positions: Mapping[TopicPartition, int]) -> Mapping[str, float]:
        """Return the average size of the next records of each topic, from samples at these positions."""

    def prepare(self, topics: Iterable[str]) -> None:
        """Request the metadata of all these topics at once. Otherwise, `read` requests them topic by topic."""

    def read(
        self, topic: str, partition: int, start: int, end: int, topic_id: str | None = None
    ) -> Iterator[FetchedRecords]:
        """Yield the records with `start` <= offset < `end` in order. The yielded ranges cover `start` to `end`.

        Read one range at a time. Raises RangeReadError if the log no longer contains `start`, ends before `end`, or
        contains corrupt records, or if the topic was deleted and created again: while it is read, or, with `topic_id`,
        since its description.
        """

    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exc_info: object) -> None: ...


class RecordReader(Protocol):
    """The configuration of a reader: the connector's consumer properties. Picklable."""

    def open(self) -> OpenRecordReader: ...


@dataclass(frozen=True, slots=True)
class FailedRecord:
    """A record for which a converter, predicate or transform failed, or that the sink cannot store. Picklable.

    `stage` is the stage's name as in KIP-298, `class_name` the class that failed, `error_class` the name of the
    exception's class, `reason` its message, and `trace` its stack trace.
    """

    topic: str
    partition: int
    offset: int
    stage: str
    class_name: str
    error_class: str
    reason: str
    trace: str = ""


@dataclass(frozen=True, slots=True)
class PipelineResult:
    """The records that passed the converters and the transforms, and the records that failed.

    The batches have the records' original positions. `errors` contains at most the pipeline's maximum number of failed
    records, in the order of their offsets. `error_count` is the number of all failed records. `first_error_offset` is
    the original offset of the first failed record. Records that a transform dropped are in neither part.
    """

    batches: Sequence[SinkBatch]
    errors: Sequence[FailedRecord] = ()
    error_count: int = 0
    first_error_offset: int | None = None


class OpenRecordPipeline(Protocol):
    """Converters, predicates and transforms. Use the pipeline on one thread, and close it."""

    def apply(self, records: FetchedRecords) -> PipelineResult:
        """Convert and transform records. Retriable errors are retried as `errors.retry.*` says.

        `errors.tolerance` has no effect here: the failed records are returned, and the sink decides.
        """

    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *exc_info: object) -> None: ...


class RecordPipeline(Protocol):
    """The configuration of converters, predicates and transforms. Picklable."""

    @property
    def changes_topics(self) -> bool:
        """Whether a transform may change the topic of a record. True for transforms that do not declare it."""

    def open(self) -> OpenRecordPipeline:
        """Create the plug-ins. Raises ConfigErrors."""


class Gauge(Protocol):
    """A metric with a current value."""

    def set(self, value: float) -> None: ...


class Counter(Protocol):
    """A metric that only increases."""

    def add(self, amount: float = 1) -> None: ...


class TaskMetrics(Protocol):
    """Registers metrics of one task. `/metrics` and the task's status in the REST API show them.

    `name` has Kafka's form, for example `rows-total`. Registering a name again returns the same metric.
    """

    def gauge(self, name: str, doc: str) -> Gauge: ...
    def counter(self, name: str, doc: str) -> Counter: ...
