"""The lag of a sink task: how many records of each assigned partition the task has not received yet.

This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from headrace.runtime.sampled_stats import SampledStat
from headrace.runtime.sink_offsets import TopicPartition


class PartitionLag(msgspec.Struct, array_like=True, frozen=True):
    """The lag of one partition in records: now, and its average and maximum over the last seconds."""

    topic: str
    partition: int
    lag: int
    avg: float
    max: float


class RecordLags:
    """The lags of the partitions that are assigned to a task. Used on the event loop only."""

    def __init__(self) -> None:
        self._lags: dict[TopicPartition, tuple[int, SampledStat]] = {}

    def record(self, positions: Mapping[TopicPartition, int], ends: Mapping[TopicPartition, int], now_s: float) -> None:
        """Record the distance between the task's positions and the ends of the partitions.

        A partition without a position is not assigned. If the end of an assigned partition is unknown, its lag stays.
        """
        known, self._lags = self._lags, {}
        for partition, position in positions.items():
            lag, stat = known.get(partition) or (None, SampledStat())
            if partition in ends:
                lag = max(0, ends[partition] - position)
                stat.record(lag, now_s)
            if lag is not None:
                self._lags[partition] = lag, stat

    @property
    def max(self) -> int | None:
        """The greatest current lag of a partition, or None if no lag is known."""
        return max((lag for lag, _ in self._lags.values()), default=None)

    def report(self, now_s: float) -> list[PartitionLag]:
        """Return the lags of all partitions."""
        return [
            PartitionLag(topic, partition, lag, stat.avg(now_s), stat.max(now_s))
            for (topic, partition), (lag, stat) in sorted(self._lags.items())
        ]
