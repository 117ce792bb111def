"""CreateTopics (19): decided by the controller, answered when the records are committed.

Version notes: 4+ takes -1 for default partitions and replication; 5+ tells the configs in force; 7 the topic id.
"""

from __future__ import annotations

from headrace_broker.metadata.topics import create_topics
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.large_requests import Parts
from headrace_broker.server.network.listeners import EVERYWHERE
from headrace_broker.server.topic_creation import topic_defaults

API_KEY = ApiKey.CREATE_TOPICS
VERSIONS = (2, 7)
LISTENERS = EVERYWHERE
IS_FORWARDED = True
PARTS = (Parts(("topics",), ("topics",), together=True, count_max=100),)


async def handle(context: RequestContext, request: CreateTopicsRequest, version: int) -> CreateTopicsResponse:
    """Create what can be created; each topic has its own result."""
    node = context.node
    response = await context.controller.submit(
        lambda image: create_topics(
            image,
            request,
            defaults=topic_defaults(context),
            broker_properties=context.config.log_properties,
            new_id=node.new_id,
        )
    )
    if version < 5:
        for result in response.topics:
            result.configs = []
    return response
