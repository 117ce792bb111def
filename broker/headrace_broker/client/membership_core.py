"""A member's state machine in the classic group protocol (JoinGroup, SyncGroup, Heartbeat, LeaveGroup).

This module does no I/O: it builds the requests, and determines the next step from each response. It does not interpret
the protocol type, the metadata or the assignments, so both consumers and Connect workers can use it. It supports static
membership (KIP-345). The state transitions are:

    UNJOINED -> JOINING -> SYNCING -> STABLE -> (rebalance) JOINING ...
    any state -> UNJOINED when the coordinator rejects the member id or the generation
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.heartbeat import HeartbeatRequest
from headrace_broker.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from headrace_broker.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from headrace_broker.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)

UNKNOWN_MEMBER_ID = ""
NO_GENERATION = -1


class MemberState(Enum):
    """The member's state in the protocol."""

    UNJOINED = "unjoined"
    JOINING = "joining"
    SYNCING = "syncing"
    STABLE = "stable"


class NextStep(Enum):
    """The caller's next step."""

    LEAD = "compute assignments and send them with SyncGroup"
    FOLLOW = "send SyncGroup and wait for the assignment"
    CONTINUE = "nothing to do"
    ASSIGNED = "apply the assignment"
    JOIN = "send JoinGroup now"
    JOIN_LATER = "send JoinGroup after a backoff"
    JOIN_AS_NEW_MEMBER = "notify the owner that the membership and its partitions are lost, then join as a new member"
    FIND_COORDINATOR = "look up the coordinator again, then retry"
    FAIL = "end the membership and report the error"


@dataclass(frozen=True, slots=True)
class Generation:
    """The member's id and role in one generation of the group."""

    generation_id: int = NO_GENERATION
    member_id: str = UNKNOWN_MEMBER_ID
    protocol: str = ""
    is_leader: bool = False


_COORDINATOR_ERRORS = frozenset((ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE))
_MEMBER_ERRORS = frozenset((ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION))
_RETRY_LATER_ERRORS = frozenset(
    (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NETWORK_EXCEPTION)
)


