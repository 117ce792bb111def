"""Partition assignors of consumer groups: range, round robin, sticky and cooperative sticky.

They compute {member: partitions} from subscriptions and partition counts. Range and round robin produce the same
assignments as the Java client's assignors, because a Java client may be the leader of the same group. Sticky moves a
partition to another member only if this is necessary to balance the assignment. Cooperative sticky withholds a
partition from its new owner for one rebalance, until the old owner has revoked the partition (KIP-429).
This module does no I/O.
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
class SubscribedMember:
    """A group member and its subscription."""

    member_id: str
    group_instance_id: str | None
    subscription: Subscription

    @property
    def sort_key(self) -> tuple[int, str]:
        """The member's sort key: static members come first, in the order of their instance ids.

        Static members therefore keep their assignments after a restart.
        """
        if self.group_instance_id is not None:
            return 0, self.group_instance_id
        return 1, self.member_id


def assign_range(members: Sequence[SubscribedMember], partition_counts: Mapping[str, int]) -> Assignment:
    """Divide each topic's partitions into consecutive ranges, one per member.

    The first ranges may be one partition longer than the other ranges.
    """
    assignment: Assignment = {member.member_id: [] for member in members}
    for topic in sorted(partition_counts):
        subscribers = sorted((m for m in members if topic in m.subscription.topics), key=lambda member: member.sort_key)
        if not subscribers:
            continue
        share, extra = divmod(partition_counts[topic], len(subscribers))
        start = 0
        for index, member in enumerate(subscribers):
            stop = start + share + (index < extra)
            assignment[member.member_id] += [(topic, partition) for partition in range(start, stop)]
            start = stop
    return assignment


def assign_round_robin(members: Sequence[SubscribedMember], partition_counts: Mapping[str, int]) -> Assignment:
    """Assign the sorted partitions of all topics to the members round-robin."""
    assignment: Assignment = {member.member_id: [] for member in members}
    ordered = sorted(members, key=lambda member: member.sort_key)
    next_member = 0
    for topic_partition in _all_partitions(partition_counts):
        if not any(topic_partition[0] in member.subscription.topics for member in ordered):
            continue
        while topic_partition[0] not in ordered[next_member % len(ordered)].subscription.topics:
            next_member += 1
        assignment[ordered[next_member % len(ordered)].member_id].append(topic_partition)
        next_member += 1
    return assignment


def assign_sticky(members: Sequence[SubscribedMember], partition_counts: Mapping[str, int]) -> Assignment:
    """Balance the partitions among the members, and move as few partitions as possible."""
    ordered = sorted(members, key=lambda member: member.sort_key)
    assignment = _retained_partitions(ordered, partition_counts)
    assigned = {topic_partition for retained in assignment.values() for topic_partition in retained}
    for topic_partition in _all_partitions(partition_counts):
        subscribers = [m.member_id for m in ordered if topic_partition[0] in m.subscription.topics]
        if topic_partition not in assigned and subscribers:
            assignment[min(subscribers, key=lambda subscriber: len(assignment[subscriber]))].append(topic_partition)
    _balance(ordered, assignment)
    return {member_id: sorted(partitions) for member_id, partitions in assignment.items()}


def assign_cooperative_sticky(members: Sequence[SubscribedMember], partition_counts: Mapping[str, int]) -> Assignment:
    """Assign as `assign_sticky` does, but withhold partitions that another member still owns."""
    target = assign_sticky(members, partition_counts)
    owners = {owned: member.member_id for member in members for owned in _owned_in_newest_generation(member, members)}
    return {
        member_id: [item for item in partitions if owners.get(item, member_id) == member_id]
        for member_id, partitions in target.items()
    }


def _all_partitions(partition_counts: Mapping[str, int]) -> list[TopicPartition]:
    return [(topic, partition) for topic in sorted(partition_counts) for partition in range(partition_counts[topic])]


def _retained_partitions(members: Sequence[SubscribedMember], partition_counts: Mapping[str, int]) -> Assignment:
    """Return the owned partitions that each member keeps.

    A member keeps a partition if the partition exists, the member is still subscribed to its topic, and no other member
    owned it in a newer generation.
    """
    newest_claims: dict[TopicPartition, tuple[int, str]] = {}
    for member in members:
        owned, generation = _owned_partitions(member)
        for topic_partition in owned:
            topic, partition = topic_partition
            if topic in member.subscription.topics and partition < partition_counts.get(topic, 0):
                newest = newest_claims.get(topic_partition)
                if newest is None or generation > newest[0]:
                    newest_claims[topic_partition] = (generation, member.member_id)
    retained: Assignment = {member.member_id: [] for member in members}
    for topic_partition in sorted(newest_claims):
        retained[newest_claims[topic_partition][1]].append(topic_partition)
    return retained


def _owned_partitions(member: SubscribedMember) -> tuple[list[TopicPartition], int]:
    subscription = member.subscription
    if subscription.owned:
        return subscription.owned, subscription.generation_id
    if subscription.user_data:
        try:
            return decode_sticky_user_data(subscription.user_data)
        except ProtocolViolationError:  # another assignor's user data: assume no owned partitions
            return [], -1
    return [], -1


def _owned_in_newest_generation(member: SubscribedMember, members: Sequence[SubscribedMember]) -> list[TopicPartition]:
    newest = max(other.subscription.generation_id for other in members)
    return member.subscription.owned if member.subscription.generation_id == newest else []


def _balance(members: Sequence[SubscribedMember], assignment: Assignment) -> None:
    """Balance `assignment` in place: move partitions from members with many partitions to members with few.

    A partition is moved only to a member that is subscribed to its topic.
    """
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
    """An assignor and its name in the group protocol."""

    name: str
    assign: Callable[[Sequence[SubscribedMember], Mapping[str, int]], Assignment]
    cooperative: bool = False
    carries_owned_in_user_data: bool = False

    def user_data(self, owned: Sequence[TopicPartition], generation_id: int) -> bytes | None:
        """Return the user data of the member's next JoinGroup request, or None if the assignor needs no user data.

        The user data contains the generation and, for the assignor `sticky`, the partitions in `owned`.
        """
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
