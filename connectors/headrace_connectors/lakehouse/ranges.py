"""Offsets and offset ranges of micro-batches, and the distribution of ranges to Spark tasks.

Spark stores the end offset of each micro-batch as JSON in its checkpoint. The Kafka source's offset
contains each topic's id and each partition's next offset. For partitions that are new in the
micro-batch, or whose next records were deleted, it also contains the offset at which the
micro-batch starts. This module does no I/O.
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
class KafkaSourceOffset:
    """The Kafka source's position in all topic partitions after a micro-batch. Spark calls this position an offset.

    `next_offsets` has the offset at which the next micro-batch starts in each partition. `starts` has the offset at
    which this micro-batch starts, but only for some partitions. In all other partitions, this micro-batch starts at the
    `next_offsets` of the previous micro-batch.
    """

    next_offsets: dict[TopicPartition, int] = field(default_factory=dict)
    topic_ids: dict[str, str] = field(default_factory=dict)
    starts: dict[TopicPartition, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the JSON that Spark stores. Equal offsets result in equal JSON."""
        return {"topics": self._by_topic(self.next_offsets, self.topic_ids), "starts": self._by_topic(self.starts)}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> KafkaSourceOffset:
        """Parse the JSON that `to_json` returns."""
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


def parse_source_offset(text: str) -> KafkaSourceOffset:
    """Parse a source offset from a line of Spark's offset log."""
    return KafkaSourceOffset.from_json(json.loads(text))


def ranges_between(start: KafkaSourceOffset, end: KafkaSourceOffset) -> list[Range]:
    """Return the non-empty ranges of a micro-batch from `start` to `end`, sorted by topic and partition."""
    ranges = []
    for (topic, partition), end_offset in sorted(end.next_offsets.items()):
        key = (topic, partition)
        first = end.starts.get(key, start.next_offsets.get(key, end_offset))
        if first < end_offset:
            ranges.append(Range(topic, partition, first, end_offset))
    return ranges


def truncate_ranges(ranges: Iterable[Range], ends: Mapping[TopicPartition, int]) -> list[Range]:
    """Limit the ends of the ranges to `ends`, and return the ranges that are not empty."""
    truncated = (replace(range_, end=min(range_.end, ends.get(range_.key, range_.end))) for range_ in ranges)
    return [range_ for range_ in truncated if range_.start < range_.end]


def limit_rows(
    position: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], rows_max: int
) -> dict[TopicPartition, int]:
    """Return the end offsets of the next micro-batch, which has at most about `rows_max` rows.

    If the backlog is larger, each partition gets a share of `rows_max` that is proportional to the
    partition's backlog, and at least one row, so that no partition waits for the others.
    """
    lags = {key: max(0, end - position[key]) for key, end in ends.items() if key in position}
    total = sum(lags.values())
    if total <= rows_max:
        return {key: position[key] + lag for key, lag in lags.items()}
    return {key: position[key] + min(lag, max(1, lag * rows_max // total)) for key, lag in lags.items()}


def split_ranges(ranges: list[Range], tasks_max: int, task_rows_min: int) -> list[list[Range]]:
    """Split ranges into at most `tasks_max` lists with about the same number of rows.

    Each list is read by one Spark task. No list has much fewer than `task_rows_min` rows, because starting
    a task takes about 0.1 s. A list may contain the ranges of many partitions, and a large range is split
    between several lists to use all cores.
    """
    total = sum(len(range_) for range_ in ranges)
    tasks = max(1, min(tasks_max, total // max(1, task_rows_min)))
    share = -(-total // tasks)
    lists: list[list[Range]] = [[]]
    remaining = share
    for range_ in ranges:
        start = range_.start
        while start < range_.end:
            if remaining == 0:
                lists.append([])
                remaining = share
            end = min(range_.end, start + remaining)
            lists[-1].append(Range(range_.topic, range_.partition, start, end))
            remaining -= end - start
            start = end
    return lists if lists[0] else []
