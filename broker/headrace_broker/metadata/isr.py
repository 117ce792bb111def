"""AlterPartition: the leader of a partition expands or shrinks its ISR (KIP-497, KIP-841, KIP-903).

The controller accepts a change only if the sender is the leader of the current leader epoch and the request contains
the current partition epoch. So if two changes start from the same state, only one of them succeeds. A replica cannot
join the ISR if its broker is fenced or in controlled shutdown. It also cannot join if its broker has registered again,
with a new broker epoch, after the replica's last fetch from the leader.
"""

from __future__ import annotations

from headrace_broker.metadata.brokers import validate_broker_epoch
from headrace_broker.metadata.controller_result import ControllerResult
from headrace_broker.metadata.delta import apply_partition_change
from headrace_broker.metadata.image import MetadataImage, PartitionImage, TopicImage
from headrace_broker.metadata.leadership import TopicConfigs, partition_change
from headrace_broker.metadata.partition_changes import NO_LEADER_CHANGE, RECOVERED, RECOVERING
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.alter_partition import (
    AlterPartitionRequest,
    AlterPartitionRequestPartitionData,
    AlterPartitionResponse,
    AlterPartitionResponsePartitionData,
    AlterPartitionResponseTopicData,
    BrokerState,
)
from headrace_broker.protocol.metadata_records import MetadataRecord

_ANY_EPOCH = -1


def alter_partitions(
    image: MetadataImage, request: AlterPartitionRequest, topic_configs: TopicConfigs
) -> ControllerResult[AlterPartitionResponse]:
    """Handle AlterPartition. Each partition has its own error code. Raises ApiError STALE_BROKER_EPOCH."""
    validate_broker_epoch(image, request.broker_id, request.broker_epoch)
    records: list[MetadataRecord] = []
    topics: list[AlterPartitionResponseTopicData] = []
    for requested in request.topics:
        topic = image.topic_by_id(requested.topic_id)
        results = [
            AlterPartitionResponsePartitionData(
                partition_index=data.partition_index, error_code=ErrorCode.UNKNOWN_TOPIC_ID
            )
            if topic is None
            else _alter(image, request.broker_id, topic, data, topic_configs, records)
            for data in requested.partitions
        ]
        topics.append(AlterPartitionResponseTopicData(topic_id=requested.topic_id, partitions=results))
    return ControllerResult(AlterPartitionResponse(topics=topics), records)


def _alter(
    image: MetadataImage,
    broker_id: int,
    topic: TopicImage,
    data: AlterPartitionRequestPartitionData,
    topic_configs: TopicConfigs,
    records: list[MetadataRecord],
) -> AlterPartitionResponsePartitionData:
    result = AlterPartitionResponsePartitionData(partition_index=data.partition_index)
    states = data.new_isr_with_epochs or [BrokerState(broker_id=item) for item in data.new_isr]
    error = _validate(image, broker_id, topic, data, states)
    if error is not ErrorCode.NONE:
        result.error_code = error
        return result
    change = partition_change(image, topic, data.partition_index, topic_configs)
    change.isr = [state.broker_id for state in states]
    change.recovery_state = data.leader_recovery_state
    record = change.record()
    partition = topic.partitions[data.partition_index]
    if record is not None:
        records.append(record)
        partition = apply_partition_change(partition, record)
        if record.leader not in (
            NO_LEADER_CHANGE,
            broker_id,
        ):  # the change completed a reassignment and moved the leader
            result.error_code = ErrorCode.NEW_LEADER_ELECTED
            return result
    result.leader_id = partition.leader
    result.leader_epoch = partition.leader_epoch
    result.isr = list(partition.isr)
    result.leader_recovery_state = partition.leader_recovery_state
    result.partition_epoch = partition.partition_epoch
    return result


def _validate(
    image: MetadataImage,
    broker_id: int,
    topic: TopicImage,
    data: AlterPartitionRequestPartitionData,
    states: list[BrokerState],
) -> ErrorCode:
    if not 0 <= data.partition_index < len(topic.partitions):
        return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    partition = topic.partitions[data.partition_index]
    if data.leader_epoch > partition.leader_epoch or data.partition_epoch > partition.partition_epoch:
        return ErrorCode.NOT_CONTROLLER  # the leader has newer metadata than this node: another controller is active
    if data.leader_epoch < partition.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if broker_id != partition.leader:
        return ErrorCode.INVALID_REQUEST
    if data.partition_epoch < partition.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    new_isr = [state.broker_id for state in states]
    if not _is_valid_isr(partition, new_isr) or not _is_valid_recovery_state(
        partition, new_isr, data.leader_recovery_state
    ):
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE if all(_is_eligible(image, state) for state in states) else ErrorCode.INELIGIBLE_REPLICA


def _is_valid_isr(partition: PartitionImage, new_isr: list[int]) -> bool:
    members = set(new_isr)
    return len(members) == len(new_isr) and members <= set(partition.replicas) and partition.leader in members


def _is_valid_recovery_state(partition: PartitionImage, new_isr: list[int], recovery_state: int) -> bool:
    if recovery_state == RECOVERING:
        return len(new_isr) == 1 and partition.leader_recovery_state != RECOVERED
    return True


def _is_eligible(image: MetadataImage, state: BrokerState) -> bool:
    broker = image.brokers.get(state.broker_id)
    return (
        broker is not None
        and not broker.fenced
        and not broker.in_controlled_shutdown
        and state.broker_epoch in (_ANY_EPOCH, broker.epoch)
    )
