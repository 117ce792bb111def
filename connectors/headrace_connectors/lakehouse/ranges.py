"""Offset arithmetic of the source: what a batch covers, how much of the backlog it takes, who reads what. Pure.

Spark keeps a source's position as a JSON document, one per batch, in its checkpoint. Ours holds for each topic its
topic id and for each partition the next offset to read, and for partitions that a batch sees first, or whose log has
lost what came next, where the batch starts.
"""

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
class Position:
    """Where the source stands: next offsets, topic ids, and where partitions start that do not go on from before."""

    next_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    topic_ids: dict[str, str] = field(default_factory=dict)
    starts: dict[TopicPartition, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the document that Spark logs; equal positions give equal text."""
        return {"topics": self._by_topic(self.next_offsets, self.topic_ids), "starts": self._by_topic(self.starts)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Position:
        """Read what `to_json` wrote."""
        topics = document.get("topics", {})
        ids = {topic: entry["id"] for topic, entry in topics.items() if entry.get("id")}
        return cls(_partitions(topics), ids, _partitions(document.get("starts", {})))

    @staticmethod
    def _by_topic(offsets: dict[TopicPartition, int], ids: Mapping[str, str] | None = None) -> dict[str, Any]:
        topics: dict[str, Any] = {}
        for (topic, partition), offset in sorted(offsets.items()):
            topics.setdefault(topic, {"partitions": {}})["partitions"][str(partition)] = offset
        for topic, id_ in sorted((ids or {}).items()):
            topics.setdefault(topic, {"partitions": {}})["id"] = id_
        return topics


def _partitions(topics: Mapping[str, Any]) -> dict[TopicPartition, int]:
    return {
        (topic, int(partition)): int(offset)
        for topic, entry in topics.items()
        for partition, offset in entry["partitions"].items()
    }


def parse_position(text: str) -> Position:
    """Read a position from the JSON text of Spark's offset log."""
    return Position.from_json(json.loads(text))


def ranges_between(start: Position, end: Position) -> list[Range]:
    """Return the non-empty ranges that a batch from `start` to `end` covers, by topic and partition."""
    ranges = []
    for (topic, partition), end_offset in sorted(end.next_offsets.items()):
        key = (topic, partition)
        first = end.starts.get(key, start.next_offsets.get(key, end_offset))
        if first < end_offset:
            ranges.append(Range(topic, partition, first, end_offset))
    return ranges


def cut(ranges: Iterable[Range], ends: Mapping[TopicPartition, int]) -> list[Range]:
    """Return what is left of ranges that must not go past some partitions' ends; a range without rest is left out."""
    cuts = (replace(range_, end=min(range_.end, ends.get(range_.key, range_.end))) for range_ in ranges)
    return [range_ for range_ in cuts if range_.start < range_.end]


def admit(
    position: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], rows_max: int
) -> dict[TopicPartition, int]:
    """Return the next position: the ends, or where the backlog is over `rows_max`, each partition's share of it.

    Shares follow the backlogs, so that no partition waits for another; each partition that lags moves by one at least.
    """
    lags = {key: max(0, end - position[key]) for key, end in ends.items() if key in position}
    total = sum(lags.values())
    if total <= rows_max:
        return {key: position[key] + lag for key, lag in lags.items()}
    return {key: position[key] + min(lag, max(1, lag * rows_max // total)) for key, lag in lags.items()}


def pack(ranges: list[Range], tasks_max: int, task_rows_min: int) -> list[list[Range]]:
    """Cut ranges into at most `tasks_max` lists of about equal length, none much shorter than `task_rows_min`.

    A task costs about a tenth of a second before its first record, so a small batch is one task and many partitions
    share a task; a large partition is cut so that every core has work.
    """
    total = sum(len(range_) for range_ in ranges)
    tasks = max(1, min(tasks_max, total // max(1, task_rows_min)))
    share = -(-total // tasks)
    packed: list[list[Range]] = [[]]
    room = share
    for range_ in ranges:
        start = range_.start
        while start < range_.end:
            if room == 0:
                packed.append([])
                room = share
            end = min(range_.end, start + room)
            packed[-1].append(Range(range_.topic, range_.partition, start, end))
            room -= end - start
            start = end
    return packed if packed[0] else []
