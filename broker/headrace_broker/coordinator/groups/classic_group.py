"""A group of the classic protocol: its members and the state they are in together.

    Empty -> PreparingRebalance -> CompletingRebalance -> Stable
               ^  every join, leave or expiry leads back  |

PreparingRebalance collects joins until the barrier closes, which makes the next generation; CompletingRebalance waits
for the leader's assignments; Stable has them, and they are in the log. This module holds the data and its invariants;
`rebalance` moves a group through its states. Metadata and assignments are opaque bytes for every protocol type.
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
class Parked:
    """A request that waits for the group: where its answer goes, and in which version."""

    token: Token
    version: int


class Member:
    """One member. It is new until its first join is answered; it is silent-proof while a request of it is parked."""

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
        self.protocols = protocols  # name -> metadata, in the member's order of preference
        self.assignment = assignment
        self.awaiting_join: Parked | None = None
        self.awaiting_sync: Parked | None = None
        self.is_new = False

    @property
    def counts_as_alive(self) -> bool:
        """Whether it needs no heartbeat now; a new member's first wait is bounded all the same."""
        return not self.is_new and (self.awaiting_join is not None or self.awaiting_sync is not None)

    def matches(self, protocols: dict[str, bytes]) -> bool:
        """Whether these are its protocols, in the same order with the same metadata."""
        return list(self.protocols.items()) == list(protocols.items())


class ClassicGroup:
    """The state of one group. Owned by one shard; members keep the order in which they came."""

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
        self.static_members: dict[str, str] = {}  # group instance id -> member id
        self.pending_joins: set[str] = set()  # ids given out with MEMBER_ID_REQUIRED
        self.pending_syncs: set[str] = set()  # members of this generation that have not sent SyncGroup
        self.subscribed_topics: frozenset[str] | None = None  # None: unknown
        self.new_member_added = False
        self.initial_delay_left_ms: int | None = None  # None: not in an initial rebalance
        self.awaiting_join_count = 0
        self._protocol_counts: Counter[str] = Counter()

    # -- questions

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
        """Whether a member with these protocols could join the members there are."""
        if not protocol_type or not protocols:
            return False
        if not self.members:
            return self.is_empty or self.protocol_type == protocol_type
        return self.protocol_type == protocol_type and any(self._supported_by_all(name) for name in protocols)

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether members consume `topic`; a consumer group whose subscription cannot be read counts as subscribed."""
        if self.subscribed_topics is None:
            return self.uses_consumer_protocol
        return topic in self.subscribed_topics

    def member(self, member_id: str, group_instance_id: str | None) -> Member:
        """The member of this identity.

        Raises:
            ApiError: UNKNOWN_MEMBER_ID, or FENCED_INSTANCE_ID when another member holds the instance id.
        """
        if group_instance_id is not None:
            holder = self.static_members.get(group_instance_id)
            if holder is not None and holder != member_id:
                raise ApiError(ErrorCode.FENCED_INSTANCE_ID)
            if holder is None:
                raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        member = self.members.get(member_id)
        if member is None:
            raise ApiError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    # -- members

    def add(self, member: Member, protocol_type: str) -> None:
        """Take in a member that `supports` has approved."""
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
        """Forget a member, or a pending id; the leadership passes to the longest-standing member."""
        member = self.members.pop(member_id, None)
        self.pending_joins.discard(member_id)
        self.pending_syncs.discard(member_id)
        if member is None:
            return
        assert member.awaiting_join is None, "a parked join is answered before its member is removed"
        self._uncount(member)
        if member.group_instance_id is not None:
            self.static_members.pop(member.group_instance_id, None)
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)

    def update(
        self, member: Member, protocols: dict[str, bytes], rebalance_timeout_ms: int, session_timeout_ms: int
    ) -> None:
        self._uncount(member)
        member.protocols = protocols
        self._protocol_counts.update(protocols.keys())
        member.rebalance_timeout_ms = rebalance_timeout_ms
        member.session_timeout_ms = session_timeout_ms

    def park_join(self, member: Member, parked: Parked) -> Parked | None:
        """Let a join wait for the barrier; the result is the earlier join of the member that it replaces."""
        earlier = self.take_join(member)
        member.awaiting_join = parked
        self.awaiting_join_count += 1
        return earlier

    def take_join(self, member: Member) -> Parked | None:
        """The member's parked join, which waits no longer."""
        parked = member.awaiting_join
        if parked is not None:
            member.awaiting_join = None
            self.awaiting_join_count -= 1
        return parked

    def replace_static(self, member: Member, new_member_id: str) -> None:
        """Give a static member its new id in place, so that it keeps its rank, assignment and leadership (KIP-345)."""
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
        """Keep the leader if it has joined, else take the first that has; False when nobody has."""
        if self.leader_id is not None and self.members[self.leader_id].awaiting_join is not None:
            return True
        for member in self.members.values():
            if member.awaiting_join is not None:
                self.leader_id = member.member_id
                return True
        return False

    def select_protocol(self) -> str:
        """The protocol that most members vote for, each for its first choice among those all of them support."""
        votes: Counter[str] = Counter()
        for member in self.members.values():
            votes[next(name for name in member.protocols if self._supported_by_all(name))] += 1
        return votes.most_common(1)[0][0]

    def next_generation(self, now_ms: int) -> None:
        """Close the join barrier: CompletingRebalance with a protocol elected, or Empty without members."""
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
        self.read_subscriptions()

    def read_subscriptions(self) -> None:
        """Work out the topics a `consumer` group is subscribed to; other types stay opaque."""
        if not self.uses_consumer_protocol or (self.members and self.protocol_name is None):
            self.subscribed_topics = None
        else:
            name = self.protocol_name or ""
            self.subscribed_topics = subscribed_topics(m.protocols.get(name, b"") for m in self.members.values())

    def _supported_by_all(self, protocol_name: str) -> bool:
        return self._protocol_counts[protocol_name] == len(self.members)

    def _uncount(self, member: Member) -> None:
        self._protocol_counts.subtract(member.protocols.keys())
        for name in member.protocols:
            if not self._protocol_counts[name]:
                del self._protocol_counts[name]
