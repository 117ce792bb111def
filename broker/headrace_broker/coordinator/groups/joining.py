"""JoinGroup of the classic protocol (KIP-62, 345 static members, 394 known member ids, 814 skipped assignments). Pure.

A member that brings something new makes the group rebalance; its request is parked until the join barrier closes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headrace_broker.coordinator.groups.classic_group import ClassicGroup, GroupState, Member, Parked
from headrace_broker.coordinator.groups.config import GroupConfig
from headrace_broker.coordinator.groups.rebalance import Rebalancer
from headrace_broker.coordinator.groups.records import NAME_LENGTH_MAX, empty_group_record, group_record
from headrace_broker.coordinator.groups.replies import SKIP_ASSIGNMENT_VERSION, join_answer, join_error
from headrace_broker.coordinator.runtime import Outcome, Token
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages import JoinGroupRequest

_REQUIRES_MEMBER_ID_VERSION = 4
_METADATA_RATIO_MAX = 8
"""What a member offers, of which one protocol's part will be stored, against the largest batch that is stored."""


@dataclass(slots=True, frozen=True)
class ClientIdentity:
    """Who sends a request, as DescribeGroups will show it."""

    client_id: str
    client_host: str


_ERRORS_WITHOUT_MEMBER_ID = {ErrorCode.GROUP_MAX_SIZE_REACHED}


@dataclass(slots=True, frozen=True)
class _Join:
    """A JoinGroup request with its defaults filled in and its bytes its own."""

    group_id: str
    member_id: str
    group_instance_id: str | None
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: dict[str, bytes]
    version: int
    client: ClientIdentity
    parked: Parked

    @classmethod
    def of(cls, request: JoinGroupRequest, version: int, client: ClientIdentity, token: Token) -> _Join:
        rebalance_timeout_ms = request.rebalance_timeout_ms
        return cls(
            request.group_id,
            request.member_id,
            request.group_instance_id,
            request.session_timeout_ms,
            request.session_timeout_ms if rebalance_timeout_ms < 0 else rebalance_timeout_ms,  # v0 has none
            request.protocol_type,
            {protocol.name: bytes(protocol.metadata) for protocol in request.protocols},
            version,
            client,
            Parked(token, version),
        )

    def names(self) -> list[str]:
        """What of it will be stored as a string."""
        return [self.client.client_id, self.group_instance_id or "", self.protocol_type, *self.protocols]


