"""JoinGroup (11): become a member of a group; answered when its next generation begins.

Version notes: 1 adds the rebalance time-out; 4 makes a new member ask twice (MEMBER_ID_REQUIRED, KIP-394); 5 adds
static members; 8 a reason, for logs only; 9 lets a returning static leader skip the assignment (KIP-814).
"""

from __future__ import annotations

from collections.abc import Awaitable

from headrace_broker.coordinator.groups.joining import ClientIdentity
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages import JoinGroupRequest, JoinGroupResponse
from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.JOIN_GROUP
VERSIONS = (0, 9)


def handle(context: RequestContext, request: JoinGroupRequest, version: int) -> Awaitable[JoinGroupResponse]:
    """Wait for the generation. The host is shown as Kafka shows it, with a slash."""
    client = ClientIdentity(context.client_id or "", f"/{context.client_host}")
    return context.groups.join_group(request, version, client)
