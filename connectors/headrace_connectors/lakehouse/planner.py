"""Determines the end offset of each micro-batch of the Kafka source.

The planner runs in the Python process that Spark's driver starts for the Kafka source. This module does no I/O:
`cluster` provides topics and log offsets, and `row_bytes` estimates the size of the next records.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from headrace_connectors.lakehouse.ranges import KafkaSourceOffset, TopicPartition, limit_rows
from headrace_connectors.lakehouse.spec import SourceError, SourceSpec

SMALL_ROW_BYTES = 1024
"""Assumed record size. If the backlog fits the byte limit at this size, no records are sampled."""

logger = logging.getLogger(__name__)
Offsets = dict[TopicPartition, int]


class TopicLike(Protocol):
    """The id and partitions of an existing topic."""

    @property
    def id(self) -> str | None: ...
    @property
    def partitions(self) -> tuple[int, ...]: ...


class TopicMetadata(Protocol):
    """The planner's view of the cluster, implemented by `topics.Topics`."""

    def existing(self) -> Mapping[str, TopicLike]: ...
    def log_bounds(self, partitions: Iterable[TopicPartition], *, read_committed: bool) -> tuple[Offsets, Offsets]: ...


class Planner:
    """Determines the start offsets of the query and the end offset of each micro-batch."""

    def __init__(
        self, spec: SourceSpec, cluster: TopicMetadata, row_bytes: Callable[[Offsets], dict[str, float]]
    ) -> None:
        self._spec = spec
        self._cluster = cluster
        self._row_bytes = row_bytes

    def initial(self) -> KafkaSourceOffset:
        """Return the offsets from which the query starts.

        These are the tables' offsets. If auto.offset.reset=latest, they include the log end offsets of all partitions
        for which the tables have no offset.
        """
        start = KafkaSourceOffset.from_json(self._spec.start)
        if not self._spec.start_at_latest:
            return start
        ids, present = self._describe_topics(start)
        _, ends = self._cluster.log_bounds(sorted(present), read_committed=self._spec.read_committed)
        return KafkaSourceOffset({**ends, **start.next_offsets}, ids)

    def next(self, before: KafkaSourceOffset) -> KafkaSourceOffset:
        """Return the end offset of the micro-batch that follows the offset `before`.

        The micro-batch contains all available records, up to the limits for rows and bytes. Raises
        SourceError if the log of a partition no longer contains the next record to load.
        """
        ids, present = self._describe_topics(before)
        log_starts, ends = self._cluster.log_bounds(sorted(present), read_committed=self._spec.read_committed)
        starts = {key: log_starts[key] for key in sorted(present - before.next_offsets.keys())}
        position = {**before.next_offsets, **starts}
        for key in sorted(present):
            offset = self._check_offset(key, position[key], log_starts[key], ends[key])
            if offset != position[key]:
                position[key] = starts[key] = offset
        admitted = limit_rows(position, ends, self._rows_max(position, ends))
        return KafkaSourceOffset({**position, **admitted}, ids, starts)

    def _describe_topics(self, before: KafkaSourceOffset) -> tuple[dict[str, str], set[TopicPartition]]:
        """Return the ids of the existing topics and of the topics in `before`, and the existing partitions.

        Raises SourceError if a topic was deleted and created again.
        """
        ids = dict(before.topic_ids)
        existing = self._cluster.existing()
        for name, topic in existing.items():
            known = ids.setdefault(name, topic.id or "")
            if known and topic.id and known != topic.id:
                raise SourceError(
                    f"topic {name} was deleted and created again (its id was {known}, now it is {topic.id}), but the"
                    " table has records and offsets of the old topic; load the new topic into another table"
                    " (lakehouse.table.name.format), or delete the table"
                )
        present = {(name, partition) for name, topic in existing.items() for partition in topic.partitions}
        return {name: id_ for name, id_ in ids.items() if id_}, present

    def _check_offset(self, key: TopicPartition, offset: int, log_start: int, end: int) -> int:
        """Return the offset at which the next micro-batch starts in the partition `key`.

        `offset` is the next offset to load. The partition's log starts at `log_start` and ends at `end`. If the log
        contains `offset`, return `offset`. If retention has deleted the record at `offset` and
        lakehouse.fail.on.data.loss=false, return `log_start`. Otherwise, raise SourceError.
        """
        if log_start <= offset <= end:
            return offset
        where = f"topic {key[0]}, partition {key[1]}"
        if offset > end:
            raise SourceError(
                f"{where}: the log ends at offset {end}, but the next offset to load is {offset};"
                " the log was truncated or created again"
            )
        lost = f"{where}: retention deleted offsets {offset} to {log_start - 1} before they were loaded"
        if self._spec.fail_on_data_loss:
            raise SourceError(f"{lost}; set lakehouse.fail.on.data.loss=false to continue with the remaining records")
        logger.warning("%s, continuing at offset %d", lost, log_start)
        return log_start

    def _rows_max(self, position: Offsets, ends: Offsets) -> int:
        """Return the row limit of the next micro-batch. The limit is lowered if the rows would exceed the byte limit.

        The backlog is the records from `position` to `ends`. The size of records is sampled only if the backlog may
        exceed the byte limit.
        """
        lags = {key: end - position[key] for key, end in ends.items() if end > position[key]}
        total = sum(lags.values())
        if total * SMALL_ROW_BYTES <= self._spec.bytes_max:
            return self._spec.rows_max
        sizes = self._row_bytes({key: position[key] for key in lags})
        bytes_ahead = sum(lag * sizes.get(key[0], SMALL_ROW_BYTES) for key, lag in lags.items())
        return max(1, min(self._spec.rows_max, int(self._spec.bytes_max * total / max(1.0, bytes_ahead))))
