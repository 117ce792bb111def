"""The partitions that this broker leads or follows, by topic name or topic id.

Produce and Fetch look partitions up here. A `Partition` combines the image (leader, epoch) with the log.
`PartitionTable.update` applies the image and returns the partitions that have no log yet. `open` opens or creates the
log. `remove_topic` and `remove_reassigned` return the partitions that the broker must delete. A recreated topic has a
new id, and a lookup by the new id does not return the partitions of the deleted topic. All methods run on the event
loop.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from headrace_broker.metadata.image import PartitionImage, TopicImage
from headrace_broker.protocol.errors import ApiError, ErrorCode

if TYPE_CHECKING:
    from headrace_broker.log.log import PartitionLog
    from headrace_broker.replication.fetch_sessions import FetchSession
    from headrace_broker.replication.leader import LeaderReplicas

NO_EPOCH = -1
_REQUESTED_PER_PARTITION = 2
_REQUESTED_MORE = 1000


class Partition:
    """One partition on this broker."""

    __slots__ = (
        "end_key",
        "index",
        "leader",
        "leader_epoch",
        "log",
        "replicas",
        "sessions",
        "topic",
        "topic_id",
        "uncommitted",
    )

    def __init__(self, topic: TopicImage, index: int, log: PartitionLog) -> None:
        self.topic = topic.name
        self.topic_id = topic.topic_id
        self.index = index
        self.log = log
        self.leader = -1
        self.leader_epoch = -1
        # set while this broker is the leader and the partition has other replicas
        self.replicas: LeaderReplicas | None = None
        self.end_key = (
            "the end of the log",
            topic.topic_id,
            index,
        )  # the purgatory key of followers' fetches; the partition is the key of consumers' fetches
        self.sessions: list[FetchSession] = []  # the sessions that fetch this partition
        self.uncommitted: deque[tuple[int, int]] = deque()  # (end offset, bytes) of uncommitted batches

    def check_leader_epoch(self, current_leader_epoch: int) -> None:
        """Raise ApiError if a request's leader epoch differs from the partition's leader epoch (KIP-320).

        The value -1 is always accepted.
        """
        if current_leader_epoch in (NO_EPOCH, self.leader_epoch):
            return
        code = (
            ErrorCode.FENCED_LEADER_EPOCH
            if current_leader_epoch < self.leader_epoch
            else ErrorCode.UNKNOWN_LEADER_EPOCH
        )
        raise ApiError(code)


class PartitionTable:
    """Every partition of this broker.

    `partitions_per_request_max` limits the number of partitions in one Produce or Fetch request. It is well above the
    number of partitions on this broker, because a client's metadata may be outdated.
    """

    def __init__(
        self,
        node_id: int,
        open_log: Callable[[TopicImage, int], PartitionLog],
        on_change: Callable[[Partition, PartitionImage, bool], None],
    ) -> None:
        """`on_change(partition, image, is_new_epoch)` is called after the partition's leader and epoch are updated."""
        self._node_id = node_id
        self._open_log = open_log
        self._on_change = on_change
        self.by_name: dict[str, dict[int, Partition]] = {}
        self.by_id: dict[bytes, dict[int, Partition]] = {}
        self.partitions_per_request_max = _REQUESTED_MORE

    def __iter__(self) -> Iterator[Partition]:
        return (partition for topic in self.by_name.values() for partition in topic.values())

    def get(self, topic: str, index: int) -> Partition | None:
        """Return the partition, or None if it is not on this broker."""
        partitions = self.by_name.get(topic)
        return None if partitions is None else partitions.get(index)

    def require(self, topic: str, index: int) -> Partition:
        """Return the partition. Raises ApiError(UNKNOWN_TOPIC_OR_PARTITION)."""
        partition = self.get(topic, index)
        if partition is None:
            raise ApiError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Partition {topic}-{index} does not exist on this broker."
            )
        return partition

    def require_leader(self, topic: str, index: int) -> Partition:
        """Return the partition if this broker is its leader. Raises ApiError otherwise."""
        partition = self.require(topic, index)
        if partition.leader != self._node_id:
            raise ApiError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"Partition {topic}-{index} is led by broker {partition.leader}."
            )
        return partition

    def update(self, topic: TopicImage, indexes: Iterable[int]) -> list[int]:
        """Apply the image to these partitions; return those that have a replica on this broker but no log yet."""
        held = self._held(topic)
        missing: list[int] = []
        for index in indexes:
            image = topic.partitions[index]
            if self._node_id in image.replicas:
                partition = held.get(index)
                if partition is None:
                    missing.append(index)
                else:
                    self._apply_image(partition, image)
        return missing

    def open(self, topic: TopicImage, index: int) -> None:
        """Add a missing partition: open or create its log. Raises ApiError."""
        held = self._held(topic)
        partition = held[index] = Partition(topic, index, self._open_log(topic, index))
        self.partitions_per_request_max += _REQUESTED_PER_PARTITION
        self._apply_image(partition, topic.partitions[index])

    def _held(self, topic: TopicImage) -> dict[int, Partition]:
        held = self.by_name.get(topic.name)
        if held is None:
            held = self.by_name[topic.name] = self.by_id[topic.topic_id] = {}
        return held

    def _apply_image(self, partition: Partition, image: PartitionImage) -> None:
        log = partition.log
        if image.leader == self._node_id and image.leader_epoch > log.latest_epoch and log.log_end_offset > 0:
            log.assign_epoch(image.leader_epoch, log.log_end_offset)
        if image.leader == self._node_id and len(image.replicas) == 1:
            # The partition has one replica, so every record that is still in the log after a crash is committed. The
            # high watermark in the checkpoint may be lower.
            log.advance_high_watermark(log.log_end_offset)
        is_new_epoch = partition.leader_epoch != image.leader_epoch
        partition.leader = image.leader
        partition.leader_epoch = image.leader_epoch
        self._on_change(partition, image, is_new_epoch)

    def remove_topic(self, topic: TopicImage) -> list[Partition]:
        """Remove the partitions of a deleted topic from the table and return them."""
        self.by_id.pop(topic.topic_id, None)
        removed = list(self.by_name.pop(topic.name, {}).values())
        self.partitions_per_request_max -= _REQUESTED_PER_PARTITION * len(removed)
        return removed

    def remove_reassigned(self, topic: TopicImage, indexes: Iterable[int]) -> list[Partition]:
        """Remove the partitions `indexes` of `topic` that were moved from this broker to other brokers.

        Returns the removed partitions.
        """
        held = self.by_name.get(topic.name, {})
        moved = [index for index in indexes if index in held and self._node_id not in topic.partitions[index].replicas]
        self.partitions_per_request_max -= _REQUESTED_PER_PARTITION * len(moved)
        return [held.pop(index) for index in moved]
