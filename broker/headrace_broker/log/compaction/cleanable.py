"""Determines which range of a log can be cleaned, the log's dirty ratio, and whether to clean the log now."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Protocol

from headrace_broker.log.config import LONG_MAX, LogConfig


class SegmentView(Protocol):
    """The properties of a segment that `find_dirty_range` reads.

    Reading a timestamp may need file I/O, so timestamps are read only if a compaction lag is configured.
    """

    @property
    def base_offset(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    @property
    def max_timestamp(self) -> int: ...

    @property
    def first_batch_timestamp(self) -> int: ...


@dataclass(frozen=True, slots=True)
class DirtyRange:
    """The range of a log to clean, from `first_dirty_offset` up to, but excluding, `end_offset`.

    `end_offset` is the base offset of a segment. `clean_bytes` is the size of the segments before `first_dirty_offset`.
    `is_overdue` means that a record has been dirty for longer than max.compaction.lag.ms.
    """

    first_dirty_offset: int
    end_offset: int
    clean_bytes: int
    dirty_bytes: int
    is_overdue: bool

    @property
    def dirty_ratio(self) -> float:
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def is_due(self, config: LogConfig) -> bool:
        """Return whether to clean now: the range is overdue, or the dirty ratio exceeds min.cleanable.dirty.ratio."""
        return self.dirty_bytes > 0 and (self.is_overdue or self.dirty_ratio > config.min_cleanable_dirty_ratio)


_base_offset = attrgetter("base_offset")


def find_dirty_range(
    segments: Sequence[SegmentView],
    config: LogConfig,
    *,
    cleaner_offset: int | None,
    log_start_offset: int,
    log_end_offset: int,
    last_stable_offset: int,
    now_ms: int,
) -> DirtyRange:
    """Return the range of the log that can be cleaned.

    `segments` lists all segments, the oldest first. The last segment is the active segment.

    The range ends before the first of these: the active segment, the segment with the last stable offset, and the first
    segment with a record younger than min.compaction.lag.ms. A `cleaner_offset` outside the log is ignored.
    """
    first_dirty = log_start_offset
    if cleaner_offset is not None and log_start_offset <= cleaner_offset <= log_end_offset:
        first_dirty = cleaner_offset
    dirty = segments[_segment_index(segments, first_dirty) : -1]
    end = min(last_stable_offset, segments[-1].base_offset)
    if config.min_compaction_lag_ms > 0:
        youngest_ms = now_ms - config.min_compaction_lag_ms
        end = min([end, *(segment.base_offset for segment in dirty if segment.max_timestamp > youngest_ms)])
    end = segments[_segment_index(segments, max(end, first_dirty))].base_offset
    return DirtyRange(
        first_dirty_offset=first_dirty,
        end_offset=end,
        clean_bytes=sum(segment.size_bytes for segment in segments if segment.base_offset < first_dirty),
        dirty_bytes=sum(segment.size_bytes for segment in dirty if segment.base_offset < end),
        is_overdue=_is_overdue(dirty, config, now_ms),
    )


def _segment_index(segments: Sequence[SegmentView], offset: int) -> int:
    return max(bisect_right(segments, offset, key=_base_offset) - 1, 0)


def _is_overdue(dirty: Sequence[SegmentView], config: LogConfig, now_ms: int) -> bool:
    if config.max_compaction_lag_ms == LONG_MAX:
        return False
    oldest_ms = now_ms - config.max_compaction_lag_ms
    return any(0 < segment.first_batch_timestamp < oldest_ms for segment in dirty)
