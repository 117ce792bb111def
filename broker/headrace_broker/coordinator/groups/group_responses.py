"""Builds JoinGroup and SyncGroup responses for every version.

From JoinGroup v7 on, a missing protocol name is null. Before v7 it is an empty string.
"""

from __future__ import annotations

from headrace_broker.coordinator.groups.classic_group import ClassicGroup, Member
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages import JoinGroupResponse, SyncGroupResponse
from headrace_broker.protocol.messages.join_group import JoinGroupResponseMember

_NULLABLE_PROTOCOL_NAME_VERSION = 7
SKIP_ASSIGNMENT_VERSION = 9


def join_error(error: ErrorCode, member_id: str, version: int) -> JoinGroupResponse:
    return JoinGroupResponse(
        error_code=error,
        generation_id=-1,
        protocol_name=None if version >= _NULLABLE_PROTOCOL_NAME_VERSION else "",
        leader="",
        member_id=member_id,
        members=[],
    )


def join_response(
    group: ClassicGroup, member: Member, version: int, *, leader: str | None = None, skip_assignment: bool = False
) -> JoinGroupResponse:
    """Build the JoinGroup response for the current generation. Only the leader receives the members.

    `leader` replaces the leader's member id in the response. Before JoinGroup v9, a restarted static leader receives
    its former member id as the leader, so that it does not compute the assignments again. From v9 on,
    `skip_assignment` is set instead.
    """
    leader = group.leader_id or "" if leader is None else leader
    return JoinGroupResponse(
        error_code=ErrorCode.NONE,
        generation_id=group.generation_id,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name or "",
        leader=leader,
        skip_assignment=skip_assignment and version >= SKIP_ASSIGNMENT_VERSION,
        member_id=member.member_id,
        members=_members(group) if leader == member.member_id else [],
    )


def sync_response(group: ClassicGroup, member: Member) -> SyncGroupResponse:
    return SyncGroupResponse(
        error_code=ErrorCode.NONE,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=member.assignment,
    )


def sync_error(error: ErrorCode) -> SyncGroupResponse:
    return SyncGroupResponse(error_code=error, assignment=b"")


def _members(group: ClassicGroup) -> list[JoinGroupResponseMember]:
    name = group.protocol_name or ""
    return [
        JoinGroupResponseMember(
            member_id=member.member_id,
            group_instance_id=member.group_instance_id,
            metadata=member.protocols.get(name, b""),
        )
        for member in group.members.values()
    ]
