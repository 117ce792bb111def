"""The writer's core against a broker that loses requests, loses answers, moves leaders and forgets producers."""

from __future__ import annotations

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_broker.client.writer_core import ReadyBatch, RequestPlan, Verdict, WriterCore
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.records.batch import SEQUENCE_MAX, read_header
from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns
from headrace_broker.records.reader import read_columns

FATES = ("ok", "ok", "ok", "lost", "stalled", "not leader", "too few replicas", "refused")
DEADLINE_MS = 100


class LogModel:
    """One partition as a broker keeps it: Kafka's sequence checks, and the last five batches of a producer."""

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.epoch = -1
        self.next_sequence = 0
        self.recent: deque[tuple[int, int]] = deque(maxlen=5)
        self.history: list[tuple[int, int, int, int]] = []  # epoch, first and last sequence, values before

    def restart(self) -> None:
        """Apache Kafka's snapshots hold a producer's last batch alone."""
        while len(self.recent) > 1:
            self.recent.popleft()

    def lose(self, count: int) -> None:
        """An unclean election: the log ends earlier, and what was acknowledged may go with the rest."""
        count = min(count, len(self.history) - 1)  # a producer that is not known at all may begin anywhere
        for _ in range(count):
            del self.values[self.history.pop()[3] :]
        if count > 0:
            self.epoch, first, last, _ = self.history[-1]
            self.next_sequence = (last + 1) & SEQUENCE_MAX
            self.recent = deque([(first, last)], maxlen=5)

    def append(self, data: bytearray) -> ErrorCode:
        header = read_header(data)
        if header.producer_id >= 0:
            if header.producer_epoch < self.epoch:
                return ErrorCode.INVALID_PRODUCER_EPOCH
            if header.producer_epoch > self.epoch:
                if header.base_sequence != 0:
                    return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
                self.recent.clear()
            elif (header.base_sequence, header.last_sequence) in self.recent:
                return ErrorCode.NONE
            elif header.base_sequence != self.next_sequence:
                return ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            self.epoch = header.producer_epoch
            self.next_sequence = (header.last_sequence + 1) & SEQUENCE_MAX
            self.recent.append((header.base_sequence, header.last_sequence))
            self.history.append((header.producer_epoch, header.base_sequence, header.last_sequence, len(self.values)))
        self.values += read_columns(data).values
        return ErrorCode.NONE


class World:
    """The core, a log for each partition, and requests in flight on connections that break."""

    def __init__(self, *, idempotent: bool, partitions: int) -> None:
        self.core = WriterCore(
            idempotent=idempotent,
            waits_for_answers=True,
            in_flight_requests_max=5,
            request_bytes_max=1_000_000,
            retries_max=2**31 - 1,
            backoff_ms=lambda attempts: 10,
        )
        self.core.set_producer_id(1, 0)
        self.logs = [LogModel() for _ in range(partitions)]
        self.leaders = [0] * partitions
        self.answers: dict[ReadyBatch, ErrorCode] = {}  # that are under way
        self.in_flight: deque[RequestPlan] = deque()
        self.sent: list[list[bytes]] = [[] for _ in range(partitions)]
        self.outcome: dict[bytes, Verdict] = {}
        self.stalled: deque[tuple[int, bytearray]] = deque()
        self.now_ms = 0.0
        self.losses = 0

    def send(self, partition: int, count: int, deadline_ms: int = DEADLINE_MS) -> list[bytes]:
        values = [b"%d-%d" % (partition, len(self.sent[partition]) + index) for index in range(count)]
        self.sent[partition] += values
        data = build_batch(RecordColumns(list(values), timestamps=1))
        self.core.add(ReadyBatch("t", partition, data, count, self.now_ms + deadline_ms, completion=values))
        return values

    def pump(self) -> None:
        while plans := self.core.drain(self.now_ms, self.leader_of, lambda node: True):
            self.in_flight.extend(plans)

    def leader_of(self, topic: str, partition: int) -> int:
        return self.leaders[partition]

    def move(self, partition: int, arrived: int) -> None:
        """The leader hangs, and another takes over: the first `arrived` requests had been carried out, others may be at
        some later time, when it leads again; its answers come after all that others say."""
        old = self.leaders[partition]
        sent = [(plan, batch) for plan in self.in_flight if plan.node_id == old for batch in plan.batches]
        self.leaders[partition] = 1 - old
        self.in_flight = deque(sorted(self.in_flight, key=lambda plan: plan.node_id == old))
        self.core.take_back(self.now_ms, self.leader_of)
        for index, (plan, batch) in enumerate(item for item in sent if item[1].partition == partition):
            if index < arrived:
                code = self.logs[partition].append(batch.data)
                if batch in plan.batches:
                    self.answers.setdefault(batch, code)
            elif batch not in plan.batches:
                self.stalled.append((partition, bytearray(batch.data)))

    def answer(self, fate: str, arrived: int = 0) -> None:
        """Let the oldest request meet its fate; a lost connection takes those behind it along, as TCP does."""
        if not self.in_flight:
            return
        if fate in ("lost", "stalled"):
            self.break_connection(arrived=arrived, stalled=fate == "stalled")
            return
        plan = self.in_flight.popleft()
        self.core.request_done(plan.node_id)
        for batch in plan.batches:
            code = self.code_for(fate, batch)
            verdict = (
                self.core.acknowledge(batch) if code == ErrorCode.NONE else self.core.refuse(batch, code, self.now_ms)
            )
            self.settle(batch, verdict)

    def break_connection(self, *, arrived: int, stalled: bool) -> None:
        """The first `arrived` requests were carried out; the rest are never, or (stalled) at some later time."""
        doomed = list(self.in_flight)
        self.in_flight.clear()
        batches = [bytearray(batch.data) for plan in doomed for batch in plan.batches]
        partitions = [batch.partition for plan in doomed for batch in plan.batches]
        for data, partition in list(zip(batches, partitions, strict=True))[:arrived]:
            self.logs[partition].append(data)
        if stalled:
            self.stalled.extend(list(zip(partitions, batches, strict=True))[arrived:])
        for plan in doomed:
            self.core.request_done(plan.node_id)
            for batch in plan.batches:
                self.answers.pop(batch, None)
                self.settle(batch, self.core.lose(batch, self.now_ms))

    def carry_out_stalled(self, count: int) -> None:
        """The broker comes to requests of a connection that its client has given up."""
        for _ in range(min(count, len(self.stalled))):
            partition, data = self.stalled.popleft()
            self.logs[partition].append(data)

    def wait(self, duration_ms: int) -> None:
        self.now_ms += duration_ms
        for batch in self.core.expire(self.now_ms):
            self.settle(batch, Verdict.FAILED)

    def code_for(self, fate: str, batch: ReadyBatch) -> ErrorCode:
        if batch in self.answers:
            return self.answers.pop(batch)
        if fate == "not leader":
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if fate == "refused":
            return ErrorCode.INVALID_RECORD
        if batch.plan is not None and batch.plan.node_id != self.leaders[batch.partition]:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        code = self.logs[batch.partition].append(batch.data)
        if fate == "too few replicas" and code == ErrorCode.NONE:
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return code

    def settle(self, batch: ReadyBatch, verdict: Verdict) -> None:
        self.losses += verdict is Verdict.LOSS
        for value in batch.completion:
            if verdict not in (Verdict.RETRY, Verdict.LOSS, Verdict.FORGOTTEN):
                assert value not in self.outcome
                self.outcome[value] = verdict

    def finish(self) -> None:
        """Everything goes well from now on: what is sent last must get through, and soon."""
        last = [value for partition in range(len(self.logs)) for value in self.send(partition, 1, 10_000)]
        for _ in range(50):
            self.wait(20)
            self.pump()
            self.carry_out_stalled(1)
            while self.in_flight:
                self.answer("ok")
                self.pump()
            if self.core.is_idle:
                break
        assert all(self.outcome.get(value) is Verdict.DONE for value in last)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 1), st.integers(1, 3)),
        st.tuples(st.just("answer"), st.sampled_from(FATES), st.integers(0, 4)),
        st.tuples(st.just("stalled"), st.integers(1, 3), st.just(0)),
        st.tuples(st.just("wait"), st.integers(1, 30), st.just(0)),
        st.tuples(st.just("restart"), st.integers(0, 1), st.just(0)),
        st.tuples(st.just("move"), st.integers(0, 1), st.integers(0, 4)),
    ),
    max_size=60,
)
WITH_LOSSES = st.lists(
    st.one_of(EVENTS, st.tuples(st.just("lose"), st.integers(0, 1), st.integers(1, 3)).map(lambda event: [event]))
).map(lambda lists: [event for events in lists for event in events])


