"""AlterPartition: which changes of the in-sync replicas are made, and how the others are refused (KIP-497, KIP-903)."""

from __future__ import annotations

import pytest

from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.isr import alter_partitions
from headrace_broker.metadata.outcome import Outcome
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    BrokerState,
)
from support.images import TOPIC_ID, after, cluster_image, partition_image, rules, shown


def alter(
    image: MetadataImage,
    isr: str,
    *,
    broker: int = 1,
    index: int = 0,
    leader_epoch: int = 3,
    partition_epoch: int = 7,
    recovery: int = 0,
    epochs: dict[int, int] | None = None,
    topic_id: bytes = TOPIC_ID,
) -> Outcome[AlterPartitionResponse]:
    states = [
        BrokerState(broker_id=int(digit), broker_epoch=(epochs or {}).get(int(digit), 100 + int(digit)))
        for digit in isr
    ]
    data = AlterPartitionRequestPartitionData(
        partition_index=index,
        leader_epoch=leader_epoch,
        partition_epoch=partition_epoch,
        leader_recovery_state=recovery,
        new_isr_with_epochs=states,
    )
    request = AlterPartitionRequest(
        broker_id=broker,
        broker_epoch=100 + broker,
        topics=[AlterPartitionRequestTopicData(topic_id=topic_id, partitions=[data])],
    )
    return alter_partitions(image, request, rules())


def only(outcome: Outcome[AlterPartitionResponse]) -> AlterPartitionResponsePartitionData:
    return outcome.response.topics[0].partitions[0]


IMAGE = cluster_image(partition_image("123", "12", 1, leader_epoch=3, partition_epoch=7))


def test_a_change_is_made_and_answered_with_the_new_state() -> None:
    outcome = alter(IMAGE, "123")
    answer = only(outcome)
    assert (answer.error_code, answer.isr, answer.leader_epoch, answer.partition_epoch) == (0, [1, 2, 3], 3, 8)
    assert shown(after(IMAGE, outcome)) == "1/123//"


def test_who_leaves_too_small_a_set_stays_eligible() -> None:
    assert shown(after(IMAGE, alter(IMAGE, "1"))) == "1/1/2/"


def test_what_is_so_already_needs_no_record() -> None:
    outcome = alter(IMAGE, "12")
    assert (outcome.records, only(outcome).error_code, only(outcome).partition_epoch) == ([], 0, 7)


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        ({"leader_epoch": 2}, ErrorCode.FENCED_LEADER_EPOCH),
        ({"leader_epoch": 4}, ErrorCode.NOT_CONTROLLER),
        ({"partition_epoch": 6}, ErrorCode.INVALID_UPDATE_VERSION),
        ({"partition_epoch": 8}, ErrorCode.NOT_CONTROLLER),
        ({"broker": 2}, ErrorCode.INVALID_REQUEST),
        ({"isr": "23"}, ErrorCode.INVALID_REQUEST),
        ({"isr": "124"}, ErrorCode.INVALID_REQUEST),
        ({"isr": "112"}, ErrorCode.INVALID_REQUEST),
        ({"index": 5}, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ({"topic_id": b"x" * 16}, ErrorCode.UNKNOWN_TOPIC_ID),
        ({"recovery": 1}, ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_is_refused_changes_nothing(wanted: dict[str, object], code: ErrorCode) -> None:
    outcome = alter(IMAGE, **{"isr": "123", **wanted})  # type: ignore[arg-type]
    assert (only(outcome).error_code, outcome.records) == (code, [])


def test_a_process_that_is_not_the_registered_one_does_not_join() -> None:
    """R6: the leader saw one that is gone; the one there now may have lost everything."""
    outcome = alter(IMAGE, "123", epochs={3: 99})
    assert (only(outcome).error_code, outcome.records) == (ErrorCode.INELIGIBLE_REPLICA, [])


def test_fenced_brokers_do_not_join() -> None:
    image = cluster_image(partition_image("123", "12", 1, leader_epoch=3, partition_epoch=7), fenced="3")
    assert only(alter(image, "123")).error_code == ErrorCode.INELIGIBLE_REPLICA


def test_a_broker_epoch_that_is_not_known_is_taken_as_it_is() -> None:
    assert only(alter(IMAGE, "123", epochs={3: -1})).error_code == 0


def test_an_old_incarnation_of_the_leader_alters_nothing() -> None:
    """R6."""
    with pytest.raises(ApiError) as caught:
        alter_partitions(IMAGE, AlterPartitionRequest(broker_id=1, broker_epoch=7), rules())
    assert caught.value.code == ErrorCode.STALE_BROKER_EPOCH


def test_a_recovering_leader_stays_alone_until_it_has_recovered() -> None:
    image = cluster_image(partition_image("123", "1", 1, leader_epoch=3, partition_epoch=7, leader_recovery_state=1))
    assert only(alter(image, "12", recovery=1)).error_code == ErrorCode.INVALID_REQUEST
    outcome = alter(image, "1", recovery=0)
    assert only(outcome).leader_recovery_state == 0
    assert after(image, outcome).topics["t"].partitions[0].leader_recovery_state == 0


def test_the_replica_that_completes_a_move_may_take_the_leaders_place() -> None:
    image = cluster_image(
        partition_image("312", "12", 1, leader_epoch=3, partition_epoch=7, adding_replicas=(3,), removing_replicas=(1,))
    )
    outcome = alter(image, "123")
    assert only(outcome).error_code == ErrorCode.NEW_LEADER_ELECTED
    assert shown(after(image, outcome)) == "3/23//"
    assert after(image, outcome).topics["t"].partitions[0].replicas == (3, 2)
