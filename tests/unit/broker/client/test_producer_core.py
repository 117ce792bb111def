from __future__ import annotations

import pytest

from headrace_broker.client.errors import BrokerError
from headrace_broker.client.producer_core import PRODUCER_EPOCH_MAX, ProducerCore, ReadyBatch, RequestPlan, Verdict
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.records.batch import read_header, verify_crc
from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns

TOPIC = "t"


def make_core(
    *,
    idempotent: bool = True,
    in_flight: int = 5,
    retries: int = 2**31 - 1,
    acks: bool = True,
    is_at_least_once: bool = False,
) -> ProducerCore:
    core = ProducerCore(
        idempotent=idempotent,
        expects_responses=acks,
        in_flight_requests_max=in_flight,
        request_bytes_max=1_000_000,
        retries_max=retries,
        backoff_ms=lambda attempts: 100,
        is_at_least_once=is_at_least_once,
    )
    core.set_producer_id(7, 0)
    return core


def known_core(*, is_at_least_once: bool = False) -> ProducerCore:
    """Return a core whose first batch, with sequence 0, is acknowledged, so the broker knows the producer."""
    core = make_core(is_at_least_once=is_at_least_once)
    core.add(make_batch(1))
    (batch,) = batches_of(drain(core))
    core.request_done(1)
    core.acknowledge(batch)
    return core


def make_batch(count: int = 2, partition: int = 0, deadline_ms: float = 10_000) -> ReadyBatch:
    data = build_batch(RecordColumns([b"value"] * count, timestamps=1))
    return ReadyBatch(TOPIC, partition, data, count, deadline_ms)


def drain(core: ProducerCore, now_ms: float = 0) -> list[RequestPlan]:
    plans = []
    while more := core.drain(now_ms, lambda topic, partition: 1, lambda node: True):
        plans += more
    return plans


def batches_of(plans: list[RequestPlan]) -> list[ReadyBatch]:
    return [batch for plan in plans for batch in plan.batches]


def test_base_sequence_of_a_batch_follows_the_last_sequence_of_the_previous_batch() -> None:
    """Each batch also has a valid CRC."""
    core = known_core()
    for count in (2, 3, 4):
        core.add(make_batch(count))
    batches = batches_of(drain(core))
    headers = [read_header(batch.data) for batch in batches]
    assert [(h.producer_id, h.producer_epoch, h.base_sequence) for h in headers] == [(7, 0, 1), (7, 0, 3), (7, 0, 6)]
    for batch, header in zip(batches, headers, strict=True):
        verify_crc(batch.data, 0, header)


def test_at_most_five_requests_to_a_node_are_in_flight() -> None:
    core = known_core()
    for _ in range(8):
        core.add(make_batch())
    plans = drain(core)
    assert len(plans) == 5
    core.request_done(1)
    assert core.acknowledge(plans[0].batches[0]) is Verdict.DONE
    assert len(drain(core)) == 1


def test_produce_request_contains_one_batch_for_each_partition() -> None:
    core = make_core()
    for partition in (0, 1, 2):
        core.add(make_batch(partition=partition))
    plans = drain(core)
    assert len(plans) == 1
    assert [batch.partition for batch in plans[0].batches] == [0, 1, 2]


def test_new_producer_does_not_send_its_second_batch_before_its_first_batch_is_acknowledged() -> None:
    core = make_core()
    core.add(make_batch())
    core.add(make_batch())
    (first,) = batches_of(drain(core))
    assert not core.can_send_immediately(TOPIC, 0)
    core.request_done(1)
    core.handle_error(first, ErrorCode.NOT_LEADER_OR_FOLLOWER, 0)
    (again,) = batches_of(drain(core, 200))
    assert again is first
    core.request_done(1)
    core.acknowledge(first)
    assert len(batches_of(drain(core, 200))) == 1


def test_non_idempotent_producer_sends_one_batch_of_a_partition_at_a_time() -> None:
    core = make_core(idempotent=False)
    core.add(make_batch())
    core.add(make_batch())
    core.add(make_batch(partition=1))
    assert len(batches_of(drain(core))) == 2


def test_batches_are_retried_in_order_with_same_sequences_after_disconnect() -> None:
    core = known_core()
    for _ in range(3):
        core.add(make_batch())
    first = batches_of(drain(core))
    sequences = [batch.base_sequence for batch in first]
    for batch in first:
        core.request_done(1)
        assert core.handle_disconnect(batch, 1_000) is Verdict.RETRY
    assert drain(core, 1_050) == []
    again = []
    for now_ms in (1_100, 1_101, 1_102):
        (batch,) = batches_of(drain(core, now_ms))  # one retried batch is in flight at a time
        again.append(batch)
        core.request_done(1)
        core.acknowledge(batch)
    assert again == first
    assert [batch.base_sequence for batch in again] == sequences
    assert core.is_idle


