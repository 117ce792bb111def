"""`SinkTaskCore` makes the decisions of a sink task. This module does no I/O.

The owner calls a method for each event, in the task's thread, and carries out the returned effects in order. If an
effect has a result (a call into the task returned, or an awaited commit completed), the owner reports the result before
it carries out the next effect. When there is no event, `next_step` returns the next effect.

Guarantees:
- An offset is committed only after the task has put all records before it and returned it from `pre_commit`.
- Records of a partition are put in order, and never after the partition was revoked.
- If `put` raises RetriableError, it receives the same records again before any new records.
- At most `polls_max` polls of the consumer wait to be put.
- While the worker does not confirm that it may run the task, nothing is put or committed.

The rules are the same as in Kafka Connect's WorkerSinkTask (KIP-89 for offsets, KIP-610 for reported records).
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from headrace.api.errors import RecordErrors, RetriableError
from headrace.data.sink_records import SinkRecords
from headrace.runtime.sink_offsets import SinkOffsets, TopicPartition
from headrace.runtime.task_effects import Fail, ReportState, Wait

log = logging.getLogger(__name__)

PUT_RECORDS = 2000
"""Records of a `put` if max.poll.records is not set: their objects fit into the processor's cache."""

RETRY_BACKOFF_MS = 100


class Fetched(Protocol):
    """Consecutive records of one partition, as the consumer parsed them."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    def __len__(self) -> int: ...


class FetchedChunk(Protocol):
    """Unparsed records of one partition."""

    @property
    def topic(self) -> str: ...
    @property
    def partition(self) -> int: ...
    @property
    def next_offset(self) -> int: ...
    def next_batch(self, records_max: int | None = None) -> Any:
        """Return the next records as `Fetched`, or None at the end."""


# Effects


@dataclass(frozen=True, slots=True)
class Convert:
    """Convert and transform fetched records, then call `converted` with the resulting records."""

    fetched: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Put:
    """Call the task's `put`, then `put_succeeded` or `put_failed`."""

    records: SinkRecords


@dataclass(frozen=True, slots=True)
class Open:
    """Call the task's `open`."""

    partitions: list[TopicPartition]


@dataclass(frozen=True, slots=True)
class Opened:
    """Call `opened`, because the task's `open` has returned."""


@dataclass(frozen=True, slots=True)
class Close:
    """Call the task's `close`."""

    partitions: list[TopicPartition]


@dataclass(frozen=True, slots=True)
class Closed:
    """Call `closed`, because the task's `close` has returned."""


@dataclass(frozen=True, slots=True)
class PreCommit:
    """Wait for reported records, call the task's `pre_commit`, then `pre_commit_succeeded` or `pre_commit_failed`."""

    offsets: dict[TopicPartition, int]
    is_final: bool


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit offsets of the group, then call `commit_succeeded` with the commit's number.

    If `is_final`, wait for the commit.

    Later commits have greater numbers.
    """

    offsets: dict[TopicPartition, int]
    is_final: bool
    number: int = 0


@dataclass(frozen=True, slots=True)
class Release:
    """Call `release` with revoked partitions, because the last commit of their offsets has ended."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class LeaveGroup:
    """Close the consumer, so that its partitions are assigned to other members of the group."""


@dataclass(frozen=True, slots=True)
class JoinGroup:
    """Open a new consumer, which joins the group."""


