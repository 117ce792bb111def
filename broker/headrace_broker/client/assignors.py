"""Which member of a consumer group reads which partition: range, round robin, sticky and cooperative sticky.

Pure: subscriptions and partition counts in, {member: partitions} out. Range and round robin give exactly what Java's
do, since members of both kinds may lead a group in turn. Sticky keeps what members hold as far as balance allows; the
cooperative one withholds a partition from its new owner for one round, until the old one has given it up (KIP-429).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from headrace_broker.client.consumer_protocol import (
    Subscription,
    decode_sticky_user_data,
    encode_sticky_user_data,
)
from headrace_broker.client.errors import ProtocolViolationError
from headrace_broker.protocol.topic_names import TopicPartition

Assignment = dict[str, list[TopicPartition]]


@dataclass(frozen=True, slots=True)
class Member:
    """One member as the group's leader sees it."""

    member_id: str
    group_instance_id: str | None
    subscription: Subscription

    @property
    def rank(self) -> tuple[int, str]:
        """Static members come first, by instance id, so that their share survives a restart."""
        if self.group_instance_id is not None:
            return 0, self.group_instance_id
        return 1, self.member_id


def assign_range(members: Sequence[Member], partition_counts: Mapping[str, int]) -> Assignment:
    """Give each topic's partitions out in runs: the first members get one more."""
    assignment: Assignment = {member.member_id: [] for member in members}
    for topic in sorted(partition_counts):
        takers = sorted((m for m in members if topic in m.subscription.topics), key=lambda member: member.rank)
        if not takers:
            continue
        share, extra = divmod(partition_counts[topic], len(takers))
        start = 0
        for index, member in enumerate(takers):
            stop = start + share + (index < extra)
            assignment[member.member_id] += [(topic, partition) for partition in range(start, stop)]
            start = stop
    return assignment


def assign_round_robin(members: Sequence[Member], partition_counts: Mapping[str, int]) -> Assignment:
    """Deal all partitions, in order, to the members in turn."""
    assignment: Assignment = {member.member_id: [] for member in members}
    ordered = sorted(members, key=lambda member: member.rank)
    turn = 0
    for topic_partition in _all_partitions(partition_counts):
        if not any(topic_partition[0] in member.subscription.topics for member in ordered):
            continue
        while topic_partition[0] not in ordered[turn % len(ordered)].subscription.topics:
            turn += 1
        assignment[ordered[turn % len(ordered)].member_id].append(topic_partition)
        turn += 1
    return assignment


def assign_sticky(members: Sequence[Member], partition_counts: Mapping[str, int]) -> Assignment:
    """Balance the partitions, moving as few as balance needs."""
    ordered = sorted(members, key=lambda member: member.rank)
    assignment = _kept(ordered, partition_counts)
    taken = {topic_partition for kept in assignment.values() for topic_partition in kept}
    for topic_partition in _all_partitions(partition_counts):
        takers = [m.member_id for m in ordered if topic_partition[0] in m.subscription.topics]
        if topic_partition not in taken and takers:
            assignment[min(takers, key=lambda taker: len(assignment[taker]))].append(topic_partition)
    _level(ordered, assignment)
    return {member_id: sorted(partitions) for member_id, partitions in assignment.items()}


def assign_cooperative_sticky(members: Sequence[Member], partition_counts: Mapping[str, int]) -> Assignment:
    """Balance as `assign_sticky` does, leaving out for now what another member still holds."""
    target = assign_sticky(members, partition_counts)
    holder = {held: member.member_id for member in members for held in _owned_now(member, members)}
    return {
        member_id: [wanted for wanted in partitions if holder.get(wanted, member_id) == member_id]
        for member_id, partitions in target.items()
    }


def _all_partitions(partition_counts: Mapping[str, int]) -> list[TopicPartition]:
    return [(topic, partition) for topic in sorted(partition_counts) for partition in range(partition_counts[topic])]


def _kept(members: Sequence[Member], partition_counts: Mapping[str, int]) -> Assignment:
    """Return what members held and may keep: subscribed, existing, and claimed by nobody with a newer generation."""
    claims: dict[TopicPartition, tuple[int, str]] = {}
    for member in members:
        owned, generation = _owned(member)
        for topic_partition in owned:
            topic, partition = topic_partition
            if topic in member.subscription.topics and partition < partition_counts.get(topic, 0):
                claim = claims.get(topic_partition)
                if claim is None or generation > claim[0]:
                    claims[topic_partition] = (generation, member.member_id)
    kept: Assignment = {member.member_id: [] for member in members}
    for topic_partition in sorted(claims):
        kept[claims[topic_partition][1]].append(topic_partition)
    return kept


def _owned(member: Member) -> tuple[list[TopicPartition], int]:
    subscription = member.subscription
    if subscription.owned:
        return subscription.owned, subscription.generation_id
    if subscription.user_data:
        try:
            return decode_sticky_user_data(subscription.user_data)
        except ProtocolViolationError:  # another assignor's bytes: this member then holds nothing that we know of
            return [], -1
    return [], -1


def _owned_now(member: Member, members: Sequence[Member]) -> list[TopicPartition]:
    newest = max(other.subscription.generation_id for other in members)
    return member.subscription.owned if member.subscription.generation_id == newest else []


def _level(members: Sequence[Member], assignment: Assignment) -> None:
    """Move partitions from the fullest to the emptiest members that may have them, while it improves the balance."""
    topics = {member.member_id: set(member.subscription.topics) for member in members}
    moved = True
    while moved:
        moved = False
        for receiver in sorted(assignment, key=lambda member_id: len(assignment[member_id])):
            for giver in sorted(assignment, key=lambda member_id: -len(assignment[member_id])):
                surplus = len(assignment[giver]) - len(assignment[receiver])
                if surplus < 2:
                    break
                movable = {held for held in assignment[giver] if held[0] in topics[receiver]}
                movable = set(sorted(movable)[-(surplus // 2) :])
                if movable:
                    assignment[giver] = [held for held in assignment[giver] if held not in movable]
                    assignment[receiver] += sorted(movable)
                    moved = True


@dataclass(frozen=True, slots=True)
class Assignor:
    """An assignor under its name in the group protocol."""

    name: str
    assign: Callable[[Sequence[Member], Mapping[str, int]], Assignment]
    cooperative: bool = False
    carries_owned_in_user_data: bool = False

    def user_data(self, owned: Sequence[TopicPartition], generation_id: int) -> bytes | None:
        """Return what this assignor wants to be told again at the next rebalance."""
        if self.carries_owned_in_user_data:
            return encode_sticky_user_data(owned, generation_id)
        if self.cooperative:
            return generation_id.to_bytes(4, "big", signed=True)
        return None


ASSIGNORS = {
    assignor.name: assignor
    for assignor in (
        Assignor("range", assign_range),
        Assignor("roundrobin", assign_round_robin),
        Assignor("sticky", assign_sticky, carries_owned_in_user_data=True),
        Assignor("cooperative-sticky", assign_cooperative_sticky, cooperative=True),
    )
}
