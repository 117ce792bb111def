"""DescribeGroups (15): describe the state, protocol and members of classic groups.

In version 3 a client may request authorized operations. Version 4 adds static members, and version 5 is flexible. For
an unknown group, version 6 returns GROUP_ID_NOT_FOUND and an error message instead of a group in state Dead.
"""

from __future__ import annotations

from headrace_broker.protocol.notation import Message, Request, Response, array, binary, boolean, int16, int32, string


class DescribedGroupMember(Message):
    member_id: str = string()
    group_instance_id: str | None = string("4+", nullable="4+", default=None, ignorable=True)
    client_id: str = string()
    client_host: str = string()
    member_metadata: bytes = binary()
    member_assignment: bytes = binary()


class DescribedGroup(Message):
    error_code: int = int16()
    error_message: str | None = string("6+", nullable="6+", default=None)
    group_id: str = string()
    group_state: str = string()
    protocol_type: str = string()
    protocol_data: str = string()
    members: list[DescribedGroupMember] = array(DescribedGroupMember)
    authorized_operations: int = int32("3+", default=-2147483648)


class DescribeGroupsResponse(Response, api_key=15, versions="0-6", flexible="5+"):
    throttle_time_ms: int = int32("1+", ignorable=True)
    groups: list[DescribedGroup] = array(DescribedGroup)


class DescribeGroupsRequest(Request[DescribeGroupsResponse], api_key=15, versions="0-6", flexible="5+"):
    groups: list[str] = array(string)
    include_authorized_operations: bool = boolean("3+")
