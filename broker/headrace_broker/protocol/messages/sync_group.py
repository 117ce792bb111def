"""SyncGroup (14): the group leader sends the assignments, and every member receives its assignment.

Version 3 adds static members, version 4 is flexible, and version 5 adds the protocol type and the protocol name, which
the broker verifies.
"""

from __future__ import annotations

from headrace_broker.protocol.notation import Message, Request, Response, array, binary, int16, int32, string


class SyncGroupResponse(Response, api_key=14, versions="0-5", flexible="4+"):
    throttle_time_ms: int = int32("1+", ignorable=True)
    error_code: int = int16()
    protocol_type: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    protocol_name: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    assignment: bytes = binary()


class SyncGroupRequestAssignment(Message):
    member_id: str = string()
    assignment: bytes = binary()


class SyncGroupRequest(Request[SyncGroupResponse], api_key=14, versions="0-5", flexible="4+"):
    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string("3+", nullable="3+", default=None)
    protocol_type: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    protocol_name: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    assignments: list[SyncGroupRequestAssignment] = array(SyncGroupRequestAssignment)
