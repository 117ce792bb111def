"""Tracks which offsets a sink task may commit, by KIP-89's rules for `preCommit`. This module does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

TopicPartition = tuple[str, int]


class SinkOffsets:
    """The offset after the last delivered record, and the committed offset, of each assigned partition."""

    def __init__(self) -> None:
        self.delivered: dict[TopicPartition, int] = {}
        self.committed: dict[TopicPartition, int] = {}
        self._commit_numbers: dict[TopicPartition, int] = {}  # the newest successful commit by partition

    def assign(self, positions: Mapping[TopicPartition, int]) -> None:
        """Add assigned partitions with their positions."""
        self.delivered.update(positions)
        self.committed.update(positions)

    def revoke(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove revoked partitions."""
        for partition in partitions:
            self.delivered.pop(partition, None)
            self.committed.pop(partition, None)
            self._commit_numbers.pop(partition, None)

    def deliver(self, partition: TopicPartition, next_offset: int) -> None:
        """Mark all records before `next_offset` as delivered, including filtered and failed records."""
        self.delivered[partition] = next_offset

    def mark_committed(self, offsets: Mapping[TopicPartition, int], number: int) -> None:
        """Record the offsets of the commit with that number. They may be lower than the offsets of earlier commits.

        Commits that are older than the newest known commit are ignored, and so are partitions that are not assigned.
        """
        for partition, offset in offsets.items():
            if partition in self.committed and number >= self._commit_numbers.get(partition, 0):
                self.committed[partition] = offset
                self._commit_numbers[partition] = number

    def uncommitted_records(self) -> int:
        """Return the distance between the committed and the delivered offsets of all partitions."""
        committed = self.committed
        return sum(max(0, offset - committed.get(partition, offset)) for partition, offset in self.delivered.items())

    def rewind(self) -> dict[TopicPartition, int]:
        """Reset the delivered offsets to the committed offsets. Return the offsets to which the consumer must seek."""
        self.delivered.update(self.committed)
        return dict(self.committed)

    def to_commit(self, wanted: Mapping[TopicPartition, int]) -> tuple[dict[TopicPartition, int], list[str]]:
        """Return those offsets of `wanted` that may be committed, and a warning for each offset that is ignored.

        An offset is ignored if its partition is not assigned, or if it is beyond the delivered records.
        """
        commit: dict[TopicPartition, int] = {}
        complaints: list[str] = []
        for partition, offset in wanted.items():
            delivered = self.delivered.get(partition)
            name = f"{partition[0]}-{partition[1]}"
            if delivered is None:
                complaints.append(f"ignoring offset {offset} of {name} from pre_commit, the partition is not assigned")
            elif offset > delivered:
                complaints.append(
                    f"ignoring offset {offset} of {name} from pre_commit, it is beyond the consumed offset {delivered}"
                )
            elif offset != self.committed.get(partition):
                commit[partition] = offset
        return commit, complaints
