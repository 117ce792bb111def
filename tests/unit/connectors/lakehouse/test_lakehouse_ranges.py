"""Tests of the Kafka source's offset ranges, and of the planner, which determines the end offsets of micro-batches."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import pytest

pytest.importorskip("confluent_kafka")
from hypothesis import given
from hypothesis import strategies as st

from headrace_connectors.lakehouse.planner import Planner
from headrace_connectors.lakehouse.ranges import (
    KafkaSourceOffset,
    Range,
    limit_rows,
    parse_source_offset,
    ranges_between,
    split_ranges,
    truncate_ranges,
)
from headrace_connectors.lakehouse.spec import SourceError, SourceSpec

Key = tuple[str, int]


def test_kafka_source_offset_round_trips_through_json() -> None:
    offset = KafkaSourceOffset({("b", 1): 7, ("a", 0): 3}, {"a": "id-a", "deleted": "id-deleted"}, {("b", 1): 2})
    text = json.dumps(offset.to_json())
    assert parse_source_offset(text) == offset
    assert json.dumps(parse_source_offset(text).to_json()) == text


def test_offset_ranges_are_truncated_to_the_given_end_offset_of_each_partition() -> None:
    ranges = [Range("t", 0, 5, 9), Range("t", 1, 5, 9), Range("t", 2, 5, 9), Range("u", 0, 5, 9)]
    assert truncate_ranges(ranges, {("t", 0): 7, ("t", 1): 5, ("t", 2): 9}) == [Range("t", 0, 5, 7), *ranges[2:]]


def test_offset_range_starts_at_the_end_of_the_previous_micro_batch_unless_a_start_offset_is_given() -> None:
    start = KafkaSourceOffset({("t", 0): 5, ("t", 1): 9, ("lost", 0): 1})
    end = KafkaSourceOffset(
        {("t", 0): 8, ("t", 1): 9, ("t", 2): 40, ("lost", 0): 12}, starts={("t", 2): 30, ("lost", 0): 10}
    )
    assert ranges_between(start, end) == [Range("lost", 0, 10, 12), Range("t", 0, 5, 8), Range("t", 2, 30, 40)]


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


SPEC = SourceSpec(
    client={},
    topics=["t"],
    topics_regex=None,
    value="envelope",
    encoding="UTF-8",
    start={"topics": {}, "starts": {}},
    start_at_latest=False,
    rows_max=100,
    bytes_max=1 << 20,
    tasks_max=2,
    task_rows_min=10,
    fail_on_data_loss=True,
)


@dataclass
class FakeTopic:
    id: str | None
    partitions: tuple[int, ...] = (0,)


class FakeCluster:
    def __init__(self, topics: dict[str, FakeTopic], bounds: dict[Key, tuple[int, int]]) -> None:
        self.topics = topics
        self.bounds = bounds

    def existing(self) -> Mapping[str, FakeTopic]:
        return self.topics

    def log_bounds(self, partitions: Iterable[Key], *, read_committed: bool) -> tuple[dict[Key, int], dict[Key, int]]:
        assert read_committed
        keys = list(partitions)
        return {key: self.bounds[key][0] for key in keys}, {key: self.bounds[key][1] for key in keys}


def planner(cluster: FakeCluster, spec: SourceSpec = SPEC, row_bytes: float = 10.0) -> Planner:
    return Planner(spec, cluster, lambda positions: {topic: row_bytes for topic, _ in positions})


def test_partition_of_a_new_topic_is_read_from_its_log_start_offset() -> None:
    after = planner(FakeCluster({"t": FakeTopic("id")}, {("t", 0): (5, 9)})).next(KafkaSourceOffset())
    assert after == KafkaSourceOffset({("t", 0): 9}, {"t": "id"}, {("t", 0): 5})


def test_auto_offset_reset_latest_applies_only_to_partitions_without_offsets_in_tables() -> None:
    cluster = FakeCluster({"t": FakeTopic("id", (0, 1))}, {("t", 0): (0, 9), ("t", 1): (0, 9)})
    start = KafkaSourceOffset({("t", 1): 4}).to_json()
    initial = planner(cluster, replace(SPEC, start_at_latest=True, start=start)).initial()
    assert initial.next_offsets == {("t", 0): 9, ("t", 1): 4}


def test_exception_source_error_is_raised_for_a_topic_that_was_deleted_and_created_again() -> None:
    cluster = FakeCluster({"t": FakeTopic("new")}, {("t", 0): (0, 9)})
    with pytest.raises(SourceError, match="topic t was deleted and created again"):
        planner(cluster).next(KafkaSourceOffset({("t", 0): 3}, {"t": "old"}))


def test_next_offset_of_a_topic_that_no_longer_exists_does_not_change() -> None:
    before = KafkaSourceOffset({("t", 0): 3}, {"t": "id"})
    assert planner(FakeCluster({}, {})).next(before).next_offsets == before.next_offsets


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ((6, 9), "partition 0: retention deleted offsets 5 to 5"),
        ((0, 4), "the log ends at offset 4, but the next offset to load is 5"),
    ],
)
def test_source_error_is_raised_if_the_next_offset_is_before_the_log_start_or_after_the_log_end(
    bounds: tuple[int, int], message: str
) -> None:
    with pytest.raises(SourceError, match=message):
        planner(FakeCluster({"t": FakeTopic("id")}, {("t", 0): bounds})).next(KafkaSourceOffset({("t", 0): 5}))


def test_deleted_offsets_are_skipped_if_fail_on_data_loss_is_false() -> None:
    cluster = FakeCluster({"t": FakeTopic("id")}, {("t", 0): (6, 9)})
    before = KafkaSourceOffset({("t", 0): 5}, {"t": "id"})
    after = planner(cluster, replace(SPEC, fail_on_data_loss=False)).next(before)
    assert ranges_between(before, after) == [Range("t", 0, 6, 9)]


def test_number_of_rows_in_a_micro_batch_is_limited_by_batch_bytes_max() -> None:
    cluster = FakeCluster({"t": FakeTopic("id")}, {("t", 0): (0, 10**6)})
    spec = replace(SPEC, rows_max=10**6)
    after = planner(cluster, spec, row_bytes=(1 << 20) / 50).next(KafkaSourceOffset())
    assert after.next_offsets == {("t", 0): 50}
