"""JoinGroup (11): join a classic group, or rejoin it for a rebalance.

The coordinator responds once every member has joined or timed out. Only the leader receives the members' metadata.

Changes by version:

* 4: a new member receives the error MEMBER_ID_REQUIRED and a member id, and joins again with this id (KIP-394).
* 5 adds static members (KIP-345).
* 6 is flexible.
* 7 adds the protocol type to the response.
* 8 adds the reason for joining.
* 9: the response states whether the leader skips the assignment.

Connect workers send JoinGroup with the protocol type `connect`. The broker does not parse their metadata and
assignments.
"""

from __future__ import annotations

from headrace_broker.protocol.notation import Message, Request, Response, array, binary, boolean, int16, int32, string


class JoinGroupResponseMember(Message):
    member_id: str = string()
    group_instance_id: str | None = string("5+", nullable="5+", default=None, ignorable=True)
    metadata: bytes = binary()


class JoinGroupResponse(Response, api_key=11, versions="0-9", flexible="6+"):
    throttle_time_ms: int = int32("2+", ignorable=True)
    error_code: int = int16()
    generation_id: int = int32(default=-1)
    protocol_type: str | None = string("7+", nullable="7+", default=None, ignorable=True)
    protocol_name: str | None = string(nullable="7+")
    leader: str = string()
    skip_assignment: bool = boolean("9+")
    member_id: str = string()
    members: list[JoinGroupResponseMember] = array(JoinGroupResponseMember)


class JoinGroupRequestProtocol(Message):
    name: str = string()
    metadata: bytes = binary()


class JoinGroupRequest(Request[JoinGroupResponse], api_key=11, versions="0-9", flexible="6+"):
    group_id: str = string()
    session_timeout_ms: int = int32()
    rebalance_timeout_ms: int = int32("1+", default=-1, ignorable=True)
    member_id: str = string()
    group_instance_id: str | None = string("5+", nullable="5+", default=None)
    protocol_type: str = string()
    protocols: list[JoinGroupRequestProtocol] = array(JoinGroupRequestProtocol)
    reason: str | None = string("8+", nullable="8+", default=None, ignorable=True)
