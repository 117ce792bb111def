"""Tests of parts of compaction: dirty range, offset map, segment merging, throttle, transaction index, and jobs."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from headrace_broker.log.compaction.cleanable import DirtyRange, find_dirty_range
from headrace_broker.log.compaction.grouping import SegmentSizes, group_segments
from headrace_broker.log.compaction.job import (
    CleanedSegment,
    CleaningDone,
    CleaningFailed,
    CleaningJob,
    LastRecord,
    decode_job,
    decode_report,
    encode_job,
    encode_report,
)
from headrace_broker.log.compaction.offset_map import OffsetMap
from headrace_broker.log.compaction.throttle import CleanerThrottle
from headrace_broker.log.config import LogConfig
from headrace_broker.log.transaction_index import (
    AbortedTxn,
    decode_transaction_index,
    encode_transaction_index,
)

NOW = 1_700_000_000_000
COMPACT = LogConfig(cleanup_compact=True, cleanup_delete=False)


# -- which part of a log is dirty ------------------------------------------------------------------------------------


@dataclass
class Segment:
    base_offset: int
    size_bytes: int
    max_timestamp: int = NOW - 1000
    first_batch_timestamp: int = NOW - 2000


SEGMENTS = [Segment(0, 100), Segment(10, 200), Segment(20, 300), Segment(30, 400)]


def dirty(
    config: LogConfig = COMPACT, segments: list[Segment] = SEGMENTS, cleaner_offset: int | None = None, **offsets: int
) -> DirtyRange:
    given = {"log_start_offset": 0, "log_end_offset": 40, "last_stable_offset": 40, "now_ms": NOW, **offsets}
    return find_dirty_range(segments, config, cleaner_offset=cleaner_offset, **given)


def test_all_inactive_segments_of_a_log_without_a_cleaner_offset_are_dirty() -> None:
    found = dirty()
    assert (found.first_dirty_offset, found.end_offset) == (0, 30)
    assert (found.clean_bytes, found.dirty_bytes, found.dirty_ratio) == (0, 600, 1.0)
    assert found.is_due(COMPACT)


def test_segments_before_cleaner_offset_are_clean() -> None:
    found = dirty(cleaner_offset=20)
    assert (found.first_dirty_offset, found.end_offset) == (20, 30)
    assert (found.clean_bytes, found.dirty_bytes) == (300, 300)
    assert not found.is_due(COMPACT)  # the dirty ratio is 0.5 and must exceed min.cleanable.dirty.ratio
    assert found.is_due(replace(COMPACT, min_cleanable_dirty_ratio=0.49))


def test_segment_containing_cleaner_offset_is_dirty() -> None:
    found = dirty(cleaner_offset=15)
    assert (found.first_dirty_offset, found.clean_bytes, found.dirty_bytes) == (15, 300, 500)


@pytest.mark.parametrize(("cleaner_offset", "log_start_offset", "first"), [(41, 0, 0), (5, 10, 10), (None, 10, 10)])
def test_cleaner_offset_outside_the_log_is_ignored(
    cleaner_offset: int | None, log_start_offset: int, first: int
) -> None:
    found = dirty(cleaner_offset=cleaner_offset, log_start_offset=log_start_offset)
    assert found.first_dirty_offset == first


@pytest.mark.parametrize(("last_stable_offset", "end"), [(30, 30), (29, 20), (20, 20), (19, 10), (9, 0), (0, 0)])
def test_segments_beyond_last_stable_offset_are_not_cleaned(last_stable_offset: int, end: int) -> None:
    found = dirty(last_stable_offset=last_stable_offset)
    assert found.end_offset == end
    assert found.is_due(COMPACT) == (end > 0)


def test_cleaning_ends_before_segment_within_min_compaction_lag() -> None:
    segments = [replace(SEGMENTS[0]), replace(SEGMENTS[1], max_timestamp=NOW - 500), *SEGMENTS[2:]]
    config = replace(COMPACT, min_compaction_lag_ms=600)
    assert dirty(config, segments).end_offset == 10
    assert dirty(replace(config, min_compaction_lag_ms=500), segments).end_offset == 30
    assert dirty(config, segments, cleaner_offset=20).end_offset == 30  # the lag only applies to dirty segments


def test_log_with_record_older_than_max_compaction_lag_is_due_for_cleaning() -> None:
    config = replace(COMPACT, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=2000)
    assert not dirty(config).is_due(config)
    config = replace(config, max_compaction_lag_ms=1999)
    assert dirty(config).is_due(config)
    assert not dirty(config, cleaner_offset=30).is_due(config)
    without_timestamps = [replace(segment, first_batch_timestamp=-1) for segment in SEGMENTS]
    assert not dirty(config, without_timestamps).is_due(config)


def test_log_with_one_segment_is_never_due_for_cleaning() -> None:
    found = dirty(segments=[Segment(0, 100)])
    assert (found.dirty_bytes, found.is_due(COMPACT)) == (0, False)


# -- newest offsets --------------------------------------------------------------------------------------------------


def test_offset_map_returns_newest_offset_of_each_key() -> None:
    keys = OffsetMap(1 << 20)
    keys.add([b"a", b"b", b"a"], [0, 1, 2])
    keys.add([b"b", b""], [7, 8])
    assert keys.latest_offsets([b"a", b"b", b"", b"c"]) == [2, 7, 8, None]
    assert keys.latest_offsets([b"a", None]) == [2, None]
    assert len(keys) == 3


def test_offset_map_distinguishes_long_keys_with_common_prefix() -> None:
    keys = OffsetMap(1 << 20)
    long = [b"x" * 33, b"x" * 34, b"x" * 1000 + b"y", b"x" * 1000 + b"z", b"x" * 32]
    keys.add(long, range(5))
    assert keys.latest_offsets(long) == [0, 1, 2, 3, 4]
    assert keys.latest_offsets([b"x" * 35]) == [None]


def test_offset_map_is_full_at_memory_limit() -> None:
    keys = OffsetMap(100 * 200)
    assert not keys.is_full
    keys.add([b"%040d" % number for number in range(90)], range(90))
    assert not keys.is_full
    keys.add([b"%040d" % number for number in range(110)], range(100, 210))
    assert keys.is_full
    tiny = OffsetMap(1)
    tiny.add([b"a"], [0])
    assert tiny.is_full


# -- groups of segments to merge -------------------------------------------------------------------------------------


def groups(*sizes: SegmentSizes, end: int = 100, segment_bytes: int = 100, index_bytes: int = 50) -> list[list[int]]:
    found = group_segments(sizes, segment_bytes=segment_bytes, segment_index_bytes=index_bytes, end_offset=end)
    return [[segment.base_offset for segment in group] for group in found]


def test_cleaner_merges_adjacent_segments_up_to_segment_bytes() -> None:
    sizes = [SegmentSizes(number, 40) for number in range(5)]
    assert groups(*sizes) == [[0, 1], [2, 3], [4]]
    assert groups(SegmentSizes(0, 120), SegmentSizes(1, 10), SegmentSizes(2, 90)) == [[0], [1, 2]]
    assert groups() == []


def test_cleaner_merges_segments_only_up_to_segment_index_bytes() -> None:
    assert groups(SegmentSizes(0, 1, 30, 0), SegmentSizes(1, 1, 21, 0)) == [[0], [1]]
    assert groups(SegmentSizes(0, 1, 0, 30), SegmentSizes(1, 1, 0, 20), SegmentSizes(2, 1, 0, 1)) == [[0, 1], [2]]


def test_cleaner_merges_segments_only_if_relative_offsets_fit_in_31_bits() -> None:
    far = 1 << 31
    assert groups(SegmentSizes(0, 1), SegmentSizes(1, 1), end=far) == [[0, 1]]
    assert groups(SegmentSizes(0, 1), SegmentSizes(1, 1), end=far + 1) == [[0], [1]]
    assert groups(SegmentSizes(0, 1), SegmentSizes(1, 0), end=far + 1) == [[0, 1]]  # the second segment is empty
    assert groups(SegmentSizes(0, 1), SegmentSizes(1, 1), SegmentSizes(far, 1), end=far + 9) == [[0, 1], [far]]


# -- throttle, transaction index, jobs -------------------------------------------------------------------------------


def test_cleaner_throttle_limits_io_to_its_rate_even_after_idle_time() -> None:
    throttle = CleanerThrottle(100.0)
    assert throttle.delay_s(50, 10.0) == pytest.approx(0.5)
    assert throttle.delay_s(50, 10.2) == pytest.approx(0.8)
    assert throttle.delay_s(100, 99.0) == pytest.approx(1.0)
    assert CleanerThrottle(1.7976931348623157e308).delay_s(1 << 30, 5.0) == 0


def test_incomplete_last_entry_of_a_transaction_index_is_ignored() -> None:
    entries = [AbortedTxn(7, 10, 20, 12), AbortedTxn(8, 12, 30, 31)]
    data = encode_transaction_index(entries)
    assert len(data) == 68
    assert decode_transaction_index(data) == entries
    assert decode_transaction_index(data[:-1]) == entries[:1]
    with pytest.raises(ValueError, match="version 1"):
        decode_transaction_index(b"\0\1" + data[2:])


def test_cleaning_jobs_and_reports_are_encoded_as_lines_of_json() -> None:
    job = CleaningJob("/d/t-0", ((0, 10), (5, 20)), 0, 9, NOW, 9, 1, 2, 3, 4, 5, 1e308, True, (LastRecord(1, 2, 3),))
    assert encode_job(job).count(b"\n") == 1
    assert decode_job(encode_job(job)) == job
    for report in (CleanedSegment(0, 1, (0, 5)), CleaningDone(9, 1, 2, 3, 4, 5), CleaningFailed("a reason", True)):
        assert decode_report(encode_report(report)) == report
