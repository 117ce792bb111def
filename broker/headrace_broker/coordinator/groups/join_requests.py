"""Handles the JoinGroup requests of the classic protocol.

A new member, or a member with changed metadata, triggers a rebalance (KIP-62). The member's
JoinGroup request is pending until the join phase ends. Static members (KIP-345), the error
MEMBER_ID_REQUIRED (KIP-394) and `skip_assignment` (KIP-814) are supported.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace_broker.coordinator.groups.classic_group import ClassicGroup, GroupState, Member, PendingRequest
from headrace_broker.coordinator.groups.config import GroupConfig
from headrace_broker.coordinator.groups.group_responses import SKIP_ASSIGNMENT_VERSION, join_error, join_response
from headrace_broker.coordinator.groups.rebalance import Rebalancer
from headrace_broker.coordinator.groups.records import NAME_LENGTH_MAX, empty_group_record, group_record
from headrace_broker.coordinator.runtime import CoordinatorResult, Token
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages import JoinGroupRequest

_REQUIRES_MEMBER_ID_VERSION = 4
_METADATA_RATIO_MAX = 8
"""Limit on the total size of a member's metadata for all its protocols, as a multiple of `batch_size_bytes_max`. The
total may exceed one batch because only the metadata of the selected protocol is stored."""


@dataclass(slots=True, frozen=True)
class ClientIdentity:
    """The client id and the client host of a request, which DescribeGroups returns."""

    client_id: str
    client_host: str


_ERRORS_WITHOUT_MEMBER_ID = {ErrorCode.GROUP_MAX_SIZE_REACHED}


@dataclass(slots=True, frozen=True)
class _JoinRequest:
    """A JoinGroup request with all defaults filled in and all buffers copied."""

    group_id: str
    member_id: str
    group_instance_id: str | None
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: dict[str, bytes]
    version: int
    client: ClientIdentity
    pending: PendingRequest

    @classmethod
    def from_request(
        cls, request: JoinGroupRequest, version: int, client: ClientIdentity, token: Token
    ) -> _JoinRequest:
        rebalance_timeout_ms = request.rebalance_timeout_ms
        if rebalance_timeout_ms < 0:  # v0 has no rebalance timeout and uses the session timeout instead
            rebalance_timeout_ms = request.session_timeout_ms
        return cls(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.session_timeout_ms,
            rebalance_timeout_ms,
            request.protocol_type,
            {protocol.name: bytes(protocol.metadata) for protocol in request.protocols},
            version,
            client,
            PendingRequest(token, version),
        )

    def stored_strings(self) -> list[str]:
        """Return the request's values that the group record stores as strings."""
        return [self.client.client_id, self.group_instance_id or "", self.protocol_type, *self.protocols]


