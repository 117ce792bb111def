"""What to send when, what to retry, what to give up: the decisions of an idempotent batch producer (KIP-98, 360).

Pure: batches, answers and `now_ms` come in, plans and verdicts go out; the shell owns sockets and futures.
Guarantees:
- Batches of a partition reach its log in the order in which they were added, whatever fails. Without idempotence that
  means one batch of a partition in flight; with it up to five, once the broker has taken the first one of all, and
  after a failure one at a time until it is mended. The parts of a batch that was too large go one at a time, too: each
  may have to be cut again.
- With idempotence a batch stands in the log at most once: a batch of unknown outcome is resent with the same producer
  id, epoch and sequence. A new epoch starts at sequence 0, when the broker finds a gap before a batch that no attempt
  can have left in the log. One that an attempt may have left there fails instead: a broker remembers few batches (after
  a restart Apache Kafka's one), so a gap may also mean "older than I can tell", and another epoch would write it twice.
  Java bumps there, too. Epochs are bumped for each partition by itself, as Java does; brokers keep them apart, too.
- A failed batch fails alone; other partitions never wait for it.

State belongs to one owner. A batch is in exactly one place: waiting, in flight, or resolved.
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
    """What became of a batch whose answer came in."""

    DONE = "acknowledged"
    RETRY = "waits for its next attempt"
    LOSS = "waits for its next attempt, in a new epoch: the log lacks what it had acknowledged before"
    SPLIT = "too large: the shell hands in smaller parts with replace()"
    FAILED = "given up"
    FORGOTTEN = "its deadline had passed before; it was reported then"


@dataclass(slots=True, eq=False)
class ReadyBatch:
    """One built record batch on its way. `completion`, `reserved_bytes` and `last_error` are the shell's."""

    topic: str
    partition: int
    data: bytearray
    count: int
    deadline_ms: float
    completion: Any = None
    reserved_bytes: int = 0
    last_error: str = ""
    number: tuple[int, ...] = ()
    attempts: int = 0
    in_doubt: bool = False  # an attempt was not answered, or in a way that tells not whether it is in the log
    producer_id: int = -1
    producer_epoch: int = -1
    base_sequence: int = -1
    expired: bool = False
    plan: RequestPlan | None = None
    """The request that it is in flight with."""


@dataclass(slots=True, eq=False)
class RequestPlan:
    """One Produce request: at most one batch of each partition, all led by one node."""

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
    new_epoch_due: bool = False
    gave_up: bool = False  # a batch of this epoch, which may have left a gap
    is_known: bool = False  # the broker has taken a batch of this producer id and epoch
    retry_at_ms: float = 0.0


