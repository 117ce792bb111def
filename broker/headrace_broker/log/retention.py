"""Selects the segments that retention deletes.

A segment may be deleted because of the log's size, because of its age, or because it is before the log start offset.
This module does no I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace_broker.log.config import LogConfig


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """The size, end offset and newest timestamp of a segment."""

    size_bytes: int
    next_offset: int
    newest_ms: int


def count_expired(
    segments: Sequence[SegmentInfo], config: LogConfig, *, now_ms: int, high_watermark: int, log_start_offset: int
) -> int:
    """Return how many of the oldest `segments` to delete. The last of `segments` is the active segment.

    Only segments below the high watermark are deleted. Inactive segments below the log start offset are deleted
    regardless of cleanup.policy.
    """
    excess = sum(segment.size_bytes for segment in segments) - config.retention_bytes
    count = 0
    for index, segment in enumerate(segments):
        is_active = index == len(segments) - 1
        if segment.next_offset > high_watermark:
            break
        is_below_start = segment.next_offset <= log_start_offset and not is_active
        is_too_old = 0 <= config.retention_ms < now_ms - segment.newest_ms and (segment.size_bytes > 0 or not is_active)
        is_too_much = config.retention_bytes >= 0 and excess - segment.size_bytes >= 0 and segment.size_bytes > 0
        if not (is_below_start or (config.cleanup_delete and (is_too_old or is_too_much))):
            break
        excess -= segment.size_bytes
        count += 1
    return count
