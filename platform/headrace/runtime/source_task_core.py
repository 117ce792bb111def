"""`SourceTaskCore` makes the decisions of a source task. This module does no I/O.

The owner calls a method for each event, and carries out the returned effects in order. Two threads make these calls,
with a lock around each call. The task's thread runs plug-in code: it carries out the effects of `next_step` and reports
their results. The event loop reports acknowledgements, commits, and the user's requests, even while `poll` blocks.
After each of these events, the owner ends the wait of the task's thread.

Guarantees:
- An offset is committed only after all records up to it are acknowledged, or were dropped by a transform or an error.
  If the task has a dead letter queue, the DLQ records of the dropped records up to the offset are acknowledged, too.
- A failed commit of offsets is repeated with the next one.
- While the producer's buffer is full, records are neither polled nor converted nor sent. At most the records of one
  poll wait to be sent.
- `commit_record` is called once for each record, in the order of the polls, after the record's acknowledgement.
- Events after `close` have no effect.

The rules are those of Kafka Connect's AbstractWorkerSourceTask and SubmittedRecords, and KIP-779 for send errors that
errors.tolerance=all tolerates.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import NoneType
from typing import Any, cast

from headrace.api.errors import ConnectError, DataError, RetriableError
from headrace.api.task import RecordMetadata
from headrace.data.batch import SourceBatch, from_records
from headrace.data.records import SourceRecord
from headrace.runtime.offsets_tracker import Offset, OffsetsTracker, Submission
from headrace.runtime.task_effects import Fail, ReportState, Wait
from headrace.stores.offset_keys import canonical, check_types

log = logging.getLogger(__name__)

RETRY_BACKOFF_MS = 100


class PolledBatch:
    """A batch that the task polled, until its records are acknowledged.

    After the conversion, `batch` is None unless `commit_record` needs the records. This frees the memory of the
    records.
    """

    __slots__ = ("batch", "results", "submission")

    def __init__(self, batch: SourceBatch, submission: Submission, *, keeps_results: bool) -> None:
        self.batch: SourceBatch | None = batch
        self.submission = submission
        self.results: list[RecordMetadata | None] | None = [None] * len(batch) if keeps_results else None


@dataclass(frozen=True, slots=True)
class OutgoingRecords:
    """Converted records for one topic. If `partition` is None, the producer selects the partition.

    `index` is the position of the record in its polled batch. It is None if the task does not override
    `commit_record`, because nothing else needs the position.
    """

    topic: str
    partition: int | None
    columns: Any
    index: int | None = None


# Effects


@dataclass(frozen=True, slots=True)
class Poll:
    """Call the task's `poll`, then `polled` or `poll_failed`."""


@dataclass(frozen=True, slots=True)
class Convert:
    """Transform and convert a batch, then call `converted`. If `by_record`, process each record alone."""

    polled: PolledBatch
    batch: SourceBatch
    by_record: bool


@dataclass(frozen=True, slots=True)
class PrepareTopic:
    """Create the topic if necessary and fetch its metadata. Call `topic_ready` or `topic_failed` later."""

    topic: str


@dataclass(frozen=True, slots=True)
class Send:
    """Send records; call `acknowledged` later."""

    polled: PolledBatch
    records: OutgoingRecords

    def without_columns(self) -> Send:
        """Return a copy for `acknowledged` without the converted records, which the producer has."""
        records = self.records
        return Send(self.polled, OutgoingRecords(records.topic, records.partition, None, records.index))


@dataclass(frozen=True, slots=True)
class Skip:
    """Call `acknowledged` with the error of records that cannot be sent."""

    send: Send
    error: Exception


@dataclass(frozen=True, slots=True)
class SendUnwritten:
    """Send a record that could not be written to the dead letter queue, and call `dlq_acknowledged` later."""

    send: Send
    error: Exception


@dataclass(frozen=True, slots=True)
class ReportTopic:
    """Report to the worker that the connector uses a topic."""

    topic: str


@dataclass(frozen=True, slots=True)
class CommitOffsets:
    """Store offsets, then call `commit_succeeded` or `commit_failed`."""

    offsets: list[Offset]


@dataclass(frozen=True, slots=True)
class CommitRecords:
    """Call the task's `commit_record` for each record of a polled batch."""

    batch: SourceBatch
    results: list[RecordMetadata | None]


@dataclass(frozen=True, slots=True)
class CommitTask:
    """Call the task's `commit`."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Leave the task's loop. Wait for acknowledgements, then call `flushed`, and finally `close`."""


