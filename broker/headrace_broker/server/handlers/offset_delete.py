"""OffsetDelete (47): delete a group's offsets of topics to which no member is subscribed (KIP-496)."""

from __future__ import annotations

from headrace_broker.metadata.image import MetadataImage
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages import OffsetDeleteRequest, OffsetDeleteResponse
from headrace_broker.protocol.messages.offset_delete import (
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.large_requests import RequestSplit

API_KEY = ApiKey.OFFSET_DELETE
VERSIONS = (0, 0)
REQUEST_SPLITS = (RequestSplit(("topics", "partitions"), ("topics", "partitions")),)


async def handle(context: RequestContext, request: OffsetDeleteRequest, version: int) -> OffsetDeleteResponse:
    """Pass the existing partitions to the coordinator, and return errors for missing partitions."""
    if not request.group_id:
        return OffsetDeleteResponse(error_code=ErrorCode.INVALID_GROUP_ID)
    requested = _without_duplicates(request.topics)
    request.topics = [
        OffsetDeleteRequestTopic(
            name=topic.name,
            partitions=[item for item in topic.partitions if _exists(context.image, topic.name, item)],
        )
        for topic in requested
    ]
    response = await context.groups.delete_offsets(request)
    if not response.error_code:
        for topic, result in zip(requested, response.topics, strict=True):
            _add_missing(topic, result, context.image)
    return response


def _without_duplicates(topics: list[OffsetDeleteRequestTopic]) -> list[OffsetDeleteRequestTopic]:
    """Return one entry for each topic, with the partitions of all its entries. Omit topics without partitions."""
    by_name: dict[str, OffsetDeleteRequestTopic] = {}
    for topic in topics:
        if topic.partitions:
            merged = by_name.setdefault(topic.name, OffsetDeleteRequestTopic(name=topic.name))
            merged.partitions.extend(topic.partitions)
    return list(by_name.values())


def _exists(image: MetadataImage, topic: str, partition: OffsetDeleteRequestPartition) -> bool:
    found = image.topics.get(topic)
    return found is not None and 0 <= partition.partition_index < len(found.partitions)


def _add_missing(topic: OffsetDeleteRequestTopic, result: OffsetDeleteResponseTopic, image: MetadataImage) -> None:
    result.partitions.extend(
        OffsetDeleteResponsePartition(
            partition_index=partition.partition_index, error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        )
        for partition in topic.partitions
        if not _exists(image, topic.name, partition)
    )
