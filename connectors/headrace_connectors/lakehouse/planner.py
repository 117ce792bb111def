"""How far each micro-batch goes: the part of the source that runs in Spark's planner process.

Decides on what `topics` (the cluster as it is) and `row_bytes` (how large the next records are) say; does no IO itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Protocol

from headrace_connectors.lakehouse.ranges import Position, TopicPartition, admit
from headrace_connectors.lakehouse.spec import SourceError, SourceSpec

SMALL_ROW_BYTES = 1024
"""A backlog that fits the byte limit at this size is not worth a sample."""

_log = logging.getLogger(__name__)
Offsets = dict[TopicPartition, int]


class TopicLike(Protocol):
    """A topic as the cluster has it now."""

    @property
    def id(self) -> str | None: ...
    @property
    def partitions(self) -> tuple[int, ...]: ...


class Cluster(Protocol):
    """What the planner asks of the cluster; `topics.Topics` in production."""

    def existing(self) -> Mapping[str, TopicLike]: ...
    def log_bounds(self, partitions: Iterable[TopicPartition], *, read_committed: bool) -> tuple[Offsets, Offsets]: ...


class Planner:
    """Moves a position forward, batch by batch."""

    def __init__(self, spec: SourceSpec, cluster: Cluster, row_bytes: Callable[[Offsets], dict[str, float]]) -> None:
        self._spec = spec
        self._cluster = cluster
        self._row_bytes = row_bytes

    def initial(self) -> Position:
        """Where the tables stand; a first start with auto.offset.reset=latest skips what is there."""
        start = Position.from_json(self._spec.start)
        if not self._spec.start_at_latest:
            return start
        ids, present = self._survey(start)
        _, ends = self._cluster.log_bounds(sorted(present), read_committed=self._spec.read_committed)
        return Position({**ends, **start.next_offsets}, ids)

    def next(self, before: Position) -> Position:
        """Return the position after the next batch: all there is, within the rows and bytes of a batch.

        Raises SourceError when the log no longer has what comes next.
        """
        ids, present = self._survey(before)
        log_starts, ends = self._cluster.log_bounds(sorted(present), read_committed=self._spec.read_committed)
        starts = {key: log_starts[key] for key in sorted(present - before.next_offsets.keys())}
        position = {**before.next_offsets, **starts}
        for key in sorted(present):
            offset = self._checked(key, position[key], log_starts[key], ends[key])
            if offset != position[key]:
                position[key] = starts[key] = offset
        admitted = admit(position, ends, self._rows_max(position, ends))
        return Position({**position, **admitted}, ids, starts)

    def _survey(self, before: Position) -> tuple[dict[str, str], set[TopicPartition]]:
        """Return the topics' ids, and the partitions that exist. A topic that is gone keeps its place."""
        ids = dict(before.topic_ids)
        existing = self._cluster.existing()
        for name, topic in existing.items():
            known = ids.setdefault(name, topic.id or "")
            if known and topic.id and known != topic.id:
                raise SourceError(
                    f"topic {name} was deleted and created again (its id was {known}, now it is {topic.id}): its"
                    " offsets begin anew while the table holds the old topic's records; load it into another table"
                    " (lakehouse.table.name.format), or remove the table"
                )
        present = {(name, partition) for name, topic in existing.items() for partition in topic.partitions}
        return {name: id_ for name, id_ in ids.items() if id_}, present

    def _checked(self, key: TopicPartition, offset: int, log_start: int, end: int) -> int:
        """Return where to go on, or fail when the log no longer has the position."""
        if log_start <= offset <= end:
            return offset
        where = f"topic {key[0]}, partition {key[1]}"
        if offset > end:
            raise SourceError(
                f"{where}: the log ends at offset {end} and {offset} is the next to load: it was truncated or made anew"
            )
        lost = f"{where}: offsets {offset} to {log_start - 1} are gone by retention before they were loaded"
        if self._spec.fail_on_data_loss:
            raise SourceError(f"{lost}; lakehouse.fail.on.data.loss=false goes on with what is left")
        _log.warning("%s; going on at %d", lost, log_start)
        return log_start

    def _rows_max(self, position: Offsets, ends: Offsets) -> int:
        """Return the rows that fit the byte limit, judged by a sample where the backlog is worth one."""
        lags = {key: end - position[key] for key, end in ends.items() if end > position[key]}
        total = sum(lags.values())
        if total * SMALL_ROW_BYTES <= self._spec.bytes_max:
            return self._spec.rows_max
        sizes = self._row_bytes({key: position[key] for key in lags})
        bytes_ahead = sum(lag * sizes.get(key[0], SMALL_ROW_BYTES) for key, lag in lags.items())
        return max(1, min(self._spec.rows_max, int(self._spec.bytes_max * total / max(1.0, bytes_ahead))))
