"""AlterPartitionReassignments: moves of partitions to other brokers, begun and taken back (KIP-455, KIP-860).

A move first adds the new replicas; when they are in sync, an AlterPartition of the leader completes it
(`partition_changes`).  A move that replaces one under way starts from the replicas that the partition had before.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace_broker.metadata.image import MetadataImage, PartitionImage, TopicImage
from headrace_broker.metadata.leadership import TopicRules, change_of
from headrace_broker.metadata.outcome import Outcome
from headrace_broker.metadata.partition_changes import Election, PartitionChange
from headrace_broker.metadata.placement import listed
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)
from headrace_broker.protocol.metadata_records import MetadataRecord
from headrace_broker.protocol.topic_names import INTERNAL_TOPICS


def alter_reassignments(
    image: MetadataImage, request: AlterPartitionReassignmentsRequest, rules: TopicRules
) -> Outcome[AlterPartitionReassignmentsResponse]:
    """Begin or cancel each move that can be; every partition has its own answer."""
    may_resize = request.allow_replication_factor_change
    response = AlterPartitionReassignmentsResponse(error_message=None, allow_replication_factor_change=may_resize)
    records: list[MetadataRecord] = []
    seen: set[tuple[str, int]] = set()
    for topic in request.topics:
        answers: list[ReassignablePartitionResponse] = []
        for wanted in topic.partitions:
            answer = ReassignablePartitionResponse(partition_index=wanted.partition_index, error_message=None)
            try:
                if (topic.name, wanted.partition_index) in seen:
                    raise ApiError(
                        ErrorCode.INVALID_REQUEST,
                        f"{topic.name}-{wanted.partition_index} is named twice in one request.",
                    )
                seen.add((topic.name, wanted.partition_index))
                record = _change(image, topic.name, wanted, rules, may_resize).record()
                records += [] if record is None else [record]
            except ApiError as error:
                answer.error_code, answer.error_message = error.code, error.message
            answers.append(answer)
        response.responses.append(ReassignableTopicResponse(name=topic.name, partitions=answers))
    return Outcome(response, records)


def is_moving(partition: PartitionImage) -> bool:
    """Whether a move is under way."""
    return bool(partition.adding_replicas or partition.removing_replicas)


def grow_internal_topics(image: MetadataImage, replication_factor: int, rules: TopicRules) -> Outcome[int]:
    """Add live brokers to internal topics that were made while there were fewer than `replication_factor`.

    Answers how many partitions begin to grow; those that are moving already, or have no leader, wait.
    """
    live = sorted(broker.broker_id for broker in image.live_brokers())
    factor = min(replication_factor, len(live))
    records: list[MetadataRecord] = []
    for name in INTERNAL_TOPICS & image.topics.keys():
        topic = image.topics[name]
        for index, partition in enumerate(topic.partitions):
            if len(partition.replicas) >= factor or partition.leader < 0 or is_moving(partition):
                continue
            others = [broker for broker in (*live[index % len(live) :], *live) if broker not in partition.replicas]
            added = list(dict.fromkeys(others))[: factor - len(partition.replicas)]
            record = _begun(image, topic, index, [*partition.replicas, *added], rules, may_resize=True).record()
            records += [] if record is None else [record]
    return Outcome(len(records), records)


def _change(
    image: MetadataImage, name: str, wanted: ReassignablePartition, rules: TopicRules, may_resize: bool
) -> PartitionChange:
    topic = image.topics.get(name)
    if topic is None or not 0 <= wanted.partition_index < len(topic.partitions):
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {name}-{wanted.partition_index}.")
    if wanted.replicas is None:
        return _cancelled(image, topic, wanted.partition_index, rules)
    return _begun(image, topic, wanted.partition_index, wanted.replicas, rules, may_resize)


def _begun(
    image: MetadataImage, topic: TopicImage, index: int, target: Sequence[int], rules: TopicRules, may_resize: bool
) -> PartitionChange:
    partition = topic.partitions[index]
    before = _replicas_before(partition)
    _check_target(image, f"{topic.name}-{index}", target)
    if not may_resize and len(target) != len(before):
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"{topic.name}-{index} has {len(before)} replicas and would have {len(target)}, "
            "which this request does not allow.",
        )
    change = change_of(image, topic, index, rules)
    change.election = Election.ONLINE
    change.removing = [replica for replica in partition.replicas if replica not in target]
    change.adding = [replica for replica in target if replica not in before]
    change.replicas = [*target, *change.removing]
    return change


def _check_target(image: MetadataImage, name: str, target: Sequence[int]) -> None:
    if not target or len(set(target)) != len(target):
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{name} needs a list of different brokers, not {listed(target)}."
        )
    unknown = next((broker for broker in target if broker not in image.brokers), None)
    if unknown is not None:
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{name} is to go to broker {unknown}, which is not registered."
        )


def _cancelled(image: MetadataImage, topic: TopicImage, index: int, rules: TopicRules) -> PartitionChange:
    partition = topic.partitions[index]
    if not is_moving(partition):
        raise ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    change = change_of(image, topic, index, rules)
    change.replicas = _replicas_before(partition)
    change.isr = [replica for replica in partition.isr if replica in change.replicas]
    change.adding, change.removing = [], []
    if not change.isr and not rules.unclean_election_enabled(image, topic.name):
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{topic.name}-{index} cannot go back: none of its former replicas is in sync, "
            "and unclean.leader.election.enable is false.",
        )
    return change


def _replicas_before(partition: PartitionImage) -> list[int]:
    return [replica for replica in partition.replicas if replica not in partition.adding_replicas]
