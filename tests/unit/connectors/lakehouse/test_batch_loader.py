"""Tests of the driver's handling of a micro-batch: results of tasks, columns of new tables, bad records, commits."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headrace.api.errors import ConnectError
from headrace.api.record_access import ClusterUnavailableError, FailedRecord, TopicDescription
from headrace_connectors.lakehouse.bad_records import BadRecordError
from headrace_connectors.lakehouse.column_types import ColumnType, TableColumn
from headrace_connectors.lakehouse.committers.base import (
    BatchIdentity,
    Commit,
    TableCommitter,
    TableFile,
    TableSchemaError,
)
from headrace_connectors.lakehouse.driver.bad_record_reports import BadRecordReports
from headrace_connectors.lakehouse.driver.batch_loader import BatchLoader
from headrace_connectors.lakehouse.driver.tables import Tables
from headrace_connectors.lakehouse.files.data_file import DataFile
from headrace_connectors.lakehouse.files.layout import FileLayout
from headrace_connectors.lakehouse.files.settings import WriterSettings
from headrace_connectors.lakehouse.files.stores import FileStore
from headrace_connectors.lakehouse.job.results import (
    BadRecord,
    FoundColumns,
    RangeResult,
    TaskFailure,
    TaskResult,
)
from headrace_connectors.lakehouse.job.work import BatchWork, RecordSource, TableRules
from headrace_connectors.lakehouse.offsets import Range, TableOffsets, TopicPartition
from headrace_connectors.lakehouse.planner import Plan
from headrace_connectors.lakehouse.table_names import TableNames
from headrace_connectors.lakehouse.values.options import RowOptions

IDENTITY = BatchIdentity("sink", 1, 0)
INTS = (TableColumn("n", ColumnType("int32")),)
LONGS = (TableColumn("n", ColumnType("int64")),)
Job = Callable[[BatchWork], Sequence[TaskResult | TaskFailure]]


class FakeCommitter(TableCommitter):
    """A table in memory. `location_known` is false for a format that creates the table before its files."""

    def __init__(self, name: str, *, exists: bool, location_known: bool = True) -> None:
        self.name = name
        self.location = f"/lake/{name}"
        self._exists = exists
        self._columns: tuple[TableColumn, ...] | None = INTS if exists else None
        self._location_known = location_known
        self.commits: list[Commit] = []
        self.discarded: list[str] = []
        self.error: Exception | None = None
        self.loaded = TableOffsets()

    def load(self, partitions: Iterable[TopicPartition] = ()) -> TableOffsets:
        return self.loaded

    def exists(self) -> bool:
        return self._exists

    def columns(self) -> tuple[TableColumn, ...] | None:
        return self._columns

    def layout(self) -> FileLayout | None:
        return FileLayout() if self._exists else None

    def data_location(self) -> str | None:
        return self.location if self._location_known else None

    def create(self, columns: Sequence[TableColumn], layout: FileLayout) -> None:
        self._columns = tuple(columns)
        self._exists = self._exists or not self._location_known
        self._location_known = True

    def commit(self, commit: Commit) -> None:
        if self.error is not None:
            raise self.error
        self.commits.append(commit)
        self._exists = True

    def other_connectors(self, partitions: Iterable[TopicPartition]) -> dict[str, TableOffsets]:
        return {}

    def take_over(self, connector: str, partitions: Iterable[TopicPartition]) -> TableOffsets:
        raise NotImplementedError

    def list_files(self) -> list[TableFile]:
        return []

    def discard(self, files: Sequence[DataFile]) -> None:
        self.discarded += [file.path for file in files]


class FakeReporter:
    """Collects the reported records, and counts the others."""

    needs_records = False

    def __init__(self, *, tolerates_errors: bool) -> None:
        self.tolerates_errors = tolerates_errors
        self.offsets: list[int] = []
        self.counted = 0

    def report(self, records: Sequence[Any]) -> None:
        self.offsets += [record.offset for record in records]

    def count(self, records: int) -> None:
        self.counted += records


class Harness:
    """A loader whose Spark jobs are functions, with one table per topic."""

    def __init__(self, *jobs: Job, tolerates_errors: bool = False, routes: bool = False) -> None:
        self.committers: dict[str, FakeCommitter] = {}
        self.jobs = list(jobs)
        self.works: list[BatchWork] = []
        self.reporter = FakeReporter(tolerates_errors=tolerates_errors)
        self.pool = ThreadPoolExecutor(4)
        self.tables = Tables(self._committer, lambda committer: None, None, self.pool)
        nothing: Any = None
        template = BatchWork(
            RecordSource("run", nothing, nothing),
            TableRules(TableNames(), RowOptions()),
            {},
            (),
            {},
            FileStore(None),
            WriterSettings(1 << 20, 1 << 20, 4),
            "",
            stop_at_bad=False,
        )
        self.loader = BatchLoader(
            self.tables,
            lambda: template,
            self._run,
            BadRecordReports(self.reporter, lambda: nothing),
            layout_of=lambda name: FileLayout(),
            parallelism=lambda: 2,
            routes_by_transform=routes,
            check_files=lambda results: None,
            pool=self.pool,
        )

    def add(self, name: str, **settings: Any) -> FakeCommitter:
        self.committers[name] = FakeCommitter(name, **settings)
        return self.committers[name]

    def _committer(self, name: str) -> FakeCommitter:
        return self.committers.setdefault(name, FakeCommitter(name, exists=False))

    def _run(self, work: BatchWork) -> list[bytes]:
        self.works.append(work)
        return [pickle.dumps(result) for result in self.jobs.pop(0)(work)]

    def load(self, *ranges: Range) -> Any:
        if not self.loader._routes:
            self.tables.open({range_.topic: [range_.key] for range_ in ranges})
        return self.loader.load(IDENTITY, Plan(ranges, {"t": TopicDescription("id", (0,))}, {}, {}), lambda: None)


@pytest.fixture
def harness() -> Iterator[Callable[..., Harness]]:
    made: list[Harness] = []

    def make(*jobs: Job, **settings: Any) -> Harness:
        made.append(Harness(*jobs, **settings))
        return made[-1]

    yield make
    for each in made:
        each.pool.shutdown()


def file(table: str, path: str, rows: int = 1) -> DataFile:
    return DataFile(table, path, 100, rows, b"")


def bad(offset: int, reason: str = "no number", **more: Any) -> BadRecord:
    return BadRecord(FailedRecord("t", 0, offset, "VALUE_CONVERTER", "X", "DataError", reason), **more)


T = Range("t", 0, 5, 9)


def test_files_of_all_tasks_are_committed_with_the_offsets_of_the_batch(harness: Callable[..., Harness]) -> None:
    tasks = [TaskResult((file("t", "a"),), (RangeResult(T, {"t": 4}),)), TaskResult((file("t", "b"),))]
    run = harness(lambda work: tasks)
    table = run.add("t", exists=True)
    loaded = run.load(T)
    (commit,) = table.commits
    assert [each.path for each in commit.add] == ["a", "b"]
    assert commit.offsets == TableOffsets({("t", 0): 9}, {"t": "id"})
    assert loaded.rows == {"t": 4}


def test_new_table_gets_the_columns_that_its_tasks_found(harness: Callable[..., Harness]) -> None:
    found = FoundColumns("t", INTS, "t", 0, 5)
    run = harness(lambda work: [TaskResult((file("t", "a"),), (RangeResult(T, {"t": 4}),), (found,))])
    run.load(T)
    assert run.committers["t"].columns() == INTS
    assert len(run.works) == 1


def test_batch_runs_again_if_tasks_found_different_columns_for_a_new_table(harness: Callable[..., Harness]) -> None:
    first = TaskResult((file("t", "a"),), (), (FoundColumns("t", LONGS, "t", 0, 7),))
    second = TaskResult((file("t", "b"),), (), (FoundColumns("t", INTS, "t", 0, 5),))
    run = harness(
        lambda work: [first, second], lambda work: [TaskResult((file("t", "c"),), (RangeResult(T, {"t": 4}),))]
    )
    run.load(T)
    table = run.committers["t"]
    assert (table.columns(), table.discarded) == (INTS, ["a", "b"])
    assert [each.path for commit in table.commits for each in commit.add] == ["c"]
    assert run.works[1].tables["t"].columns == INTS


def test_columns_of_a_record_with_a_value_are_preferred_to_those_of_an_earlier_tombstone(
    harness: Callable[..., Harness],
) -> None:
    of_tombstone = FoundColumns("t", LONGS, "t", 0, 5, missing=(True, False))
    task = TaskResult((file("t", "a"),), (), (of_tombstone, FoundColumns("t", INTS, "t", 0, 7)))
    run = harness(lambda work: [task], lambda work: [TaskResult((file("t", "b"),), (RangeResult(T, {"t": 4}),))])
    run.load(T)
    assert run.committers["t"].columns() == INTS
    assert len(run.works) == 2


def test_batch_runs_again_if_a_new_table_must_exist_before_its_files(harness: Callable[..., Harness]) -> None:
    found = TaskResult((), (), (FoundColumns("t", INTS, "t", 0, 5),))
    run = harness(lambda work: [found], lambda work: [TaskResult((file("t", "a"),), (RangeResult(T, {"t": 4}),))])
    run.add("t", exists=False, location_known=False)
    run.load(T)
    assert [work.tables["t"].location for work in run.works] == [None, "/lake/t"]


def test_tombstones_before_the_first_schema_become_rows_if_another_task_found_the_columns(
    harness: Callable[..., Harness],
) -> None:
    tombstones = TaskResult((), (RangeResult(T, dropped_tombstones={"t": 1}),))
    found = TaskResult((file("t", "a"),), (), (FoundColumns("t", INTS, "t", 0, 6),))
    run = harness(
        lambda work: [tombstones, found], lambda work: [TaskResult((file("t", "b"),), (RangeResult(T, {"t": 4}),))]
    )
    run.load(T)
    assert len(run.works) == 2


def test_tombstones_alone_commit_nothing_to_a_table_that_does_not_exist(harness: Callable[..., Harness]) -> None:
    run = harness(lambda work: [TaskResult((), (RangeResult(T, dropped_tombstones={"t": 4}),))])
    run.load(T)
    assert run.committers["t"].commits == []


def test_records_before_the_first_bad_record_are_loaded_before_the_task_fails(
    harness: Callable[..., Harness],
) -> None:
    first = TaskResult((file("t", "a"),), (RangeResult(T, {"t": 2}, (bad(7),), 1, 7),))
    second = TaskResult((file("t", "b"),), (RangeResult(Range("t", 0, 5, 7), {"t": 2}),))
    run = harness(lambda work: [first], lambda work: [second])
    table = run.add("t", exists=True)
    with pytest.raises(BadRecordError, match=r"topic t, partition 0, offset 7: no number; the records before"):
        run.load(T)
    assert run.works[1].tasks == ((Range("t", 0, 5, 7),),)
    assert table.discarded == ["a"]
    assert [(each.path, commit.offsets.next_offsets) for commit in table.commits for each in commit.add] == [
        ("b", {("t", 0): 7})
    ]


def test_tolerated_bad_records_are_reported_before_the_commit(harness: Callable[..., Harness]) -> None:
    result = TaskResult((file("t", "a"),), (RangeResult(T, {"t": 2}, (bad(7), bad(8)), 2, 7),))
    run = harness(lambda work: [result], tolerates_errors=True)
    table = run.add("t", exists=True)
    loaded = run.load(T)
    assert run.reporter.offsets == [7, 8]
    assert loaded.bad_count == 2
    assert table.commits[0].offsets.next_offsets == {("t", 0): 9}


def test_bad_records_are_only_counted_if_they_are_neither_logged_nor_dead_lettered(
    harness: Callable[..., Harness],
) -> None:
    """A harness without a reader shows that the range is not read again."""
    result = TaskResult((file("t", "a"),), (RangeResult(T, {"t": 1}, (bad(6),), 3, 6),))
    run = harness(lambda work: [result], tolerates_errors=True)
    table = run.add("t", exists=True)
    loaded = run.load(T)
    assert (run.reporter.counted, run.reporter.offsets) == (3, [])
    assert loaded.bad_count == 3
    assert table.commits[0].offsets.next_offsets == {("t", 0): 9}


def test_table_of_another_tool_that_no_record_matches_fails_the_task_despite_tolerance(
    harness: Callable[..., Harness],
) -> None:
    mismatch = bad(5, "column n: int -> string", table="t", columns_mismatch=True)
    run = harness(lambda work: [TaskResult((), (RangeResult(T, {}, (mismatch,), 1, 5),))], tolerates_errors=True)
    table = run.add("t", exists=True)
    with pytest.raises(TableSchemaError, match="table t was not created by this connector"):
        run.load(T)
    assert table.commits == []


def test_failure_of_a_task_discards_the_files_of_the_other_tasks(harness: Callable[..., Harness]) -> None:
    run = harness(lambda work: [TaskResult((file("t", "a"),)), TaskFailure("the log ends at offset 4")])
    table = run.add("t", exists=True)
    with pytest.raises(ConnectError, match="the log ends at offset 4"):
        run.load(T)
    assert (table.discarded, table.commits) == (["a"], [])


def test_task_that_cannot_reach_the_cluster_raises_a_retriable_error(harness: Callable[..., Harness]) -> None:
    run = harness(lambda work: [TaskFailure("no broker responds", is_retriable=True)])
    run.add("t", exists=True)
    with pytest.raises(ClusterUnavailableError, match="no broker responds"):
        run.load(T)


def test_failed_commit_of_one_table_does_not_prevent_the_commit_of_another(harness: Callable[..., Harness]) -> None:
    ranges = (T, Range("u", 0, 0, 1))
    run = harness(
        lambda work: [TaskResult((file("t", "a"), file("u", "b")), tuple(RangeResult(range_) for range_ in ranges))]
    )
    run.add("t", exists=True).error = ConnectError("catalog is down")
    other = run.add("u", exists=True)
    with pytest.raises(ConnectError, match="catalog is down"):
        run.load(*ranges)
    assert [commit.offsets.next_offsets for commit in other.commits] == [{("u", 0): 1}]


def test_table_that_a_transform_chose_is_opened_and_stores_the_offsets_of_partitions_with_rows(
    harness: Callable[..., Harness],
) -> None:
    other = Range("t", 1, 0, 3)
    found = TaskResult((), (), (FoundColumns("routed", INTS, "t", 0, 5),))
    rows = TaskResult((file("routed", "a"),), (RangeResult(T, {"routed": 4}), RangeResult(other, {})))
    run = harness(lambda work: [found], lambda work: [rows], routes=True)
    run.load(T, other)
    (commit,) = run.committers["routed"].commits
    assert commit.offsets.next_offsets == {("t", 0): 9}
    assert "routed" in run.works[1].tables