Effect = (
    Poll
    | Convert
    | PrepareTopic
    | Send
    | Skip
    | SendUnwritten
    | ReportTopic
    | CommitOffsets
    | CommitRecords
    | CommitTask
    | ReportState
    | Fail
    | Wait
    | Stop
)


class SourceTaskCore:
    """The state of one source task."""

    def __init__(
        self,
        name: str,
        *,
        is_paused: bool = False,
        tolerates_errors: bool = False,
        commits_records: bool = False,
        has_dead_letter_queue: bool = False,
    ) -> None:
        self._name = name
        self._is_paused = is_paused  # the user paused the task
        self._is_confirmed = True  # no other worker runs the task
        self._tolerates_errors = tolerates_errors  # errors.tolerance is `all`
        self._commits_records = commits_records  # the task overrides commit_record
        self._has_dead_letter_queue = has_dead_letter_queue
        self._reported_pause: bool | None = None
        self._is_stopped = False
        self._is_closed = False
        self._error: Exception | None = None
        self._retry_at_ms: int | None = None
        self._tracker = OffsetsTracker()
        self._polled: deque[SourceBatch] = deque()  # batches that are not converted yet
        self._converting: PolledBatch | None = None
        self._outgoing: deque[Send] = deque()
        self._unwritten: deque[SendUnwritten] = deque()  # sends that failed and are not in the dead letter queue yet
        self._uncommitted: dict[str, Offset] = {}
        self._is_committing = False
        self._calls_commit = False
        self._unreported: deque[PolledBatch] = deque()  # batches whose `commit_record` calls are pending
        self._topics: set[str] = set()  # topics whose metadata is known
        self._requested_topic: str | None = None
        self._failed_topic: tuple[str, Exception] | None = None
        self._used_topics: set[str] = set()

    @property
    def unacknowledged(self) -> int:
        """The number of polled batches that were not acknowledged."""
        return self._tracker.unacknowledged()

    @property
    def error(self) -> Exception | None:
        """The error that fails the task at its next step."""
        return self._error

    # Events of the user and of the worker

    def on_pause(self) -> list[Effect]:
        """The user paused the task."""
        self._is_paused = True
        return []

    def on_resume(self) -> list[Effect]:
        """The user resumed the task."""
        self._is_paused = False
        return []

    def on_confirmed(self, is_confirmed: bool) -> list[Effect]:
        """The worker has confirmed that it may run the task, or could not confirm this.

        Without confirmation, the task does not poll.
        """
        self._is_confirmed = is_confirmed
        return []

    def on_stop(self) -> list[Effect]:
        """The task is to stop. Records that were polled are still sent, unless the buffer is full."""
        self._is_stopped = True
        return []

    def on_commit_due(self) -> list[Effect]:
        """The commit interval has passed."""
        return [] if self._is_committing or self._is_closed else self._commit()

    # Events of the producer

    def topic_ready(self, topic: str) -> list[Effect]:
        """The topic of `PrepareTopic` exists, and its metadata is known."""
        self._topics.add(topic)
        self._requested_topic = None
        return []

    def topic_failed(self, topic: str, error: Exception) -> list[Effect]:
        """Records cannot be sent to that topic.

        A ConnectError fails the task, whatever the value of errors.tolerance is.
        """
        self._requested_topic = None
        if isinstance(error, ConnectError):
            self._error = self._error or error
        else:
            self._failed_topic = topic, error
        return []

    def topic_unknown(self, send: Send) -> list[Effect]:
        """The producer has not sent these records, because it no longer knows their topic. Prepare the topic again."""
        self._topics.discard(send.records.topic)
        self._outgoing.appendleft(send)
        return []

    def acknowledged(self, send: Send, metadata: RecordMetadata | None, error: Exception | None) -> list[Effect]:
        """The producer has written records, or failed with an error. `metadata` is that of the last record."""
        if self._is_closed:
            return []
        if error is not None and not self._tolerates_errors:
            self._error = self._error or _send_error(error)
            return []
        if error is not None and self._has_dead_letter_queue:
            self._unwritten.append(SendUnwritten(send, error))
            return []
        polled, records = send.polled, send.records
        polled.submission.acknowledge()
        if polled.results is not None and records.index is not None and error is None:
            polled.results[records.index] = metadata
        if error is not None or records.topic in self._used_topics:
            return []
        self._used_topics.add(records.topic)
        return [ReportTopic(records.topic)]

    # The dead letter queue

    def failed_in_conversion(self) -> Submission:
        """A record of the batch that is being converted is sent to the dead letter queue; call `dlq_acknowledged`."""
        assert self._converting is not None
        submission = self._converting.submission
        submission.parts += 1
        return submission

    def failed_in_poll(self, partition: Mapping[str, Any]) -> Submission:
        """A record that the task skips is sent to the dead letter queue; call `dlq_acknowledged` later.

        The offsets of this source partition that the task returns later are not committed before.
        """
        return self._tracker.submit(partition, {}, 1)

    def dlq_acknowledged(self, submission: Submission, error: ConnectError | None) -> list[Effect]:
        """The DLQ record is acknowledged, or it could not be written, which fails the task."""
        if self._is_closed:
            return []
        if error is not None:
            self._error = self._error or error
        else:
            submission.acknowledge()
        return []

    # Results of effects

    def polled(self, batches: Sequence[SourceBatch]) -> list[Effect]:
        """`poll` returned these batches. If a batch has no records, its offset is committed."""
        self._retry_at_ms = None
        self._polled.extend(batches)
        return []

    def poll_failed(self, error: Exception, *, now_ms: int) -> list[Effect]:
        """`poll` raised an exception."""
        if not isinstance(error, RetriableError):
            return [Fail(error)]
        log.warning("Task %s: poll failed with a retriable error, retrying: %s", self._name, error)
        self._retry_at_ms = now_ms + RETRY_BACKOFF_MS
        return []

    def converted(self, polled: PolledBatch, outgoing: Sequence[OutgoingRecords]) -> list[Effect]:
        """The records of `Convert` are converted and can be sent. Some or all of them may have been dropped."""
        polled.submission.parts += len(outgoing) - 1
        self._converting = None
        if polled.results is None:
            polled.batch = None
        self._outgoing.extend(Send(polled, records) for records in outgoing)
        return []

    def commit_succeeded(self, offsets: Sequence[Offset]) -> list[Effect]:
        """Offsets were stored."""
        self._is_committing = False
        self._calls_commit = True
        for offset in offsets:
            key = canonical(offset[0])
            if self._uncommitted.get(key) is offset:
                del self._uncommitted[key]
        return []

    def commit_failed(self, error: Exception, *, is_permanent: bool = False) -> list[Effect]:
        """Offsets were not stored. If they can never be stored, fail; otherwise, the next commit contains them again.

        If the task continued, it would never commit an offset again, and repeat all records after a restart.
        """
        self._is_committing = False
        if is_permanent:
            self._error = self._error or ConnectError(f"The source offsets of the task cannot be stored: {error}")
            return []
        log.error(
            "Task %s: failed to commit offsets, retrying at the next commit: %s", self._name, error or repr(error)
        )
        return []

    def flushed(self) -> list[Effect]:
        """The wait for acknowledgements at the end of the task is over. Commit the acknowledged records' offsets."""
        if self._is_stopped and self._error is not None:
            log.error("Task %s: %s; the records are polled again after a restart", self._name, self._error)
        return [*self._records_to_commit(), *self._commit()]

    def close(self) -> list[Effect]:
        """The last commit is done. Later events have no effect."""
        self._is_closed = True
        return [*self._records_to_commit(), *self._commit_call()]

    # Time

    def next_step(self, now_ms: int, *, is_buffer_full: bool = False) -> list[Effect]:
        """Return the effects that the task's thread carries out next."""
        if self._error is not None:
            return [Fail(self._error)]
        if (self._unreported or self._calls_commit) and (effects := [*self._records_to_commit(), *self._commit_call()]):
            return effects
        if self._unwritten and not self._is_stopped:
            return [self._unwritten.popleft()]
        if not is_buffer_full and (effects := self._next_send()):
            return effects
        if self._is_stopped:
            return [Stop()]
        if self._reported_pause is not self._is_paused:
            self._reported_pause = self._is_paused
            return [ReportState(self._is_paused)]
        if self._is_paused or not self._is_confirmed or is_buffer_full or self._outgoing or self._polled:
            return [Wait(None)]
        if self._retry_at_ms is not None and now_ms < self._retry_at_ms:
            return [Wait(self._retry_at_ms)]
        return [Poll()]

    def _next_send(self) -> list[Effect]:
        """Return the effects that send or convert polled records.

        Return none if there are no records, or while a topic is prepared.
        """
        while not self._outgoing and self._polled:
            batch = self._polled.popleft()
            if len(batch):
                self._converting = self._submit(batch)
                return [Convert(self._converting, batch, self._commits_records)]
            if batch.source_offset is None:
                self._tracker.submit_removal(batch.source_partition)
            else:
                self._tracker.submit(batch.source_partition, batch.source_offset, 0)
        if not self._outgoing:
            return []
        topic = self._outgoing[0].records.topic
        if topic in self._topics:
            return [self._outgoing.popleft()]
        if self._failed_topic is not None and self._failed_topic[0] == topic:
            error, self._failed_topic = self._failed_topic[1], None  # the next record prepares the topic again
            return [Skip(self._outgoing.popleft(), error)]
        if self._requested_topic is not None:
            return []
        self._requested_topic = topic
        return [PrepareTopic(topic)]

    def _submit(self, batch: SourceBatch) -> PolledBatch:
        # Count one part until `converted` reports their number, so that the offset is not committed too early.
        submission = self._tracker.submit(batch.source_partition, batch.source_offset or {}, 1)
        polled = PolledBatch(batch, submission, keeps_results=self._commits_records)
        if self._commits_records:
            self._unreported.append(polled)
        return polled

    def _commit(self) -> list[Effect]:
        for offset in self._tracker.committable():
            self._uncommitted[canonical(offset[0])] = offset
        if not self._uncommitted:
            return []
        self._is_committing = True
        return [CommitOffsets(list(self._uncommitted.values()))]

    def _records_to_commit(self) -> list[Effect]:
        effects: list[Effect] = []
        while self._unreported and self._unreported[0].submission.is_acknowledged:
            polled = self._unreported.popleft()
            assert polled.results is not None
            assert polled.batch is not None
            effects.append(CommitRecords(polled.batch, polled.results))
        return effects

    def _commit_call(self) -> list[Effect]:
        calls, self._calls_commit = self._calls_commit, False
        return [CommitTask()] if calls else []


