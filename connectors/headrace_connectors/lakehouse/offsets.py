"""Offset ranges of micro-batches, and the offsets that a table stores. This module does no I/O."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

TopicPartition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Range:
    """The offsets `start <= offset < end` of one partition."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def key(self) -> TopicPartition:
        return (self.topic, self.partition)

    def __len__(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}[{self.start},{self.end})"


@dataclass(frozen=True, slots=True)
class TableOffsets:
    """The next offset to load of each partition, and the ids of the topics. A table stores them with each commit."""

    next_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    topic_ids: dict[str, str] = field(default_factory=dict)

    def to_text(self) -> str:
        """Return JSON text for the metadata of a commit. Equal offsets result in equal text."""
        topics: dict[str, Any] = {}
        for (topic, partition), offset in sorted(self.next_offsets.items()):
            topics.setdefault(topic, {"partitions": {}})["partitions"][str(partition)] = offset
        for topic, id_ in sorted(self.topic_ids.items()):
            topics.setdefault(topic, {"partitions": {}})["id"] = id_
        return json.dumps(topics, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> TableOffsets:
        """Parse the JSON that `to_text` returns."""
        topics: dict[str, Any] = json.loads(text)
        offsets = {
            (topic, int(partition)): int(offset)
            for topic, entry in topics.items()
            for partition, offset in entry["partitions"].items()
        }
        return cls(offsets, {topic: entry["id"] for topic, entry in topics.items() if entry.get("id")})

    def after(self, ranges: Iterable[Range], topic_ids: Mapping[str, str]) -> TableOffsets:
        """Return the offsets after loading `ranges`. `topic_ids` has the ids of the ranges' topics."""
        offsets, ids = dict(self.next_offsets), dict(self.topic_ids)
        for range_ in ranges:
            offsets[range_.key] = max(offsets.get(range_.key, 0), range_.end)
            if range_.topic in topic_ids:
                ids[range_.topic] = topic_ids[range_.topic]
        return TableOffsets(offsets, ids)

    def without(self, partitions: Iterable[TopicPartition]) -> TableOffsets:
        """Return the offsets of the other partitions."""
        removed = set(partitions)
        return self.with_offsets({key: offset for key, offset in self.next_offsets.items() if key not in removed})

    def only(self, partitions: Iterable[TopicPartition]) -> TableOffsets:
        """Return the offsets of these partitions."""
        selected = set(partitions)
        return self.with_offsets({key: offset for key, offset in self.next_offsets.items() if key in selected})

    def with_offsets(self, next_offsets: dict[TopicPartition, int]) -> TableOffsets:
        """Return other offsets, and the known ids of their topics."""
        topics = {topic for topic, _ in next_offsets}
        return TableOffsets(next_offsets, {topic: id_ for topic, id_ in self.topic_ids.items() if topic in topics})


def truncate_ranges(ranges: Iterable[Range], ends: Mapping[TopicPartition, int]) -> list[Range]:
    """Limit the ends of the ranges to `ends`, and return the ranges that are not empty."""
    truncated = (replace(range_, end=min(range_.end, ends.get(range_.key, range_.end))) for range_ in ranges)
    return [range_ for range_ in truncated if range_.start < range_.end]
