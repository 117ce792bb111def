"""Handles the SyncGroup, Heartbeat and LeaveGroup requests of the classic protocol.

A SyncGroup request that must wait is stored in its `Member`, and the result of a later operation
contains the response. A request with an unknown group, member or generation fails with Kafka's error
code and changes nothing.
"""

from __future__ import annotations

from headrace_broker.coordinator.groups.classic_group import ClassicGroup, GroupState, Member, PendingRequest
from headrace_broker.coordinator.groups.group_responses import sync_error, sync_response
from headrace_broker.coordinator.groups.rebalance import Rebalancer
from headrace_broker.coordinator.groups.records import group_record
from headrace_broker.coordinator.runtime import CoordinatorResult, Token
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages import (
    HeartbeatRequest,
    HeartbeatResponse,
    LeaveGroupRequest,
    LeaveGroupResponse,
    SyncGroupRequest,
)
from headrace_broker.protocol.messages.leave_group import MemberIdentity, MemberResponse

_BATCHED_LEAVE_VERSION = 3


class MemberRequests:
    """Handles the requests of members that have joined, for one shard's groups."""

    def __init__(self, groups: dict[str, ClassicGroup], rebalancer: Rebalancer) -> None:
        self._groups = groups
        self._rebalancer = rebalancer

    # -- SyncGroup

    def sync(self, request: SyncGroupRequest, version: int, token: Token, now_ms: int) -> CoordinatorResult:
        out = CoordinatorResult()
        try:
            group, member = self._synced_member(request)
            if group.is_rebalancing:
                raise ApiError(ErrorCode.REBALANCE_IN_PROGRESS)
            self._rebalancer.on_sync_received(group, member)
            if group.state is GroupState.STABLE:
                self._rebalancer.refresh_session(group, member, now_ms)
                out.respond(token, sync_response(group, member))
            else:
                self._await_assignment(group, member, request, PendingRequest(token, version), out)
        except ApiError as error:
            out.respond(token, sync_error(error.code))
        return out

    def _synced_member(self, request: SyncGroupRequest) -> tuple[ClassicGroup, Member]:
        group = self._known_group(request.group_id)
        member = group.get_member(request.member_id, request.group_instance_id)
        if request.generation_id != group.generation_id:
            raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        for requested, actual in (
            (request.protocol_type, group.protocol_type),
            (request.protocol_name, group.protocol_name),
        ):
            if requested is not None and requested != actual:
                raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        return group, member

    def _await_assignment(
        self,
        group: ClassicGroup,
        member: Member,
        request: SyncGroupRequest,
        pending: PendingRequest,
        out: CoordinatorResult,
    ) -> None:
        superseded, member.awaiting_sync = member.awaiting_sync, pending
        if superseded is not None:
            out.respond(superseded.token, sync_error(ErrorCode.REBALANCE_IN_PROGRESS))
        if group.leader_id == member.member_id:
            self._store_assignments(group, request, out)

    def _store_assignments(self, group: ClassicGroup, request: SyncGroupRequest, out: CoordinatorResult) -> None:
        assignments = {a.member_id: bytes(a.assignment) for a in request.assignments if a.member_id in group.members}
        record = group_record(group, assignments)

        def propagate(after: CoordinatorResult, now_ms: int) -> None:
            self._rebalancer.propagate_assignments(group, assignments, now_ms, after)

        def reset(after: CoordinatorResult, error: ErrorCode, now_ms: int) -> None:
            self._rebalancer.reset_assignments_with_error(group, error, now_ms, after)
            self._rebalancer.prepare_rebalance(group, now_ms, after)

        out.on_appended, out.on_append_failed = propagate, reset
        out.records.append(record)

    # -- Heartbeat

    def heartbeat(self, request: HeartbeatRequest, now_ms: int) -> HeartbeatResponse:
        try:
            group = self._known_group(request.group_id)
            member = group.get_member(request.member_id, request.group_instance_id)
            if request.generation_id != group.generation_id:
                raise ApiError(ErrorCode.ILLEGAL_GENERATION)
        except ApiError as error:
            return HeartbeatResponse(error_code=error.code)
        self._rebalancer.refresh_session(group, member, now_ms)
        return HeartbeatResponse(error_code=ErrorCode.REBALANCE_IN_PROGRESS if group.is_rebalancing else ErrorCode.NONE)

    # -- LeaveGroup

    def leave(self, request: LeaveGroupRequest, version: int, token: Token, now_ms: int) -> CoordinatorResult:
        out = CoordinatorResult()
        is_batched = version >= _BATCHED_LEAVE_VERSION
        identities = request.members if is_batched else [MemberIdentity(member_id=request.member_id)]
        if not request.group_id:
            out.respond(token, LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID, members=[]))
            return out
        group = self._groups.get(request.group_id)
        results = [self._leave_one(group, identity, now_ms, out) for identity in identities]
        if group is not None and ErrorCode.NONE in results:
            self._rebalancer.rebalance_after_removal(group, now_ms, out)
        out.respond(token, _leave_response(identities, results, is_batched=is_batched))
        return out

    def _leave_one(
        self, group: ClassicGroup | None, identity: MemberIdentity, now_ms: int, out: CoordinatorResult
    ) -> ErrorCode:
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        member_id = identity.member_id
        if not member_id:  # an admin client removes a static member by its instance id
            member_id = group.static_members.get(identity.group_instance_id or "", "")
        if member_id in group.pending_joins:
            self._rebalancer.cancel_session(group, member_id)
            group.remove(member_id)
            return ErrorCode.NONE
        try:
            member = group.get_member(member_id, identity.group_instance_id)
        except ApiError as error:
            return error.code
        self._rebalancer.remove(group, member, now_ms, out)
        return ErrorCode.NONE

    def _known_group(self, group_id: str) -> ClassicGroup:
        if not group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID)
        group = self._groups.get(group_id)
        if group is None or group.is_empty:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        return group


def _leave_response(
    identities: list[MemberIdentity], results: list[ErrorCode], *, is_batched: bool
) -> LeaveGroupResponse:
    if not is_batched:
        return LeaveGroupResponse(error_code=results[0], members=[])
    members = [
        MemberResponse(member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=error)
        for identity, error in zip(identities, results, strict=True)
    ]
    return LeaveGroupResponse(error_code=ErrorCode.NONE, members=members)
