from __future__ import annotations

import pytest

from headrace_broker.client.errors import BrokerError
from headrace_broker.client.writer_core import PRODUCER_EPOCH_MAX, ReadyBatch, RequestPlan, Verdict, WriterCore
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.records.batch import read_header, verify_crc
from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns

TOPIC = "t"


def make_core(
    *, idempotent: bool = True, in_flight: int = 5, retries: int = 2**31 - 1, acks: bool = True
) -> WriterCore:
    core = WriterCore(
        idempotent=idempotent,
        waits_for_answers=acks,
        in_flight_requests_max=in_flight,
        request_bytes_max=1_000_000,
        retries_max=retries,
        backoff_ms=lambda attempts: 100,
    )
    core.set_producer_id(7, 0)
    return core


def known_core() -> WriterCore:
    """A core whose producer the broker knows: the record with sequence 0 is acknowledged."""
    core = make_core()
    core.add(make_batch(1))
    (batch,) = sent(drain(core))
    core.request_done(1)
    core.acknowledge(batch)
    return core


def make_batch(count: int = 2, partition: int = 0, deadline_ms: float = 10_000) -> ReadyBatch:
    data = build_batch(RecordColumns([b"value"] * count, timestamps=1))
    return ReadyBatch(TOPIC, partition, data, count, deadline_ms)


def drain(core: WriterCore, now_ms: float = 0) -> list[RequestPlan]:
    plans = []
    while more := core.drain(now_ms, lambda topic, partition: 1, lambda node: True):
        plans += more
    return plans


def sent(plans: list[RequestPlan]) -> list[ReadyBatch]:
    return [batch for plan in plans for batch in plan.batches]


def test_sequences_count_records_and_are_stamped_with_a_valid_crc() -> None:
    core = known_core()
    for count in (2, 3, 4):
        core.add(make_batch(count))
    batches = sent(drain(core))
    headers = [read_header(batch.data) for batch in batches]
    assert [(h.producer_id, h.producer_epoch, h.base_sequence) for h in headers] == [(7, 0, 1), (7, 0, 3), (7, 0, 6)]
    for batch, header in zip(batches, headers, strict=True):
        verify_crc(batch.data, 0, header)


def test_at_most_five_requests_of_a_node_are_in_flight() -> None:
    core = known_core()
    for _ in range(8):
        core.add(make_batch())
    plans = drain(core)
    assert len(plans) == 5
    core.request_done(1)
    assert core.acknowledge(plans[0].batches[0]) is Verdict.DONE
    assert len(drain(core)) == 1


def test_one_request_carries_one_batch_of_each_partition() -> None:
    core = make_core()
    for partition in (0, 1, 2):
        core.add(make_batch(partition=partition))
    plans = drain(core)
    assert len(plans) == 1
    assert [batch.partition for batch in plans[0].batches] == [0, 1, 2]


def test_nothing_overtakes_the_first_batch_of_a_producer() -> None:
    core = make_core()
    core.add(make_batch())
    core.add(make_batch())
    (first,) = sent(drain(core))
    assert not core.can_take_more(TOPIC, 0)
    core.request_done(1)
    core.refuse(first, ErrorCode.NOT_LEADER_OR_FOLLOWER, 0)
    (again,) = sent(drain(core, 200))
    assert again is first
    core.request_done(1)
    core.acknowledge(first)
    assert len(sent(drain(core, 200))) == 1


def test_without_idempotence_one_batch_of_a_partition_is_in_flight() -> None:
    core = make_core(idempotent=False)
    core.add(make_batch())
    core.add(make_batch())
    core.add(make_batch(partition=1))
    assert len(sent(drain(core))) == 2


