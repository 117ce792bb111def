"""Heartbeat (12): a member of a classic group reports that it is alive. The response signals a rebalance.

Version 3 adds static members, and version 4 is flexible.
"""

from __future__ import annotations

from headrace_broker.protocol.notation import Request, Response, int16, int32, string


class HeartbeatResponse(Response, api_key=12, versions="0-4", flexible="4+"):
    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16()


class HeartbeatRequest(Request[HeartbeatResponse], api_key=12, versions="0-4", flexible="4+"):
    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string("3+", nullable="3+", default=None)
