"""Offset arithmetic of the lakehouse source, and what its planner decides."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import pytest

pytest.importorskip("confluent_kafka")
from hypothesis import given
from hypothesis import strategies as st

from headrace_connectors.lakehouse.planner import Planner
from headrace_connectors.lakehouse.ranges import Position, Range, admit, cut, pack, parse_position, ranges_between
from headrace_connectors.lakehouse.spec import SourceError, SourceSpec

Key = tuple[str, int]


def test_a_position_survives_sparks_log() -> None:
    position = Position({("b", 1): 7, ("a", 0): 3}, {"a": "id-a", "gone": "id-gone"}, {("b", 1): 2})
    text = json.dumps(position.to_json())
    assert parse_position(text) == position
    assert json.dumps(parse_position(text).to_json()) == text


def test_ranges_are_cut_at_the_ends_of_partitions() -> None:
    ranges = [Range("t", 0, 5, 9), Range("t", 1, 5, 9), Range("t", 2, 5, 9), Range("u", 0, 5, 9)]
    assert cut(ranges, {("t", 0): 7, ("t", 1): 5, ("t", 2): 9}) == [Range("t", 0, 5, 7), *ranges[2:]]


def test_ranges_go_on_from_the_start_or_from_where_a_new_partition_begins() -> None:
    start = Position({("t", 0): 5, ("t", 1): 9, ("lost", 0): 1})
    end = Position({("t", 0): 8, ("t", 1): 9, ("t", 2): 40, ("lost", 0): 12}, starts={("t", 2): 30, ("lost", 0): 10})
    assert ranges_between(start, end) == [Range("lost", 0, 10, 12), Range("t", 0, 5, 8), Range("t", 2, 30, 40)]


lags = st.dictionaries(
    st.tuples(st.sampled_from("abc"), st.integers(0, 5)),
    st.tuples(st.integers(0, 1000), st.integers(0, 1000)),
    min_size=1,
)


@given(lags, st.integers(1, 3000))
def test_admission_never_passes_the_end_nor_stands_still(backlog: dict[Key, tuple[int, int]], rows_max: int) -> None:
    position = {key: start for key, (start, _) in backlog.items()}
    ends = {key: start + lag for key, (start, lag) in backlog.items()}
    admitted = admit(position, ends, rows_max)
    taken = {key: admitted[key] - position[key] for key in backlog}
    for key, (_, lag) in backlog.items():
        assert (1 if lag else 0) <= taken[key] <= lag
    assert sum(taken.values()) <= rows_max + len(backlog)
    if sum(lag for _, lag in backlog.values()) <= rows_max:
        assert admitted == ends


ranges_lists = st.lists(
    st.builds(lambda p, s, n: Range("t", p, s, s + n), st.integers(0, 9), st.integers(0, 99), st.integers(1, 500)),
    unique_by=lambda range_: range_.partition,
)


@given(ranges_lists, st.integers(1, 8), st.integers(1, 400))
def test_packing_covers_every_offset_once_in_tasks_of_like_size(ranges: list[Range], tasks: int, rows_min: int) -> None:
    packed = pack(ranges, tasks, rows_min)
    offsets = [(r.partition, o) for task in packed for r in task for o in range(r.start, r.end)]
    assert sorted(offsets) == sorted((r.partition, o) for r in ranges for o in range(r.start, r.end))
    sizes = [sum(map(len, task)) for task in packed]
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


def test_a_new_topic_starts_where_its_log_does() -> None:
    after = planner(FakeCluster({"t": FakeTopic("id")}, {("t", 0): (5, 9)})).next(Position())
    assert after == Position({("t", 0): 9}, {"t": "id"}, {("t", 0): 5})


def test_latest_skips_what_is_there_but_not_what_tables_have_begun() -> None:
    cluster = FakeCluster({"t": FakeTopic("id", (0, 1))}, {("t", 0): (0, 9), ("t", 1): (0, 9)})
    start = Position({("t", 1): 4}).to_json()
    initial = planner(cluster, replace(SPEC, start_at_latest=True, start=start)).initial()
    assert initial.next_offsets == {("t", 0): 9, ("t", 1): 4}


def test_a_topic_made_anew_is_refused() -> None:
    cluster = FakeCluster({"t": FakeTopic("new")}, {("t", 0): (0, 9)})
    with pytest.raises(SourceError, match="topic t was deleted and created again"):
        planner(cluster).next(Position({("t", 0): 3}, {"t": "old"}))


def test_a_topic_that_is_gone_for_a_moment_keeps_its_place() -> None:
    before = Position({("t", 0): 3}, {"t": "id"})
    assert planner(FakeCluster({}, {})).next(before).next_offsets == before.next_offsets


@pytest.mark.parametrize(
    ("bounds", "message"),
    [
        ((6, 9), "partition 0: offsets 5 to 5 are gone by retention"),
        ((0, 4), "the log ends at offset 4 and 5 is the next"),
    ],
)
def test_lost_offsets_are_an_error(bounds: tuple[int, int], message: str) -> None:
    with pytest.raises(SourceError, match=message):
        planner(FakeCluster({"t": FakeTopic("id")}, {("t", 0): bounds})).next(Position({("t", 0): 5}))


def test_lost_offsets_can_be_allowed() -> None:
    cluster = FakeCluster({"t": FakeTopic("id")}, {("t", 0): (6, 9)})
    before = Position({("t", 0): 5}, {"t": "id"})
    after = planner(cluster, replace(SPEC, fail_on_data_loss=False)).next(before)
    assert ranges_between(before, after) == [Range("t", 0, 6, 9)]


def test_a_batch_keeps_within_its_bytes() -> None:
    cluster = FakeCluster({"t": FakeTopic("id")}, {("t", 0): (0, 10**6)})
    spec = replace(SPEC, rows_max=10**6)
    after = planner(cluster, spec, row_bytes=(1 << 20) / 50).next(Position())
    assert after.next_offsets == {("t", 0): 50}
