"""A member's side of the classic group protocol (JoinGroup, SyncGroup, Heartbeat, LeaveGroup): what each answer means.

Pure: answers in, the next step out; the requests are built here, too. The protocol type and the bytes of metadata and
assignments are opaque, so that consumers and Connect workers are members alike. Static membership is KIP-345.
Transitions:

    UNJOINED -> JOINING -> SYNCING -> STABLE -> (rebalance) JOINING ...
    any of them -> UNJOINED when the coordinator does not know the member or its generation any more
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


class State(Enum):
    """Where the member is in the protocol."""

    UNJOINED = "unjoined"
    JOINING = "joining"
    SYNCING = "syncing"
    STABLE = "stable"


class Step(Enum):
    """What the shell does next."""

    LEAD = "compute assignments and send them with SyncGroup"
    FOLLOW = "send SyncGroup and wait for the assignment"
    GO_ON = "nothing to do"
    ASSIGNED = "the assignment is there"
    JOIN = "send JoinGroup now"
    JOIN_LATER = "send JoinGroup after a back-off"
    JOIN_ANEW = "membership and partitions are lost: tell the owner, then join as a new member"
    FIND_COORDINATOR = "look the coordinator up again, then repeat"
    FAIL = "give up and tell the owner"


@dataclass(frozen=True, slots=True)
class Generation:
    """The member's place in one generation of the group."""

    generation_id: int = NO_GENERATION
    member_id: str = UNKNOWN_MEMBER_ID
    protocol: str = ""
    is_leader: bool = False


_COORDINATOR_GONE = frozenset((ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE))
_MEMBER_GONE = frozenset((ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION))
_LATER = frozenset((ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NETWORK_EXCEPTION))


class MembershipCore:
    """One member of one group."""

    def __init__(
        self,
        *,
        group_id: str,
        protocol_type: str,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        heartbeat_interval_ms: int,
        group_instance_id: str | None = None,
    ) -> None:
        self.group_id = group_id
        self.state = State.UNJOINED
        self.generation = Generation()
        self.reason = "the member is new"
        self.last_code = ErrorCode.NONE
        self._protocol_type = protocol_type
        self._group_instance_id = group_instance_id
        self._session_timeout_ms = session_timeout_ms
        self._rebalance_timeout_ms = rebalance_timeout_ms
        self._heartbeat_interval_ms = heartbeat_interval_ms
        self._last_sent_ms = 0.0
        self._last_answer_ms = 0.0

    # -- join and sync -----------------------------------------------------------------------------------------------

    def join_request(self, protocols: Sequence[tuple[str, bytes]]) -> JoinGroupRequest:
        """Return the request that (re)joins with these (protocol, metadata), best first."""
        self.state = State.JOINING
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

    def on_join(self, response: JoinGroupResponse) -> Step:
        """Take the coordinator's answer to a join."""
        code = self._note(response.error_code)
        if code == ErrorCode.MEMBER_ID_REQUIRED:
            self.generation = Generation(member_id=response.member_id)
            return Step.JOIN
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            return Step.JOIN_LATER
        if code != ErrorCode.NONE:
            return self._failed(code)
        is_leader = response.leader == response.member_id
        self.generation = Generation(
            response.generation_id, response.member_id, response.protocol_name or "", is_leader
        )
        self.state = State.SYNCING
        return Step.LEAD if is_leader and not response.skip_assignment else Step.FOLLOW

    def sync_request(self, assignments: Mapping[str, bytes]) -> SyncGroupRequest:
        """Return the request for this member's assignment; the leader brings everybody's along."""
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

    def on_sync(self, response: SyncGroupResponse, now_ms: float) -> Step:
        """Take the coordinator's answer to a sync."""
        code = self._note(response.error_code)
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            self.reason = "the group rebalanced again before this member had its assignment"
            return Step.JOIN
        if code != ErrorCode.NONE:
            return self._failed(code)
        self.state = State.STABLE
        self._last_sent_ms = self._last_answer_ms = now_ms
        return Step.ASSIGNED

    # -- heartbeats --------------------------------------------------------------------------------------------------

    def heartbeat_due_ms(self) -> float:
        """Return when the next heartbeat is to be sent."""
        return self._last_sent_ms + self._heartbeat_interval_ms

    def heartbeat_request(self, now_ms: float) -> HeartbeatRequest:
        """Return the next heartbeat."""
        self._last_sent_ms = now_ms
        return HeartbeatRequest(
            group_id=self.group_id,
            generation_id=self.generation.generation_id,
            member_id=self.generation.member_id,
            group_instance_id=self._group_instance_id,
        )

    def on_heartbeat(self, error_code: int, now_ms: float) -> Step:
        """Take the answer to a heartbeat."""
        code = self._note(error_code)
        if code in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            self._last_answer_ms = now_ms
        if code == ErrorCode.NONE:
            return Step.GO_ON
        if code == ErrorCode.REBALANCE_IN_PROGRESS:
            self.reason = "the group is rebalancing"
            return Step.JOIN
        step = self._failed(code)
        return Step.GO_ON if step is Step.JOIN_LATER else step

    def is_session_over(self, now_ms: float) -> bool:
        """True when the coordinator has not answered for so long that it must have given this member up."""
        return self.state is State.STABLE and now_ms - self._last_answer_ms > self._session_timeout_ms

    # -- leaving and losing ------------------------------------------------------------------------------------------

    def leave_request(self, reason: str, version: int) -> LeaveGroupRequest | None:
        """Return the request that leaves; None when there is nothing to leave, or for a static member, which stays."""
        member_id = self.generation.member_id
        self.lose()
        if member_id == UNKNOWN_MEMBER_ID or self._group_instance_id is not None:
            return None
        if version < 3:
            return LeaveGroupRequest(group_id=self.group_id, member_id=member_id)
        return LeaveGroupRequest(group_id=self.group_id, members=[MemberIdentity(member_id=member_id, reason=reason)])

    def lose(self) -> None:
        """Forget member id and generation."""
        self.state = State.UNJOINED
        self.generation = Generation()

    def members(self, response: JoinGroupResponse) -> list[JoinGroupResponseMember]:
        """Return the members that the leader assigns to."""
        return list(response.members)

    def _note(self, error_code: int) -> ErrorCode:
        self.last_code = ErrorCode.of(error_code)
        return self.last_code

    def _failed(self, code: ErrorCode) -> Step:
        if code in _COORDINATOR_GONE:
            return Step.FIND_COORDINATOR
        if code in _MEMBER_GONE:
            self.lose()
            self.reason = f"the coordinator answered {code.name}"
            return Step.JOIN_ANEW
        return Step.JOIN_LATER if code in _LATER else Step.FAIL
