"""LeaveGroup (13): leave a group. From version 3 on, a request may name several members (KIP-345)."""

from __future__ import annotations

from collections.abc import Awaitable

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages import LeaveGroupRequest, LeaveGroupResponse
from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.LEAVE_GROUP
VERSIONS = (0, 5)


def handle(context: RequestContext, request: LeaveGroupRequest, version: int) -> Awaitable[LeaveGroupResponse]:
    """Remove the members; the group rebalances."""
    return context.groups.leave_group(request, version)
