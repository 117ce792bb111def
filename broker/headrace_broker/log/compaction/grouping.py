"""Groups the adjacent segments that compaction merges into one segment.

Cleaned segments are small, so they are merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

RELATIVE_OFFSET_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class SegmentSizes:
    """The sizes of a segment's files, in bytes."""

    base_offset: int
    log_bytes: int
    index_bytes: int = 0
    time_index_bytes: int = 0


def group_segments(
    segments: Sequence[SegmentSizes], *, segment_bytes: int, segment_index_bytes: int, end_offset: int
) -> list[list[SegmentSizes]]:
    """Return groups of adjacent segments, oldest first. The segments of each group fit into one segment.

    `end_offset` is the base offset of the segment that follows `segments`.
    """
    groups: list[list[SegmentSizes]] = []
    ends = [segment.base_offset for segment in segments[1:]] + [end_offset]
    for segment, end in zip(segments, ends, strict=False):
        group = groups[-1] if groups else []
        if group and _fits(group, segment, end, segment_bytes, segment_index_bytes):
            group.append(segment)
        else:
            groups.append([segment])
    return groups


def _fits(
    group: list[SegmentSizes], segment: SegmentSizes, end_offset: int, segment_bytes: int, segment_index_bytes: int
) -> bool:
    return (
        sum(each.log_bytes for each in group) + segment.log_bytes <= segment_bytes
        and sum(each.index_bytes for each in group) + segment.index_bytes <= segment_index_bytes
        and sum(each.time_index_bytes for each in group) + segment.time_index_bytes <= segment_index_bytes
        and (segment.log_bytes == 0 or end_offset - 1 - group[0].base_offset <= RELATIVE_OFFSET_MAX)
    )
