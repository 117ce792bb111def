"""OffsetCommit (8): store how far a group has read.

Version notes: 2-4 carry a retention of their own; 6 adds leader epochs, 7 static members; 9 calls the generation a
member epoch as well; 10 names topics by id. Partitions that do not exist are refused one by one.
"""

from __future__ import annotations

from headrace_broker.metadata.image import MetadataImage, TopicImage
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages import OffsetCommitRequest, OffsetCommitResponse
from headrace_broker.protocol.messages.offset_commit import (
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.large_requests import Parts

API_KEY = ApiKey.OFFSET_COMMIT
VERSIONS = (2, 10)
PARTS = (Parts(("topics", "partitions"), ("topics", "partitions")),)

_TOPIC_IDS_VERSION = 10


async def handle(context: RequestContext, request: OffsetCommitRequest, version: int) -> OffsetCommitResponse:
    """Hand the partitions that exist to the coordinator, and refuse the others."""
    refused: list[OffsetCommitResponseTopic] = []
    known: list[OffsetCommitRequestTopic] = []
    for topic in request.topics:
        _sort_out(topic, context.image, version, known, refused)
    if not known and refused:
        return OffsetCommitResponse(topics=refused)
    request.topics = known
    response = await context.groups.commit_offsets(request, version)
    response.topics = _merged(response.topics, refused)
    return response


def _sort_out(
    topic: OffsetCommitRequestTopic,
    image: MetadataImage,
    version: int,
    known: list[OffsetCommitRequestTopic],
    refused: list[OffsetCommitResponseTopic],
) -> None:
    if version >= _TOPIC_IDS_VERSION:
        found = image.topic_by_id(topic.topic_id)
        unknown_topic = ErrorCode.UNKNOWN_TOPIC_ID
        topic.name = found.name if found is not None else ""
    else:
        found = image.topics.get(topic.name)
        unknown_topic = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if found is None:
        refused.append(_refusal(topic, topic.partitions, unknown_topic))
        return
    exist, missing = _by_existence(topic, found)
    if missing:
        refused.append(_refusal(topic, missing, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    if exist:
        known.append(OffsetCommitRequestTopic(name=topic.name, topic_id=topic.topic_id, partitions=exist))


def _by_existence(
    topic: OffsetCommitRequestTopic, found: TopicImage
) -> tuple[list[OffsetCommitRequestPartition], list[OffsetCommitRequestPartition]]:
    count = len(found.partitions)
    exist = [partition for partition in topic.partitions if 0 <= partition.partition_index < count]
    if len(exist) == len(topic.partitions):
        return exist, []
    return exist, [partition for partition in topic.partitions if not 0 <= partition.partition_index < count]


def _refusal(
    topic: OffsetCommitRequestTopic, partitions: list[OffsetCommitRequestPartition], error: ErrorCode
) -> OffsetCommitResponseTopic:
    return OffsetCommitResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        partitions=[
            OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=error)
            for partition in partitions
        ],
    )


def _merged(
    stored: list[OffsetCommitResponseTopic], refused: list[OffsetCommitResponseTopic]
) -> list[OffsetCommitResponseTopic]:
    """One entry per topic, though some of its partitions were stored and some refused."""
    by_topic = {(topic.name, topic.topic_id): topic for topic in stored}
    for topic in refused:
        entry = by_topic.setdefault((topic.name, topic.topic_id), topic)
        if entry is not topic:
            entry.partitions.extend(topic.partitions)
    return list(by_topic.values())
