"""Metadata (3): brokers, topics, partitions and leaders; creates missing topics when asked and allowed.

Version notes: 0 has no "all topics" but an empty list that means it; 1+ null = all, empty = none; 4 lets the client
forbid creation; 10 topic ids; 12 lookup by id; 13 a top-level error.
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
from headrace_broker.protocol.topic_names import INTERNAL_TOPICS, topic_name_fault
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.large_requests import Parts, answered_in_parts
from headrace_broker.server.topic_creation import create_missing_topics

API_KEY = ApiKey.METADATA
VERSIONS = (0, 13)
_TOPICS_AT_ONCE = 500
_BY_ID_SINCE = 12
PARTS = (Parts(("topics",), ("topics",)),)


def handle(
    context: RequestContext, request: MetadataRequest, version: int
) -> MetadataResponse | Awaitable[MetadataResponse]:
    """Answer at once, unless topics have to be created first."""
    wanted = request.topics
    if wanted is None or (version == 0 and not wanted):
        return _respond_with_all(context, version)
    named = list(dict.fromkeys(_named(topic, version) for topic in wanted))  # each once, however often it is asked
    topics = context.image.topics
    missing = [name for name, _ in named if name is not None and name not in topics]
    if missing and request.allow_auto_topic_creation and context.config.auto_create_topics_enable:
        return _create_and_respond(context, named, missing)
    leaders = _leaders(context.image, named)
    context.broker.replication.look_at(leaders)
    if context.broker.departures.await_judgement(leaders):
        return _respond_when_judged(context, named, leaders)
    return _respond(context, named, {})


def _named(topic: MetadataRequestTopic, version: int) -> tuple[str | None, bytes]:
    """An id decides, whatever the name beside it: Java's clients send an empty one.  Before version 12 names do."""
    if version < _BY_ID_SINCE:
        return topic.name or "", b""
    return (None if any(topic.topic_id) else topic.name, topic.topic_id)


def _leaders(image: MetadataImage, named: list[tuple[str | None, bytes]]) -> set[int]:
    found = [image.topics.get(name) if name is not None else image.topic_by_id(topic_id) for name, topic_id in named]
    return {partition.leader for topic in found if topic is not None for partition in topic.partitions}


async def _respond_when_judged(
    context: RequestContext, named: list[tuple[str | None, bytes]], leaders: set[int]
) -> MetadataResponse:
    """A leader's connection has just broken: the controller is about to say who leads now."""
    await context.broker.departures.judged(leaders)
    return _respond(context, named, {})


def _respond_with_all(context: RequestContext, version: int) -> MetadataResponse | Awaitable[MetadataResponse]:
    topics = context.image.topics
    if len(topics) <= _TOPICS_AT_ONCE:
        return _respond(context, [(name, b"") for name in topics], {})
    names = [MetadataRequestTopic(name=name) for name in topics]
    return answered_in_parts(
        MetadataRequest(topics=names, allow_auto_topic_creation=False),
        PARTS[0],
        lambda part: handle(context, part, max(1, version)),
    )


async def _create_and_respond(
    context: RequestContext, named: list[tuple[str | None, bytes]], missing: list[str]
) -> MetadataResponse:
    return _respond(context, named, await create_missing_topics(context, missing))


def _respond(
    context: RequestContext, named: list[tuple[str | None, bytes]], failed: dict[str, ErrorCode]
) -> MetadataResponse:
    image = context.image
    return MetadataResponse(
        brokers=_brokers(context, image),
        cluster_id=context.node.cluster_id,
        controller_id=context.node_id,
        topics=[_topic(image, name, topic_id, failed) for name, topic_id in named],
    )


def _brokers(context: RequestContext, image: MetadataImage) -> list[MetadataResponseBroker]:
    brokers: list[MetadataResponseBroker] = []
    lately = [image.brokers[item] for item in context.broker.departures.lately() if item in image.brokers]
    for broker in (*image.live_brokers(), *lately):
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
                if topic_name_fault(name) is not None:
                    code = ErrorCode.INVALID_TOPIC_EXCEPTION
            return MetadataResponseTopic(error_code=code, name=name)
    return MetadataResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=partition_responses(image, topic),
    )


def partition_responses(image: MetadataImage, topic: TopicImage) -> list[MetadataResponsePartition]:
    """Leaders and replicas of each partition of a topic."""
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
