"""Which brokers get the replicas of new partitions: striped over racks, and over the brokers of each rack.

What is promised, as by Kafka's StripedReplicaPlacer: first replicas, which lead, go round over the racks and are alive;
the replicas of a partition lie in as many racks as there are; a broker that is fenced gets a replica only where its
rack has no other left.  Brokers without a rack share one.  The same call on the same image places alike; who places
many topics moves `start` on, so that small topics do not all begin with the same broker.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace_broker.metadata.image import MetadataImage
from headrace_broker.protocol.errors import ApiError, ErrorCode


def place_partitions(
    image: MetadataImage, start: int, count: int, replication_factor: int, topic: str
) -> list[tuple[int, ...]]:
    """Replica lists for `count` partitions, the first at place `start` of the round; raises ApiError."""
    registered = len(image.brokers)
    if replication_factor > registered:
        raise _impossible(
            topic,
            replication_factor,
            f"The target replication factor of {replication_factor} cannot be reached because only "
            f"{registered} broker(s) are registered.",
        )
    racks = _racks(image)
    if not any(live for live, _ in racks):
        raise _impossible(topic, replication_factor, "All brokers are currently fenced.")
    return [_stripe(racks, place, replication_factor) for place in range(start, start + count)]


def next_start(image: MetadataImage, last_leader: int) -> int:
    """The place in the round that follows the one where `last_leader` comes first; 0 when it comes nowhere first."""
    racks = _racks(image)
    if any(live for live, _ in racks):
        for place in range(len(racks) * len(image.brokers)):
            if _stripe(racks, place, 1)[0] == last_leader:
                return place + 1
    return 0


def listed(broker_ids: Sequence[int]) -> str:
    """The first few brokers, for a message."""
    return f"[{', '.join(map(str, broker_ids[:10]))}{', ...' if len(broker_ids) > 10 else ''}]"


_Rack = tuple[Sequence[int], Sequence[int]]
"""(live brokers, fenced brokers)."""


def _racks(image: MetadataImage) -> list[_Rack]:
    live = {broker.broker_id for broker in image.live_brokers()}
    racks: dict[str, tuple[list[int], list[int]]] = {}
    for broker_id, broker in sorted(image.brokers.items()):
        rack = racks.setdefault(broker.rack or "", ([], []))
        rack[0 if broker_id in live else 1].append(broker_id)
    return [rack for _, rack in sorted(racks.items())]


def _stripe(racks: Sequence[_Rack], place: int, replication_factor: int) -> tuple[int, ...]:
    """The replicas at one place of the round: one of each rack in turn, then each rack's next, and so on."""
    turn, first = divmod(place, len(racks))
    while not racks[first][0]:
        first = (first + 1) % len(racks)
    left = [_rotated(live, turn) + _rotated(fenced, turn) for live, fenced in racks]
    replicas: list[int] = []
    rack = first
    while len(replicas) < replication_factor:
        if left[rack]:
            replicas.append(left[rack].pop(0))
        rack = (rack + 1) % len(racks)
    return tuple(replicas)


def _rotated(brokers: Sequence[int], shift: int) -> list[int]:
    if not brokers:
        return []
    shift %= len(brokers)
    return [*brokers[shift:], *brokers[:shift]]


def _impossible(topic: str, replication_factor: int, reason: str) -> ApiError:
    return ApiError(
        ErrorCode.INVALID_REPLICATION_FACTOR,
        f"Topic '{topic}': unable to replicate the partition {replication_factor} time(s): {reason}",
    )
