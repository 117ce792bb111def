"""JoinGroup (11): join a group; the response is sent when the group's next generation starts.

Version 1 adds the rebalance timeout. From version 4 on, a new member must join twice (MEMBER_ID_REQUIRED, KIP-394).
Version 5 adds static members. Version 8 adds a reason, which the broker only logs. In version 9, a static leader that
rejoins may skip the assignment (KIP-814).
"""

from __future__ import annotations

from collections.abc import Awaitable

from headrace_broker.coordinator.groups.join_requests import ClientIdentity
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages import JoinGroupRequest, JoinGroupResponse
from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.JOIN_GROUP
VERSIONS = (0, 9)


def handle(context: RequestContext, request: JoinGroupRequest, version: int) -> Awaitable[JoinGroupResponse]:
    """Pass the request to the group coordinator. As in Kafka, the host of a member starts with a slash."""
    client = ClientIdentity(context.client_id or "", f"/{context.client_host}")
    return context.groups.join_group(request, version, client)