def test_producer_bumps_its_epoch_if_a_failed_batch_is_followed_by_an_out_of_order_sequence_error() -> None:
    core = known_core()
    core.add(make_batch(2))
    core.add(make_batch(3))
    first, second = batches_of(drain(core))
    core.request_done(1)
    assert core.handle_error(first, ErrorCode.INVALID_RECORD, 0) is Verdict.FAILED
    core.request_done(1)
    assert core.handle_error(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0) is Verdict.RETRY
    (again,) = batches_of(drain(core, 200))
    assert again is second
    header = read_header(again.data)
    assert (header.producer_epoch, header.base_sequence) == (1, 0)


def test_out_of_order_sequence_error_after_acknowledged_batches_is_reported_as_data_loss() -> None:
    core = known_core()
    core.add(make_batch())
    (batch,) = batches_of(drain(core))
    core.request_done(1)
    assert core.handle_error(batch, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0) is Verdict.RETRY_AFTER_DATA_LOSS
    (again,) = batches_of(drain(core, 200))
    assert (again.producer_epoch, again.base_sequence) == (1, 0)


def test_idempotent_producer_fails_a_batch_with_unknown_outcome_after_a_sequence_gap() -> None:
    """A resend with a new producer epoch could append the batch twice."""
    core = known_core()
    core.add(make_batch(2))
    core.add(make_batch(2))
    first, second = batches_of(drain(core))
    for batch in (first, second):
        core.request_done(1)
        core.handle_disconnect(batch, 0)
    (again,) = batches_of(drain(core, 200))
    core.request_done(1)
    assert core.handle_error(again, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 200) is Verdict.FAILED
    (behind,) = batches_of(drain(core, 400))
    assert (behind.producer_epoch, behind.base_sequence) == (0, 3)


def test_at_least_once_producer_bumps_its_epoch_and_resends_a_batch_with_unknown_outcome() -> None:
    core = known_core(is_at_least_once=True)
    core.add(make_batch(2))
    core.add(make_batch(2))
    first, second = batches_of(drain(core))
    for batch in (first, second):
        core.request_done(1)
        core.handle_disconnect(batch, 0)
    (again,) = batches_of(drain(core, 200))
    core.request_done(1)
    assert core.handle_error(again, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 200) is Verdict.RETRY
    (again,) = batches_of(drain(core, 400))
    assert again is first
    assert (again.producer_epoch, again.base_sequence) == (1, 0)
    core.request_done(1)
    core.acknowledge(again)
    (behind,) = batches_of(drain(core, 400))
    assert (behind.producer_epoch, behind.base_sequence) == (1, 2)


@pytest.mark.parametrize(("is_at_least_once", "verdict"), [(False, Verdict.FAILED), (True, Verdict.SPLIT)])
def test_batch_that_the_broker_may_have_appended_is_split_only_by_an_at_least_once_producer(
    is_at_least_once: bool, verdict: Verdict
) -> None:
    core = known_core(is_at_least_once=is_at_least_once)
    core.add(make_batch(2))
    (batch,) = batches_of(drain(core))
    core.request_done(1)
    core.handle_error(batch, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, 0)
    (again,) = batches_of(drain(core, 200))
    core.request_done(1)
    assert core.handle_error(again, ErrorCode.MESSAGE_TOO_LARGE, 200) is verdict


def test_out_of_order_sequence_error_causes_a_retry_in_the_same_epoch_while_an_earlier_batch_is_unresolved() -> None:
    core = known_core()
    core.add(make_batch())
    core.add(make_batch())
    first, second = batches_of(drain(core))
    core.request_done(1)
    core.handle_error(first, ErrorCode.NOT_LEADER_OR_FOLLOWER, 0)
    core.request_done(1)
    core.handle_error(second, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, 0)
    (again,) = batches_of(drain(core, 200))
    assert again is first
    assert (again.producer_epoch, again.base_sequence) == (0, 1)


def test_sequence_of_rejected_batch_is_reused_if_no_later_batch_was_sent() -> None:
    core = make_core()
    core.add(make_batch(5))
    (batch,) = batches_of(drain(core))
    core.request_done(1)
    assert core.handle_error(batch, ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0) is Verdict.FAILED
    core.add(make_batch(1))
    assert batches_of(drain(core))[0].base_sequence == 0


