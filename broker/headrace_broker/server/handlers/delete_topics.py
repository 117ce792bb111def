"""DeleteTopics (20): delete topics.

Version 5 adds error messages. In version 6, a request can identify topics by id.
"""

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
from headrace_broker.server.network.large_requests import RequestSplit
from headrace_broker.server.network.listener_types import BROKER_AND_CONTROLLER

API_KEY = ApiKey.DELETE_TOPICS
VERSIONS = (1, 6)
LISTENERS = BROKER_AND_CONTROLLER
IS_FORWARDED = True
REQUEST_SPLITS = (
    RequestSplit(("topics",), ("responses",), keep_duplicates_together=True, items_max=100),
    RequestSplit(("topic_names",), ("responses",), keep_duplicates_together=True, items_max=100),
)


async def handle(context: RequestContext, request: DeleteTopicsRequest, version: int) -> DeleteTopicsResponse:
    """Delete topics and their logs; respond once the deletion is committed."""
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
