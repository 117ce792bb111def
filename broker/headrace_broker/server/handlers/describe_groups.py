"""DescribeGroups (15): state and members of groups.

Version notes: 3 adds authorized operations, 4 static members; 6 says GROUP_ID_NOT_FOUND where earlier versions call a
group that does not exist Dead.
"""

from __future__ import annotations

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages import DescribeGroupsRequest, DescribeGroupsResponse
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.large_requests import Parts

API_KEY = ApiKey.DESCRIBE_GROUPS
VERSIONS = (0, 6)
PARTS = (Parts(("groups",), ("groups",)),)

_READ, _DELETE, _DESCRIBE = 1 << 3, 1 << 6, 1 << 8
_ALL_OPERATIONS = _READ | _DELETE | _DESCRIBE


async def handle(context: RequestContext, request: DescribeGroupsRequest, version: int) -> DescribeGroupsResponse:
    """Describe each group; without an authorizer everything is allowed."""
    response = await context.groups.describe_groups(request, version)
    if request.include_authorized_operations:
        for group in response.groups:
            if not group.error_code:
                group.authorized_operations = _ALL_OPERATIONS
    return response
