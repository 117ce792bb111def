"""What the clients of a run did and were told, and whether the logs hold in the end what they were promised."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from headrace_broker.protocol.topic_names import TopicPartition
from headrace_broker.simulation.topics import COMPACTED
from headrace_broker.simulation.world import Violation


@dataclass(slots=True)
class Sent:
    """One record that a writer was given; `offset` is None until it is acknowledged.  No value: a tombstone."""

    value: bytes | None
    key: bytes | None = None
    offset: int | None = None


@dataclass(slots=True)
class Commits:
    """What a group was told of its committed offset of one partition."""

    acknowledged: int = 0
    attempted: set[int] = field(default_factory=set)
    """Offsets of commits whose fate nobody knows, and the acknowledged ones."""
    tried_ever: set[int] = field(default_factory=set)
    """All there were: a member may have looked up its position before others went on."""


@dataclass(slots=True)
class Final:
    """What a partition's log holds in the end: {offset: (key, value)}, and the offset behind all."""

    end_offset: int
    records: dict[int, tuple[bytes | None, bytes | None]] = field(default_factory=dict)

    def value(self, offset: int) -> bytes | None:
        """The value there, None also where there is no record."""
        return self.records.get(offset, (None, None))[1]


class History:
    """What the clients did and were told."""

    def __init__(self, log_start: Callable[[TopicPartition], int]) -> None:
        """`log_start(partition)` is the offset before which records may be gone."""
        self.sent: dict[tuple[str, TopicPartition], list[Sent]] = {}
        self.read: dict[TopicPartition, dict[int, bytes | None]] = {}
        self.commits: dict[TopicPartition, Commits] = {}
        self.topics: dict[str, bool | None] = {}
        """Whether a topic must be there in the end; None when nobody can know."""
        self._log_start = log_start

    @property
    def records_sent(self) -> int:
        return sum(len(items) for items in self.sent.values())

    def saw(self, who: str, partition: TopicPartition, offset: int, value: bytes | None) -> None:
        """Somebody read a record: whoever reads that offset, at whatever time, reads the same."""
        known = self.read.setdefault(partition, {}).setdefault(offset, value)
        if known != value:
            raise Violation(f"{who} read {value!r} at {at(partition, offset)}, where {known!r} was read before")

    def check_next(self, who: str, partition: TopicPartition, offset: int, position: int) -> None:
        """Somebody at that position was given the record at that offset: what is between them must be gone by right."""
        is_gone = partition[0] == COMPACTED or offset <= self._log_start(partition)
        if offset != position and not (offset > position and is_gone):
            raise Violation(f"{who} read {at(partition, offset)}, {position} was next")

    def _may_lack(self, partition: TopicPartition, offset: int) -> bool:
        return partition[0] == COMPACTED or offset < self._log_start(partition)

    def check(self, final: dict[TopicPartition, Final]) -> None:
        """Compare with what the log of each partition holds in the end."""
        for partition, read in self.read.items():
            for offset, value in read.items():
                held = final[partition].value(offset)
                if held != value and not (held is None and self._may_lack(partition, offset)):
                    raise Violation(f"{value!r} was read at {at(partition, offset)}, where {held!r} is in the end")
        for (writer, partition), items in self.sent.items():
            self._check_writer(writer, partition, items, final[partition])
            if partition[0] == COMPACTED:
                _check_newest(items, final[partition])

    def _check_writer(self, writer: str, partition: TopicPartition, items: list[Sent], final: Final) -> None:
        prefix = f"{writer} ".encode()
        for item in items:
            if item.offset is None or item.offset < 0:
                continue
            held = final.value(item.offset)
            if held != item.value and not (held is None and self._may_lack(partition, item.offset)):
                raise Violation(f"{item.value!r} was acknowledged at {at(partition, item.offset)}: there is {held!r}")
        values = (final.value(offset) for offset in sorted(final.records))
        written = [value for value in values if value is not None and value.startswith(prefix)]
        found = set(written)
        wanted = [
            item.value
            for item in items
            if item.value is not None and (item.value in found or not self._may_lack(partition, item.offset or 0))
        ]
        if written != wanted:
            raise Violation(f"{writer}, {partition[0]}-{partition[1]}: {_difference(written, wanted)}")


def _check_newest(items: list[Sent], final: Final) -> None:
    """Of each key the newest value is there; where that is a tombstone, it may be gone, and older ones back with it."""
    held = {key: value for _, (key, value) in sorted(final.records.items())}
    for key, last in {item.key: item for item in items}.items():
        if last.value is not None and held.get(key) != last.value:
            raise Violation(f"{last.value!r} is the newest of {key!r} in {COMPACTED}: there is {held.get(key)!r}")


def at(partition: TopicPartition, offset: int) -> str:
    """An offset of a partition in words."""
    return f"{partition[0]}-{partition[1]}@{offset}"


def _difference(written: list[bytes], wanted: list[bytes]) -> str:
    lost = [value for value in wanted if value not in written]
    twice = sorted({value for value in written if written.count(value) > 1})
    if lost:
        return f"{len(lost)} of {len(wanted)} records are lost, first {lost[0]!r}"
    return f"{len(twice)} records stand there twice, first {twice[0]!r}" if twice else "records are out of order"