class MembershipCore:
    """The protocol state of one member in one group."""

    def __init__(
        self,
        *,
        group_id: str,
        protocol_type: str,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        heartbeat_interval_ms: int,
        group_instance_id: str | None = None,
        first_heartbeat_ms: int | None = None,
    ) -> None:
        """`first_heartbeat_ms` is the delay of the first heartbeat after an assignment, by default the full interval.

        Each later delay is twice as long as the previous one, up to the interval. A member learns only from a heartbeat
        that another member has joined again, and incremental rebalances come in pairs.
        """
        self.group_id = group_id
        self.state = MemberState.UNJOINED
        self.generation = Generation()
        self.reason = "a new member joins"
        self.last_code = ErrorCode.NONE
        self._protocol_type = protocol_type
        self._group_instance_id = group_instance_id
        self._session_timeout_ms = session_timeout_ms
        self._rebalance_timeout_ms = rebalance_timeout_ms
        self._heartbeat_interval_ms = heartbeat_interval_ms
        self._first_heartbeat_ms = min(first_heartbeat_ms or heartbeat_interval_ms, heartbeat_interval_ms)
        self._heartbeat_delay_ms = self._first_heartbeat_ms
        self._last_sent_ms = 0.0
        self._last_response_ms = 0.0

    # -- join and sync -----------------------------------------------------------------------------------------------

    def join_request(self, protocols: Sequence[tuple[str, bytes]]) -> JoinGroupRequest:
        """Return the JoinGroup request with these (protocol, metadata) pairs, the preferred one first."""
        self.state = MemberState.JOINING
        return JoinGroupRequest(
            group_id=self.group_id,
            session_timeout_ms=self._session_timeout_ms,
            rebalance_timeout_ms=self._rebalance_timeout_ms,
            member_id=self.generation.member_id,
            group_instance_id=self._group_instance_id,
            protocol_type=self._protocol_type,
            protocols=[JoinGroupRequestProtocol(name=name, metadata=metadata) for name, metadata in protocols],
            reason=self.reason,
        )

    def on_join(self, response: JoinGroupResponse) -> NextStep:
        """Handle a JoinGroup response and return the next step."""
        code = self._record_error(response.error_code)
        if code == ErrorCode.MEMBER_ID_REQUIRED:
            self.generation = Generation(member_id=response.member_id)
            return NextStep.JOIN
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            return NextStep.JOIN_LATER
        if code != ErrorCode.NONE:
            return self._step_after_error(code)
        is_leader = response.leader == response.member_id
        self.generation = Generation(
            response.generation_id, response.member_id, response.protocol_name or "", is_leader
        )
        self.state = MemberState.SYNCING
        return NextStep.LEAD if is_leader and not response.skip_assignment else NextStep.FOLLOW

    def sync_request(self, assignments: Mapping[str, bytes]) -> SyncGroupRequest:
        """Return the SyncGroup request.

        If this member is the leader, the request contains the assignments of all members.
        """
        return SyncGroupRequest(
            group_id=self.group_id,
            generation_id=self.generation.generation_id,
            member_id=self.generation.member_id,
            group_instance_id=self._group_instance_id,
            protocol_type=self._protocol_type,
            protocol_name=self.generation.protocol,
            assignments=[
                SyncGroupRequestAssignment(member_id=member_id, assignment=assignment)
                for member_id, assignment in assignments.items()
            ],
        )

    def on_sync(self, response: SyncGroupResponse, now_ms: float) -> NextStep:
        """Handle a SyncGroup response and return the next step."""
        code = self._record_error(response.error_code)
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            self.reason = "the group started another rebalance before this member received its assignment"
            return NextStep.JOIN
        if code != ErrorCode.NONE:
            return self._step_after_error(code)
        self.state = MemberState.STABLE
        self._last_sent_ms = self._last_response_ms = now_ms
        self._heartbeat_delay_ms = self._first_heartbeat_ms
        return NextStep.ASSIGNED

    # -- heartbeats --------------------------------------------------------------------------------------------------

    def heartbeat_due_ms(self) -> float:
        """Return when to send the next heartbeat."""
        return self._last_sent_ms + self._heartbeat_delay_ms

    def heartbeat_request(self, now_ms: float) -> HeartbeatRequest:
        """Return the Heartbeat request to send now."""
        self._last_sent_ms = now_ms
        self._heartbeat_delay_ms = min(2 * self._heartbeat_delay_ms, self._heartbeat_interval_ms)
        return HeartbeatRequest(
            group_id=self.group_id,
            generation_id=self.generation.generation_id,
            member_id=self.generation.member_id,
            group_instance_id=self._group_instance_id,
        )

    def on_heartbeat(self, error_code: int, now_ms: float) -> NextStep:
        """Handle a Heartbeat response and return the next step."""
        code = self._record_error(error_code)
        if code in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            self._last_response_ms = now_ms
        if code == ErrorCode.NONE:
            return NextStep.CONTINUE
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            self.reason = "the group is rebalancing"
            return NextStep.JOIN
        step = self._step_after_error(code)
        return NextStep.CONTINUE if step is NextStep.JOIN_LATER else step

    def is_session_expired(self, now_ms: float) -> bool:
        """Return whether the session timeout has passed without a response from the coordinator.

        If the session has expired, the coordinator may have removed this member.
        """
        return self.state is MemberState.STABLE and now_ms - self._last_response_ms > self._session_timeout_ms

    def session_remaining_ms(self, now_ms: float) -> float:
        """Return the remaining session time in ms, at least 1.

        The session expires after this time if the coordinator does not respond. The Heartbeat request uses this time as
        its timeout.
        """
        return max(self._last_response_ms + self._session_timeout_ms - now_ms, 1)

    def on_no_response(self, now_ms: float) -> NextStep:
        """Handle a missing response to JoinGroup or SyncGroup, or the error NOT_COORDINATOR.

        If the session has expired, the coordinator may have removed this member. The member must then drop its
        assignment immediately, because another member may receive the same partitions before any broker responds to
        this member.
        """
        is_member = self.generation.member_id != UNKNOWN_MEMBER_ID and self._last_response_ms > 0
        if not is_member or now_ms - self._last_response_ms <= self._session_timeout_ms:
            return NextStep.FIND_COORDINATOR
        self.expire_session()
        self.reason = "the coordinator did not respond within the session timeout"
        return NextStep.JOIN_AS_NEW_MEMBER

    def expire_session(self) -> None:
        """Clear the generation, but keep the member id.

        A coordinator that was down when the session expired still knows the member id. If the member rejoined with a
        new id, the rebalance would have to wait until the session of the old id expires.
        """
        member_id = self.generation.member_id
        self.reset()
        self.generation = Generation(member_id=member_id)

    # -- leaving -----------------------------------------------------------------------------------------------------

    def leave_request(self, reason: str, version: int) -> LeaveGroupRequest | None:
        """Reset the membership and return the LeaveGroup request, or None for a static member or a non-member."""
        member_id = self.generation.member_id
        self.reset()
        if member_id == UNKNOWN_MEMBER_ID or self._group_instance_id is not None:
            return None
        return leave_request(self.group_id, MemberIdentity(member_id=member_id, reason=reason), version)

    def reset(self) -> None:
        """Clear the member id and the generation."""
        self.state = MemberState.UNJOINED
        self._last_response_ms = 0.0
        self.generation = Generation()

    def members(self, response: JoinGroupResponse) -> list[JoinGroupResponseMember]:
        """Return the members in a JoinGroup response. The leader computes an assignment for each of them."""
        return list(response.members)

    def _record_error(self, error_code: int) -> ErrorCode:
        self.last_code = ErrorCode.from_code(error_code)
        return self.last_code

    def _step_after_error(self, code: ErrorCode) -> NextStep:
        if code in _COORDINATOR_ERRORS:
            return NextStep.FIND_COORDINATOR
        if code in _MEMBER_ERRORS:
            self.reset()
            self.reason = f"the coordinator responded with {code.name}"
            return NextStep.JOIN_AS_NEW_MEMBER
        return NextStep.JOIN_LATER if code in _RETRY_LATER_ERRORS else NextStep.FAIL


def leave_request(group_id: str, member: MemberIdentity, version: int) -> LeaveGroupRequest:
    """Return a request that removes a member from a group. Before version 3, a request can only contain a member id."""
    if version < 3:
        return LeaveGroupRequest(group_id=group_id, member_id=member.member_id)
    return LeaveGroupRequest(group_id=group_id, members=[member])