def test_a_lost_request_is_sent_again_in_order_with_the_same_sequences() -> None:
    core = known_core()
    for _ in range(3):
        core.add(make_batch())
    first = sent(drain(core))
    sequences = [batch.base_sequence for batch in first]
    for batch in first:
        core.request_done(1)
        assert core.lose(batch, 1_000) is Verdict.RETRY
    assert drain(core, 1_050) == []
    again = []
    for now_ms in (1_100, 1_101, 1_102):
        (batch,) = sent(drain(core, now_ms))  # one at a time until all is mended
        again.append(batch)
        core.request_done(1)
        core.acknowledge(batch)
    assert again == first
    assert [batch.base_sequence for batch in again] == sequences
    assert core.is_idle


def test_a_gap_at_the_first_unresolved_batch_begins_a_new_epoch() -> None:
    core = known_core()
    core.add(make_batch(2))
    core.add(make_batch(3))
    first, second = sent(drain(core))
    core.request_done(1)
    assert core.refuse(first, ErrorCode.INVALID_RECORD, 0) is Verdict.FAILED
    core.request_done(1)
    assert core.refuse(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0) is Verdict.RETRY
    (again,) = sent(drain(core, 200))
    assert again is second
    header = read_header(again.data)
    assert (header.producer_epoch, header.base_sequence) == (1, 0)


def test_a_gap_where_everything_was_acknowledged_is_told_as_a_loss() -> None:
    core = known_core()
    core.add(make_batch())
    (batch,) = sent(drain(core))
    core.request_done(1)
    assert core.refuse(batch, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0) is Verdict.LOSS
    (again,) = sent(drain(core, 200))
    assert (again.producer_epoch, again.base_sequence) == (1, 0)


def test_a_batch_that_may_be_in_the_log_is_never_sent_in_another_epoch() -> None:
    core = known_core()
    core.add(make_batch(2))
    core.add(make_batch(2))
    first, second = sent(drain(core))
    for batch in (first, second):
        core.request_done(1)
        core.lose(batch, 0)
    (again,) = sent(drain(core, 200))
    core.request_done(1)
    assert core.refuse(again, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 200) is Verdict.FAILED
    (behind,) = sent(drain(core, 400))
    assert (behind.producer_epoch, behind.base_sequence) == (0, 3)


def test_a_batch_that_may_be_in_the_log_is_never_split() -> None:
    core = known_core()
    core.add(make_batch(2))
    (batch,) = sent(drain(core))
    core.request_done(1)
    core.refuse(batch, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, 0)
    (again,) = sent(drain(core, 200))
    core.request_done(1)
    assert core.refuse(again, ErrorCode.MESSAGE_TOO_LARGE, 200) is Verdict.FAILED


def test_out_of_order_behind_an_unresolved_batch_only_waits() -> None:
    core = known_core()
    core.add(make_batch())
    core.add(make_batch())
    first, second = sent(drain(core))
    core.request_done(1)
    core.refuse(first, ErrorCode.NOT_LEADER_OR_FOLLOWER, 0)
    core.request_done(1)
    core.refuse(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0)
    (again,) = sent(drain(core, 200))
    assert again is first
    assert (again.producer_epoch, again.base_sequence) == (0, 1)


def test_the_sequence_of_a_refused_batch_is_used_again_when_nothing_followed() -> None:
    core = make_core()
    core.add(make_batch(5))
    (batch,) = sent(drain(core))
    core.request_done(1)
    assert core.refuse(batch, ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0) is Verdict.FAILED
    core.add(make_batch(1))
    assert sent(drain(core))[0].base_sequence == 0


def test_a_batch_too_large_is_split_in_its_place() -> None:
    core = make_core()
    core.add(make_batch(4))
    (batch,) = sent(drain(core))
    core.add(make_batch(1))
    core.request_done(1)
    assert core.refuse(batch, ErrorCode.MESSAGE_TOO_LARGE, 0) is Verdict.SPLIT
    core.replace(batch, [make_batch(2), make_batch(2)])
    order = []
    for _ in range(3):  # one at a time: a part that is too large still must not be overtaken
        (part,) = sent(drain(core))
        order.append((part.count, part.base_sequence))
        core.request_done(1)
        core.acknowledge(part)
    assert order == [(2, 0), (2, 2), (1, 4)]


