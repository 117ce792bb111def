"""OffsetFetch in its two shapes: one group (up to v7), or several (from v8 on)."""

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


def asked_groups(request: OffsetFetchRequest, version: int) -> list[OffsetFetchRequestGroup]:
    """The groups that a request of any version asks for."""
    if version >= MANY_GROUPS_VERSION:
        return request.groups
    topics = request.topics
    asked = (
        None
        if topics is None
        else [OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes) for topic in topics]
    )
    return [OffsetFetchRequestGroup(group_id=request.group_id, topics=asked)]


def group_error(group: OffsetFetchRequestGroup, error: ErrorCode, version: int) -> OffsetFetchResponseGroup:
    """A whole group's error; v1 has no place for it but its partitions."""
    topics = []
    if version < _TOP_LEVEL_ERROR_VERSION:
        topics = [refused_topic(topic, error) for topic in group.topics or []]
    return OffsetFetchResponseGroup(group_id=group.group_id, error_code=error, topics=topics)


def refused_topic(topic: OffsetFetchRequestTopics, error: ErrorCode) -> OffsetFetchResponseTopics:
    return OffsetFetchResponseTopics(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetFetchResponsePartitions(partition_index=partition, committed_offset=-1, metadata="", error_code=error)
            for partition in topic.partition_indexes
        ],
    )


def fetch_response(groups: list[OffsetFetchResponseGroup], version: int) -> OffsetFetchResponse:
    """The answer in the shape of the version."""
    if version >= MANY_GROUPS_VERSION:
        return OffsetFetchResponse(groups=groups)
    (group,) = groups
    topics = [
        OffsetFetchResponseTopic(name=topic.name, partitions=[_single(part) for part in topic.partitions])
        for topic in group.topics
    ]
    return OffsetFetchResponse(topics=topics, error_code=group.error_code)


def _single(part: OffsetFetchResponsePartitions) -> OffsetFetchResponsePartition:
    return OffsetFetchResponsePartition(
        partition_index=part.partition_index,
        committed_offset=part.committed_offset,
        committed_leader_epoch=part.committed_leader_epoch,
        metadata=part.metadata,
        error_code=part.error_code,
    )
