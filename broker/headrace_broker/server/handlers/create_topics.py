"""CreateTopics (19): create topics; the controller responds once the records are committed.

From version 4 on, -1 stands for the default number of partitions or the default replication factor. Version 5 adds the
configs to the response, and version 7 adds the topic id.
"""

from __future__ import annotations

from headrace_broker.metadata.topics import create_topics
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages.create_topics import CreateTopicsRequest, CreateTopicsResponse
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.large_requests import RequestSplit
from headrace_broker.server.network.listener_types import BROKER_AND_CONTROLLER
from headrace_broker.server.topic_creation import topic_defaults

API_KEY = ApiKey.CREATE_TOPICS
VERSIONS = (2, 7)
LISTENERS = BROKER_AND_CONTROLLER
IS_FORWARDED = True
REQUEST_SPLITS = (RequestSplit(("topics",), ("topics",), keep_duplicates_together=True, items_max=100),)


async def handle(context: RequestContext, request: CreateTopicsRequest, version: int) -> CreateTopicsResponse:
    """Create the topics and return one result per topic."""
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
