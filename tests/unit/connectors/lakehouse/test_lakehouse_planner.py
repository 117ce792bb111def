"""Tests of offset ranges, and of the planner, which determines the ranges of micro-batches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.api.errors import ConnectError
from headrace.api.record_access import TopicDescription
from headrace_connectors.lakehouse.offsets import Range, TableOffsets, truncate_ranges
from headrace_connectors.lakehouse.planner import Limits, Plan, Planner, limit_rows, split_ranges

Key = tuple[str, int]
LIMITS = Limits(rows_max=100, bytes_max=1 << 20)


def test_table_offsets_round_trip_through_the_text_that_commits_contain() -> None:
    offsets = TableOffsets({("b", 1): 7, ("a", 0): 3}, {"a": "id-a", "deleted": "id-deleted"})
    text = offsets.to_text()
    assert text == (
        '{"a":{"partitions":{"0":3},"id":"id-a"},"b":{"partitions":{"1":7}},"deleted":{"partitions":{},"id":"id-deleted"}}'
    )
    assert TableOffsets.from_text(text) == offsets


def test_table_offsets_after_ranges_never_go_back() -> None:
    before = TableOffsets({("t", 0): 5, ("t", 1): 9}, {"t": "id"})
    after = before.after([Range("t", 0, 5, 8), Range("t", 1, 2, 4), Range("u", 0, 0, 1)], {"u": "id-u"})
    assert after == TableOffsets({("t", 0): 8, ("t", 1): 9, ("u", 0): 1}, {"t": "id", "u": "id-u"})


def test_offset_ranges_are_truncated_to_the_given_end_offset_of_each_partition() -> None:
    ranges = [Range("t", 0, 5, 9), Range("t", 1, 5, 9), Range("t", 2, 5, 9), Range("u", 0, 5, 9)]
    assert truncate_ranges(ranges, {("t", 0): 7, ("t", 1): 5, ("t", 2): 9}) == [Range("t", 0, 5, 7), *ranges[2:]]


lags = st.dictionaries(
    st.tuples(st.sampled_from("abc"), st.integers(0, 5)),
    st.tuples(st.integers(0, 1000), st.integers(0, 1000)),
    min_size=1,
)


@given(lags, st.integers(1, 3000))
def test_row_limit_allows_at_least_one_row_of_each_lagging_partition_but_no_row_after_the_log_end_offset(
    backlog: dict[Key, tuple[int, int]], rows_max: int
) -> None:
    position = {key: start for key, (start, _) in backlog.items()}
    ends = {key: start + lag for key, (start, lag) in backlog.items()}
    next_offsets = limit_rows(position, ends, rows_max)
    rows = {key: next_offsets[key] - position[key] for key in backlog}
    for key, (_, lag) in backlog.items():
        assert (1 if lag else 0) <= rows[key] <= lag
    assert sum(rows.values()) <= rows_max + len(backlog)
    if sum(lag for _, lag in backlog.values()) <= rows_max:
        assert next_offsets == ends


ranges_lists = st.lists(
    st.builds(lambda p, s, n: Range("t", p, s, s + n), st.integers(0, 9), st.integers(0, 99), st.integers(1, 500)),
    unique_by=lambda range_: range_.partition,
)


@given(ranges_lists, st.integers(1, 8), st.integers(1, 400))
def test_offset_ranges_are_divided_into_equal_spark_tasks_without_gaps(
    ranges: list[Range], tasks: int, rows_min: int
) -> None:
    lists = split_ranges(ranges, tasks, rows_min)
    offsets = [(r.partition, o) for task in lists for r in task for o in range(r.start, r.end)]
    assert sorted(offsets) == sorted((r.partition, o) for r in ranges for o in range(r.start, r.end))
    sizes = [sum(map(len, task)) for task in lists]
    assert len(sizes) <= tasks
    assert len(set(sizes[:-1])) <= 1
    if len(sizes) > 1:
        assert sizes[0] >= rows_min


class FakeCluster:
    """A cluster with fixed topics, log bounds and record sizes."""

    def __init__(self, topics: Mapping[str, TopicDescription], bounds: Mapping[Key, Key], row_bytes: float) -> None:
        self.topics = topics
        self.bounds = bounds
        self.row_bytes = row_bytes

    def describe_topics(self, topics: Iterable[str], topics_regex: str | None) -> Mapping[str, TopicDescription]:
        return self.topics

    def log_bounds(self, partitions: Iterable[Key]) -> tuple[dict[Key, int], dict[Key, int]]:
        keys = list(partitions)
        return {key: self.bounds[key][0] for key in keys}, {key: self.bounds[key][1] for key in keys}

    def average_record_bytes(self, positions: Mapping[Key, int]) -> Mapping[str, float]:
        return {topic: self.row_bytes for topic, _ in positions}


def plan(
    bounds: Mapping[Key, tuple[int, int]],
    position: TableOffsets | None = None,
    *,
    limits: Limits = LIMITS,
    row_bytes: float = 10.0,
    topic_id: str | None = "id",
    fail_on_data_loss: bool = True,
) -> Plan:
    topics = {topic for topic, _ in bounds}
    described = {
        topic: TopicDescription(topic_id, tuple(sorted(number for name, number in bounds if name == topic)))
        for topic in topics
    }
    cluster = FakeCluster(described, bounds, row_bytes)
    planner = Planner(cluster, topics, None, limits, fail_on_data_loss=fail_on_data_loss)
    return planner.next(position or TableOffsets(), planner.describe_topics())


def test_partition_of_a_new_topic_is_read_from_its_log_start_offset() -> None:
    found = plan({("t", 0): (5, 9)})
    assert found.ranges == (Range("t", 0, 5, 9),)
    assert found.topic_ids == {"t": "id"}


def test_plan_has_no_range_for_a_partition_without_new_records() -> None:
    found = plan({("t", 0): (0, 9), ("t", 1): (0, 4)}, TableOffsets({("t", 0): 9, ("t", 1): 1}))
    assert found.ranges == (Range("t", 1, 1, 4),)
    assert found.lag() == 3
    assert found.lag({("t", 0): 9, ("t", 1): 3}) == 1


def test_lag_of_a_partition_that_no_table_has_loaded_is_the_number_of_offsets_in_its_log() -> None:
    assert plan({("t", 0): (5, 9), ("t", 1): (0, 4)}, TableOffsets({("t", 1): 3})).lag() == 5


def test_topic_that_was_deleted_and_created_again_is_an_error() -> None:
    with pytest.raises(ConnectError, match="topic t was deleted and created again"):
        plan({("t", 0): (0, 9)}, TableOffsets({("t", 0): 3}, {"t": "old"}), topic_id="new")


def test_topic_id_that_the_broker_does_not_report_is_not_compared() -> None:
    assert plan({("t", 0): (0, 9)}, TableOffsets({("t", 0): 3}, {"t": "old"}), topic_id=None).ranges


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ((6, 9), "partition 0: retention deleted offsets 5 to 5"),
        ((0, 4), "the log ends at offset 4, but the next offset to load is 5"),
    ],
)
def test_next_offset_before_the_log_start_or_after_the_log_end_is_an_error(
    bounds: tuple[int, int], message: str
) -> None:
    with pytest.raises(ConnectError, match=message):
        plan({("t", 0): bounds}, TableOffsets({("t", 0): 5}))


def test_deleted_offsets_are_skipped_if_fail_on_data_loss_is_false() -> None:
    found = plan({("t", 0): (6, 9)}, TableOffsets({("t", 0): 5}), fail_on_data_loss=False)
    assert found.ranges == (Range("t", 0, 6, 9),)


def test_number_of_rows_in_a_micro_batch_is_limited_by_batch_bytes_max() -> None:
    limits = replace(LIMITS, rows_max=10**6)
    assert plan({("t", 0): (0, 10**6)}, limits=limits, row_bytes=(1 << 20) / 50).ranges == (Range("t", 0, 0, 50),)
