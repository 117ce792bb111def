"""Places the replicas of new partitions round-robin across racks, and across the brokers of each rack.

The guarantees are those of Kafka's StripedReplicaPlacer. The first replicas, which become leaders, rotate through the
racks and are on live brokers. The replicas of a partition are spread over as many racks as possible. A fenced broker
receives a replica only if all live brokers of its rack already have a replica of the partition. All brokers without a
rack together count as one rack. The placement is deterministic. A caller that places many topics passes a larger
`start` for each topic, so that small topics do not all start on the same broker.
"""

from __future__ import annotations

from collections.abc import Sequence

from headrace_broker.metadata.image import MetadataImage
from headrace_broker.protocol.errors import ApiError, ErrorCode


def place_partitions(
    image: MetadataImage, start: int, count: int, replication_factor: int, topic: str
) -> list[tuple[int, ...]]:
    """Return the replica lists of `count` new partitions of `topic`.

    `start` is the position in the round-robin order at which the first partition is placed.

    Raises ApiError INVALID_REPLICATION_FACTOR, with the name of the topic, if too few brokers are registered or all
    brokers are fenced.
    """
    registered = len(image.brokers)
    if replication_factor > registered:
        raise _placement_error(
            topic,
            replication_factor,
            f"The target replication factor of {replication_factor} cannot be reached because only "
            f"{registered} broker(s) are registered.",
        )
    racks = _racks(image)
    if not any(live for live, _ in racks):
        raise _placement_error(topic, replication_factor, "All brokers are currently fenced.")
    return [_stripe(racks, position, replication_factor) for position in range(start, start + count)]


def next_start(image: MetadataImage, last_leader: int) -> int:
    """Return the position in the round-robin order at which the new partitions of an existing topic start.

    Each position in the round-robin order determines the replica list of one partition. `last_leader` is the preferred
    leader of the topic's last partition. The function finds the first position with a replica list that begins with
    `last_leader`, and returns the next position. If there is no such position, the function returns 0.
    """
    racks = _racks(image)
    if any(live for live, _ in racks):
        for position in range(len(racks) * len(image.brokers)):
            if _stripe(racks, position, 1)[0] == last_leader:
                return position + 1
    return 0


def format_broker_ids(broker_ids: Sequence[int]) -> str:
    """Format the first few broker ids for an error message."""
    return f"[{', '.join(map(str, broker_ids[:10]))}{', ...' if len(broker_ids) > 10 else ''}]"


_Rack = tuple[Sequence[int], Sequence[int]]
"""(live brokers of a rack, fenced brokers of the rack)."""


def _racks(image: MetadataImage) -> list[_Rack]:
    live = {broker.broker_id for broker in image.live_brokers()}
    racks: dict[str, tuple[list[int], list[int]]] = {}
    for broker_id, broker in sorted(image.brokers.items()):
        rack = racks.setdefault(broker.rack or "", ([], []))
        rack[0 if broker_id in live else 1].append(broker_id)
    return [rack for _, rack in sorted(racks.items())]


def _stripe(racks: Sequence[_Rack], position: int, replication_factor: int) -> tuple[int, ...]:
    """Return the replica list at one position of the round-robin order.

    The replicas are on one broker of each rack, then on a second broker of each rack, and so on.
    """
    rotation, first = divmod(position, len(racks))
    while not racks[first][0]:
        first = (first + 1) % len(racks)
    unused = [_rotated(live, rotation) + _rotated(fenced, rotation) for live, fenced in racks]
    replicas: list[int] = []
    rack = first
    while len(replicas) < replication_factor:
        if unused[rack]:
            replicas.append(unused[rack].pop(0))
        rack = (rack + 1) % len(racks)
    return tuple(replicas)


def _rotated(brokers: Sequence[int], shift: int) -> list[int]:
    if not brokers:
        return []
    shift %= len(brokers)
    return [*brokers[shift:], *brokers[:shift]]


def _placement_error(topic: str, replication_factor: int, reason: str) -> ApiError:
    return ApiError(
        ErrorCode.INVALID_REPLICATION_FACTOR,
        f"Topic '{topic}': unable to replicate the partition {replication_factor} time(s): {reason}",
    )
