"""Converts between the two formats of OffsetFetch: one group up to v7, several groups from v8 on."""

from __future__ import annotations

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages import OffsetFetchRequest, OffsetFetchResponse
from headrace_broker.protocol.messages.offset_fetch import (
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

MANY_GROUPS_VERSION = 8
_TOP_LEVEL_ERROR_VERSION = 2


def requested_groups(request: OffsetFetchRequest, version: int) -> list[OffsetFetchRequestGroup]:
    """Return the groups in a request of any version."""
    if version >= MANY_GROUPS_VERSION:
        return request.groups
    topics = request.topics
    requested = (
        None
        if topics is None
        else [OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes) for topic in topics]
    )
    return [OffsetFetchRequestGroup(group_id=request.group_id, topics=requested)]


def group_error(group: OffsetFetchRequestGroup, error: ErrorCode, version: int) -> OffsetFetchResponseGroup:
    """Build the response for a group whose offsets cannot be fetched.

    OffsetFetch v1 has no error field for the group, so the error is set for each partition.
    """
    topics = []
    if version < _TOP_LEVEL_ERROR_VERSION:
        topics = [topic_error(topic, error) for topic in group.topics or []]
    return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error, topics=topics)


def topic_error(topic: OffsetFetchRequestTopics, error: ErrorCode) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetFetchResponsePartitions(partition_index=partition, committed_offset=-1, metadata="", error_code=error)
            for partition in topic.partition_indexes
        ],
    )


def fetch_response(groups: list[OffsetFetchResponseGroup], version: int) -> OffsetFetchResponse:
    """Build the OffsetFetch response with the results of `groups`, in the format of `version`."""
    if version >= MANY_GROUPS_VERSION:
        return OffsetFetchResponse(groups=groups)
    (group,) = groups
    topics = [
        OffsetFetchResponseTopic(
            name=topic.name, partitions=[_to_single_group_format(partition) for partition in topic.partitions]
        )
        for topic in group.topics
    ]
    return OffsetFetchResponse(topics=topics, error_code=group.error_code)


def _to_single_group_format(partition: OffsetFetchResponsePartitions) -> OffsetFetchResponsePartition:
    return OffsetFetchResponsePartition(
        partition_index=partition.partition_index,
        committed_offset=partition.committed_offset,
        committed_leader_epoch=partition.committed_leader_epoch,
        metadata=partition.metadata,
        error_code=partition.error_code,
    )