def test_a_part_that_is_too_large_again_keeps_its_place() -> None:
    core = make_core()
    core.add(make_batch(4))
    (batch,) = sent(drain(core))
    core.request_done(1)
    core.refuse(batch, ErrorCode.MESSAGE_TOO_LARGE, 0)
    core.replace(batch, [make_batch(2), make_batch(2)])
    (first,) = sent(drain(core))
    core.request_done(1)
    assert core.refuse(first, ErrorCode.MESSAGE_TOO_LARGE, 0) is Verdict.SPLIT
    core.replace(first, [make_batch(1), make_batch(1)])
    (part,) = sent(drain(core))
    assert (part.number, part.base_sequence) == ((0, 0, 0), 0)


def test_a_single_record_too_large_fails() -> None:
    core = make_core()
    core.add(make_batch(1))
    (batch,) = sent(drain(core))
    core.request_done(1)
    assert core.refuse(batch, ErrorCode.MESSAGE_TOO_LARGE, 0) is Verdict.FAILED


def test_duplicate_sequence_counts_as_acknowledged() -> None:
    core = make_core()
    core.add(make_batch())
    (batch,) = sent(drain(core))
    core.request_done(1)
    assert core.refuse(batch, ErrorCode.DUPLICATE_SEQUENCE_NUMBER, 0) is Verdict.DONE


def test_deadlines_hold_for_waiting_and_flying_batches() -> None:
    core = make_core(in_flight=1)
    core.add(make_batch(deadline_ms=500))
    core.add(make_batch(deadline_ms=600))
    (flying,) = sent(drain(core))
    assert core.next_event_ms(0) == 500
    expired = core.expire(700)
    assert len(expired) == 2
    assert expired[0] is flying
    core.request_done(1)
    assert core.acknowledge(flying) is Verdict.FORGOTTEN
    assert core.is_idle


def test_retries_end() -> None:
    core = make_core(idempotent=False, retries=1)
    core.add(make_batch())
    (batch,) = sent(drain(core))
    core.request_done(1)
    assert core.lose(batch, 0) is Verdict.RETRY
    (batch,) = sent(drain(core, 100))
    core.request_done(1)
    assert core.lose(batch, 100) is Verdict.FAILED


def test_other_partitions_go_on_while_one_is_in_back_off() -> None:
    core = make_core()
    core.add(make_batch(partition=0))
    (batch,) = sent(drain(core))
    core.request_done(1)
    core.refuse(batch, ErrorCode.NOT_LEADER_OR_FOLLOWER, 0)
    core.add(make_batch(partition=1))
    assert [b.partition for b in sent(drain(core, 1))] == [1]


def test_no_batch_goes_so_far_ahead_that_the_broker_forgets_those_before() -> None:
    """Four wait for a leader that is silent; the next one takes others, and would not know the four any more."""
    core = known_core()
    for _ in range(4):
        core.add(make_batch())
    silent = sent(drain(core))
    taken = 0
    for _ in range(8):
        core.add(make_batch())
        for plan in core.drain(0, lambda topic, partition: 2, lambda node: True):
            core.request_done(2)
            core.acknowledge(plan.batches[0])
            taken += 1
    assert taken == 1
    for batch in silent:
        core.lose(batch, 0)
    core.request_done(1)
    assert sent(core.drain(1000, lambda topic, partition: 2, lambda node: True)) == silent[:1]


@pytest.mark.parametrize("told", ["1 replica in sync", "1 replica in sync."])
def test_a_doubt_is_told_in_a_clause_of_its_own(told: str) -> None:
    error = BrokerError(ErrorCode.NOT_ENOUGH_REPLICAS, "t-0", told).in_doubt()
    assert str(error).startswith("t-0: NOT_ENOUGH_REPLICAS: 1 replica in sync; what became of an earlier attempt")