def test_batch_that_the_broker_rejects_as_too_large_is_split_and_its_parts_are_sent_in_its_place() -> None:
    core = make_core()
    core.add(make_batch(4))
    (batch,) = batches_of(drain(core))
    core.add(make_batch(1))
    core.request_done(1)
    assert core.handle_error(batch, ErrorCode.MESSAGE_TOO_LARGE, 0) is Verdict.SPLIT
    core.replace(batch, [make_batch(2), make_batch(2)])
    order = []
    for _ in range(3):  # one batch is in flight at a time, because a split batch may have to be split again
        (part,) = batches_of(drain(core))
        order.append((part.count, part.base_sequence))
        core.request_done(1)
        core.acknowledge(part)
    assert order == [(2, 0), (2, 2), (1, 4)]


def test_part_of_a_split_batch_that_is_still_too_large_is_split_again_and_keeps_its_place_in_the_send_order() -> None:
    core = make_core()
    core.add(make_batch(4))
    (batch,) = batches_of(drain(core))
    core.request_done(1)
    core.handle_error(batch, ErrorCode.MESSAGE_TOO_LARGE, 0)
    core.replace(batch, [make_batch(2), make_batch(2)])
    (first,) = batches_of(drain(core))
    core.request_done(1)
    assert core.handle_error(first, ErrorCode.MESSAGE_TOO_LARGE, 0) is Verdict.SPLIT
    core.replace(first, [make_batch(1), make_batch(1)])
    (part,) = batches_of(drain(core))
    assert (part.number, part.base_sequence) == ((0, 0, 0), 0)


def test_batch_that_the_broker_rejects_as_too_large_fails_if_it_contains_only_one_record() -> None:
    core = make_core()
    core.add(make_batch(1))
    (batch,) = batches_of(drain(core))
    core.request_done(1)
    assert core.handle_error(batch, ErrorCode.MESSAGE_TOO_LARGE, 0) is Verdict.FAILED


def test_batch_that_the_broker_rejects_as_a_duplicate_counts_as_acknowledged() -> None:
    core = make_core()
    core.add(make_batch())
    (batch,) = batches_of(drain(core))
    core.request_done(1)
    assert core.handle_error(batch, ErrorCode.DUPLICATE_SEQUENCE_NUMBER, 0) is Verdict.DONE


def test_queued_and_in_flight_batches_expire_at_their_deadline() -> None:
    core = make_core(in_flight=1)
    core.add(make_batch(deadline_ms=500))
    core.add(make_batch(deadline_ms=600))
    (in_flight,) = batches_of(drain(core))
    assert core.next_event_ms(0) == 500
    expired = core.expire(700)
    assert len(expired) == 2
    assert expired[0] is in_flight
    core.request_done(1)
    assert core.acknowledge(in_flight) is Verdict.ALREADY_EXPIRED
    assert core.is_idle


def test_batch_fails_after_its_last_retry() -> None:
    core = make_core(idempotent=False, retries=1)
    core.add(make_batch())
    (batch,) = batches_of(drain(core))
    core.request_done(1)
    assert core.handle_disconnect(batch, 0) is Verdict.RETRY
    (batch,) = batches_of(drain(core, 100))
    core.request_done(1)
    assert core.handle_disconnect(batch, 100) is Verdict.FAILED


def test_backoff_of_one_partition_does_not_delay_other_partitions() -> None:
    core = make_core()
    core.add(make_batch(partition=0))
    (batch,) = batches_of(drain(core))
    core.request_done(1)
    core.handle_error(batch, ErrorCode.NOT_LEADER_OR_FOLLOWER, 0)
    core.add(make_batch(partition=1))
    assert [b.partition for b in batches_of(drain(core, 1))] == [1]


def test_batch_is_not_sent_until_the_fifth_batch_before_it_is_acknowledged_or_has_failed() -> None:
    """Four batches were sent to a leader that does not respond, and another broker is now the leader.

    The new leader's log may already contain the four batches. A leader detects duplicates only of the producer's last
    five batches. If the producer sent two new batches before it retried the four batches, the first of the four batches
    would not be one of these five, and the leader would not detect that its retry is a duplicate.
    """
    core = known_core()
    for _ in range(4):
        core.add(make_batch())
    without_response = batches_of(drain(core))
    acknowledged = 0
    for _ in range(8):
        core.add(make_batch())
        for plan in core.drain(0, lambda topic, partition: 2, lambda node: True):
            core.request_done(2)
            core.acknowledge(plan.batches[0])
            acknowledged += 1
    assert acknowledged == 1
    for batch in without_response:
        core.handle_disconnect(batch, 0)
    core.request_done(1)
    assert batches_of(core.drain(1000, lambda topic, partition: 2, lambda node: True)) == without_response[:1]


