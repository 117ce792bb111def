"""Which offsets a sink task may commit. Pure; KIP-89's rules for `preCommit`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

TopicPartition = tuple[str, int]


class SinkOffsets:
    """Next offsets by partition: delivered to the task, and committed to the group."""

    def __init__(self) -> None:
        self.delivered: dict[TopicPartition, int] = {}
        self.committed: dict[TopicPartition, int] = {}

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Start with partitions at these positions."""
        self.delivered.update(positions)
        self.committed.update(positions)

    def revoke(self, partitions: Iterable[TopicPartition]) -> None:
        """Forget partitions that belong to others now."""
        for partition in partitions:
            self.delivered.pop(partition, None)
            self.committed.pop(partition, None)

    def deliver(self, partition: TopicPartition, next_offset: int) -> None:
        """The task has taken everything before `next_offset` (filtered and failed records included)."""
        self.delivered[partition] = next_offset

    def rewind(self) -> dict[TopicPartition, int]:
        """Go back to what is committed; returns the positions to seek to."""
        self.delivered.update(self.committed)
        return dict(self.committed)

    def to_commit(self, wanted: Mapping[TopicPartition, int]) -> tuple[dict[TopicPartition, int], list[str]]:
        """What of `wanted` to commit, and complaints: only owned partitions, never beyond what was delivered."""
        commit: dict[TopicPartition, int] = {}
        complaints: list[str] = []
        for partition, offset in wanted.items():
            delivered = self.delivered.get(partition)
            name = f"{partition[0]}-{partition[1]}"
            if delivered is None:
                complaints.append(f"{name} is not assigned to this task: its offset {offset} is ignored")
            elif offset > delivered:
                complaints.append(f"{name}: offset {offset} lies beyond the last consumed, {delivered}; it is ignored")
            elif offset != self.committed.get(partition):
                commit[partition] = offset
        return commit, complaints
