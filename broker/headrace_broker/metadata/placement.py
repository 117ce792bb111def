"""Which brokers get the replicas of new partitions: Kafka's striping over live brokers."""

from __future__ import annotations

from headrace_broker.metadata.image import MetadataImage
from headrace_broker.protocol.errors import ApiError, ErrorCode


def place_partitions(
    image: MetadataImage, first: int, count: int, replication_factor: int, topic: str
) -> list[tuple[int, ...]]:
    """Replica lists for partitions `first`..`first + count - 1`, leaders spread evenly; raises ApiError."""
    live = sorted(broker.broker_id for broker in image.live_brokers())
    if replication_factor > len(live):
        raise ApiError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"Topic '{topic}': unable to replicate the partition {replication_factor} time(s): "
            f"The target replication factor of {replication_factor} cannot be reached because only "
            f"{len(live)} broker(s) are registered.",
        )
    return [
        tuple(live[(index + shift) % len(live)] for shift in range(replication_factor))
        for index in range(first, first + count)
    ]
