"""OffsetCommit (8): commit a group's offsets.

Versions 2 to 4 have a retention time. Version 6 adds leader epochs. Version 7 adds static members. In version 9 and
later, the generation may be a member epoch. Version 10 identifies topics by id.

If a partition does not exist, the response contains an error for this partition. The offsets of the other partitions
are committed.
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
from headrace_broker.server.network.large_requests import RequestSplit

API_KEY = ApiKey.OFFSET_COMMIT
VERSIONS = (2, 10)
REQUEST_SPLITS = (RequestSplit(("topics", "partitions"), ("topics", "partitions")),)

_TOPIC_IDS_VERSION = 10


async def handle(context: RequestContext, request: OffsetCommitRequest, version: int) -> OffsetCommitResponse:
    """Pass the existing partitions to the coordinator, and return errors for missing partitions."""
    rejected: list[OffsetCommitResponseTopic] = []
    known: list[OffsetCommitRequestTopic] = []
    for topic in request.topics:
        _validate_topic(topic, context.image, version, known, rejected)
    if not known and rejected:
        return OffsetCommitResponse(topics=rejected)
    request.topics = known
    response = await context.groups.commit_offsets(request, version)
    response.topics = _merge(response.topics, rejected)
    return response


def _validate_topic(
    topic: OffsetCommitRequestTopic,
    image: MetadataImage,
    version: int,
    known: list[OffsetCommitRequestTopic],
    rejected: list[OffsetCommitResponseTopic],
) -> None:
    if version >= _TOPIC_IDS_VERSION:
        found = image.topic_by_id(topic.topic_id)
        unknown_topic = ErrorCode.UNKNOWN_TOPIC_ID
        topic.name = found.name if found is not None else ""
    else:
        found = image.topics.get(topic.name)
        unknown_topic = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if found is None:
        rejected.append(_error_for(topic, topic.partitions, unknown_topic))
        return
    existing, missing = _split_by_existence(topic, found)
    if missing:
        rejected.append(_error_for(topic, missing, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
    if existing:
        known.append(OffsetCommitRequestTopic(name=topic.name, topic_id=topic.topic_id, partitions=existing))


def _split_by_existence(
    topic: OffsetCommitRequestTopic, found: TopicImage
) -> tuple[list[OffsetCommitRequestPartition], list[OffsetCommitRequestPartition]]:
    count = len(found.partitions)
    existing = [partition for partition in topic.partitions if 0 <= partition.partition_index < count]
    if len(existing) == len(topic.partitions):
        return existing, []
    return existing, [partition for partition in topic.partitions if not 0 <= partition.partition_index < count]


def _error_for(
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


def _merge(
    committed: list[OffsetCommitResponseTopic], rejected: list[OffsetCommitResponseTopic]
) -> list[OffsetCommitResponseTopic]:
    """Merge the results. A topic has one entry, even if the request contains it several times."""
    by_topic: dict[tuple[str, bytes], OffsetCommitResponseTopic] = {}
    for topic in (*committed, *rejected):
        entry = by_topic.setdefault((topic.name, topic.topic_id), topic)
        if entry is not topic:
            entry.partitions.extend(topic.partitions)
    return list(by_topic.values())
