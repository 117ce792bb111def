"""The membership of a consumer in its group: the subscription, the owned partitions, and the rebalances.

For each change of the assignment, this module creates a `Rebalance`. The consumer performs the `Rebalance` inside poll,
as the Java consumer does. So no partition is revoked while its records are being processed. The next JoinGroup request
waits until poll has performed the change. If all configured assignors are cooperative, a rebalance does not revoke
retained partitions (KIP-429). Otherwise all partitions are revoked first.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from headrace_broker.client.assignors import ASSIGNORS, SubscribedMember
from headrace_broker.client.cluster import Cluster
from headrace_broker.client.cluster_view import ClusterView
from headrace_broker.client.config import ClientConfig
from headrace_broker.client.consumer_protocol import (
    Subscription,
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from headrace_broker.client.errors import ClientError, ProtocolViolationError
from headrace_broker.client.membership import GroupMembership
from headrace_broker.client.membership_core import Generation, MembershipCore
from headrace_broker.protocol.messages.join_group import JoinGroupResponseMember
from headrace_broker.protocol.topic_names import TopicPartition

logger = logging.getLogger(__name__)


class Change(Enum):
    """The kind of a `Rebalance`: its partitions are assigned, revoked or lost."""

    ASSIGNED = "assigned"
    REVOKED = "revoked"
    LOST = "lost"


@dataclass(slots=True, eq=False)
class Rebalance:
    """A change of the assignment that the consumer must perform in poll. Then poll completes the future `done`."""

    change: Change
    partitions: list[TopicPartition]
    done: asyncio.Future[None]


class ConsumerGroup:
    """The subscription and the group membership of one consumer."""

    def __init__(
        self,
        cluster: Cluster,
        config: ClientConfig,
        group_id: str,
        *,
        topics: Sequence[str] | None,
        pattern: Callable[[str], bool] | None,
        on_event: Callable[[], None],
    ) -> None:
        self.rebalances: deque[Rebalance] = deque()
        self.error: ClientError | None = None
        self._cluster = cluster
        self._config = config
        self._topics = sorted(topics or ())
        self._pattern = pattern
        self._on_event = on_event
        self._owned: set[TopicPartition] = set()
        self._previous: tuple[list[TopicPartition], int] = ([], -1)
        self._assignors = [ASSIGNORS[name] for name in config.assignment_strategies]
        self._is_cooperative = all(assignor.cooperative for assignor in self._assignors)
        self._leader_partition_counts: dict[str, int] = {}
        core = MembershipCore(
            group_id=group_id,
            protocol_type="consumer",
            group_instance_id=config.group_instance_id,
            session_timeout_ms=config.session_timeout_ms,
            rebalance_timeout_ms=config.max_poll_interval_ms,
            heartbeat_interval_ms=config.heartbeat_interval_ms,
        )
        self.membership = GroupMembership(cluster, core, self, config.max_poll_interval_ms)

    async def start(self) -> None:
        """Refresh the metadata, match the subscription, and join the group."""
        if self._pattern is not None:
            self._cluster.track_all(on=True)
        else:
            self._cluster.track(self._topics)
        timeout_ms = self._config.default_api_timeout_ms
        await self._cluster.retry(self._cluster.wait_for_refresh, timeout_ms, "metadata of the subscription")
        self._update_matching_topics(self._cluster.view)
        self._cluster.listeners.append(self._on_metadata)
        self.membership.start()

    async def leave(self, reason: str, timeout_ms: float) -> None:
        """Leave the group and discard pending rebalances."""
        await self.membership.leave(reason, timeout_ms)
        self.rebalances.clear()
        if self._on_metadata in self._cluster.listeners:
            self._cluster.listeners.remove(self._on_metadata)
            if self._pattern is not None:
                self._cluster.track_all(on=False)

    @property
    def owned(self) -> set[TopicPartition]:
        """The partitions that this member owns."""
        return set(self._owned)

    # -- the subscription --------------------------------------------------------------------------------------------

    def _update_matching_topics(self, view: ClusterView) -> bool:
        """Find the topics in `view` that match the subscribed pattern; return whether the matching topics changed."""
        if self._pattern is None:
            return False
        skips_internal = self._config.exclude_internal_topics
        matched = sorted(
            name
            for name, topic in view.topics.items()
            if self._pattern(name) and not (skips_internal and topic.is_internal)
        )
        changed = matched != self._topics
        self._topics = matched
        return changed

    def _on_metadata(self, view: ClusterView) -> None:
        if self._update_matching_topics(view):
            self.membership.rejoin("the topics that match the subscription changed")
        elif self.membership.generation.is_leader and self._leader_partition_counts:
            counts = {topic: _partition_count(view, topic) for topic in self._leader_partition_counts}
            if counts != self._leader_partition_counts:
                self.membership.rejoin("the partition count of a subscribed topic changed")

    # -- callbacks of the membership ---------------------------------------------------------------------------------

    def protocols(self, generation: Generation) -> list[tuple[str, bytes]]:
        """Return one pair for each configured assignor: its name and the encoded subscription."""
        offered = []
        previous, previous_generation = self._previous
        for assignor in self._assignors:
            subscription = Subscription(
                topics=self._topics,
                user_data=assignor.user_data(previous, previous_generation),
                owned=sorted(self._owned),
                generation_id=previous_generation if self._owned else -1,
                rack_id=self._config.client_rack or None,
            )
            offered.append((assignor.name, encode_subscription(subscription)))
        return offered

    async def on_join_prepare(self, generation: Generation) -> None:
        """Revoke all partitions before joining, unless all assignors are cooperative."""
        if not self._is_cooperative:
            await self._carry_out(Change.REVOKED, self._owned)

    async def compute_assignments(
        self, generation: Generation, members: Sequence[JoinGroupResponseMember]
    ) -> Mapping[str, bytes]:
        """Return {member id: encoded assignment}, computed by the assignor that the coordinator has selected."""
        known = [
            SubscribedMember(member.member_id, member.group_instance_id, _subscription_of(member)) for member in members
        ]
        topics = {topic for member in known for topic in member.subscription.topics}
        if topics - self._cluster.view.topics.keys():
            self._cluster.track(topics)
            await self._cluster.wait_for_refresh()
        self._leader_partition_counts = {topic: _partition_count(self._cluster.view, topic) for topic in topics}
        counts = {topic: count for topic, count in self._leader_partition_counts.items() if count}
        assignment = ASSIGNORS[generation.protocol].assign(known, counts)
        return {member_id: encode_assignment(partitions) for member_id, partitions in assignment.items()}

    async def on_join_complete(self, generation: Generation, assignment: bytes) -> None:
        """Apply the assignment: first revoke partitions that are no longer assigned, then add the new partitions."""
        assigned = set(decode_assignment(assignment))
        if not generation.is_leader:
            self._leader_partition_counts = {}
        revoked = self._owned - assigned
        added = assigned - self._owned
        self._previous = (sorted(assigned), generation.generation_id)
        await self._carry_out(Change.REVOKED, revoked)
        self._cluster.track({topic for topic, _ in assigned})
        await self._carry_out(Change.ASSIGNED, added, even_if_empty=not self._is_cooperative or not self._owned)
        if revoked and self._is_cooperative:
            self.membership.rejoin("partitions were revoked for their new owners")

    async def on_membership_lost(self) -> None:
        """Report all partitions as lost, because other members may own them already."""
        await self._carry_out(Change.LOST, self._owned)

    def on_failure(self, error: ClientError) -> None:
        """Store the error for poll to raise."""
        self.error = error
        self._on_event()

    async def _carry_out(self, change: Change, partitions: set[TopicPartition], *, even_if_empty: bool = False) -> None:
        if not partitions and not even_if_empty:
            return
        rebalance = Rebalance(change, sorted(partitions), asyncio.get_running_loop().create_future())
        self.rebalances.append(rebalance)
        self._on_event()
        await rebalance.done
        if change is Change.ASSIGNED:
            self._owned |= partitions
        else:
            self._owned = self._owned - partitions


def _subscription_of(member: JoinGroupResponseMember) -> Subscription:
    try:
        return decode_subscription(member.metadata)
    except ProtocolViolationError as error:  # assign the partitions to the other members only
        logger.warning(
            "Member %s: invalid subscription, so the member is assigned no partitions: %s",
            member.member_id,
            error,
        )
        return Subscription([])


def _partition_count(view: ClusterView, topic: str) -> int:
    known = view.topics.get(topic)
    return 0 if known is None else len(known.partitions)
