"""Stores the clients' writes, reads and offset commits, and checks them against the logs at the end of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from headrace_broker.protocol.topic_names import TopicPartition
from headrace_broker.simulation.simulated_cluster import Violation
from headrace_broker.simulation.topics import COMPACTED


@dataclass(slots=True)
class SentRecord:
    """One record that was passed to a producer. `offset` is None until the record is acknowledged.

    A record whose `value` is None is a tombstone.
    """

    value: bytes | None
    key: bytes | None = None
    offset: int | None = None


@dataclass(slots=True)
class GroupCommits:
    """The consumer group's offset commits for one partition."""

    acknowledged: int = 0
    """The offset of the last acknowledged commit."""
    attempted: set[int] = field(default_factory=set)
    """The offsets of later commits whose outcome is unknown."""
    ever_attempted: set[int] = field(default_factory=set)
    """The offsets of all commits: a member may have fetched its position before other members committed."""


@dataclass(slots=True)
class FinalLog:
    """A partition's log at the end of the run. `records` maps each offset to the record's key and value."""

    end_offset: int
    records: dict[int, tuple[bytes | None, bytes | None]] = field(default_factory=dict)

    def value(self, offset: int) -> bytes | None:
        """Return the value of the record at `offset`, or None if the log has no record at `offset`."""
        return self.records.get(offset, (None, None))[1]


class History:
    """The operations of the clients in one run, with their results."""

    def __init__(self, log_start: Callable[[TopicPartition], int]) -> None:
        """`log_start(partition)` returns the offset below which records may have been deleted."""
        self.sent: dict[tuple[str, TopicPartition], list[SentRecord]] = {}
        self.read: dict[TopicPartition, dict[int, bytes | None]] = {}
        self.commits: dict[TopicPartition, GroupCommits] = {}
        self.topics: dict[str, bool | None] = {}
        """Maps each topic to whether it exists, or to None after a request whose outcome is unknown."""
        self._log_start = log_start

    @property
    def records_sent(self) -> int:
        return sum(len(items) for items in self.sent.values())

    def record_read(self, client: str, partition: TopicPartition, offset: int, value: bytes | None) -> None:
        """Store the value that a client read.

        Raises Violation if an earlier read at the same offset returned a different value.
        """
        known = self.read.setdefault(partition, {}).setdefault(offset, value)
        if known != value:
            raise Violation(
                f"{client} read {value!r} at {format_offset(partition, offset)}, "
                f"where an earlier read returned {known!r}"
            )

    def check_next(self, client: str, partition: TopicPartition, offset: int, position: int) -> None:
        """Check that a client at `position` may read `offset` next.

        All records between `position` and `offset` must have been removed.
        """
        may_skip = partition[0] == COMPACTED or offset <= self._log_start(partition)
        if offset != position and not (offset > position and may_skip):
            raise Violation(f"{client} read {format_offset(partition, offset)}, but should have read offset {position}")

    def _may_be_removed(self, partition: TopicPartition, offset: int) -> bool:
        return partition[0] == COMPACTED or offset < self._log_start(partition)

    def check(self, final: dict[TopicPartition, FinalLog]) -> None:
        """Compare the history with each partition's log at the end of the run.

        Raises Violation if the history and a log do not match.
        """
        for partition, read in self.read.items():
            for offset, value in read.items():
                actual = final[partition].value(offset)
                if actual != value and not (actual is None and self._may_be_removed(partition, offset)):
                    raise Violation(
                        f"{value!r} was read at {format_offset(partition, offset)}, "
                        f"where the log has {actual!r} at the end of the run"
                    )
        for (producer, partition), items in self.sent.items():
            self._check_producer(producer, partition, items, final[partition])
            if partition[0] == COMPACTED:
                _check_latest(items, final[partition])

    def _check_producer(
        self, producer: str, partition: TopicPartition, items: list[SentRecord], final: FinalLog
    ) -> None:
        prefix = f"{producer} ".encode()
        for item in items:
            if item.offset is None or item.offset < 0:
                continue
            actual = final.value(item.offset)
            if actual != item.value and not (actual is None and self._may_be_removed(partition, item.offset)):
                raise Violation(
                    f"{item.value!r} was acknowledged at {format_offset(partition, item.offset)}, "
                    f"where the log has {actual!r}"
                )
        values = (final.value(offset) for offset in sorted(final.records))
        written = [value for value in values if value is not None and value.startswith(prefix)]
        found = set(written)
        expected = [
            item.value
            for item in items
            if item.value is not None and (item.value in found or not self._may_be_removed(partition, item.offset or 0))
        ]
        if written != expected:
            raise Violation(f"{producer}, {partition[0]}-{partition[1]}: {_describe_difference(written, expected)}")


def _check_latest(items: list[SentRecord], final: FinalLog) -> None:
    """Check that the log has each key's latest value.

    If the latest record of a key is a tombstone, compaction may have removed the tombstone. The log may then contain
    older values of the key.
    """
    latest = {key: value for _, (key, value) in sorted(final.records.items())}
    for key, last in {item.key: item for item in items}.items():
        if last.value is not None and latest.get(key) != last.value:
            raise Violation(
                f"{COMPACTED}: the latest value that was written for {key!r} is {last.value!r}, but the log has "
                f"{latest.get(key)!r}"
            )


def format_offset(partition: TopicPartition, offset: int) -> str:
    """Format a partition's offset as topic-partition@offset."""
    return f"{partition[0]}-{partition[1]}@{offset}"


def _describe_difference(written: list[bytes], expected: list[bytes]) -> str:
    lost = [value for value in expected if value not in written]
    duplicates = sorted({value for value in written if written.count(value) > 1})
    if lost:
        return f"{len(lost)} of {len(expected)} records are lost, first {lost[0]!r}"
    if duplicates:
        return f"{len(duplicates)} records are duplicated, first {duplicates[0]!r}"
    return "records are out of order"