def polled_batches(polled: Any, task_class: str) -> list[SourceBatch]:
    """Convert the result of `poll` to batches.

    Raises TypeError if the result contains an item that is not a record, and DataError if a source partition or source
    offset cannot be stored or a timestamp is not an int.
    """
    batches = _as_batches(polled, task_class)
    for batch in batches:
        _check_offsets(batch)
        _check_timestamps(batch)
    return batches


def _check_timestamps(batch: SourceBatch) -> None:
    """Raise DataError if a timestamp is not an int, because the producer would fail without naming the timestamp."""
    timestamps: Any = batch.timestamps
    if timestamps is None or isinstance(timestamps, int):
        return
    for kind in set(map(type, timestamps)):
        if not issubclass(kind, int | NoneType):
            found = next(each for each in timestamps if type(each) is kind)
            raise DataError(
                f"The timestamp {found!r} of {describe(batch)} has the type {kind.__name__}: it must be an int, the "
                "milliseconds since 1970-01-01 UTC. Convert a datetime with headrace.api.Timestamp.of"
            )


def _check_offsets(batch: SourceBatch) -> None:
    """Raise DataError if the source partition or a source offset of the batch cannot be stored."""
    check_types("Source partition", batch.source_partition)
    if batch.source_offset is not None:
        check_types("Source offset", batch.source_offset)
    checked: Any = batch.source_offset  # consecutive records often share one offset object
    for offset in batch.source_offsets or ():
        if offset is not checked:
            check_types("Source offset", offset)
            checked = offset