class WriterCore:
    """The partitions' queues and the nodes' in-flight counts."""

    def __init__(
        self,
        *,
        idempotent: bool,
        waits_for_answers: bool,
        in_flight_requests_max: int,
        request_bytes_max: int,
        retries_max: int,
        backoff_ms: Callable[[int], float],
    ) -> None:
        self._idempotent = idempotent
        self._in_flight_max = in_flight_requests_max
        self._in_flight_per_partition = in_flight_requests_max if idempotent or not waits_for_answers else 1
        self._request_bytes_max = request_bytes_max
        self._retries_max = retries_max
        self._backoff_ms = backoff_ms
        self._producer_id = -1
        self._producer_epoch = -1
        self._partitions: dict[tuple[str, int], _Partition] = {}
        self._busy: dict[tuple[str, int], _Partition] = {}
        self._requests: dict[int, int] = {}
        self.leaderless: set[str] = set()
        """Topics that a drain found no leader for; the shell refreshes them and clears the set."""

    @property
    def needs_producer_id(self) -> bool:
        """True while batches wait for an InitProducerId answer."""
        return self._idempotent and self._producer_id < 0 and bool(self._busy)

    @property
    def is_idle(self) -> bool:
        """True when no batch is waiting or in flight."""
        return not self._busy

    def set_producer_id(self, producer_id: int, producer_epoch: int) -> None:
        """Take the answer of InitProducerId."""
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch

    def add(self, batch: ReadyBatch) -> None:
        """Queue a batch behind those of its partition."""
        key = (batch.topic, batch.partition)
        state = self._partitions.get(key)
        if state is None:
            state = self._partitions[key] = _Partition()
        batch.number = (state.added,)
        state.added += 1
        state.waiting.append(batch)
        self._busy[key] = state

    def can_take_more(self, topic: str, partition: int) -> bool:
        """True when a batch added now would not have to queue behind another one."""
        state = self._busy.get((topic, partition))
        return state is None or (not state.waiting and self._has_room(state, state.added))

    # -- sending -----------------------------------------------------------------------------------------------------

    def drain(
        self, now_ms: float, leader_of: Callable[[str, int], int | None], is_ready: Callable[[int], bool]
    ) -> list[RequestPlan]:
        """Return the requests to send now, one at most for each ready node; call again until nothing comes."""
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
            self._launch(key, state, plan)
        sent = [plan for plan in plans.values() if plan.batches]
        for plan in sent:
            self._requests[plan.node_id] = self._requests.get(plan.node_id, 0) + 1
        return sent

    def request_done(self, node_id: int) -> None:
        """Count a request as answered or lost; its batches are resolved one by one beside this."""
        self._requests[node_id] -= 1

    def _may_send(self, state: _Partition, now_ms: float) -> bool:
        if not state.waiting or now_ms < state.retry_at_ms:
            return False
        if self._idempotent and self._producer_id < 0 and state.producer_id < 0:
            return False
        if state.new_epoch_due or state.waiting[0].attempts or _is_part(state.waiting[0]):
            return not state.in_flight
        if state.in_flight and _is_part(state.in_flight[-1]):  # may be too large still: nothing overtakes it
            return False
        return self._has_room(state, state.waiting[0].number[0])

    def _has_room(self, state: _Partition, number: int) -> bool:
        """Whether the batch may be in flight behind the oldest that is: a broker remembers the last five of a producer.

        They are not always as many as are in flight: when the leader moves, those behind may be acknowledged first.
        """
        return not state.in_flight or number - state.in_flight[0].number[0] < self._in_flight_limit(state)

    def _in_flight_limit(self, state: _Partition) -> int:
        """A broker takes any sequence from a producer that it does not know: nothing may overtake the first batch."""
        return self._in_flight_per_partition if state.is_known or not self._idempotent else 1

    def _prepare_sequence(self, state: _Partition, batch: ReadyBatch) -> bool:
        """Give the batch its producer id, epoch and sequence; False when a new producer id has to come first."""
        if state.new_epoch_due and not self._begin_epoch(state):
            return False
        if batch.base_sequence >= 0:
            return True
        if state.producer_id < 0:
            state.producer_id, state.producer_epoch, state.next_sequence = self._producer_id, self._producer_epoch, 0
            state.is_known = False
        batch.producer_id, batch.producer_epoch = state.producer_id, state.producer_epoch
        batch.base_sequence = state.next_sequence
        state.next_sequence = (state.next_sequence + batch.count) & SEQUENCE_MAX
        stamp(batch.data, batch.producer_id, batch.producer_epoch, batch.base_sequence)
        return True

    def _begin_epoch(self, state: _Partition) -> bool:
        state.new_epoch_due = state.is_known = state.gave_up = False
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

    def _launch(self, key: tuple[str, int], state: _Partition, plan: RequestPlan) -> None:
        batch = state.waiting.popleft()
        batch.attempts += 1
        state.in_flight.append(batch)
        plan.batches.append(batch)
        batch.plan = plan
        plan.size_bytes += len(batch.data)
        del self._busy[key]  # to the end: partitions take turns
        self._busy[key] = state

    # -- answers -----------------------------------------------------------------------------------------------------

    def acknowledge(self, batch: ReadyBatch) -> Verdict:
        """The batch is in the log (or, with acks=0, on its way)."""
        self._land(batch).is_known = True
        return Verdict.FORGOTTEN if batch.expired else Verdict.DONE

    def refuse(self, batch: ReadyBatch, code: ErrorCode, now_ms: float) -> Verdict:
        """The broker answered the batch with an error."""
        if code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            return self.acknowledge(batch)
        state = self._land(batch)
        if self._idempotent and code in _SEQUENCE_ERRORS:
            return self._out_of_sequence(state, batch, code, now_ms)
        if code in _TOO_LARGE and batch.count > 1 and not batch.in_doubt:
            return self._gone(state, batch, Verdict.SPLIT)
        if code.is_retriable:
            batch.in_doubt = self._idempotent
            return self._retry_or_fail(state, batch, now_ms)
        return self._gone(state, batch, Verdict.FAILED)

    def _out_of_sequence(self, state: _Partition, batch: ReadyBatch, code: ErrorCode, now_ms: float) -> Verdict:
        if _has_earlier(state, batch):
            return self._retry_or_fail(state, batch, now_ms)
        if batch.in_doubt:
            return self._gone(state, batch, Verdict.FAILED)
        state.new_epoch_due = True
        is_loss = code is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and not state.gave_up
        verdict = self._retry_or_fail(state, batch, now_ms)
        return Verdict.LOSS if is_loss and verdict is Verdict.RETRY else verdict

    def lose(self, batch: ReadyBatch, now_ms: float) -> Verdict:
        """The connection broke or the answer did not come: nobody knows whether the batch is in the log."""
        batch.in_doubt = self._idempotent
        return self._retry_or_fail(self._land(batch), batch, now_ms)

    def take_back(self, now_ms: float, leader_of: Callable[[str, int], int | None]) -> int:
        """Have what lies unanswered with a node that leads no more sent to the leader; return how many batches.

        Call it when the leaders may have changed. Nobody knows what became of them, as if the connection had broken;
        the answer that may yet come says nothing of them, for its request no longer holds them. Not without
        idempotence: the old request may yet be carried out, behind what is sent now.
        """
        taken = 0
        for key, state in list(self._busy.items()) if self._idempotent else ():
            leader = leader_of(*key) if state.in_flight else None
            for batch in list(state.in_flight) if leader is not None else ():
                if batch.attempts > self._retries_max or now_ms >= batch.deadline_ms:
                    break  # it can only wait for its answer, and those behind it, which are as old, with it
                plan = batch.plan
                if plan is None or plan.node_id == leader:
                    continue
                plan.batches.remove(batch)
                batch.data = bytearray(batch.data)  # the other may be under way still, and must stay as it is
                self.lose(batch, now_ms)
                taken += 1
        return taken

    def replace(self, batch: ReadyBatch, parts: list[ReadyBatch]) -> None:
        """Queue the parts of a batch that was too large in its place."""
        key = (batch.topic, batch.partition)
        state = self._partitions[key]
        for index, part in enumerate(parts):
            part.number = (*batch.number, index)
            _insert_in_order(state.waiting, part)
        self._busy[key] = state

    def expire(self, now_ms: float) -> list[ReadyBatch]:
        """Return the batches whose deadline passed; those in flight keep their place until their answer comes."""
        expired: list[ReadyBatch] = []
        for key, state in list(self._busy.items()):
            for batch in state.in_flight:
                if batch.deadline_ms <= now_ms and not batch.expired:
                    batch.expired = True
                    expired.append(batch)
            while state.waiting and state.waiting[0].deadline_ms <= now_ms:
                state.gave_up |= state.waiting[0].base_sequence >= 0
                expired.append(state.waiting.popleft())
            self._settle(key, state)
        return expired

    def next_event_ms(self, now_ms: float) -> float | None:
        """Return when a retry or a deadline is due next, None when only answers and leaders are waited for."""
        return min(self._events(now_ms), default=None)

    def abort(self) -> list[ReadyBatch]:
        """Forget everything that waits or flies and return it."""
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

    def _land(self, batch: ReadyBatch) -> _Partition:
        key = (batch.topic, batch.partition)
        state = self._partitions[key]
        state.in_flight.remove(batch)
        batch.plan = None
        self._settle(key, state)
        return state

    def _settle(self, key: tuple[str, int], state: _Partition) -> None:
        if not state.waiting and not state.in_flight:
            self._busy.pop(key, None)

    def _retry_or_fail(self, state: _Partition, batch: ReadyBatch, now_ms: float) -> Verdict:
        if batch.expired or batch.attempts > self._retries_max or now_ms >= batch.deadline_ms:
            state.gave_up = True
            return Verdict.FORGOTTEN if batch.expired else Verdict.FAILED
        state.retry_at_ms = now_ms + self._backoff_ms(batch.attempts - 1)
        _insert_in_order(state.waiting, batch)
        self._busy[batch.topic, batch.partition] = state
        return Verdict.RETRY

    def _gone(self, state: _Partition, batch: ReadyBatch, verdict: Verdict) -> Verdict:
        """The broker refused the batch for good. If nothing was sent behind it, its sequence numbers are used again."""
        is_last = not state.in_flight and not (state.waiting and state.waiting[0].base_sequence >= 0)
        if batch.base_sequence >= 0 and batch.attempts == 1 and is_last and not state.new_epoch_due:
            state.next_sequence = batch.base_sequence
        else:
            state.gave_up = True
        return Verdict.FORGOTTEN if batch.expired else verdict


def stamp(data: bytearray, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
    """Write the producer's fields into a built batch, with the new CRC."""
    _PRODUCER_STATE.pack_into(data, _PRODUCER_STATE_OFFSET, producer_id, producer_epoch, base_sequence)
    _UINT32.pack_into(data, CRC_OFFSET, crc32c(memoryview(data)[ATTRIBUTES_OFFSET:]))


def _is_part(batch: ReadyBatch) -> bool:
    """Whether it was cut from a batch that was too large."""
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
