"""Property tests of ProducerCore with brokers that lose requests, responses, leadership and producer state."""

from __future__ import annotations

from collections import deque

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace_broker.client.producer_core import ProducerCore, ReadyBatch, RequestPlan, Verdict
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.records.batch import SEQUENCE_MAX, read_header
from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns
from headrace_broker.records.reader import read_columns
from support.examples import examples

RESULTS = ("ok", "ok", "ok", "lost", "stalled", "not leader", "too few replicas", "rejected")
DEADLINE_MS = 100


class LogModel:
    """A model of a partition's log with Kafka's checks of sequence numbers.

    Like Kafka, the model stores the producer's last five batches.
    """

    def __init__(self) -> None:
        self.values: list[bytes | None] = []
        self.epoch = -1
        self.next_sequence = 0
        self.recent: deque[tuple[int, int]] = deque(maxlen=5)
        # (epoch, first sequence, last sequence, count of earlier values) of each batch
        self.history: list[tuple[int, int, int, int]] = []

    def restart(self) -> None:
        """Restart the broker. Afterwards, it knows only the producer's last batch, as in Kafka's producer snapshots."""
        while len(self.recent) > 1:
            self.recent.popleft()

    def truncate(self, count: int) -> None:
        """Remove the last `count` batches, even acknowledged batches, as after an unclean leader election."""
        count = min(count, len(self.history) - 1)  # a log without any batch would accept any sequence number
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


