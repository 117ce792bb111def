"""ConsumerGroupDescribe (69): describe groups of the consumer protocol (KIP-848), which is not supported yet.

As in Apache Kafka with group.version=0, the response contains UNSUPPORTED_VERSION for each group. Admin clients then
describe the group with DescribeGroups.
"""

from __future__ import annotations

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
)
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.large_requests import RequestSplit

API_KEY = ApiKey.CONSUMER_GROUP_DESCRIBE
VERSIONS = (0, 1)
REQUEST_SPLITS = (RequestSplit(("group_ids",), ("groups",)),)


def handle(
    context: RequestContext, request: ConsumerGroupDescribeRequest, version: int
) -> ConsumerGroupDescribeResponse:
    """Return UNSUPPORTED_VERSION for each group."""
    return ConsumerGroupDescribeResponse(
        groups=[
            DescribedGroup(group_id=group_id, error_code=ErrorCode.UNSUPPORTED_VERSION)
            for group_id in request.group_ids
        ]
    )
