"""LeaveGroup (13): leave a classic group.

From version 3 on, one request can remove several members, by member id or instance id. Admin clients also send this
request to remove members (KIP-345). Version 4 is flexible, and version 5 adds a reason.
"""

from __future__ import annotations

from headrace_broker.protocol.notation import Message, Request, Response, array, int16, int32, string


class MemberResponse(Message):
    member_id: str = string()
    group_instance_id: str | None = string(nullable="0+")
    error_code: int = int16()


class LeaveGroupResponse(Response, api_key=13, versions="0-5", flexible="4+"):
    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16()
    members: list[MemberResponse] = array(MemberResponse, "3+")


class MemberIdentity(Message):
    member_id: str = string()
    group_instance_id: str | None = string(nullable="0+", default=None)
    reason: str | None = string("5+", nullable="5+", default=None, ignorable=True)


class LeaveGroupRequest(Request[LeaveGroupResponse], api_key=13, versions="0-5", flexible="4+"):
    group_id: str = string()
    member_id: str = string("0-2")
    members: list[MemberIdentity] = array(MemberIdentity, "3+")
