"""The answers to JoinGroup and SyncGroup, in the shape each version allows.

A null protocol name exists from JoinGroup v7 on; before, the empty string says the same.
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


def join_answer(
    group: ClassicGroup, member: Member, version: int, *, leader: str | None = None, skip_assignment: bool = False
) -> JoinGroupResponse:
    """The member's place in the current generation. Only the leader is told the members.

    `leader` overrides the leader's id: clients before v9 that must not assign again are told an id that is not theirs.
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


def sync_answer(group: ClassicGroup, member: Member) -> SyncGroupResponse:
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