def run(events: list[tuple[str, int | str, int]], *, idempotent: bool) -> World:
    world = World(idempotent=idempotent, partitions=2)
    for kind, first, second in events:
        if kind == "send":
            world.send(int(first), second)
        elif kind == "answer":
            fate = "lost" if first == "stalled" and not idempotent else str(first)  # order cannot hold against that
            world.answer(fate, second)
        elif kind == "stalled":
            world.carry_out_stalled(int(first))
        elif kind == "restart":
            world.logs[int(first)].restart()
        elif kind == "move":
            world.move(int(first), second if idempotent else 5)  # order cannot hold against what comes late
        elif kind == "lose":
            world.logs[int(first)].lose(second)
        else:
            world.wait(int(first))
        world.pump()
    world.finish()
    return world


@settings(max_examples=300, deadline=None)
@given(EVENTS)
def test_an_idempotent_writer_neither_duplicates_nor_reorders_nor_loses(
    events: list[tuple[str, int | str, int]],
) -> None:
    world = run(events, idempotent=True)
    for partition, log in enumerate(world.logs):
        acknowledged = [value for value in world.sent[partition] if world.outcome.get(value) is Verdict.DONE]
        assert len(log.values) == len(set(log.values))
        kept = [value for value in log.values if value is not None]
        assert [value for value in world.sent[partition] if value in set(kept)] == kept
        assert set(acknowledged) <= set(kept)
    assert world.losses == 0


@settings(max_examples=300, deadline=None)
@given(WITH_LOSSES)
def test_what_a_log_loses_is_not_made_up_for_by_duplicates(events: list[tuple[str, int | str, int]]) -> None:
    for log, sent in zip((world := run(events, idempotent=True)).logs, world.sent, strict=True):
        assert len(log.values) == len(set(log.values))
        assert [value for value in sent if value in set(log.values)] == log.values


@settings(max_examples=200, deadline=None)
@given(EVENTS)
def test_without_idempotence_order_holds_and_nothing_acknowledged_is_lost(
    events: list[tuple[str, int | str, int]],
) -> None:
    world = run(events, idempotent=False)
    for partition, log in enumerate(world.logs):
        first_seen = list(dict.fromkeys(value for value in log.values if value is not None))
        assert first_seen == [value for value in world.sent[partition] if value in set(first_seen)]
        assert {value for value in world.sent[partition] if world.outcome.get(value) is Verdict.DONE} <= set(first_seen)
