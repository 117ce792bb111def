"""Heartbeat (12): keep a group member's session alive. Version 3 adds static members."""

from __future__ import annotations

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages import HeartbeatRequest, HeartbeatResponse
from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.HEARTBEAT
VERSIONS = (0, 4)


def handle(context: RequestContext, request: HeartbeatRequest, version: int) -> HeartbeatResponse:
    """Extend the member's session."""
    return context.groups.heartbeat(request)
