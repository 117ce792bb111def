"""Which segments have served their time. Pure arithmetic over sizes, offsets and timestamps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from headrace_broker.log.config import LogConfig


@dataclass(frozen=True, slots=True)
class SegmentFacts:
    """What retention needs to know of a segment, oldest first in a list; the last one is the active one."""

    size_bytes: int
    next_offset: int
    newest_ms: int


def count_expired(
    segments: Sequence[SegmentFacts], config: LogConfig, *, now_ms: int, high_watermark: int, log_start_offset: int
) -> int:
    """Return how many of the oldest segments may go.

    Only whole segments go, only below the high watermark, and none while an older one stays. Segments below the log
    start offset go whatever the policy, the active one never for that reason.
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
