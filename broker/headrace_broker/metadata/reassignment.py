"""AlterPartitionReassignments: start and cancel partition reassignments (KIP-455, KIP-860).

A reassignment first adds the new replicas. When they are in sync, an AlterPartition request from the leader completes
the reassignment (`partition_changes`). If a new reassignment replaces a reassignment in progress, the new reassignment
starts from the original replicas.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace_broker.metadata.controller_result import ControllerResult
from headrace_broker.metadata.image import MetadataImage, PartitionImage, TopicImage
from headrace_broker.metadata.leadership import TopicConfigs, partition_change
from headrace_broker.metadata.partition_changes import Election, PartitionChange
from headrace_broker.metadata.placement import format_broker_ids
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
    image: MetadataImage, request: AlterPartitionReassignmentsRequest, topic_configs: TopicConfigs
) -> ControllerResult[AlterPartitionReassignmentsResponse]:
    """Start or cancel the requested reassignments. Each partition has its own error code."""
    may_resize = request.allow_replication_factor_change
    response = AlterPartitionReassignmentsResponse(error_message=None, allow_replication_factor_change=may_resize)
    records: list[MetadataRecord] = []
    seen: set[tuple[str, int]] = set()
    for topic in request.topics:
        results: list[ReassignablePartitionResponse] = []
        for requested in topic.partitions:
            result = ReassignablePartitionResponse(partition_index=requested.partition_index, error_message=None)
            try:
                if (topic.name, requested.partition_index) in seen:
                    raise ApiError(
                        ErrorCode.INVALID_REQUEST,
                        f"{topic.name}-{requested.partition_index} appears more than once in the request.",
                    )
                seen.add((topic.name, requested.partition_index))
                record = _reassign(image, topic.name, requested, topic_configs, may_resize).record()
                records += [] if record is None else [record]
            except ApiError as error:
                result.error_code, result.error_message = error.code, error.message
            results.append(result)
        response.responses.append(ReassignableTopicResponse(name=topic.name, partitions=results))
    return ControllerResult(response, records)


def is_reassigning(partition: PartitionImage) -> bool:
    """Return whether a reassignment of the partition is in progress."""
    return bool(partition.adding_replicas or partition.removing_replicas)


def grow_internal_topics(
    image: MetadataImage, replication_factor: int, topic_configs: TopicConfigs
) -> ControllerResult[int]:
    """Add replicas to internal topics that were created when fewer than `replication_factor` brokers were live.

    The result is the number of partitions whose reassignment starts. Partitions that are being reassigned or have no
    leader are skipped.
    """
    live = sorted(broker.broker_id for broker in image.live_brokers())
    factor = min(replication_factor, len(live))
    records: list[MetadataRecord] = []
    for name in INTERNAL_TOPICS & image.topics.keys():
        topic = image.topics[name]
        for index, partition in enumerate(topic.partitions):
            if len(partition.replicas) >= factor or partition.leader < 0 or is_reassigning(partition):
                continue
            others = [broker for broker in (*live[index % len(live) :], *live) if broker not in partition.replicas]
            added = list(dict.fromkeys(others))[: factor - len(partition.replicas)]
            record = _start_reassignment(
                image, topic, index, [*partition.replicas, *added], topic_configs, may_resize=True
            ).record()
            records += [] if record is None else [record]
    return ControllerResult(len(records), records)


def _reassign(
    image: MetadataImage, name: str, requested: ReassignablePartition, topic_configs: TopicConfigs, may_resize: bool
) -> PartitionChange:
    topic = image.topics.get(name)
    if topic is None or not 0 <= requested.partition_index < len(topic.partitions):
        raise ApiError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"There is no partition {name}-{requested.partition_index}."
        )
    if requested.replicas is None:
        return _cancel_reassignment(image, topic, requested.partition_index, topic_configs)
    return _start_reassignment(image, topic, requested.partition_index, requested.replicas, topic_configs, may_resize)


def _start_reassignment(
    image: MetadataImage,
    topic: TopicImage,
    index: int,
    target: Sequence[int],
    topic_configs: TopicConfigs,
    may_resize: bool,
) -> PartitionChange:
    partition = topic.partitions[index]
    original = _original_replicas(partition)
    _check_target(image, f"{topic.name}-{index}", target)
    if not may_resize and len(target) != len(original):
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"{topic.name}-{index} has {len(original)} replicas and would have {len(target)}, "
            "but the request does not allow a change of the replication factor.",
        )
    change = partition_change(image, topic, index, topic_configs)
    change.election = Election.ONLINE
    change.removing = [replica for replica in partition.replicas if replica not in target]
    change.adding = [replica for replica in target if replica not in original]
    change.replicas = [*target, *change.removing]
    return change


def _check_target(image: MetadataImage, name: str, target: Sequence[int]) -> None:
    if not target or len(set(target)) != len(target):
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{name} needs a list of distinct broker ids, not {format_broker_ids(target)}.",
        )
    unknown = next((broker for broker in target if broker not in image.brokers), None)
    if unknown is not None:
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"{name} cannot move to broker {unknown}, which is not registered."
        )


def _cancel_reassignment(
    image: MetadataImage, topic: TopicImage, index: int, topic_configs: TopicConfigs
) -> PartitionChange:
    partition = topic.partitions[index]
    if not is_reassigning(partition):
        raise ApiError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    change = partition_change(image, topic, index, topic_configs)
    change.replicas = _original_replicas(partition)
    change.isr = [replica for replica in partition.isr if replica in change.replicas]
    change.adding, change.removing = [], []
    if not change.isr and not topic_configs.unclean_election_enabled(image, topic.name):
        raise ApiError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"The reassignment of {topic.name}-{index} cannot be cancelled: none of the original replicas is in sync, "
            "and unclean.leader.election.enable is false.",
        )
    return change


def _original_replicas(partition: PartitionImage) -> list[int]:
    return [replica for replica in partition.replicas if replica not in partition.adding_replicas]
