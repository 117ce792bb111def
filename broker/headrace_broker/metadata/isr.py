"""AlterPartition: the leader of a partition wants other replicas to count as in sync (KIP-497, KIP-841, KIP-903).

Taken only from the leader of this epoch and on the newest state of the partition, so of two changes that were worked
out on the same state one is refused.  Whoever is fenced, on its way out, or registered anew since the leader saw it
(another broker epoch) does not become in sync.
"""

from __future__ import annotations

from headrace_broker.metadata.brokers import checked_broker
from headrace_broker.metadata.delta import changed_partition
from headrace_broker.metadata.image import MetadataImage, PartitionImage, TopicImage
from headrace_broker.metadata.leadership import TopicRules, change_of
from headrace_broker.metadata.outcome import Outcome
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
    image: MetadataImage, request: AlterPartitionRequest, rules: TopicRules
) -> Outcome[AlterPartitionResponse]:
    """Change what can be changed; each partition has its own answer.  Raises ApiError STALE_BROKER_EPOCH."""
    checked_broker(image, request.broker_id, request.broker_epoch)
    records: list[MetadataRecord] = []
    topics: list[AlterPartitionResponseTopicData] = []
    for wanted in request.topics:
        topic = image.topic_by_id(wanted.topic_id)
        answers = [
            AlterPartitionResponsePartitionData(
                partition_index=data.partition_index, error_code=ErrorCode.UNKNOWN_TOPIC_ID
            )
            if topic is None
            else _alter(image, request.broker_id, topic, data, rules, records)
            for data in wanted.partitions
        ]
        topics.append(AlterPartitionResponseTopicData(topic_id=wanted.topic_id, partitions=answers))
    return Outcome(AlterPartitionResponse(topics=topics), records)


def _alter(
    image: MetadataImage,
    broker_id: int,
    topic: TopicImage,
    data: AlterPartitionRequestPartitionData,
    rules: TopicRules,
    records: list[MetadataRecord],
) -> AlterPartitionResponsePartitionData:
    answer = AlterPartitionResponsePartitionData(partition_index=data.partition_index)
    states = data.new_isr_with_epochs or [BrokerState(broker_id=item) for item in data.new_isr]
    error = _refusal(image, broker_id, topic, data, states)
    if error is not ErrorCode.NONE:
        answer.error_code = error
        return answer
    change = change_of(image, topic, data.partition_index, rules)
    change.isr = [state.broker_id for state in states]
    change.recovery_state = data.leader_recovery_state
    record = change.record()
    partition = topic.partitions[data.partition_index]
    if record is not None:
        records.append(record)
        partition = changed_partition(partition, record)
        if record.leader not in (NO_LEADER_CHANGE, broker_id):  # it completed a reassignment that moves the leader
            answer.error_code = ErrorCode.NEW_LEADER_ELECTED
            return answer
    answer.leader_id = partition.leader
    answer.leader_epoch = partition.leader_epoch
    answer.isr = list(partition.isr)
    answer.leader_recovery_state = partition.leader_recovery_state
    answer.partition_epoch = partition.partition_epoch
    return answer


def _refusal(
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
        return ErrorCode.NOT_CONTROLLER  # the leader has seen more than we have: somebody else is the controller
    if data.leader_epoch < partition.leader_epoch:
        return ErrorCode.FENCED_LEADER_EPOCH
    if broker_id != partition.leader:
        return ErrorCode.INVALID_REQUEST
    if data.partition_epoch < partition.partition_epoch:
        return ErrorCode.INVALID_UPDATE_VERSION
    new_isr = [state.broker_id for state in states]
    if not _is_valid(partition, new_isr) or not _recovery_is_valid(partition, new_isr, data.leader_recovery_state):
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE if all(_is_eligible(image, state) for state in states) else ErrorCode.INELIGIBLE_REPLICA


def _is_valid(partition: PartitionImage, new_isr: list[int]) -> bool:
    members = set(new_isr)
    return len(members) == len(new_isr) and members <= set(partition.replicas) and partition.leader in members


def _recovery_is_valid(partition: PartitionImage, new_isr: list[int], recovery_state: int) -> bool:
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
