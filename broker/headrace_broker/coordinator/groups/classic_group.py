"""Defines ClassicGroup, a group of the classic protocol with its state and members.

    Empty -> PreparingRebalance -> CompletingRebalance -> Stable
    CompletingRebalance or Stable -> PreparingRebalance when a member joins or leaves, or its session expires

In PreparingRebalance, the coordinator collects JoinGroup requests until the join phase ends and the next generation
starts. In CompletingRebalance, the coordinator waits for the leader's assignments. In Stable, the assignments are in
the log. This module holds the group's data and invariants. `rebalance` performs the state transitions. The members'
metadata and assignments are opaque bytes.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum

from headrace_broker.coordinator.groups.subscription import subscribed_topics
from headrace_broker.coordinator.runtime import Token
from headrace_broker.protocol.errors import ApiError, ErrorCode

CONSUMER_PROTOCOL_TYPE = "consumer"


class GroupState(StrEnum):
    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_PREVIOUS_STATES = {
    GroupState.EMPTY: {GroupState.PREPARING_REBALANCE},
    GroupState.PREPARING_REBALANCE: {GroupState.STABLE, GroupState.COMPLETING_REBALANCE, GroupState.EMPTY},
    GroupState.COMPLETING_REBALANCE: {GroupState.PREPARING_REBALANCE},
    GroupState.STABLE: {GroupState.COMPLETING_REBALANCE},
    GroupState.DEAD: set(GroupState),
}


@dataclass(slots=True, frozen=True)
class PendingRequest:
    """A pending JoinGroup or SyncGroup request.

    `token` identifies the request when its response is sent. `version` is the version of the request.
    """

    token: Token
    version: int


class Member:
    """A member of a classic group.

    A member is new until its first JoinGroup request completes. Afterwards, its session does not
    expire while one of its JoinGroup or SyncGroup requests is pending.
    """

    __slots__ = (
        "assignment",
        "awaiting_join",
        "awaiting_sync",
        "client_host",
        "client_id",
        "group_instance_id",
        "is_new",
        "member_id",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
    )

    def __init__(
        self,
        member_id: str,
        group_instance_id: str | None,
        client_id: str,
        client_host: str,
        rebalance_timeout_ms: int,
        session_timeout_ms: int,
        protocols: dict[str, bytes],
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.group_instance_id = group_instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.session_timeout_ms = session_timeout_ms
        self.protocols = protocols  # maps protocol names to metadata, in the member's order of preference
        self.assignment = assignment
        self.awaiting_join: PendingRequest | None = None
        self.awaiting_sync: PendingRequest | None = None
        self.is_new = False

    @property
    def is_alive_without_heartbeat(self) -> bool:
        """Whether a pending request prevents the member's session from expiring.

        False for a new member, because its first JoinGroup request has a separate timeout.
        """
        return not self.is_new and (self.awaiting_join is not None or self.awaiting_sync is not None)

    def matches(self, protocols: dict[str, bytes]) -> bool:
        """Return whether the member supports exactly `protocols`, in the same order and with the same metadata."""
        return list(self.protocols.items()) == list(protocols.items())


class ClassicGroup:
    """The state and the members of one group. `members` is in the order in which the members joined."""

    __slots__ = (
        "_protocol_counts",
        "awaiting_join_count",
        "generation_id",
        "group_id",
        "initial_delay_left_ms",
        "leader_id",
        "members",
        "new_member_added",
        "pending_joins",
        "pending_syncs",
        "previous_state",
        "protocol_name",
        "protocol_type",
        "state",
        "state_timestamp_ms",
        "static_members",
        "subscribed_topics",
    )

    def __init__(self, group_id: str, now_ms: int) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.previous_state = GroupState.DEAD
        self.state_timestamp_ms = now_ms
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.generation_id = 0
        self.leader_id: str | None = None
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}  # maps group instance ids to member ids
        self.pending_joins: set[str] = set()  # member ids returned with MEMBER_ID_REQUIRED and not used yet
        self.pending_syncs: set[str] = set()  # ids of the members that have not sent SyncGroup in this generation
        self.subscribed_topics: frozenset[str] | None = None  # None if the subscriptions are unknown
        self.new_member_added = False
        self.initial_delay_left_ms: int | None = None  # None if the group is not in its initial rebalance
        self.awaiting_join_count = 0
        self._protocol_counts: Counter[str] = Counter()

    # -- properties

    @property
    def is_empty(self) -> bool:
        return self.state is GroupState.EMPTY

    @property
    def is_rebalancing(self) -> bool:
        return self.state is GroupState.PREPARING_REBALANCE

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    @property
    def all_members_joined(self) -> bool:
        return not self.pending_joins and self.awaiting_join_count == len(self.members)

    @property
    def rebalance_timeout_ms(self) -> int:
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def supports(self, protocol_type: str, protocols: dict[str, bytes]) -> bool:
        """Whether a member with this protocol type and these protocols is compatible with the current members."""
        if not protocol_type or not protocols:
            return False
        if not self.members:
            return self.is_empty or self.protocol_type == protocol_type
        return self.protocol_type == protocol_type and any(self._supported_by_all(name) for name in protocols)

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member subscribes to `topic`.

        The result is also True for a consumer group whose subscriptions cannot be parsed.
        """
        if self.subscribed_topics is None:
            return self.uses_consumer_protocol
        return topic in self.subscribed_topics

    def get_member(self, member_id: str, group_instance_id: str | None) -> Member:
        """Return the member with this member id and instance id.

        Raises:
            ApiError: UNKNOWN_MEMBER_ID, if the group has no such member; FENCED_INSTANCE_ID, if the
                instance id belongs to another member.
        """
        if group_instance_id is not None:
            current_id = self.static_members.get(group_instance_id)
            if current_id is not None and current_id != member_id:
                raise ApiError(ErrorCode.FENCED_INSTANCE_ID)
            if current_id is None:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        member = self.members.get(member_id)
        if member is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    # -- members

    def add(self, member: Member, protocol_type: str) -> None:
        """Add a member. The caller must first check the member's protocols with `supports`."""
        if not self.members:
            self.protocol_type = protocol_type
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        self._protocol_counts.update(member.protocols.keys())
        self.pending_joins.discard(member.member_id)

    def remove(self, member_id: str) -> None:
        """Remove a member or a pending member id.

        If the removed member was the leader, the member that joined first becomes the leader.
        """
        member = self.members.pop(member_id, None)
        self.pending_joins.discard(member_id)
        self.pending_syncs.discard(member_id)
        if member is None:
            return
        assert member.awaiting_join is None, "respond to a pending join before its member is removed"
        self._remove_protocol_counts(member)
        if member.group_instance_id is not None:
            self.static_members.pop(member.group_instance_id, None)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)

    def update(
        self, member: Member, protocols: dict[str, bytes], rebalance_timeout_ms: int, session_timeout_ms: int
    ) -> None:
        self._remove_protocol_counts(member)
        member.protocols = protocols
        self._protocol_counts.update(protocols.keys())
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def set_pending_join(self, member: Member, pending: PendingRequest) -> PendingRequest | None:
        """Store the member's pending JoinGroup request and return the request that it replaces, if any."""
        superseded = self.pop_pending_join(member)
        member.awaiting_join = pending
        self.awaiting_join_count += 1
        return superseded

    def pop_pending_join(self, member: Member) -> PendingRequest | None:
        """Remove and return the member's pending JoinGroup request."""
        pending = member.awaiting_join
        if pending is not None:
            member.awaiting_join = None
            self.awaiting_join_count -= 1
        return pending

    def replace_static_member(self, member: Member, new_member_id: str) -> None:
        """Change a static member's id to `new_member_id` (KIP-345).

        The member keeps its place in the join order, its assignment and its leadership.
        """
        old_member_id = member.member_id
        member.member_id = new_member_id
        self.members = {m.member_id: m for m in self.members.values()}
        if member.group_instance_id is not None:
            self.static_members[member.group_instance_id] = new_member_id
        if self.leader_id == old_member_id:
            self.leader_id = new_member_id
        if old_member_id in self.pending_syncs:
            self.pending_syncs.remove(old_member_id)
            self.pending_syncs.add(new_member_id)

    # -- generations

    def transition_to(self, state: GroupState, now_ms: int) -> None:
        assert self.state in _PREVIOUS_STATES[state], f"group {self.group_id}: {self.state} -> {state}"
        self.previous_state = self.state
        self.state = state
        self.state_timestamp_ms = now_ms

    def elect_leader(self) -> bool:
        """Keep the group leader if it has joined, otherwise elect the first member that has joined.

        Return False if no member has joined.
        """
        if self.leader_id is not None and self.members[self.leader_id].awaiting_join is not None:
            return True
        for member in self.members.values():
            if member.awaiting_join is not None:
                self.leader_id = member.member_id
                return True
        return False

    def select_protocol(self) -> str:
        """Return the protocol with the most votes.

        Each member votes for the first of its protocols that all members support.
        """
        votes: Counter[str] = Counter()
        for member in self.members.values():
            votes[next(name for name in member.protocols if self._supported_by_all(name))] += 1
        return votes.most_common(1)[0][0]

    def next_generation(self, now_ms: int) -> None:
        """End the join phase: select a protocol and enter CompletingRebalance, or Empty if there are no members."""
        self.generation_id += 1
        self.pending_syncs.clear()
        self.initial_delay_left_ms = None
        self.new_member_added = False
        if self.members:
            self.protocol_name = self.select_protocol()
            self.transition_to(GroupState.COMPLETING_REBALANCE, now_ms)
        else:
            self.protocol_name = None
            self.transition_to(GroupState.EMPTY, now_ms)
        self.update_subscribed_topics()

    def update_subscribed_topics(self) -> None:
        """Set `subscribed_topics` from the members' metadata.

        If the protocol type is not `consumer`, or the metadata cannot be parsed, the topics are
        unknown.
        """
        if not self.uses_consumer_protocol or (self.members and self.protocol_name is None):
            self.subscribed_topics = None
        else:
            name = self.protocol_name or ""
            self.subscribed_topics = subscribed_topics(m.protocols.get(name, b"") for m in self.members.values())

    def _supported_by_all(self, protocol_name: str) -> bool:
        return self._protocol_counts[protocol_name] == len(self.members)

    def _remove_protocol_counts(self, member: Member) -> None:
        self._protocol_counts.subtract(member.protocols.keys())
        for name in member.protocols:
            if not self._protocol_counts[name]:
                del self._protocol_counts[name]
