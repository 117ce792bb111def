"""The producer's send logic: decides when to send, retry or fail each batch, with idempotence (KIP-98, KIP-360).

This module does no I/O. `Producer` passes in batches, responses and the current time. `ProducerCore`
returns the requests to send (`RequestPlan`), and the result of each attempt to send a batch (`Verdict`).

Guarantees:
- Batches of a partition reach its log in the order in which they were added, even after failures. Without idempotence,
  only one batch of a partition is in flight. With idempotence, only the first batch of a partition is in flight until
  the broker has accepted it. Then up to five batches are in flight. After a failure, batches are retried one at a time.
  If a batch was too large, its halves are also sent one at a time, because each half may have to be split again.
- With idempotence the log contains a batch at most once. A batch with an unknown outcome is sent again with the same
  producer id, epoch and sequence. If the broker reports a sequence gap before a batch, the result depends on the
  earlier attempts to send this batch:
  - If no attempt can have written the batch to the log, the producer bumps the epoch and restarts the sequences at 0.
  - If an attempt may have written the batch, the batch fails, because a retry with a new epoch could write it twice.
    The broker cannot detect this: brokers remember only a few batches of a producer. (After a restart, Apache Kafka
    remembers only one batch.) The Java producer bumps the epoch and sends the batch again, so it may write the batch
    twice. A producer with `is_at_least_once` does the same.
- A batch that is too large is split. If an attempt may have written the batch, it fails instead, because the log could
  otherwise contain both the batch and its halves. A producer with `is_at_least_once` always splits the batch.
- As in Java, epochs are bumped for each partition separately, because brokers track epochs for each partition.
- A failed batch does not affect other partitions.

Only the `Producer` that created a `ProducerCore` uses it, so there are no locks. A batch is in exactly one of three
states: waiting, in flight, or resolved.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.records.batch import ATTRIBUTES_OFFSET, CRC_OFFSET, SEQUENCE_MAX, crc32c

PRODUCER_EPOCH_MAX = 2**15 - 1

_PRODUCER_STATE_OFFSET = 43
_PRODUCER_STATE = struct.Struct(">qhi")
_UINT32 = struct.Struct(">I")

_SEQUENCE_ERRORS = frozenset(
    (
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
        ErrorCode.UNKNOWN_PRODUCER_ID,
        ErrorCode.INVALID_PRODUCER_EPOCH,
    )
)
_TOO_LARGE = frozenset((ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE))


class Verdict(Enum):
    """The result of an attempt to send a batch."""

    DONE = "acknowledged"
    RETRY = "waits for its next attempt"
    RETRY_AFTER_DATA_LOSS = "waits for its next attempt in a new epoch; the log has lost acknowledged records"
    SPLIT = "too large; the caller replaces the batch with its two halves"
    FAILED = "failed permanently"
    ALREADY_EXPIRED = "the batch's deadline passed earlier, and its failure was reported then"


@dataclass(slots=True, eq=False)
class ReadyBatch:
    """A built record batch to send. `ProducerCore` does not use `delivery_parts`, `reserved_bytes` or `last_error`."""

    topic: str
    partition: int
    data: bytearray
    count: int
    deadline_ms: float
    delivery_parts: Any = None
    reserved_bytes: int = 0
    last_error: str = ""
    number: tuple[int, ...] = ()
    attempts: int = 0
    outcome_unknown: bool = False  # an earlier attempt may have written the batch to the log
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    expired: bool = False
    plan: RequestPlan | None = None
    """The request that contains the batch while it is in flight."""


@dataclass(slots=True, eq=False)
class RequestPlan:
    """A Produce request to one leader: at most one batch for each partition."""

    node_id: int
    batches: list[ReadyBatch] = field(default_factory=list)
    size_bytes: int = 0


@dataclass(slots=True, eq=False)
class _Partition:
    waiting: deque[ReadyBatch] = field(default_factory=deque)
    in_flight: list[ReadyBatch] = field(default_factory=list)
    added: int = 0
    producer_id: int = -1
    producer_epoch: int = -1
    next_sequence: int = 0
    needs_new_epoch: bool = False
    may_have_gap: bool = False  # whether a batch of this epoch failed, which may leave a gap in the sequence
    known_to_broker: bool = False  # the broker has accepted a batch of this producer id and epoch
    retry_at_ms: float = 0.0


class ProducerCore:
    """Holds the batch queue of each partition, and the number of requests in flight to each node."""

    def __init__(
        self,
        *,
        idempotent: bool,
        expects_responses: bool,
        in_flight_requests_max: int,
        request_bytes_max: int,
        retries_max: int,
        backoff_ms: Callable[[int], float],
        is_at_least_once: bool = False,
    ) -> None:
        self._idempotent = idempotent
        self._is_at_least_once = is_at_least_once
        self._in_flight_max = in_flight_requests_max
        self._in_flight_per_partition = in_flight_requests_max if idempotent or not expects_responses else 1
        self._request_bytes_max = request_bytes_max
        self._retries_max = retries_max
        self._backoff_ms = backoff_ms
        self._producer_id = -1
        self._producer_epoch = -1
        self._partitions: dict[tuple[str, int], _Partition] = {}
        self._busy: dict[tuple[str, int], _Partition] = {}
        self._requests: dict[int, int] = {}
        self.leaderless: set[str] = set()
        """Topics without a known leader in `drain`; the caller requests a metadata refresh and clears the set."""

    @property
    def needs_producer_id(self) -> bool:
        """True while batches wait for a producer id."""
        return self._idempotent and self._producer_id < 0 and bool(self._busy)

    @property
    def is_idle(self) -> bool:
        """True when no batch is waiting or in flight."""
        return not self._busy

    def set_producer_id(self, producer_id: int, producer_epoch: int) -> None:
        """Store the producer id and epoch from the InitProducerId response."""
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch

    def add(self, batch: ReadyBatch) -> None:
        """Append a batch to the queue of its partition."""
        key = (batch.topic, batch.partition)
        state = self._partitions.get(key)
        if state is None:
            state = self._partitions[key] = _Partition()
        batch.number = (state.added,)
        state.added += 1
        state.waiting.append(batch)
        self._busy[key] = state

    def can_send_immediately(self, topic: str, partition: int) -> bool:
        """Return whether a new batch of the partition can be sent immediately, without waiting for another batch."""
        state = self._busy.get((topic, partition))
        return state is None or (not state.waiting and self._is_within_window(state, state.added))

    # -- sending -----------------------------------------------------------------------------------------------------

    def drain(
        self, now_ms: float, leader_of: Callable[[str, int], int | None], is_ready: Callable[[int], bool]
    ) -> list[RequestPlan]:
        """Return the requests to send now, at most one for each ready node.

        Call this method repeatedly until it returns an empty list.
        """
        plans: dict[int, RequestPlan] = {}
        for key, state in list(self._busy.items()):
            if not self._may_send(state, now_ms):
                continue
            node_id = leader_of(*key)
            if node_id is None:
                self.leaderless.add(key[0])
                continue
            if self._requests.get(node_id, 0) >= self._in_flight_max or not is_ready(node_id):
                continue
            batch = state.waiting[0]
            plan = plans.get(node_id)
            if plan is None:
                plan = plans[node_id] = RequestPlan(node_id)
            elif plan.size_bytes + len(batch.data) > self._request_bytes_max:
                continue
            if self._idempotent and not self._prepare_sequence(state, batch):
                continue
            self._add_to_request(key, state, plan)
        sent = [plan for plan in plans.values() if plan.batches]
        for plan in sent:
            self._requests[plan.node_id] = self._requests.get(plan.node_id, 0) + 1
        return sent

    def request_done(self, node_id: int) -> None:
        """Mark a request to the node as no longer in flight. The caller resolves the request's batches separately."""
        self._requests[node_id] -= 1

    def _may_send(self, state: _Partition, now_ms: float) -> bool:
        if not state.waiting or now_ms < state.retry_at_ms:
            return False
        if self._idempotent and self._producer_id < 0 and state.producer_id < 0:
            return False
        if state.needs_new_epoch or state.waiting[0].attempts or _is_split(state.waiting[0]):
            return not state.in_flight
        if state.in_flight and _is_split(state.in_flight[-1]):
            # the half of a split batch that is in flight may have to be split again, so send no later batch
            return False
        return self._is_within_window(state, state.waiting[0].number[0])

    def _is_within_window(self, state: _Partition, number: int) -> bool:
        """Return whether batch `number` is fewer than five batches after the oldest batch in flight.

        Brokers remember only the last five batches of a producer. Limiting the number of batches in flight is not
        enough: after a leader change, later batches may be acknowledged before the oldest batch.
        """
        return not state.in_flight or number - state.in_flight[0].number[0] < self._in_flight_limit(state)

    def _in_flight_limit(self, state: _Partition) -> int:
        """Return how many batches of the partition may be in flight.

        With idempotence, the limit is one until the partition's leader has accepted a batch of this producer. A leader
        accepts any first sequence from an unknown producer, so it would accept a later batch that arrives first.
        """
        return self._in_flight_per_partition if state.known_to_broker or not self._idempotent else 1

    def _prepare_sequence(self, state: _Partition, batch: ReadyBatch) -> bool:
        """Assign producer id, epoch and sequence to the batch. Returns False if a new producer id is needed first."""
        if state.needs_new_epoch and not self._start_epoch(state):
            return False
        if batch.base_sequence >= 0:
            return True
        if state.producer_id < 0:
            state.producer_id, state.producer_epoch, state.next_sequence = self._producer_id, self._producer_epoch, 0
            state.known_to_broker = False
        batch.producer_id, batch.producer_epoch = state.producer_id, state.producer_epoch
        batch.base_sequence = state.next_sequence
        state.next_sequence = (state.next_sequence + batch.count) & SEQUENCE_MAX
        write_producer_state(batch.data, batch.producer_id, batch.producer_epoch, batch.base_sequence)
        return True

    def _start_epoch(self, state: _Partition) -> bool:
        state.needs_new_epoch = state.known_to_broker = state.may_have_gap = False
        for batch in state.waiting:
            batch.base_sequence = -1
        state.next_sequence = 0
        if state.producer_epoch < PRODUCER_EPOCH_MAX:
            state.producer_epoch += 1
            return True
        if state.producer_id == self._producer_id:
            self._producer_id = -1
        state.producer_id = -1
        return self._producer_id >= 0

    def _add_to_request(self, key: tuple[str, int], state: _Partition, plan: RequestPlan) -> None:
        batch = state.waiting.popleft()
        batch.attempts += 1
        state.in_flight.append(batch)
        plan.batches.append(batch)
        batch.plan = plan
        plan.size_bytes += len(batch.data)
        del self._busy[key]  # move the partition to the end, so that partitions are served round-robin
        self._busy[key] = state

    # -- responses ---------------------------------------------------------------------------------------------------

    def acknowledge(self, batch: ReadyBatch) -> Verdict:
        """Resolve a batch that the broker has written to the log. With acks=0, call this when the batch is sent."""
        self._remove_in_flight(batch).known_to_broker = True
        return Verdict.ALREADY_EXPIRED if batch.expired else Verdict.DONE

    def handle_error(self, batch: ReadyBatch, code: ErrorCode, now_ms: float) -> Verdict:
        """Retry, split or fail a batch that the broker rejected with the error `code`."""
        if code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            return self.acknowledge(batch)
        state = self._remove_in_flight(batch)
        if self._idempotent and code in _SEQUENCE_ERRORS:
            return self._handle_sequence_error(state, batch, code, now_ms)
        if code in _TOO_LARGE and batch.count > 1 and (self._is_at_least_once or not batch.outcome_unknown):
            return self._reject(state, batch, Verdict.SPLIT)
        if code.is_retriable:
            batch.outcome_unknown = self._idempotent
            return self._retry_or_fail(state, batch, now_ms)
        return self._reject(state, batch, Verdict.FAILED)

    def _handle_sequence_error(self, state: _Partition, batch: ReadyBatch, code: ErrorCode, now_ms: float) -> Verdict:
        if _has_earlier(state, batch):
            return self._retry_or_fail(state, batch, now_ms)
        if batch.outcome_unknown and not self._is_at_least_once:
            return self._reject(state, batch, Verdict.FAILED)
        state.needs_new_epoch = True
        has_gap = state.may_have_gap or batch.outcome_unknown
        is_loss = code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not has_gap
        verdict = self._retry_or_fail(state, batch, now_ms)
        return Verdict.RETRY_AFTER_DATA_LOSS if is_loss and verdict is Verdict.RETRY else verdict

    def handle_disconnect(self, batch: ReadyBatch, now_ms: float) -> Verdict:
        """Retry or fail a batch because the broker disconnected before it responded.

        The broker may or may not have written the batch to the log.
        """
        batch.outcome_unknown = self._idempotent
        return self._retry_or_fail(self._remove_in_flight(batch), batch, now_ms)

    def requeue_from_former_leaders(self, now_ms: float, leader_of: Callable[[str, int], int | None]) -> int:
        """Requeue the batches that are in flight to a former leader, so that the new leader receives them.

        Returns the number of requeued batches. Call this after a metadata refresh. The outcome of the batches is
        unknown, as after a disconnect. A late response of the former leader does not affect these batches, because this
        method removes them from the request in flight. Without idempotence this method does nothing, because the former
        leader could append the batches after the new leader has appended them.
        """
        requeued = 0
        for key, state in list(self._busy.items()) if self._idempotent else ():
            leader = leader_of(*key) if state.in_flight else None
            for batch in list(state.in_flight) if leader is not None else ():
                if batch.attempts > self._retries_max or now_ms >= batch.deadline_ms:
                    break  # the batch cannot be retried, so wait for its response before sending later batches
                plan = batch.plan
                if plan is None or plan.node_id == leader:
                    continue
                plan.batches.remove(batch)
                # do not change the old buffer, because the transport may still be sending it
                batch.data = bytearray(batch.data)
                self.handle_disconnect(batch, now_ms)
                requeued += 1
        return requeued

    def replace(self, batch: ReadyBatch, parts: list[ReadyBatch]) -> None:
        """Replace `batch`, which was too large, with its two halves `parts`, at the same position in the queue."""
        key = (batch.topic, batch.partition)
        state = self._partitions[key]
        for index, part in enumerate(parts):
            part.number = (*batch.number, index)
            _insert_in_order(state.waiting, part)
        self._busy[key] = state

    def expire(self, now_ms: float) -> list[ReadyBatch]:
        """Return the batches whose deadline has passed.

        An expired batch that is in flight remains in flight until its response arrives.
        """
        expired: list[ReadyBatch] = []
        for key, state in list(self._busy.items()):
            for batch in state.in_flight:
                if batch.deadline_ms <= now_ms and not batch.expired:
                    batch.expired = True
                    expired.append(batch)
            while state.waiting and state.waiting[0].deadline_ms <= now_ms:
                state.may_have_gap |= state.waiting[0].base_sequence >= 0
                expired.append(state.waiting.popleft())
            self._remove_if_idle(key, state)
        return expired

    def next_event_ms(self, now_ms: float) -> float | None:
        """Return the time of the next retry or batch deadline, or None if no retry or deadline is pending."""
        return min(self._events(now_ms), default=None)

    def abort(self) -> list[ReadyBatch]:
        """Return all batches, waiting or in flight, and mark them as expired, so that they are not sent again."""
        batches = [batch for state in self._busy.values() for batch in (*state.in_flight, *state.waiting)]
        for batch in batches:
            batch.expired = True
        for state in self._busy.values():
            state.waiting.clear()
        return batches

    def _events(self, now_ms: float) -> Iterator[float]:
        for state in self._busy.values():
            for batch in state.in_flight:
                if not batch.expired:
                    yield batch.deadline_ms
            if state.waiting:
                yield state.waiting[0].deadline_ms
                if state.retry_at_ms > now_ms and not state.in_flight:
                    yield state.retry_at_ms

    def _remove_in_flight(self, batch: ReadyBatch) -> _Partition:
        key = (batch.topic, batch.partition)
        state = self._partitions[key]
        state.in_flight.remove(batch)
        batch.plan = None
        self._remove_if_idle(key, state)
        return state

    def _remove_if_idle(self, key: tuple[str, int], state: _Partition) -> None:
        if not state.waiting and not state.in_flight:
            self._busy.pop(key, None)

    def _retry_or_fail(self, state: _Partition, batch: ReadyBatch, now_ms: float) -> Verdict:
        if batch.expired or batch.attempts > self._retries_max or now_ms >= batch.deadline_ms:
            state.may_have_gap = True
            return Verdict.ALREADY_EXPIRED if batch.expired else Verdict.FAILED
        state.retry_at_ms = now_ms + self._backoff_ms(batch.attempts - 1)
        _insert_in_order(state.waiting, batch)
        self._busy[batch.topic, batch.partition] = state
        return Verdict.RETRY

    def _reject(self, state: _Partition, batch: ReadyBatch, verdict: Verdict) -> Verdict:
        """Handle the permanent rejection of a batch: reuse its sequence numbers if no later batch has been sent.

        Returns `verdict`, or ALREADY_EXPIRED if the batch has expired.
        """
        is_last = not state.in_flight and not (state.waiting and state.waiting[0].base_sequence >= 0)
        if batch.base_sequence >= 0 and batch.attempts == 1 and is_last and not state.needs_new_epoch:
            state.next_sequence = batch.base_sequence
        else:
            state.may_have_gap = True
        return Verdict.ALREADY_EXPIRED if batch.expired else verdict


def write_producer_state(data: bytearray, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
    """Write producer id, epoch, sequence and the new CRC into a built batch."""
    _PRODUCER_STATE.pack_into(data, _PRODUCER_STATE_OFFSET, producer_id, producer_epoch, base_sequence)
    _UINT32.pack_into(data, CRC_OFFSET, crc32c(memoryview(data)[ATTRIBUTES_OFFSET:]))


def _is_split(batch: ReadyBatch) -> bool:
    """Return whether the batch is a half of a batch that was too large."""
    return len(batch.number) > 1


def _has_earlier(state: _Partition, batch: ReadyBatch) -> bool:
    if any(other.number < batch.number for other in state.in_flight):
        return True
    return bool(state.waiting) and state.waiting[0].number < batch.number


def _insert_in_order(waiting: deque[ReadyBatch], batch: ReadyBatch) -> None:
    position = 0
    while position < len(waiting) and waiting[position].number < batch.number:
        position += 1
    waiting.insert(position, batch)
