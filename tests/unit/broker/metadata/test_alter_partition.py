"""Tests of AlterPartition: accepted and rejected ISR changes (KIP-497, KIP-903)."""

from __future__ import annotations

import pytest

from headrace_broker.metadata.controller_result import ControllerResult
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.isr import alter_partitions
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionRequestTopicData,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    BrokerState,
)
from support.images import TOPIC_ID, apply_result, cluster_image, describe_partition, partition_image, topic_configs


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
) -> ControllerResult[AlterPartitionResponse]:
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
    return alter_partitions(image, request, topic_configs())


def partition_result(result: ControllerResult[AlterPartitionResponse]) -> AlterPartitionResponsePartitionData:
    return result.response.topics[0].partitions[0]


IMAGE = cluster_image(partition_image("123", "12", 1, leader_epoch=3, partition_epoch=7))


def test_accepted_isr_change_returns_new_partition_state() -> None:
    result = alter(IMAGE, "123")
    partition = partition_result(result)
    assert (partition.error_code, partition.isr, partition.leader_epoch, partition.partition_epoch) == (
        0,
        [1, 2, 3],
        3,
        8,
    )
    assert describe_partition(apply_result(IMAGE, result)) == "1/123//"


def test_replica_that_leaves_the_isr_joins_the_elr_if_the_remaining_isr_is_below_min_isr() -> None:
    assert describe_partition(apply_result(IMAGE, alter(IMAGE, "1"))) == "1/1/2/"


def test_isr_change_to_the_current_isr_writes_no_record() -> None:
    result = alter(IMAGE, "12")
    assert (result.records, partition_result(result).error_code, partition_result(result).partition_epoch) == ([], 0, 7)


@pytest.mark.parametrize(
    ("overrides", "code"),
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
def test_rejected_isr_change_writes_no_record(overrides: dict[str, object], code: ErrorCode) -> None:
    result = alter(IMAGE, **{"isr": "123", **overrides})  # type: ignore[arg-type]
    assert (partition_result(result).error_code, result.records) == (code, [])


def test_replica_with_an_outdated_broker_epoch_cannot_join_isr() -> None:
    """Test rule R6 in docs/broker.md.

    The broker epoch belongs to an earlier incarnation of the broker. The current incarnation may have lost records.
    """
    result = alter(IMAGE, "123", epochs={3: 99})
    assert (partition_result(result).error_code, result.records) == (ErrorCode.INELIGIBLE_REPLICA, [])


def test_fenced_broker_cannot_join_isr() -> None:
    image = cluster_image(partition_image("123", "12", 1, leader_epoch=3, partition_epoch=7), fenced="3")
    assert partition_result(alter(image, "123")).error_code == ErrorCode.INELIGIBLE_REPLICA


def test_isr_change_with_broker_epoch_minus_one_is_accepted() -> None:
    assert partition_result(alter(IMAGE, "123", epochs={3: -1})).error_code == 0


def test_alter_partition_request_from_an_earlier_incarnation_of_the_leader_is_rejected() -> None:
    """Test rule R6 in docs/broker.md.

    The leader sent the request before its restart. The ISR that the leader proposes contains the leader itself, which
    may have lost records in the restart.
    """
    with pytest.raises(ApiError) as caught:
        alter_partitions(IMAGE, AlterPartitionRequest(broker_id=1, broker_epoch=7), topic_configs())
    assert caught.value.code == ErrorCode.STALE_BROKER_EPOCH


def test_isr_of_a_recovering_leader_cannot_be_expanded_until_the_leader_reports_that_it_has_recovered() -> None:
    image = cluster_image(partition_image("123", "1", 1, leader_epoch=3, partition_epoch=7, leader_recovery_state=1))
    assert partition_result(alter(image, "12", recovery=1)).error_code == ErrorCode.INVALID_REQUEST
    result = alter(image, "1", recovery=0)
    assert partition_result(result).leader_recovery_state == 0
    assert apply_result(image, result).topics["t"].partitions[0].leader_recovery_state == 0


def test_isr_change_that_completes_a_reassignment_replaces_a_leader_that_the_reassignment_removes() -> None:
    image = cluster_image(
        partition_image("312", "12", 1, leader_epoch=3, partition_epoch=7, adding_replicas=(3,), removing_replicas=(1,))
    )
    result = alter(image, "123")
    assert partition_result(result).error_code == ErrorCode.NEW_LEADER_ELECTED
    assert describe_partition(apply_result(image, result)) == "3/23//"
    assert apply_result(image, result).topics["t"].partitions[0].replicas == (3, 2)