class JoinRequests:
    """Handles the JoinGroup requests of one shard's groups."""

    def __init__(
        self,
        config: GroupConfig,
        groups: dict[str, ClassicGroup],
        rebalancer: Rebalancer,
        new_id: Callable[[], str],
    ) -> None:
        self._config = config
        self._groups = groups
        self._rebalancer = rebalancer
        self._new_id = new_id

    def join(
        self, request: JoinGroupRequest, version: int, client: ClientIdentity, token: Token, now_ms: int
    ) -> CoordinatorResult:
        """Handle JoinGroup. If the request must wait, the result of a later operation contains the response."""
        out = CoordinatorResult()
        try:
            self._join(_JoinRequest.from_request(request, version, client, token), now_ms, out)
        except ApiError as error:
            member_id = "" if error.code in _ERRORS_WITHOUT_MEMBER_ID else request.member_id
            out.respond(token, join_error(error.code, member_id, version))
        return out

    def _join(self, join: _JoinRequest, now_ms: int, out: CoordinatorResult) -> None:
        self._check_join(join)
        group = self._groups.get(join.group_id) or self._new_group(join, now_ms, out)
        if not group.supports(join.protocol_type, join.protocols):
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        self._check_group_size(group, join.member_id, now_ms, out)
        if join.member_id in group.pending_joins and join.group_instance_id is None:
            self._add(group, join.member_id, join, now_ms, out)
        elif join.member_id:
            self._rejoin(group, group.get_member(join.member_id, join.group_instance_id), join, now_ms, out)
        elif join.group_instance_id is not None:
            self._join_static(group, join.group_instance_id, join, now_ms, out)
        else:
            self._join_dynamic(group, join, now_ms, out)

    def _check_join(self, join: _JoinRequest) -> None:
        if not join.group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID)
        if not self._config.min_session_timeout_ms <= join.session_timeout_ms <= self._config.max_session_timeout_ms:
            raise ApiError(ErrorCode.INVALID_SESSION_TIMEOUT)
        if any(len(name) > NAME_LENGTH_MAX for name in join.stored_strings()):
            raise ApiError(ErrorCode.INVALID_REQUEST)
        if sum(map(len, join.protocols.values())) > _METADATA_RATIO_MAX * self._config.batch_size_bytes_max:
            raise ApiError(ErrorCode.INVALID_REQUEST)  # the metadata is too large for a group record
        if join.group_id not in self._groups and join.member_id:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)

    def _new_group(self, join: _JoinRequest, now_ms: int, out: CoordinatorResult) -> ClassicGroup:
        group = ClassicGroup(join.group_id, now_ms)
        if not group.supports(join.protocol_type, join.protocols):
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        self._groups[join.group_id] = group
        out.records.append(empty_group_record(group))
        return group

    def _check_group_size(self, group: ClassicGroup, member_id: str, now_ms: int, out: CoordinatorResult) -> None:
        """Reject the member with GROUP_MAX_SIZE_REACHED if the group is full.

        If a group has more members than group.max.size when it rebalances, the members that rejoin first stay, and the
        remaining members are removed.
        """
        if group.is_empty:
            return
        member = group.members.get(member_id)
        if group.is_rebalancing:
            has_joined = member is not None and member.awaiting_join is not None
            is_accepted = has_joined or group.awaiting_join_count < self._config.max_size
        else:
            is_accepted = member is not None or len(group.members) < self._config.max_size
        if is_accepted:
            return
        if member is not None:
            self._rebalancer.remove(group, member, now_ms, out)
        elif member_id:
            self._rebalancer.cancel_session(group, member_id)
            group.remove(member_id)
        self._rebalancer.maybe_complete_join(group, now_ms, out)
        raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED)

    def _join_dynamic(self, group: ClassicGroup, join: _JoinRequest, now_ms: int, out: CoordinatorResult) -> None:
        member_id = f"{join.client.client_id}-{self._new_id()}"
        if join.version < _REQUIRES_MEMBER_ID_VERSION:
            self._add(group, member_id, join, now_ms, out)
            return
        self._rebalancer.add_pending_member(group, member_id, join.session_timeout_ms, now_ms)
        out.respond(join.pending.token, join_error(ErrorCode.MEMBER_ID_REQUIRED, member_id, join.version))

    def _add(
        self, group: ClassicGroup, member_id: str, join: _JoinRequest, now_ms: int, out: CoordinatorResult
    ) -> None:
        member = Member(
            member_id,
            join.group_instance_id,
            join.client.client_id,
            join.client.client_host,
            join.rebalance_timeout_ms,
            join.session_timeout_ms,
            join.protocols,
        )
        member.is_new = True
        group.add(member, join.protocol_type)
        group.set_pending_join(member, join.pending)
        group.new_member_added = True
        self._rebalancer.schedule_first_join_timeout(group, member, now_ms)
        self._rebalancer.prepare_rebalance_or_complete_join(group, now_ms, out)

    def _rejoin(
        self, group: ClassicGroup, member: Member, join: _JoinRequest, now_ms: int, out: CoordinatorResult
    ) -> None:
        """Handle a current member's JoinGroup request.

        In Stable or CompletingRebalance, rebalance the group if the member's metadata changed, or if the leader of
        a Stable group rejoins. Otherwise, respond immediately.
        """
        is_leader = group.leader_id == member.member_id
        is_unchanged = member.matches(join.protocols)
        keeps_generation = group.state is GroupState.COMPLETING_REBALANCE or (
            group.state is GroupState.STABLE and not is_leader
        )
        if is_unchanged and keeps_generation:
            out.respond(join.pending.token, join_response(group, member, join.version))
            self._rebalancer.refresh_session(group, member, now_ms)
        elif group.is_empty:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        else:
            self._update_and_await_join(group, member, join, out)
            self._rebalancer.prepare_rebalance_or_complete_join(group, now_ms, out)

    def _update_and_await_join(
        self, group: ClassicGroup, member: Member, join: _JoinRequest, out: CoordinatorResult
    ) -> None:
        group.update(member, join.protocols, join.rebalance_timeout_ms, join.session_timeout_ms)
        superseded = group.set_pending_join(member, join.pending)
        if superseded is not None:  # without a response, the earlier request would block its connection forever
            error = ErrorCode.REBALANCE_IN_PROGRESS
            out.respond(superseded.token, join_error(error, member.member_id, superseded.version))

    # -- static members (KIP-345)

    def _join_static(
        self, group: ClassicGroup, group_instance_id: str, join: _JoinRequest, now_ms: int, out: CoordinatorResult
    ) -> None:
        member_id = f"{group_instance_id}-{self._new_id()}"
        current_id = group.static_members.get(group_instance_id)
        if current_id is None:
            self._add(group, member_id, join, now_ms, out)
        else:
            self._replace_static(group, group.members[current_id], member_id, join, now_ms, out)

    def _replace_static(
        self,
        group: ClassicGroup,
        member: Member,
        member_id: str,
        join: _JoinRequest,
        now_ms: int,
        out: CoordinatorResult,
    ) -> None:
        """Handle a static member that rejoins without a member id.

        The member receives the new member id `member_id`, and its old member id is fenced.
        """
        former_leader = group.leader_id or ""
        self._rebalancer.fence_pending_requests(group, member, out)
        self._rebalancer.cancel_session(group, member.member_id)
        group.replace_static_member(member, member_id)
        member.client_id, member.client_host = join.client.client_id, join.client.client_host
        group.update(member, join.protocols, join.rebalance_timeout_ms, join.session_timeout_ms)
        self._rebalancer.refresh_session(group, member, now_ms)
        if group.state is GroupState.STABLE and group.select_protocol() == group.protocol_name:
            self._keep_assignment(group, member, former_leader, join, out)
            return
        group.set_pending_join(member, join.pending)
        self._rebalancer.prepare_rebalance_or_complete_join(group, now_ms, out)

    def _keep_assignment(
        self, group: ClassicGroup, member: Member, former_leader: str, join: _JoinRequest, out: CoordinatorResult
    ) -> None:
        """Respond to a restarted static member without a rebalance.

        A restarted leader must not compute the assignments again. From JoinGroup v9 on, the response sets
        `skip_assignment` and lists the members. Before v9, the response contains the leader's former member id, so that
        the client does not consider itself the leader.
        """
        group.update_subscribed_topics()
        out.records.append(group_record(group))
        supports_skip = join.version >= SKIP_ASSIGNMENT_VERSION
        leader = None if supports_skip else former_leader
        is_leader = group.leader_id == member.member_id
        response = join_response(group, member, join.version, leader=leader, skip_assignment=is_leader)
        out.respond(join.pending.token, response)