def _as_batches(polled: Any, task_class: str) -> list[SourceBatch]:
    if polled is None:
        return []
    if isinstance(polled, SourceBatch):
        return [polled]
    items: list[Any] = list(polled)
    if not items:
        return []
    expected = SourceBatch if isinstance(items[0], SourceBatch) else SourceRecord
    for item in items:
        if not isinstance(item, expected):
            raise TypeError(
                f"poll of {task_class} returned an object of type {type(item).__name__}: it must return SourceRecord "
                "objects, SourceBatch objects or None"
            )
    return items if expected is SourceBatch else cast("list[SourceBatch]", from_records(items))


def topic_of(batch: Any) -> str:
    """Return the topic of a transformed batch. Raises DataError if it has none."""
    if not isinstance(batch.topic, str) or not batch.topic:
        raise DataError(f"{describe(batch)} has no topic: set a topic in poll or in a transform")
    return batch.topic


def describe(batch: Any) -> str:
    """Return a description of the first record of a batch, for messages."""
    offset = batch.source_offsets[0] if batch.source_offsets else batch.source_offset
    topic = f" for topic {batch.topic}" if batch.topic else ""
    return f"a record{topic} from source partition {batch.source_partition} at offset {offset}"


def _send_error(error: Exception) -> ConnectError:
    failure = ConnectError(f"Failed to write a record to its topic: {error}")
    failure.__cause__ = error
    return failure