@dataclass(frozen=True, slots=True)
class Seek:
    """Set the positions of the consumer, and discard the records that it has already fetched."""

    positions: dict[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class SetPaused:
    """Pause and resume partitions of the consumer."""

    paused: frozenset[TopicPartition]
    resumed: frozenset[TopicPartition]


@dataclass(frozen=True, slots=True)
class Poll:
    """Allow the consumer `count` more polls."""

    count: int


@dataclass(frozen=True, slots=True)
class Report:
    """Report a record that failed in `put` to the dead letter queue, or fail the task if errors are not tolerated."""

    records: SinkRecords
    index: int
    error: Exception


@dataclass(frozen=True, slots=True)
class Reported:
    """Call `reported`, because all failed records of the put were reported."""


Effect = (
    Convert
    | Put
    | Open
    | Opened
    | Close
    | Closed
    | PreCommit
    | Commit
    | Release
    | LeaveGroup
    | JoinGroup
    | Seek
    | SetPaused
    | Poll
    | Report
    | Reported
    | ReportState
    | Fail
    | Wait
)


@dataclass(slots=True)
class _Delivery:
    """The records of one `put`. `offsets` are the consumer's offsets after these records, by partition."""

    records: SinkRecords
    offsets: dict[TopicPartition, int]
    retry_at_ms: int | None = None
    retried: list[int] = field(default_factory=list)  # indexes of the records to put again after the reports


class SinkTaskCore:
    """The state of one sink task."""

    def __init__(self, name: str, *, records_max: int | None = None, is_paused: bool = False) -> None:
        self._name = name
        self._records_max = records_max
        self._is_paused = is_paused  # the user paused the task
        self._is_confirmed = True  # no other worker runs the task
        self._is_stopped = False
        self._offsets = SinkOffsets()
        self._chunks: deque[FetchedChunk] = deque()
        self._polls = 0  # polls in `_chunks` for which no new poll is allowed yet
        self._delivery: _Delivery | None = None  # records that are being converted or put, or will be put again
        self._paused_by_task: set[TopicPartition] = set()
        self._requested_offsets: dict[TopicPartition, int] = {}
        self._retry_timeout_ms: int | None = None
        self._rewinds_after_release = False
        self._commit_number = 0

    # Calls of the task, at any time

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The assigned partitions."""
        return frozenset(self._offsets.delivered)

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """The offset after the last record that was put, by assigned partition. Callable from any thread."""
        return self._offsets.delivered.copy()

    @property
    def commit_number(self) -> int:
        """The number of the last commit."""
        return self._commit_number

    def uncommitted_records(self) -> int:
        """Return how many records of the assigned partitions were put and are not committed, as their offsets show."""
        return self._offsets.uncommitted_records()

    @property
    def is_paused(self) -> bool:
        """Whether the user has paused the task."""
        return self._is_paused

    @property
    def has_waiting_records(self) -> bool:
        """Whether fetched records wait to be put, for example because the task has paused their partitions."""
        return bool(self._chunks)

    def request_offsets(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Continue to consume at these offsets after the current call into the task (`context.offset`)."""
        self._requested_offsets.update(offsets)

    def set_retry_timeout(self, timeout_ms: int) -> None:
        """Set the delay before the next retry of `put` (`context.timeout`)."""
        self._retry_timeout_ms = timeout_ms

    def pause_partitions(self, partitions: Iterable[TopicPartition]) -> list[Effect]:
        """Put no records of these partitions until `resume_partitions`."""
        self._paused_by_task.update(partitions)
        return [self._set_paused()]

    def resume_partitions(self, partitions: Iterable[TopicPartition]) -> list[Effect]:
        """Put records of these partitions again."""
        self._paused_by_task.difference_update(partitions)
        return [self._set_paused()]

    # Events of the consumer

    def on_assigned(self, positions: Mapping[TopicPartition, int]) -> list[Effect]:
        """Partitions were assigned. The consumer is at these positions."""
        if self._is_stopped or not self._is_confirmed:
            return []
        self._offsets.assign(positions)
        return [Open(sorted(positions)), Opened()]

    def opened(self) -> list[Effect]:
        """`open` returned. It may have paused partitions and requested offsets."""
        has_pauses = self._is_paused or self._is_redelivering or self._paused_by_task
        return [*([self._set_paused()] if has_pauses else []), *self._seek_requested()]

    def on_revoked(self, partitions: Iterable[TopicPartition], *, is_lost: bool = False) -> list[Effect]:
        """Partitions were revoked. If they are lost, another member may own them, so no offsets are committed."""
        revoked = set(partitions) & self.assignment
        if not revoked:
            return []
        effects: list[Effect] = [] if is_lost else self._pre_commit(revoked, is_final=True)
        return [*effects, Release(frozenset(revoked))]

    def release(self, partitions: frozenset[TopicPartition]) -> list[Effect]:
        """Forget revoked partitions and their records, after the last commit."""
        self._chunks = deque(chunk for chunk in self._chunks if _partition(chunk) not in partitions)
        self._drop_from_delivery(partitions)
        self._paused_by_task -= partitions
        for partition in partitions:
            self._requested_offsets.pop(partition, None)
        self._offsets.revoke(partitions)
        return [Close(sorted(partitions)), Closed()]

    def closed(self) -> list[Effect]:
        """`close` returned. Processing of the remaining partitions continues."""
        rewinds, self._rewinds_after_release = self._rewinds_after_release, False
        if not self.assignment:
            return self._allow_polls()
        if rewinds:
            return self._seek(self._offsets.rewind())
        if self._is_stopped:
            return []
        return [self._set_paused(), *self._seek_requested(), *self._allow_polls()]

    def on_fetched(self, chunks: Sequence[FetchedChunk], *, is_current: bool = True) -> list[Effect]:
        """A poll returned. Chunks that the consumer fetched before the last `Seek` are not current."""
        if self._is_stopped or not self._is_confirmed:
            return []
        self._polls += 1
        if is_current:
            self._chunks.extend(chunk for chunk in chunks if _partition(chunk) in self._offsets.delivered)
        effects: list[Effect] = []
        # A put without records also follows if all waiting records are of partitions that the task has paused, because
        # many tasks resume their partitions in `put`.
        if not chunks and not self._is_paused and self._delivery is None and not self._ready_chunks:
            self._delivery = _Delivery(SinkRecords(), {})
            effects.append(Put(self._delivery.records))
        return [*effects, *self._allow_polls()]

    # Events of the user and of the worker

    def on_pause(self) -> list[Effect]:
        """The user paused the task."""
        return self._change_pause(True)

    def on_resume(self) -> list[Effect]:
        """The user resumed the task."""
        return self._change_pause(False)

    def on_confirmed(self, is_confirmed: bool) -> list[Effect]:
        """The worker has confirmed that it may run the task, or could not confirm this.

        Without confirmation, another worker may run the task. The task then loses its partitions and leaves the group,
        so that the other worker's task receives the partitions. With the next confirmation, the task joins the group
        again, and continues at the committed offsets.
        """
        if is_confirmed is self._is_confirmed or self._is_stopped:
            return []
        self._is_confirmed = is_confirmed
        if is_confirmed:
            return [JoinGroup()]
        return [*self.on_revoked(self.assignment, is_lost=True), LeaveGroup()]

    def on_commit_due(self) -> list[Effect]:
        """The commit interval has passed, or the task requested a commit."""
        return [] if self._is_stopped else self._pre_commit(self.assignment, is_final=False)

    def on_stop(self) -> list[Effect]:
        """The task is to stop: commit, and release all partitions."""
        if self._is_stopped:
            return []
        self._is_stopped = True
        if not self.assignment:
            return []
        return [*self._pre_commit(self.assignment, is_final=True), Release(self.assignment)]

    # Results of effects

    def converted(self, records: SinkRecords) -> list[Effect]:
        """The records of `Convert` are converted and can be put.

        If all of them were dropped, `put` is called without records, as in Kafka Connect.
        """
        delivery = self._delivery
        if delivery is None:
            return []
        delivery.records = records
        return [Put(records)]

    def put_succeeded(self, *, now_ms: int) -> list[Effect]:
        """`put` returned."""
        delivery, self._delivery = self._delivery, None
        self._retry_timeout_ms = None
        if delivery is None:
            return []
        effects: list[Effect] = []
        if delivery.retry_at_ms is not None:
            effects.append(self._set_paused())
        self._deliver(delivery.offsets)
        return [*effects, *self._seek_requested(), *self._allow_polls()]

    def put_failed(self, error: Exception, *, now_ms: int) -> list[Effect]:
        """`put` raised an exception."""
        delivery = self._delivery
        if delivery is None:
            return [] if isinstance(error, RetriableError) else [Fail(error)]
        if isinstance(error, RetriableError):
            log.warning("Task %s: put failed with a retriable error, retrying: %s", self._name, error)
            return self._retry(delivery, delivery.records, now_ms)
        if isinstance(error, RecordErrors):
            return self._handle_record_errors(delivery, error)
        return [Fail(error)]

    def pre_commit_succeeded(self, wanted: Mapping[TopicPartition, int] | None, *, is_final: bool) -> list[Effect]:
        """`pre_commit` returned the offsets to commit."""
        offsets, warnings = self._offsets.to_commit(wanted or {})
        for warning in warnings:
            log.warning("Task %s: %s", self._name, warning)
        self._commit_number += 1
        effects: list[Effect] = [Commit(offsets, is_final, self._commit_number)] if offsets else []
        return effects if is_final else [*effects, *self._seek_requested()]

    def pre_commit_failed(self, *, is_final: bool) -> list[Effect]:
        """`pre_commit` raised an exception, so all records after the committed offsets are put again.

        During a revocation, the records of the remaining partitions are put again after the revoked partitions were
        released.
        """
        self._requested_offsets.clear()
        if is_final:
            self._rewinds_after_release = True
            return []
        return self._seek(self._offsets.rewind())

    def commit_succeeded(self, offsets: Mapping[TopicPartition, int], number: int) -> list[Effect]:
        """The commit with that number succeeded. Its partitions may have been revoked meanwhile."""
        self._offsets.mark_committed(offsets, number)
        return []

    # Time

    def next_step(self, now_ms: int) -> list[Effect]:
        """Return the next effect when there is no event: put records, or wait."""
        if self._is_stopped or self._is_paused or not self._is_confirmed:
            return [Wait(None)]
        delivery = self._delivery
        if delivery is not None:
            if delivery.retry_at_ms is None or now_ms < delivery.retry_at_ms:
                return [Wait(delivery.retry_at_ms)]
            return [Put(delivery.records)]
        fetched = self._take_fetched()
        if not fetched:
            return [*self._allow_polls(), Wait(None)]
        offsets = {(each.topic, each.partition): each.next_offset for each in fetched}
        self._delivery = _Delivery(SinkRecords(), offsets)
        return [*self._allow_polls(), Convert(fetched)]

    @property
    def _is_redelivering(self) -> bool:
        return self._delivery is not None and self._delivery.retry_at_ms is not None

    @property
    def _ready_chunks(self) -> list[FetchedChunk]:
        """The waiting chunks of partitions that the task has not paused."""
        return [chunk for chunk in self._chunks if _partition(chunk) not in self._paused_by_task]

    def _take_fetched(self) -> list[Any]:
        """Remove the records of the next put from the chunks, and return them. Skip chunks of paused partitions."""
        limit = self._records_max or PUT_RECORDS
        fetched: list[Any] = []
        count = 0
        for chunk in self._ready_chunks:
            while count < limit:
                batch = chunk.next_batch(None if self._records_max is None else limit - count)
                if batch is None:
                    self._chunks.remove(chunk)
                    self._skip_to(fetched, chunk)
                    break
                fetched.append(batch)
                count += len(batch)
            if count >= limit:
                break
        return fetched

    def _skip_to(self, fetched: list[Any], chunk: FetchedChunk) -> None:
        """Advance past control batches at the end of a chunk, unless records before them have not been put yet."""
        partition = _partition(chunk)
        if all((each.topic, each.partition) != partition for each in fetched):
            self._deliver({partition: chunk.next_offset})

    def _deliver(self, offsets: Mapping[TopicPartition, int]) -> None:
        for partition, offset in offsets.items():
            if partition in self._offsets.delivered:
                self._offsets.deliver(partition, offset)

    def _retry(self, delivery: _Delivery, records: SinkRecords, now_ms: int) -> list[Effect]:
        timeout_ms, self._retry_timeout_ms = self._retry_timeout_ms, None
        is_first = delivery.retry_at_ms is None
        delivery.records = records
        delivery.retry_at_ms = now_ms + (RETRY_BACKOFF_MS if timeout_ms is None else timeout_ms)
        effects = self._seek_requested()
        return [*effects, self._set_paused()] if is_first and self._is_redelivering else effects

    def _handle_record_errors(self, delivery: _Delivery, error: RecordErrors) -> list[Effect]:
        records, count = delivery.records, len(delivery.records)
        unknown = [index for index in error.errors if not 0 <= index < count]
        if unknown:
            return [
                Fail(IndexError(f"put raised RecordErrors for record {unknown[0]}, but there were {count} records"))
            ]
        retried = [index for index, each in error.errors.items() if isinstance(each, RetriableError)]
        if retried:
            first = error.errors[retried[0]]
            log.warning("Task %s: put failed for %d records, retrying them: %s", self._name, len(retried), first)
        delivery.retried = retried
        # A report fails the task if errors are not tolerated. Nothing of this put is delivered before `reported`.
        reports: list[Effect] = [
            Report(records, index, each) for index, each in error.errors.items() if not isinstance(each, RetriableError)
        ]
        return [*reports, Reported()]

    def reported(self, *, now_ms: int) -> list[Effect]:
        """All failed records of the put were reported.

        All other records count as stored, except those that are put again.
        """
        delivery = self._delivery
        if delivery is None:
            return []
        retried, delivery.retried = delivery.retried, []
        if not retried:
            return self.put_succeeded(now_ms=now_ms)
        remaining = delivery.records.take(retried)
        self._deliver(_offsets_before(remaining, delivery.offsets))
        return self._retry(delivery, remaining, now_ms)

    def _drop_from_delivery(self, partitions: frozenset[TopicPartition]) -> None:
        delivery = self._delivery
        if delivery is None:
            return
        delivery.offsets = {each: offset for each, offset in delivery.offsets.items() if each not in partitions}
        kept = [
            batch
            for batch in delivery.records.batches
            if (batch.original_topic, batch.original_partition) not in partitions
        ]
        delivery.records = SinkRecords(kept)
        if not kept and delivery.retry_at_ms is not None:
            self._deliver(delivery.offsets)
            self._delivery = None

    def _pre_commit(self, partitions: Iterable[TopicPartition], *, is_final: bool) -> list[Effect]:
        offsets = {partition: self._offsets.delivered[partition] for partition in partitions}
        return [PreCommit(offsets, is_final)] if offsets else []

    def _change_pause(self, is_paused: bool) -> list[Effect]:
        if is_paused is self._is_paused or self._is_stopped:
            return []
        self._is_paused = is_paused
        return [self._set_paused(), ReportState(is_paused)]

    def _set_paused(self) -> SetPaused:
        assigned = self.assignment
        paused = assigned if self._is_paused or self._is_redelivering else self._paused_by_task & assigned
        return SetPaused(frozenset(paused), assigned - paused)

    def _seek_requested(self) -> list[Effect]:
        requested, self._requested_offsets = self._requested_offsets, {}
        return self._seek(requested) if requested else []

    def _seek(self, positions: Mapping[TopicPartition, int]) -> list[Effect]:
        """Continue at these offsets. All other partitions continue after the records that were put."""
        self._chunks.clear()
        self._delivery = None
        self._deliver(positions)
        return [Seek(dict(self._offsets.delivered)), self._set_paused(), *self._allow_polls()]

    def _allow_polls(self) -> list[Effect]:
        """Allow new polls if at most one chunk waits to be put, not counting chunks of paused partitions."""
        if len(self._ready_chunks) > 1 or not self._polls:
            return []
        polls, self._polls = self._polls, 0
        return [Poll(polls)]


def _partition(records: Any) -> TopicPartition:
    return records.topic, records.partition


def _offsets_before(records: SinkRecords, offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
    """Return `offsets`, limited in each partition to its first record in `records`, which have not been put yet."""
    limits: dict[TopicPartition, int] = {}
    for batch in records.batches:
        limits.setdefault((batch.original_topic, batch.original_partition), batch.original_offsets[0])
    return {partition: min(offset, limits.get(partition, offset)) for partition, offset in offsets.items()}
