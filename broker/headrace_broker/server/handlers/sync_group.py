"""SyncGroup (14): the group leader sends the assignments of a generation. Every member receives its own assignment.

Version 3 adds static members; version 5 adds the protocol type and name that the member expects.
"""

from __future__ import annotations

from collections.abc import Awaitable

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages import SyncGroupRequest, SyncGroupResponse
from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.SYNC_GROUP
VERSIONS = (0, 5)


def handle(
    context: RequestContext, request: SyncGroupRequest, version: int
) -> SyncGroupResponse | Awaitable[SyncGroupResponse]:
    """Respond once the assignment is available. From version 5 on, the protocol type and name are mandatory."""
    if version >= 5 and (request.protocol_type is None or request.protocol_name is None):
        return SyncGroupResponse(error_code=ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
    return context.groups.sync_group(request, version)
