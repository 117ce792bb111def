"""ConsumerGroupHeartbeat (68): membership in a group of the consumer protocol (KIP-848), which is not supported yet.

As in Apache Kafka with group.version=0, the response contains UNSUPPORTED_VERSION. ApiVersions lists the API, because
librdkafka would otherwise wait for a coordinator that supports it.
"""

from __future__ import annotations

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.CONSUMER_GROUP_HEARTBEAT
VERSIONS = (0, 1)


def handle(
    context: RequestContext, request: ConsumerGroupHeartbeatRequest, version: int
) -> ConsumerGroupHeartbeatResponse:
    """Return UNSUPPORTED_VERSION."""
    return ConsumerGroupHeartbeatResponse(
        error_code=ErrorCode.UNSUPPORTED_VERSION,
        error_message="The consumer protocol is not supported by this broker yet: set group.protocol to classic.",
    )
