"""Determines the offset ranges of each micro-batch. This module does no I/O: the reader asks the cluster."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from headrace.api.errors import ConnectError
from headrace.api.record_access import TopicDescription
from headrace_connectors.lakehouse.offsets import Range, TableOffsets, TopicPartition

SMALL_ROW_BYTES = 1024
"""Assumed record size. If the backlog fits the byte limit at this size, no records are sampled."""

logger = logging.getLogger(__name__)
Offsets = dict[TopicPartition, int]


class Cluster(Protocol):
    """The planner's view of the cluster, implemented by `OpenRecordReader`."""

    def describe_topics(self, topics: Iterable[str], topics_regex: str | None) -> Mapping[str, TopicDescription]: ...
    def log_bounds(
        self, partitions: Iterable[TopicPartition]
    ) -> tuple[Mapping[TopicPartition, int], Mapping[TopicPartition, int]]: ...
    def average_record_bytes(self, positions: Mapping[TopicPartition, int]) -> Mapping[str, float]: ...


@dataclass(frozen=True, slots=True)
class Limits:
    """The maximum number of records and of payload bytes in a micro-batch."""

    rows_max: int
    bytes_max: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The non-empty ranges of a micro-batch, sorted by topic and partition.

    `topics` has the topics that exist now. `starts` has the offset at which the micro-batch starts in each partition,
    and `log_ends` has the end of each partition's log.
    """

    ranges: tuple[Range, ...]
    topics: Mapping[str, TopicDescription]
    starts: Mapping[TopicPartition, int]
    log_ends: Mapping[TopicPartition, int]

    @property
    def partitions(self) -> list[TopicPartition]:
        """All partitions of the topics, sorted."""
        return _partitions(self.topics)

    @property
    def topic_ids(self) -> dict[str, str]:
        """The ids of the existing topics, as far as the brokers support them."""
        return _ids(self.topics)

    def lag(self, loaded: Mapping[TopicPartition, int] | None = None) -> int:
        """Return the number of offsets after the position `loaded`, by default after the start of the micro-batch."""
        position = {**self.starts, **(loaded or {})}
        return sum(max(0, end - position[key]) for key, end in self.log_ends.items())


class Planner:
    """Plans micro-batches of the topics of one connector."""

    def __init__(
        self,
        cluster: Cluster,
        topics: Iterable[str],
        topics_regex: str | None,
        limits: Limits,
        *,
        fail_on_data_loss: bool,
    ) -> None:
        self._cluster = cluster
        self._topics = tuple(topics)
        self._topics_regex = topics_regex
        self._limits = limits
        self._fail_on_data_loss = fail_on_data_loss

    def describe_topics(self) -> Mapping[str, TopicDescription]:
        """Return the connector's topics that exist."""
        return self._cluster.describe_topics(self._topics, self._topics_regex)

    def latest(self, topics: Mapping[str, TopicDescription]) -> Offsets:
        """Return the ends of the logs of all partitions of `topics`."""
        return dict(self._cluster.log_bounds(_partitions(topics))[1])

    def next(self, position: TableOffsets, topics: Mapping[str, TopicDescription]) -> Plan:
        """Return the micro-batch that starts at `position`; partitions that are missing there start at their log start.

        The micro-batch contains all available records, up to the limits for rows and bytes. Raises ConnectError if the
        log of a partition no longer contains the next record, or a topic was deleted and created again.
        """
        check_topic_ids(position.topic_ids, _ids(topics))
        keys = _partitions(topics)
        log_starts, ends = self._cluster.log_bounds(keys)
        starts = {
            key: self._check_offset(key, position.next_offsets.get(key, log_starts[key]), log_starts[key], ends[key])
            for key in keys
        }
        admitted = limit_rows(starts, ends, self._rows_max(starts, ends))
        ranges = (Range(*key, starts[key], end) for key, end in sorted(admitted.items()))
        return Plan(tuple(range_ for range_ in ranges if len(range_)), topics, starts, ends)

    def _check_offset(self, key: TopicPartition, offset: int, log_start: int, end: int) -> int:
        """Return the offset at which the next micro-batch starts in the partition `key`.

        `offset` is the next offset to load. The partition's log starts at `log_start` and ends at `end`. If the log
        contains `offset`, return `offset`. If retention has deleted the record at `offset` and
        lakehouse.fail.on.data.loss=false, return `log_start`. Otherwise, raise ConnectError.
        """
        if log_start <= offset <= end:
            return offset
        where = f"topic {key[0]}, partition {key[1]}"
        if offset > end:
            raise ConnectError(
                f"{where}: the log ends at offset {end}, but the next offset to load is {offset};"
                " the log was truncated or created again"
            )
        lost = f"{where}: retention deleted offsets {offset} to {log_start - 1} before they were loaded"
        if self._fail_on_data_loss:
            raise ConnectError(f"{lost}; set lakehouse.fail.on.data.loss=false to continue with the remaining records")
        logger.warning("%s, continuing at offset %d", lost, log_start)
        return log_start

    def _rows_max(self, starts: Offsets, ends: Mapping[TopicPartition, int]) -> int:
        """Return the row limit of the next micro-batch. The limit is lowered if the rows would exceed the byte limit.

        The size of records is sampled only if the backlog may exceed the byte limit.
        """
        lags = {key: ends[key] - start for key, start in starts.items() if ends[key] > start}
        total = sum(lags.values())
        if total * SMALL_ROW_BYTES <= self._limits.bytes_max:
            return self._limits.rows_max
        sizes = self._cluster.average_record_bytes({key: starts[key] for key in lags})
        bytes_ahead = sum(lag * sizes.get(key[0], SMALL_ROW_BYTES) for key, lag in lags.items())
        return max(1, min(self._limits.rows_max, int(self._limits.bytes_max * total / max(1.0, bytes_ahead))))


def _partitions(topics: Mapping[str, TopicDescription]) -> list[TopicPartition]:
    return sorted((name, partition) for name, topic in topics.items() for partition in topic.partitions)


def _ids(topics: Mapping[str, TopicDescription]) -> dict[str, str]:
    return {name: topic.id for name, topic in topics.items() if topic.id}


def check_topic_ids(known: Mapping[str, str], topic_ids: Mapping[str, str]) -> None:
    """Raise ConnectError if a topic has another id than the one that a table stores."""
    for name, id_ in topic_ids.items():
        before = known.get(name)
        if before and before != id_:
            raise ConnectError(
                f"topic {name} was deleted and created again (its id was {before}, now it is {id_}), but the"
                " table has records and offsets of the old topic; load the new topic into another table"
                " (lakehouse.table.name.format), or delete the table"
            )


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


def split_ranges(ranges: Iterable[Range], tasks_max: int, task_rows_min: int) -> list[list[Range]]:
    """Split ranges into at most `tasks_max` lists with about the same number of rows, one list per Spark task.

    No list has much fewer than `task_rows_min` rows, because starting a task takes about 0.1 s. A list may contain the
    ranges of many partitions, and a large range is split between several lists to use all cores.
    """
    ranges = list(ranges)
    total = sum(map(len, ranges))
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
