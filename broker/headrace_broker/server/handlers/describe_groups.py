"""DescribeGroups (15): return the state and members of groups.

Version 3 adds authorized operations; version 4 adds static members. For a group that does not exist, version 6 returns
GROUP_ID_NOT_FOUND and earlier versions return the state Dead.
"""

from __future__ import annotations

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages import DescribeGroupsRequest, DescribeGroupsResponse
from headrace_broker.server.authorized_operations import GROUP_OPERATIONS
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.large_requests import RequestSplit

API_KEY = ApiKey.DESCRIBE_GROUPS
VERSIONS = (0, 6)
REQUEST_SPLITS = (RequestSplit(("groups",), ("groups",)),)


async def handle(context: RequestContext, request: DescribeGroupsRequest, version: int) -> DescribeGroupsResponse:
    """Describe each group."""
    response = await context.groups.describe_groups(request, version)
    if request.include_authorized_operations:
        for group in response.groups:
            if not group.error_code:
                group.authorized_operations = GROUP_OPERATIONS
    return response