class ProducerModel:
    """A ProducerCore, a log for each partition, and requests in flight on connections that can fail."""

    def __init__(self, *, idempotent: bool, partitions: int, is_at_least_once: bool = False) -> None:
        self.core = ProducerCore(
            idempotent=idempotent,
            expects_responses=True,
            in_flight_requests_max=5,
            request_bytes_max=1_000_000,
            retries_max=2**31 - 1,
            backoff_ms=lambda attempts: 10,
            is_at_least_once=is_at_least_once,
        )
        self.core.set_producer_id(1, 0)
        self.logs = [LogModel() for _ in range(partitions)]
        self.leaders = [0] * partitions
        self.late_responses: dict[ReadyBatch, ErrorCode] = {}  # responses of former leaders, not received yet
        self.in_flight: deque[RequestPlan] = deque()
        self.sent: list[list[bytes]] = [[] for _ in range(partitions)]
        self.outcome: dict[bytes, Verdict] = {}
        self.stalled: deque[tuple[int, bytearray]] = deque()
        self.now_ms = 0.0
        self.data_losses = 0
        self.rejected: set[bytes] = set()  # values of the batches rejected with INVALID_RECORD

    def send(self, partition: int, count: int, deadline_ms: int = DEADLINE_MS) -> list[bytes]:
        values = [b"%d-%d" % (partition, len(self.sent[partition]) + index) for index in range(count)]
        self.sent[partition] += values
        data = build_batch(RecordColumns(list(values), timestamps=1))
        self.core.add(ReadyBatch("t", partition, data, count, self.now_ms + deadline_ms, delivery_parts=values))
        return values

    def pump(self) -> None:
        while plans := self.core.drain(self.now_ms, self.leader_of, lambda node: True):
            self.in_flight.extend(plans)

    def leader_of(self, topic: str, partition: int) -> int:
        return self.leaders[partition]

    def change_leader(self, partition: int, arrived: int) -> None:
        """Elect another leader because the old leader hangs.

        The old leader has appended the first `arrived` batches. It may append the remaining batches
        later, when it is the leader again. Its responses arrive after the new leader's responses.
        """
        old = self.leaders[partition]
        sent = [(plan, batch) for plan in self.in_flight if plan.node_id == old for batch in plan.batches]
        self.leaders[partition] = 1 - old
        self.in_flight = deque(sorted(self.in_flight, key=lambda plan: plan.node_id == old))
        self.core.requeue_from_former_leaders(self.now_ms, self.leader_of)
        for index, (plan, batch) in enumerate(item for item in sent if item[1].partition == partition):
            if index < arrived:
                code = self.logs[partition].append(batch.data)
                if batch in plan.batches:
                    self.late_responses.setdefault(batch, code)
            elif batch not in plan.batches:
                self.stalled.append((partition, bytearray(batch.data)))

    def complete_oldest_request(self, result: str, arrived: int = 0) -> None:
        """Complete the oldest request with `result`.

        If `result` is "lost" or "stalled", the connection is lost and all later requests fail too. `arrived` is the
        number of batches that were appended before the connection was lost.
        """
        if not self.in_flight:
            return
        if result in ("lost", "stalled"):
            self.break_connection(arrived=arrived, stalled=result == "stalled")
            return
        plan = self.in_flight.popleft()
        self.core.request_done(plan.node_id)
        for batch in plan.batches:
            code = self.code_for(result, batch)
            verdict = (
                self.core.acknowledge(batch)
                if code == ErrorCode.NONE
                else self.core.handle_error(batch, code, self.now_ms)
            )
            self.record_outcome(batch, verdict)

    def break_connection(self, *, arrived: int, stalled: bool) -> None:
        """Fail all requests.

        The first `arrived` batches have been appended. If `stalled` is true, the remaining batches may
        be appended later. Otherwise the remaining batches are lost.
        """
        lost_requests = list(self.in_flight)
        self.in_flight.clear()
        batches = [bytearray(batch.data) for plan in lost_requests for batch in plan.batches]
        partitions = [batch.partition for plan in lost_requests for batch in plan.batches]
        for data, partition in list(zip(batches, partitions, strict=True))[:arrived]:
            self.logs[partition].append(data)
        if stalled:
            self.stalled.extend(list(zip(partitions, batches, strict=True))[arrived:])
        for plan in lost_requests:
            self.core.request_done(plan.node_id)
            for batch in plan.batches:
                self.late_responses.pop(batch, None)
                self.record_outcome(batch, self.core.handle_disconnect(batch, self.now_ms))

    def process_stalled_requests(self, count: int) -> None:
        """Append the first `count` stalled batches.

        The client has already closed the connections on which it sent these batches.
        """
        for _ in range(min(count, len(self.stalled))):
            partition, data = self.stalled.popleft()
            self.logs[partition].append(data)

    def wait(self, duration_ms: int) -> None:
        self.now_ms += duration_ms
        for batch in self.core.expire(self.now_ms):
            self.record_outcome(batch, Verdict.FAILED)

    def code_for(self, result: str, batch: ReadyBatch) -> ErrorCode:
        if batch in self.late_responses:
            return self.late_responses.pop(batch)
        if result == "not leader":
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        if result == "rejected":
            self.rejected.update(batch.delivery_parts)
            return ErrorCode.INVALID_RECORD
        if batch.plan is not None and batch.plan.node_id != self.leaders[batch.partition]:
            return ErrorCode.NOT_LEADER_OR_FOLLOWER
        code = self.logs[batch.partition].append(batch.data)
        if result == "too few replicas" and code == ErrorCode.NONE:
            return ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND
        return code

    def record_outcome(self, batch: ReadyBatch, verdict: Verdict) -> None:
        self.data_losses += verdict is Verdict.RETRY_AFTER_DATA_LOSS
        for value in batch.delivery_parts:
            if verdict not in (Verdict.RETRY, Verdict.RETRY_AFTER_DATA_LOSS, Verdict.ALREADY_EXPIRED):
                assert value not in self.outcome
                self.outcome[value] = verdict

    def finish(self) -> None:
        """Send more records without faults. Check that they are acknowledged within a limited time."""
        last = [value for partition in range(len(self.logs)) for value in self.send(partition, 1, 10_000)]
        for _ in range(50):
            self.wait(20)
            self.pump()
            self.process_stalled_requests(1)
            while self.in_flight:
                self.complete_oldest_request("ok")
                self.pump()
            if self.core.is_idle:
                break
        assert all(self.outcome.get(value) is Verdict.DONE for value in last)


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 1), st.integers(1, 3)),
        st.tuples(st.just("respond"), st.sampled_from(RESULTS), st.integers(0, 4)),
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


