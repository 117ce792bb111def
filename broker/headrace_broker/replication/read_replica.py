"""Which replica a consumer is to read from (KIP-392): a follower in its own rack, where there is one that will do.

Only the leader chooses; a follower serves whoever comes.  What is offered here are in-sync followers whose log holds
the offset that is asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """A replica as a selector sees it."""

    broker_id: int
    rack: str | None
    log_end_offset: int
    caught_up_ago_ms: int = 0


Selector = Callable[[str, ReplicaView, Iterable[ReplicaView]], int | None]
"""(the consumer's rack, the leader, its followers) -> the follower to read from, None for the leader."""


def rack_aware(rack: str, leader: ReplicaView, followers: Iterable[ReplicaView]) -> int | None:
    """The follower of the rack that has most, unless the leader is in that rack itself."""
    if not rack or leader.rack == rack:
        return None
    near = [follower for follower in followers if follower.rack == rack]
    best = max(near, key=lambda item: (item.log_end_offset, -item.caught_up_ago_ms, item.broker_id), default=None)
    return None if best is None else best.broker_id


SELECTORS: dict[str, Selector] = dict.fromkeys(
    ("org.apache.kafka.common.replica.RackAwareReplicaSelector", "RackAwareReplicaSelector"), rack_aware
)
"""What replica.selector.class may say."""