def leader_2(topic: str, partition: int) -> int | None:
    return 2


def test_what_a_former_leader_has_not_answered_goes_to_the_next_in_order() -> None:
    """It hangs, perhaps for the whole request.timeout.ms; what it may say then is of another attempt."""
    core = known_core()
    batches = [make_batch() for _ in range(3)]
    elsewhere = make_batch(partition=1)
    for batch in (*batches, elsewhere):
        core.add(batch)
    silent = drain(core)
    stamped = [bytes(batch.data) for batch in batches]
    under_way = [batch.data for batch in batches]
    leaders = {0: 2, 1: 1}
    assert core.take_back(0, lambda topic, partition: leaders[partition]) == 3
    assert sent(silent) == [elsewhere]  # all that answers of the former leader can be for
    for batch in batches:
        (plan,) = core.drain(1000, leader_2, lambda node: True)
        assert (plan.node_id, plan.batches, bytes(batch.data)) == (2, [batch], stamped.pop(0))
        assert batch.in_doubt
        assert not any(batch.data is data for data in under_way)
        core.request_done(2)
        assert core.acknowledge(batch) is Verdict.DONE
    core.acknowledge(elsewhere)
    assert core.is_idle


def test_nothing_is_taken_back_that_could_not_be_sent_again() -> None:
    for core, now_ms in ((make_core(retries=0), 0), (make_core(), 10_000), (make_core(idempotent=False), 0)):
        core.add(make_batch())
        (plan,) = drain(core)
        assert core.take_back(now_ms, leader_2) == 0
        assert core.acknowledge(plan.batches[0]) is Verdict.DONE


def test_what_is_behind_a_batch_that_is_not_taken_back_stays_with_it() -> None:
    core = known_core()
    core.add(make_batch(deadline_ms=50))
    core.add(make_batch())
    plans = drain(core)
    assert core.take_back(50, leader_2) == 0
    assert [len(plan.batches) for plan in plans] == [1, 1]


def test_nothing_is_taken_back_while_nobody_else_leads() -> None:
    core = make_core()
    core.add(make_batch())
    (plan,) = drain(core)
    assert core.take_back(0, lambda topic, partition: None) == core.take_back(0, lambda topic, partition: 1) == 0
    assert core.acknowledge(plan.batches[0]) is Verdict.DONE


def test_a_partition_without_leader_is_reported_and_waits() -> None:
    core = make_core()
    core.add(make_batch())
    assert core.drain(0, lambda topic, partition: None, lambda node: True) == []
    assert core.leaderless == {TOPIC}


def test_an_exhausted_epoch_asks_for_a_new_producer_id() -> None:
    core = make_core()
    core.set_producer_id(7, PRODUCER_EPOCH_MAX)
    core.add(make_batch())
    (batch,) = sent(drain(core))
    core.request_done(1)
    core.refuse(batch, ErrorCode.UNKNOWN_PRODUCER_ID, 0)
    assert drain(core, 200) == []
    assert core.needs_producer_id
    core.set_producer_id(8, 0)
    (again,) = sent(drain(core, 300))
    assert (again.producer_id, again.producer_epoch, again.base_sequence) == (8, 0, 0)


@pytest.mark.parametrize("in_flight", [1, 3])
def test_acks_zero_needs_no_answers_to_go_on(in_flight: int) -> None:
    core = make_core(idempotent=False, acks=False, in_flight=in_flight)
    for _ in range(3):
        core.add(make_batch())
    total = 0
    while plans := core.drain(0, lambda topic, partition: 1, lambda node: True):
        for plan in plans:
            core.request_done(plan.node_id)
            for batch in plan.batches:
                assert core.acknowledge(batch) is Verdict.DONE
                total += 1
    assert total == 3