def run(
    events: list[tuple[str, int | str, int]],
    *,
    idempotent: bool,
    is_at_least_once: bool = False,
    deadline_ms: int = DEADLINE_MS,
) -> ProducerModel:
    model = ProducerModel(idempotent=idempotent, partitions=2, is_at_least_once=is_at_least_once)
    for kind, first, second in events:
        if kind == "send":
            model.send(int(first), second, deadline_ms)
        elif kind == "respond":
            # Without idempotence, a stalled batch that is appended late would break the record order.
            result = "lost" if first == "stalled" and not idempotent else str(first)
            model.complete_oldest_request(result, second)
        elif kind == "stalled":
            model.process_stalled_requests(int(first))
        elif kind == "restart":
            model.logs[int(first)].restart()
        elif kind == "move":
            # The old leader has appended all batches, because a later append would break the record order.
            model.change_leader(int(first), second if idempotent else 5)
        elif kind == "lose":
            model.logs[int(first)].truncate(second)
        else:
            model.wait(int(first))
        model.pump()
    model.finish()
    return model


@settings(max_examples=examples(300), deadline=None)
@given(EVENTS)
def test_idempotent_producer_writes_each_acknowledged_record_once_and_in_order(
    events: list[tuple[str, int | str, int]],
) -> None:
    model = run(events, idempotent=True)
    for partition, log in enumerate(model.logs):
        acknowledged = [value for value in model.sent[partition] if model.outcome.get(value) is Verdict.DONE]
        assert len(log.values) == len(set(log.values))
        kept = [value for value in log.values if value is not None]
        assert [value for value in model.sent[partition] if value in set(kept)] == kept
        assert set(acknowledged) <= set(kept)
    assert model.data_losses == 0


@settings(max_examples=examples(300), deadline=None)
@given(WITH_LOSSES)
def test_idempotent_producer_writes_no_duplicates_after_the_log_loses_records(
    events: list[tuple[str, int | str, int]],
) -> None:
    for log, sent in zip((model := run(events, idempotent=True)).logs, model.sent, strict=True):
        assert len(log.values) == len(set(log.values))
        assert [value for value in sent if value in set(log.values)] == log.values


@settings(max_examples=examples(300), deadline=None)
@given(WITH_LOSSES)
def test_at_least_once_producer_delivers_all_records_that_brokers_do_not_reject(
    events: list[tuple[str, int | str, int]],
) -> None:
    """The log may lose records after it has acknowledged them. The producer does not send these records again.

    After a loss, and after a rejected batch, a broker may respond OUT_OF_ORDER_SEQUENCE_NUMBER to a later batch. The
    producer must retry such a batch and not fail it. The delivery deadline is so late that no batch expires.
    """
    model = run(events, idempotent=True, is_at_least_once=True, deadline_ms=10_000_000)
    has_losses = any(kind == "lose" for kind, _, _ in events)
    for sent, log in zip(model.sent, model.logs, strict=True):
        for value in sent:
            assert value in model.rejected or model.outcome[value] is Verdict.DONE
            assert value in model.rejected or has_losses or value in log.values
        first_seen = list(dict.fromkeys(value for value in log.values if value is not None))
        assert has_losses or first_seen == [value for value in sent if value in set(first_seen)]


@settings(max_examples=examples(200), deadline=None)
@given(EVENTS)
def test_non_idempotent_producer_keeps_the_record_order_and_loses_no_acknowledged_records(
    events: list[tuple[str, int | str, int]],
) -> None:
    model = run(events, idempotent=False)
    for partition, log in enumerate(model.logs):
        first_seen = list(dict.fromkeys(value for value in log.values if value is not None))
        assert first_seen == [value for value in model.sent[partition] if value in set(first_seen)]
        assert {value for value in model.sent[partition] if model.outcome.get(value) is Verdict.DONE} <= set(first_seen)
