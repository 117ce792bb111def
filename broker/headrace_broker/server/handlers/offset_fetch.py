"""OffsetFetch (9): return the committed offsets of groups, for given partitions or for all partitions.

Version 2 adds a top-level error, version 5 adds leader epochs, version 7 adds require_stable, and version 8 adds
several groups per request. Version 10 identifies topics by id.
"""

from __future__ import annotations

from collections.abc import Awaitable

from headrace_broker.coordinator.groups.offset_fetch_responses import topic_error
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages import OffsetFetchRequest, OffsetFetchResponse
from headrace_broker.protocol.messages.offset_fetch import OffsetFetchRequestGroup, OffsetFetchResponseGroup
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.large_requests import RequestSplit

API_KEY = ApiKey.OFFSET_FETCH
VERSIONS = (1, 10)
REQUEST_SPLITS = (
    RequestSplit(("topics", "partition_indexes"), ("topics", "partitions")),
    RequestSplit(("groups", "topics", "partition_indexes"), ("groups", "topics", "partitions")),
)

_TOPIC_IDS_VERSION = 10


def handle(context: RequestContext, request: OffsetFetchRequest, version: int) -> Awaitable[OffsetFetchResponse]:
    """Replace topic ids with names, and pass the request to the group coordinator."""
    if version >= _TOPIC_IDS_VERSION:
        return _fetch_by_id(context, request, version)
    return context.groups.fetch_offsets(request, version)


async def _fetch_by_id(context: RequestContext, request: OffsetFetchRequest, version: int) -> OffsetFetchResponse:
    return OffsetFetchResponse(groups=[await _fetch_group(context, group, version) for group in request.groups])


async def _fetch_group(
    context: RequestContext, group: OffsetFetchRequestGroup, version: int
) -> OffsetFetchResponseGroup:
    # Use the same image before and after the wait. If a topic is recreated during the wait, the offsets belong to the
    # old topic id.
    image = context.image
    if group.topics is None:
        response = await context.groups.fetch_group(group, version)
        response.topics = [topic for topic in response.topics if topic.name in image.topics]
        for topic in response.topics:
            topic.topic_id = image.topics[topic.name].topic_id
        return response
    rejected = [
        topic_error(topic, ErrorCode.UNKNOWN_TOPIC_ID)
        for topic in group.topics
        if image.topic_by_id(topic.topic_id) is None
    ]
    _name_topics(group, image)
    response = await context.groups.fetch_group(group, version)
    if not response.error_code:
        response.topics.extend(rejected)
    return response


def _name_topics(group: OffsetFetchRequestGroup, image: MetadataImage) -> None:
    """Remove the topics with an unknown id from the request, and set the names of the other topics."""
    known = []
    for topic in group.topics or []:
        found = image.topic_by_id(topic.topic_id)
        if found is not None:
            topic.name = found.name
            known.append(topic)
    group.topics = known