@pytest.mark.parametrize("message", ["1 replica in sync", "1 replica in sync."])
def test_produce_error_message_says_that_an_earlier_attempt_has_an_unknown_outcome(
    message: str,
) -> None:
    error = BrokerError(ErrorCode.NOT_ENOUGH_REPLICAS, "t-0", message).with_unknown_outcome()
    assert str(error).startswith(
        "t-0: NOT_ENOUGH_REPLICAS: 1 replica in sync; an earlier attempt has an unknown outcome"
    )


def leader_2(topic: str, partition: int) -> int | None:
    return 2


def test_batches_without_a_response_from_the_former_leader_are_sent_to_the_new_leader_in_order() -> None:
    """The former leader may hang until request.timeout.ms. Its late response must not complete the resent batches."""
    core = known_core()
    batches = [make_batch() for _ in range(3)]
    elsewhere = make_batch(partition=1)
    for batch in (*batches, elsewhere):
        core.add(batch)
    without_response = drain(core)
    stamped = [bytes(batch.data) for batch in batches]
    original_data = [batch.data for batch in batches]
    leaders = {0: 2, 1: 1}
    assert core.requeue_from_former_leaders(0, lambda topic, partition: leaders[partition]) == 3
    assert batches_of(without_response) == [elsewhere]  # only this batch still waits for the former leader's response
    for batch in batches:
        (plan,) = core.drain(1000, leader_2, lambda node: True)
        assert (plan.node_id, plan.batches, bytes(batch.data)) == (2, [batch], stamped.pop(0))
        assert batch.outcome_unknown
        assert not any(batch.data is data for data in original_data)
        core.request_done(2)
        assert core.acknowledge(batch) is Verdict.DONE
    core.acknowledge(elsewhere)
    assert core.is_idle


def test_batches_that_cannot_be_retried_are_not_sent_to_the_new_leader() -> None:
    for core, now_ms in ((make_core(retries=0), 0), (make_core(), 10_000), (make_core(idempotent=False), 0)):
        core.add(make_batch())
        (plan,) = drain(core)
        assert core.requeue_from_former_leaders(now_ms, leader_2) == 0
        assert core.acknowledge(plan.batches[0]) is Verdict.DONE


def test_batches_after_a_batch_that_expired_in_flight_are_not_sent_to_the_new_leader() -> None:
    core = known_core()
    core.add(make_batch(deadline_ms=50))
    core.add(make_batch())
    plans = drain(core)
    assert core.requeue_from_former_leaders(50, leader_2) == 0
    assert [len(plan.batches) for plan in plans] == [1, 1]


def test_batches_in_flight_are_not_sent_again_while_the_partition_has_no_new_leader() -> None:
    core = make_core()
    core.add(make_batch())
    (plan,) = drain(core)
    assert (
        core.requeue_from_former_leaders(0, lambda topic, partition: None)
        == core.requeue_from_former_leaders(0, lambda topic, partition: 1)
        == 0
    )
    assert core.acknowledge(plan.batches[0]) is Verdict.DONE


def test_batch_for_a_partition_without_leader_adds_its_topic_to_leaderless_topics() -> None:
    core = make_core()
    core.add(make_batch())
    assert core.drain(0, lambda topic, partition: None, lambda node: True) == []
    assert core.leaderless == {TOPIC}


def test_producer_requests_a_new_producer_id_if_the_producer_epoch_cannot_be_bumped_further() -> None:
    core = make_core()
    core.set_producer_id(7, PRODUCER_EPOCH_MAX)
    core.add(make_batch())
    (batch,) = batches_of(drain(core))
    core.request_done(1)
    core.handle_error(batch, ErrorCode.UNKNOWN_PRODUCER_ID, 0)
    assert drain(core, 200) == []
    assert core.needs_producer_id
    core.set_producer_id(8, 0)
    (again,) = batches_of(drain(core, 300))
    assert (again.producer_id, again.producer_epoch, again.base_sequence) == (8, 0, 0)


@pytest.mark.parametrize("in_flight", [1, 3])
def test_producer_with_acks_0_sends_without_waiting_for_responses(in_flight: int) -> None:
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
