"""The committed offsets of one shard's groups.

Only `replay` changes the store. It applies records that are already in the log. Request handlers return records to
append and do not change the store.

Offsets expire by these rules (KIP-211):

- In an empty group, all offsets expire when the group has been empty for the retention time.
- In a group without a protocol type (manual assignment), an offset expires when the retention time
  has passed since the offset was committed.
- In a Stable `consumer` group, if no member is subscribed to a topic, an offset of this topic expires when the
  retention time has passed since the offset was committed.
- All other offsets do not expire.

If an offset was committed with an expire timestamp, this timestamp replaces the retention time.
"""

from __future__ import annotations

from collections.abc import Iterator

from headrace_broker.coordinator.groups.classic_group import ClassicGroup, GroupState
from headrace_broker.coordinator.groups.records import CommittedOffset, committed_offset, offset_tombstone
from headrace_broker.coordinator.runtime import CoordinatorRecord
from headrace_broker.protocol.group_records import OffsetCommitKey, OffsetCommitValue

PartitionOffsets = dict[int, CommittedOffset]
_NO_OFFSETS: dict[str, PartitionOffsets] = {}


class OffsetStore:
    """The committed offset of each group, topic and partition. Empty inner dictionaries are removed."""

    def __init__(self) -> None:
        self._offsets: dict[str, dict[str, PartitionOffsets]] = {}

    def replay(self, key: OffsetCommitKey, value: OffsetCommitValue | None) -> None:
        if value is None:
            self._remove(key.group, key.topic, key.partition)
        else:
            topics = self._offsets.setdefault(key.group, {})
            topics.setdefault(key.topic, {})[key.partition] = committed_offset(value)

    def _remove(self, group_id: str, topic: str, partition: int) -> None:
        topics = self._offsets.get(group_id)
        if topics is None or topic not in topics:
            return
        topics[topic].pop(partition, None)
        if not topics[topic]:
            del topics[topic]
        if not topics:
            del self._offsets[group_id]

    def group_offsets(self, group_id: str) -> dict[str, PartitionOffsets]:
        """Return the group's committed offsets by topic. The caller must not modify the result."""
        return self._offsets.get(group_id, _NO_OFFSETS)

    def get(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        return self.group_offsets(group_id).get(topic, {}).get(partition)

    def group_ids(self) -> list[str]:
        """Return the groups with committed offsets."""
        return list(self._offsets)

    def topics(self) -> set[str]:
        """Return the topics for which any group has committed offsets."""
        return {topic for by_topic in self._offsets.values() for topic in by_topic}

    # -- tombstones

    def group_tombstones(self, group_id: str) -> Iterator[CoordinatorRecord]:
        for topic, partitions in self.group_offsets(group_id).items():
            for partition in partitions:
                yield offset_tombstone(group_id, topic, partition)

    def topic_tombstones(self, topics: frozenset[str]) -> Iterator[CoordinatorRecord]:
        """Yield tombstones for the offsets that any group has committed for these topics."""
        for group_id, by_topic in self._offsets.items():
            for topic in by_topic.keys() & topics:
                for partition in by_topic[topic]:
                    yield offset_tombstone(group_id, topic, partition)

    def expired_offset_tombstones(
        self, group: ClassicGroup, retention_ms: int, now_ms: int
    ) -> Iterator[CoordinatorRecord]:
        """Yield tombstones for the group's expired offsets."""
        if not _may_expire(group):
            return
        empty_since_ms = group.state_timestamp_ms if group.protocol_type is not None and group.is_empty else -1
        for topic, partitions in self.group_offsets(group.group_id).items():
            if group.is_subscribed_to(topic):
                continue
            for partition, committed in partitions.items():
                if _is_expired(committed, empty_since_ms, retention_ms, now_ms):
                    yield offset_tombstone(group.group_id, topic, partition)


def _may_expire(group: ClassicGroup) -> bool:
    if group.protocol_type is None:
        return True
    if group.is_empty:
        return True
    return group.uses_consumer_protocol and group.subscribed_topics is not None and group.state is GroupState.STABLE


def _is_expired(committed: CommittedOffset, empty_since_ms: int, retention_ms: int, now_ms: int) -> bool:
    if committed.expire_timestamp_ms >= 0:
        return now_ms >= committed.expire_timestamp_ms
    start_ms = empty_since_ms if empty_since_ms >= 0 else committed.commit_timestamp_ms
    return now_ms - start_ms >= retention_ms
