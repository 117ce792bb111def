"""LeaveGroup (13): end a membership. From version 3 on several at once, which is how operators remove members."""

from __future__ import annotations

from collections.abc import Awaitable

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages import LeaveGroupRequest, LeaveGroupResponse
from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.LEAVE_GROUP
VERSIONS = (0, 5)


def handle(context: RequestContext, request: LeaveGroupRequest, version: int) -> Awaitable[LeaveGroupResponse]:
    """Leave, and let the others rebalance."""
    return context.groups.leave_group(request, version)
