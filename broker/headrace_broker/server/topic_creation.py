"""Creates topics that no client creates explicitly: topics in Metadata requests (auto-creation) and internal topics."""

from __future__ import annotations

import logging

from headrace_broker.metadata.topics import TopicDefaults
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from headrace_broker.protocol.topic_names import GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC
from headrace_broker.server.network.context import RequestContext

logger = logging.getLogger(__name__)

_TIMEOUT_MS = 5_000
"""The timeout of a topic creation.

It is short, because a client's request waits for the topic, and the client retries.
"""


def topic_defaults(context: RequestContext) -> TopicDefaults:
    """Return num.partitions and default.replication.factor."""
    config = context.config
    return TopicDefaults(config.num_partitions, config.default_replication_factor)


async def create_missing_topics(context: RequestContext, names: list[str]) -> dict[str, ErrorCode]:
    """Create the topics with default configs. Return the error code of each topic that could not be created."""
    topics = [_definition(context, name) for name in dict.fromkeys(names)]
    try:
        response = await _submit(context, CreateTopicsRequest(topics=topics))
    except ApiError as error:
        logger.warning("Topics %s: creation failed: %s", ", ".join(topic.name for topic in topics), error.message)
        return {topic.name: ErrorCode.LEADER_NOT_AVAILABLE for topic in topics}
    failed: dict[str, ErrorCode] = {}
    for result in response.topics:
        if result.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            code = ErrorCode.from_code(result.error_code)
            is_name = code == ErrorCode.INVALID_TOPIC_EXCEPTION
            failed[result.name] = code if is_name else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return failed


async def ensure_internal_topic(context: RequestContext, name: str) -> None:
    """Create an internal topic if it does not exist.

    Without a controller, the topic is not created, and clients retry.
    """
    if name not in context.image.topics:
        try:
            await _submit(context, CreateTopicsRequest(topics=[_definition(context, name)]))
        except ApiError as error:
            logger.warning("Topic %s: creation failed: %s", name, error.message)


async def _submit(context: RequestContext, request: CreateTopicsRequest) -> CreateTopicsResponse:
    response = await context.node.channel.request(request, _TIMEOUT_MS)
    await context.node.wait_for_committed_metadata([topic.name for topic in request.topics])
    return response


def _definition(context: RequestContext, name: str) -> CreatableTopic:
    if name not in (GROUP_METADATA_TOPIC, TRANSACTION_STATE_TOPIC):
        return CreatableTopic(name=name, num_partitions=-1, replication_factor=-1)
    config = context.config
    configs = {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": str(config.offsets_topic_segment_bytes),
    }
    live = max(1, len(context.image.live_brokers()))
    return CreatableTopic(
        name=name,
        num_partitions=config.offsets_topic_num_partitions,
        replication_factor=min(config.offsets_topic_replication_factor, live),
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
    )
