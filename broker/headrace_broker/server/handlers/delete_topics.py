"""DeleteTopics (20).  Version notes: 5 adds messages; 6 deletes by topic id."""

from __future__ import annotations

from headrace_broker.metadata.topics import ZERO_UUID, delete_topics
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.large_requests import Parts
from headrace_broker.server.network.listeners import EVERYWHERE

API_KEY = ApiKey.DELETE_TOPICS
VERSIONS = (1, 6)
LISTENERS = EVERYWHERE
IS_FORWARDED = True
PARTS = (
    Parts(("topics",), ("responses",), together=True, count_max=100),
    Parts(("topic_names",), ("responses",), together=True, count_max=100),
)


async def handle(context: RequestContext, request: DeleteTopicsRequest, version: int) -> DeleteTopicsResponse:
    """Delete topics and their logs; answered when both are gone from the image."""
    wanted: list[tuple[str | None, bytes]]
    if version >= 6:
        wanted = [(topic.name, topic.topic_id) for topic in request.topics]
    else:
        wanted = [(name, ZERO_UUID) for name in request.topic_names]
    if not context.config.delete_topic_enable:
        code = ErrorCode.TOPIC_DELETION_DISABLED if version >= 3 else ErrorCode.INVALID_REQUEST
        return DeleteTopicsResponse(
            responses=[
                DeletableTopicResult(
                    name=name, topic_id=topic_id, error_code=code, error_message="Topic deletion is disabled."
                )
                for name, topic_id in wanted
            ]
        )
    return await context.controller.submit(lambda image: delete_topics(image, wanted))
