"""Selects the replica from which a consumer should read (KIP-392). A follower in the consumer's rack is preferred.

Only the leader selects a replica. A follower responds to every consumer that fetches from it. The candidates are the
in-sync followers whose log contains the fetch offset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReplicaView:
    """A replica, in the form that is passed to a replica selector."""

    broker_id: int
    rack: str | None
    log_end_offset: int
    caught_up_ago_ms: int = 0


Selector = Callable[[str, ReplicaView, Iterable[ReplicaView]], int | None]
"""(rack of the consumer, leader, followers) -> id of the follower to read from, None for the leader."""


def rack_aware(rack: str, leader: ReplicaView, followers: Iterable[ReplicaView]) -> int | None:
    """Return the follower in the consumer's rack that has the highest log end offset.

    Return None if the leader is in this rack, or if no follower is in this rack.
    """
    if not rack or leader.rack == rack:
        return None
    in_rack = [follower for follower in followers if follower.rack == rack]
    best = max(in_rack, key=lambda item: (item.log_end_offset, -item.caught_up_ago_ms, item.broker_id), default=None)
    return None if best is None else best.broker_id


SELECTORS: dict[str, Selector] = dict.fromkeys(
    ("org.apache.kafka.common.replica.RackAwareReplicaSelector", "RackAwareReplicaSelector"), rack_aware
)
"""The supported values of replica.selector.class."""
