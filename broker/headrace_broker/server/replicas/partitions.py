"""The partitions that this broker leads or follows, found by name and by topic id; the hot path's only table.

A `Partition` joins what the image says (leader, epoch) with the log.  `PartitionTable.follow` names the partitions
whose logs are to be made, `open` makes one; `forget` and `moved_away` name those that are no longer held, for the
broker to delete.  A topic that was deleted and made again has another id, so nothing finds the old one's partitions.
Owned by the loop.
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
_NAMED_PER_PARTITION = 2
_NAMED_MORE = 1000


class Partition:
    """One partition on this broker."""

    __slots__ = (
        "end",
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
        self.replicas: LeaderReplicas | None = None  # while this broker leads, and is not the only replica
        self.end = ("end of the log", topic.topic_id, index)  # followers wait for it, consumers for the partition
        self.sessions: list[FetchSession] = []  # that want this partition, and hear of its news
        self.uncommitted: deque[tuple[int, int]] = deque()  # (end offset, bytes) of what is appended, not committed

    def check_leader_epoch(self, current_leader_epoch: int) -> None:
        """Raise ApiError when the client knows another leader epoch than ours (KIP-320); -1 = it does not say."""
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

    `named_max` is how many partitions one Produce or Fetch request may name: well beyond those there are, because a
    client's view of them may be old.
    """

    def __init__(
        self,
        node_id: int,
        open_log: Callable[[TopicImage, int], PartitionLog],
        on_change: Callable[[Partition, PartitionImage, bool], None],
    ) -> None:
        """`on_change(partition, image, is_new_epoch)` is told what the image says, after leader and epoch are taken."""
        self._node_id = node_id
        self._open_log = open_log
        self._on_change = on_change
        self.by_name: dict[str, dict[int, Partition]] = {}
        self.by_id: dict[bytes, dict[int, Partition]] = {}
        self.named_max = _NAMED_MORE

    def __iter__(self) -> Iterator[Partition]:
        return (partition for topic in self.by_name.values() for partition in topic.values())

    def get(self, topic: str, index: int) -> Partition | None:
        """The partition, or None when it is not here."""
        partitions = self.by_name.get(topic)
        return None if partitions is None else partitions.get(index)

    def require(self, topic: str, index: int) -> Partition:
        """The partition; raises ApiError(UNKNOWN_TOPIC_OR_PARTITION)."""
        partition = self.get(topic, index)
        if partition is None:
            raise ApiError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"Partition {topic}-{index} does not exist on this broker."
            )
        return partition

    def require_led(self, topic: str, index: int) -> Partition:
        """The partition, if this broker leads it; raises ApiError (unknown, or led by another broker)."""
        partition = self.require(topic, index)
        if partition.leader != self._node_id:
            raise ApiError(
                ErrorCode.NOT_LEADER_OR_FOLLOWER, f"Partition {topic}-{index} is led by broker {partition.leader}."
            )
        return partition

    def follow(self, topic: TopicImage, indexes: Iterable[int]) -> list[int]:
        """Take over leaders and epochs of these partitions; returns those that belong here and are to be opened."""
        held = self._held(topic)
        missing: list[int] = []
        for index in indexes:
            image = topic.partitions[index]
            if self._node_id in image.replicas:
                partition = held.get(index)
                if partition is None:
                    missing.append(index)
                else:
                    self._take_over(partition, image)
        return missing

    def open(self, topic: TopicImage, index: int) -> None:
        """Hold a partition that is missing here: open or make its log.  Raises ApiError."""
        held = self._held(topic)
        partition = held[index] = Partition(topic, index, self._open_log(topic, index))
        self.named_max += _NAMED_PER_PARTITION
        self._take_over(partition, topic.partitions[index])

    def _held(self, topic: TopicImage) -> dict[int, Partition]:
        held = self.by_name.get(topic.name)
        if held is None:
            held = self.by_name[topic.name] = self.by_id[topic.topic_id] = {}
        return held

    def _take_over(self, partition: Partition, image: PartitionImage) -> None:
        log = partition.log
        if image.leader == self._node_id and image.leader_epoch > log.latest_epoch and log.log_end_offset > 0:
            log.assign_epoch(image.leader_epoch, log.log_end_offset)
        if image.leader == self._node_id and len(image.replicas) == 1:
            # The only replica: what a crash has left of its log is committed, whatever the last checkpoint says.
            log.high_watermark = log.log_end_offset
        is_new_epoch = partition.leader_epoch != image.leader_epoch
        partition.leader = image.leader
        partition.leader_epoch = image.leader_epoch
        self._on_change(partition, image, is_new_epoch)

    def forget(self, topic: TopicImage) -> list[Partition]:
        """The topic was deleted: its partitions, which are not in the table any more."""
        self.by_id.pop(topic.topic_id, None)
        forgotten = list(self.by_name.pop(topic.name, {}).values())
        self.named_max -= _NAMED_PER_PARTITION * len(forgotten)
        return forgotten

    def moved_away(self, topic: TopicImage, indexes: Iterable[int]) -> list[Partition]:
        """Those of these partitions whose replica here was taken away, which are not in the table any more."""
        held = self.by_name.get(topic.name, {})
        gone = [index for index in indexes if index in held and self._node_id not in topic.partitions[index].replicas]
        self.named_max -= _NAMED_PER_PARTITION * len(gone)
        return [held.pop(index) for index in gone]
