"""Metadata (3): return brokers, topics, partitions and leaders.

The broker creates missing topics if auto.create.topics.enable and the request allow it. In version 0 an empty list
requests all topics; from version 1 on, null requests all topics and an empty list requests none. From version 4 on, a
client can forbid topic creation. Version 8 adds the authorized operations of topics; only versions 8 to 10 have the
authorized operations of the cluster. Version 10 adds topic ids, version 12 adds requests by topic id, and version 13
adds a top-level error.
"""

from __future__ import annotations

from collections.abc import Awaitable

from headrace_broker.metadata.image import MetadataImage, TopicImage
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from headrace_broker.protocol.topic_names import INTERNAL_TOPICS, topic_name_error
from headrace_broker.server.authorized_operations import CLUSTER_OPERATIONS, TOPIC_OPERATIONS
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.large_requests import RequestSplit, handle_in_parts
from headrace_broker.server.topic_creation import create_missing_topics

API_KEY = ApiKey.METADATA
VERSIONS = (0, 13)
_TOPICS_AT_ONCE = 500
_BY_ID_SINCE = 12
REQUEST_SPLITS = (RequestSplit(("topics",), ("topics",)),)


def handle(
    context: RequestContext, request: MetadataRequest, version: int
) -> MetadataResponse | Awaitable[MetadataResponse]:
    """Respond immediately, unless topics must be created or a leader is suspected to be dead."""
    if request.topics is None or (version == 0 and not request.topics):
        return _respond_with_all(context, request, version)
    named = list(dict.fromkeys(_topic_key(topic, version) for topic in request.topics))  # without duplicates
    topics = context.image.topics
    missing = [name for name, _ in named if name is not None and name not in topics]
    if missing and request.allow_auto_topic_creation and context.config.auto_create_topics_enable:
        return _create_and_respond(context, request, named, missing)
    leaders = _leaders(context.image, named)
    context.broker.replication.suspect_disconnected_leaders(leaders)
    if context.broker.suspected_brokers.has_suspects(leaders):
        return _respond_when_resolved(context, request, named, leaders)
    return _respond(context, request, named, {})


def _topic_key(topic: MetadataRequestTopic, version: int) -> tuple[str | None, bytes]:
    """Return the name and the id for the topic lookup. The name is None if the topic is looked up by id.

    From version 12 on, an id takes precedence over the name, because the Java client sends an empty name with the id.
    """
    if version < _BY_ID_SINCE:
        return topic.name or "", b""
    return (None if any(topic.topic_id) else topic.name, topic.topic_id)


def _leaders(image: MetadataImage, named: list[tuple[str | None, bytes]]) -> set[int]:
    found = [image.topics.get(name) if name is not None else image.topic_by_id(topic_id) for name, topic_id in named]
    return {partition.leader for topic in found if topic is not None for partition in topic.partitions}


async def _respond_when_resolved(
    context: RequestContext, request: MetadataRequest, named: list[tuple[str | None, bytes]], leaders: set[int]
) -> MetadataResponse:
    """Respond with the topics in `named` once no broker in `leaders` is suspected to be dead, or after a timeout."""
    await context.broker.suspected_brokers.wait_until_resolved(leaders)
    return _respond(context, request, named, {})


def _respond_with_all(
    context: RequestContext, request: MetadataRequest, version: int
) -> MetadataResponse | Awaitable[MetadataResponse]:
    topics = context.image.topics
    if len(topics) <= _TOPICS_AT_ONCE:
        return _respond(context, request, [(name, b"") for name in topics], {})
    named_request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in topics],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=request.include_cluster_authorized_operations,
        include_topic_authorized_operations=request.include_topic_authorized_operations,
    )
    return handle_in_parts(
        named_request,
        REQUEST_SPLITS[0],
        lambda part: handle(context, part, max(1, version)),
    )


async def _create_and_respond(
    context: RequestContext, request: MetadataRequest, named: list[tuple[str | None, bytes]], missing: list[str]
) -> MetadataResponse:
    return _respond(context, request, named, await create_missing_topics(context, missing))


def _respond(
    context: RequestContext,
    request: MetadataRequest,
    named: list[tuple[str | None, bytes]],
    failed: dict[str, ErrorCode],
) -> MetadataResponse:
    image = context.image
    response = MetadataResponse(
        brokers=_brokers(context, image),
        cluster_id=context.node.cluster_id,
        controller_id=context.node_id,
        topics=[_topic(image, name, topic_id, failed) for name, topic_id in named],
    )
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = CLUSTER_OPERATIONS
    if request.include_topic_authorized_operations:
        for topic in response.topics:
            topic.topic_authorized_operations = TOPIC_OPERATIONS
    return response


def _brokers(context: RequestContext, image: MetadataImage) -> list[MetadataResponseBroker]:
    brokers: list[MetadataResponseBroker] = []
    recently_fenced = [
        image.brokers[item] for item in context.broker.suspected_brokers.recently_fenced() if item in image.brokers
    ]
    for broker in (*image.live_brokers(), *recently_fenced):
        endpoint = broker.endpoint(context.listener)
        if endpoint is not None:
            brokers.append(
                MetadataResponseBroker(
                    node_id=broker.broker_id, host=endpoint.host, port=endpoint.port, rack=broker.rack
                )
            )
    return brokers


def _topic(
    image: MetadataImage, name: str | None, topic_id: bytes, failed: dict[str, ErrorCode]
) -> MetadataResponseTopic:
    if name is None:
        topic = image.topic_by_id(topic_id)
        if topic is None:
            return MetadataResponseTopic(error_code=ErrorCode.UNKNOWN_TOPIC_ID, name=None, topic_id=topic_id)
    else:
        topic = image.topics.get(name)
        if topic is None:
            code = failed.get(name)
            if code is None:
                code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if topic_name_error(name) is not None:
                    code = ErrorCode.INVALID_TOPIC_EXCEPTION
            return MetadataResponseTopic(error_code=code, name=name)
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=partition_responses(image, topic),
    )


def partition_responses(image: MetadataImage, topic: TopicImage) -> list[MetadataResponsePartition]:
    """Return the leader and replicas of each partition of a topic."""
    live = {broker.broker_id for broker in image.live_brokers()}
    return [
        MetadataResponsePartition(
            error_code=ErrorCode.NONE if partition.leader in live else ErrorCode.LEADER_NOT_AVAILABLE,
            partition_index=index,
            leader_id=partition.leader if partition.leader in live else -1,
            leader_epoch=partition.leader_epoch,
            replica_nodes=list(partition.replicas),
            isr_nodes=list(partition.isr),
            offline_replicas=[replica for replica in partition.replicas if replica not in live],
        )
        for index, partition in enumerate(topic.partitions)
    ]