class Joining:
    """The JoinGroup requests of one shard's groups."""

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
    ) -> Outcome:
        """Join, or join again; the reply may come with a later outcome."""
        out = Outcome()
        try:
            self._join(_Join.of(request, version, client, token), now_ms, out)
        except ApiError as error:
            member_id = "" if error.code in _ERRORS_WITHOUT_MEMBER_ID else request.member_id
            out.reply(token, join_error(error.code, member_id, version))
        return out

    def _join(self, join: _Join, now_ms: int, out: Outcome) -> None:
        self._check_join(join)
        group = self._groups.get(join.group_id) or self._new_group(join, now_ms, out)
        if not group.supports(join.protocol_type, join.protocols):
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        self._check_room(group, join.member_id, now_ms, out)
        if join.member_id in group.pending_joins and join.group_instance_id is None:
            self._add(group, join.member_id, join, now_ms, out)
        elif join.member_id:
            self._rejoin(group, group.member(join.member_id, join.group_instance_id), join, now_ms, out)
        elif join.group_instance_id is not None:
            self._join_static(group, join.group_instance_id, join, now_ms, out)
        else:
            self._join_dynamic(group, join, now_ms, out)

    def _check_join(self, join: _Join) -> None:
        if not join.group_id:
            raise ApiError(ErrorCode.INVALID_GROUP_ID)
        if not self._config.min_session_timeout_ms <= join.session_timeout_ms <= self._config.max_session_timeout_ms:
            raise ApiError(ErrorCode.INVALID_SESSION_TIMEOUT)
        if any(len(name) > NAME_LENGTH_MAX for name in join.names()):
            raise ApiError(ErrorCode.INVALID_REQUEST)
        if sum(map(len, join.protocols.values())) > _METADATA_RATIO_MAX * self._config.batch_size_bytes_max:
            raise ApiError(ErrorCode.INVALID_REQUEST)  # no generation with this member could ever be stored
        if join.group_id not in self._groups and join.member_id:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)

    def _new_group(self, join: _Join, now_ms: int, out: Outcome) -> ClassicGroup:
        group = ClassicGroup(join.group_id, now_ms)
        if not group.supports(join.protocol_type, join.protocols):
            raise ApiError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        self._groups[join.group_id] = group
        out.records.append(empty_group_record(group))
        return group

    def _check_room(self, group: ClassicGroup, member_id: str, now_ms: int, out: Outcome) -> None:
        """Hold a group to group.max.size; of one that is over it, those who rejoin first stay."""
        if group.is_empty:
            return
        member = group.members.get(member_id)
        if group.is_rebalancing:
            is_counted = member is not None and member.awaiting_join is not None
            has_room = is_counted or group.awaiting_join_count < self._config.max_size
        else:
            has_room = member is not None or len(group.members) < self._config.max_size
        if has_room:
            return
        if member is not None:
            self._rebalancer.remove(group, member, now_ms, out)
        elif member_id:
            self._rebalancer.forget_session(group, member_id)
            group.remove(member_id)
        self._rebalancer.maybe_complete_join(group, now_ms, out)
        raise ApiError(ErrorCode.GROUP_MAX_SIZE_REACHED)

    def _join_dynamic(self, group: ClassicGroup, join: _Join, now_ms: int, out: Outcome) -> None:
        member_id = f"{join.client.client_id}-{self._new_id()}"
        if join.version < _REQUIRES_MEMBER_ID_VERSION:
            self._add(group, member_id, join, now_ms, out)
            return
        self._rebalancer.await_pending_join(group, member_id, join.session_timeout_ms, now_ms)
        out.reply(join.parked.token, join_error(ErrorCode.MEMBER_ID_REQUIRED, member_id, join.version))

    def _add(self, group: ClassicGroup, member_id: str, join: _Join, now_ms: int, out: Outcome) -> None:
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
        group.park_join(member, join.parked)
        group.new_member_added = True
        self._rebalancer.await_first_join(group, member, now_ms)
        self._rebalancer.rebalance_or_complete(group, now_ms, out)

    def _rejoin(self, group: ClassicGroup, member: Member, join: _Join, now_ms: int, out: Outcome) -> None:
        """A known member joins again: nothing new and it is answered at once, else the group rebalances."""
        is_leader = group.leader_id == member.member_id
        is_unchanged = member.matches(join.protocols)
        keeps_generation = group.state is GroupState.COMPLETING_REBALANCE or (
            group.state is GroupState.STABLE and not is_leader
        )
        if is_unchanged and keeps_generation:
            out.reply(join.parked.token, join_answer(group, member, join.version))
            self._rebalancer.refresh_session(group, member, now_ms)
        elif group.is_empty:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        else:
            self._update_and_park(group, member, join, out)
            self._rebalancer.rebalance_or_complete(group, now_ms, out)

    def _update_and_park(self, group: ClassicGroup, member: Member, join: _Join, out: Outcome) -> None:
        group.update(member, join.protocols, join.rebalance_timeout_ms, join.session_timeout_ms)
        earlier = group.park_join(member, join.parked)
        if earlier is not None:  # a request left behind by the client must not hold up its connection for ever
            error = ErrorCode.REBALANCE_IN_PROGRESS
            out.reply(earlier.token, join_error(error, member.member_id, earlier.version))

    # -- static members (KIP-345)

    def _join_static(self, group: ClassicGroup, group_instance_id: str, join: _Join, now_ms: int, out: Outcome) -> None:
        member_id = f"{group_instance_id}-{self._new_id()}"
        holder_id = group.static_members.get(group_instance_id)
        if holder_id is None:
            self._add(group, member_id, join, now_ms, out)
        else:
            self._replace_static(group, group.members[holder_id], member_id, join, now_ms, out)

    def _replace_static(
        self, group: ClassicGroup, member: Member, member_id: str, join: _Join, now_ms: int, out: Outcome
    ) -> None:
        """A static member came back without its id: it takes its former place, and the former id is fenced."""
        former_leader = group.leader_id or ""
        self._rebalancer.fence(group, member, out)
        self._rebalancer.forget_session(group, member.member_id)
        group.replace_static(member, member_id)
        member.client_id, member.client_host = join.client.client_id, join.client.client_host
        group.update(member, join.protocols, join.rebalance_timeout_ms, join.session_timeout_ms)
        self._rebalancer.refresh_session(group, member, now_ms)
        if group.state is GroupState.STABLE and group.select_protocol() == group.protocol_name:
            self._keep_assignment(group, member, former_leader, join, out)
            return
        group.park_join(member, join.parked)
        self._rebalancer.rebalance_or_complete(group, now_ms, out)

    def _keep_assignment(
        self, group: ClassicGroup, member: Member, former_leader: str, join: _Join, out: Outcome
    ) -> None:
        """No rebalance for a restart; a returning leader must not assign again.

        From v9 on it is told so and sees the members; before, it is told the leader's former id, which is not its own.
        """
        group.read_subscriptions()
        out.records.append(group_record(group))
        skips = join.version >= SKIP_ASSIGNMENT_VERSION
        leader = None if skips else former_leader
        is_leader = group.leader_id == member.member_id
        answer = join_answer(group, member, join.version, leader=leader, skip_assignment=is_leader)
        out.reply(join.parked.token, answer)
