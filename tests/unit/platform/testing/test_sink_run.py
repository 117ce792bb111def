"""Tests of `run_sink`, which runs a sink task in memory and calls it as a worker does."""

from __future__ import annotations

import contextlib
import gc
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.api import (
    Config,
    ConnectError,
    ConnectRecord,
    DataError,
    RecordErrors,
    RetriableError,
    SinkRecord,
    SinkRecords,
    SinkTask,
    TopicPartition,
    key,
    sink,
    transform,
)
from headrace.testing import LostPartitions, LostPut, Pause, Rebalance, RepeatedRetriableError, Restart, run_sink


class StoreConfig(Config):
    path: str = key("path")
    mode: str = key("mode", default="")


STORED: dict[str, list[tuple[str, int, int, Any]]] = {}
"""The records that the tasks have stored, by path. Like an external system, it outlives a task."""


class StoreTask(SinkTask[StoreConfig]):
    """A sink task that buffers records until `flush` stores them."""

    def start(self, config: StoreConfig) -> None:
        self._stored = STORED.setdefault(config.path, [])
        self._buffer: list[tuple[str, int, int, Any]] = []
        self._failures = 0

    def put(self, records: SinkRecords) -> None:
        if self.config.mode == "retriable" and self._failures < 3:
            self._failures += 1
            self.context.timeout(5000)
            raise RetriableError("not yet")
        if self.config.mode == "pause" and records:
            self.context.pause(*self.context.assignment)
            assert self.context.wait(10)
            self.context.resume(*self.context.assignment)
        errors: dict[int, Exception] = {}
        for index, record in enumerate(records):
            if isinstance(record.value, int):
                self._buffer.append((record.topic or "", record.partition or 0, record.offset, record.value))
            elif self.config.mode == "reporter":
                reporter = self.context.errant_record_reporter
                assert reporter is not None
                reporter.report(record, DataError("no number")).result(0)
            elif self.config.mode == "swallowed report":
                reporter = self.context.errant_record_reporter
                assert reporter is not None
                with contextlib.suppress(Exception):
                    reporter.report(record, DataError("no number"))
            else:
                errors[index] = DataError("no number")
        if errors:
            raise RecordErrors(errors)

    def flush(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._stored += self._buffer
        self._buffer.clear()

    def close(self, partitions: Sequence[TopicPartition]) -> None:
        self._buffer = [each for each in self._buffer if (each[0], each[1]) not in partitions]


@pytest.fixture
def props(tmp_path: Path) -> dict[str, str]:
    return {"path": str(tmp_path), "errors.tolerance": "all"}


def stored(props: Mapping[str, str]) -> list[Any]:
    return [value for _, _, _, value in STORED.pop(props["path"], [])]


def test_run_sink_puts_and_commits_all_records(props: dict[str, str]) -> None:
    run = run_sink(StoreTask, props, range(1200))
    assert stored(props) == list(range(1200))
    assert run.committed == {("test", 0): 1200}
    assert run.puts == 3
    assert run.calls[0] == "start"
    assert run.calls[-1] == "stop"


@pytest.mark.parametrize("fault", [Rebalance(2), LostPartitions(2), Restart(2), LostPut(2), Pause(2)])
def test_run_sink_with_a_simulated_fault_stores_all_records(props: dict[str, str], fault: Any) -> None:
    run = run_sink(StoreTask, props, range(10), faults=[fault], max_poll_records=3)
    found = stored(props)
    assert sorted(set(found)) == list(range(10))
    has_duplicates = isinstance(fault, (LostPut,))
    assert (len(found) > 10) is has_duplicates
    assert run.committed == {("test", 0): 10}


def test_run_sink_starts_at_committed_offsets(props: dict[str, str]) -> None:
    run_sink(StoreTask, props, range(10), committed={("test", 0): 7})
    assert stored(props) == [7, 8, 9]


def test_run_sink_retries_a_put_after_retriable_errors_without_waiting_in_real_time(props: dict[str, str]) -> None:
    run = run_sink(StoreTask, {**props, "mode": "retriable"}, range(3))
    assert stored(props) == [0, 1, 2]
    assert run.puts == 4


@pytest.mark.parametrize("mode", ["", "reporter"])
def test_run_sink_reports_failed_records_and_stores_other_records_if_errors_are_tolerated(
    props: dict[str, str], mode: str
) -> None:
    run = run_sink(StoreTask, {**props, "mode": mode}, [1, "x", 2])
    assert stored(props) == [1, 2]
    assert [(record.offset, str(error)) for record, error in run.reported] == [(1, "no number")]


@pytest.mark.parametrize("mode", ["", "reporter", "swallowed report"])
def test_run_sink_raises_the_error_of_a_failed_record_if_errors_are_not_tolerated(
    props: dict[str, str], mode: str
) -> None:
    with pytest.raises(ConnectError, match="no number"):
        run_sink(StoreTask, {**props, "mode": mode, "errors.tolerance": "none"}, [1, "x", 2])
    assert stored(props) == []


def test_run_sink_stops_a_task_that_failed() -> None:
    stopped = []

    class FailingTask(SinkTask[StoreConfig]):
        def put(self, records: SinkRecords) -> None:
            if len(records):
                raise ConnectError("the store is gone")

        def stop(self) -> None:
            stopped.append(True)

    with pytest.raises(ConnectError, match="the store is gone"):
        run_sink(FailingTask, {"path": "unused"}, ["a"])
    assert stopped == [True]


def test_sink_task_that_pauses_and_resumes_its_partitions_receives_all_records(props: dict[str, str]) -> None:
    run_sink(StoreTask, {**props, "mode": "pause"}, range(5), max_poll_records=2)
    assert stored(props) == [0, 1, 2, 3, 4]


def test_run_sink_commits_an_offset_for_each_partition(props: dict[str, str]) -> None:
    records = [SinkRecord(topic="t", partition=n % 2, offset=5 + n // 2, value=n) for n in range(6)]
    run = run_sink(StoreTask, props, records)
    assert run.committed == {("t", 0): 8, ("t", 1): 8}
    assert sorted(stored(props)) == [0, 1, 2, 3, 4, 5]


class LinesConfig(Config):
    path: str = key("path")


@sink
def lines(config: LinesConfig, records: SinkRecords) -> None:
    """Append a line to the file `config.path` for each record."""
    with open(config.path, "a", encoding="utf-8") as file:
        file.writelines(f"{record.topic} {record.value}\n" for record in records)


class NoConfig(Config):
    pass


@transform
def rename(config: NoConfig, record: ConnectRecord) -> ConnectRecord:
    """Replace the record's topic with `renamed`."""
    return record.replace(topic="renamed")


def test_sink_function_receives_transformed_records(tmp_path: Path) -> None:
    file = tmp_path / "lines"
    run = run_sink(lines, {"path": str(file), "transforms": "r", "transforms.r.type": f"{__name__}:rename"}, ["a", "b"])
    assert file.read_text() == "renamed a\nrenamed b\n"
    assert run.committed == {("test", 0): 2}


class DatabaseConfig(Config):
    path: str = key("path")


class DatabaseTask(SinkTask[DatabaseConfig]):
    """A sink task that keeps a transaction open between `put` and `flush`, as a database sink does."""

    def start(self, config: DatabaseConfig) -> None:
        self._connection = sqlite3.connect(config.path, timeout=0)
        self._connection.execute("CREATE TABLE IF NOT EXISTS numbers (number)")
        self._connection.commit()

    def put(self, records: SinkRecords) -> None:
        try:
            self._connection.executemany("INSERT INTO numbers VALUES (?)", [(record.value,) for record in records])
        except sqlite3.OperationalError as error:
            raise RetriableError(str(error)) from error

    def flush(self, offsets: Mapping[TopicPartition, int]) -> None:
        self._connection.commit()


@pytest.mark.parametrize("is_collector_enabled", [True, False])
def test_killed_sink_task_releases_its_open_transaction(tmp_path: Path, is_collector_enabled: bool) -> None:
    path = tmp_path / "database"
    if not is_collector_enabled:
        gc.disable()
    try:
        run_sink(DatabaseTask, {"path": str(path)}, [1, 2, 3], max_poll_records=1, faults=[Restart(2)])
    finally:
        gc.enable()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT number FROM numbers ORDER BY number").fetchall() == [(1,), (2,), (3,)]


class FailingTask(SinkTask[StoreConfig]):
    """A sink task whose `put` raises a RetriableError whose text is the same in each call, or counts the calls."""

    calls = 0

    def put(self, records: SinkRecords) -> None:
        if len(records):
            type(self).calls += 1
            raise RetriableError("locked" if self.config.mode == "equal" else f"locked {self.calls}")


def test_run_sink_fails_with_the_text_of_a_retriable_error_that_put_raised_100_times_in_a_row() -> None:
    FailingTask.calls = 0
    with pytest.raises(RepeatedRetriableError, match=r"put .* 100 times in a row: locked$") as raised:
        run_sink(FailingTask, {"path": "x", "mode": "equal"}, [1])
    assert FailingTask.calls == 100
    assert isinstance(raised.value.__cause__, RetriableError)


def test_run_sink_repeats_a_put_whose_retriable_errors_differ() -> None:
    class RecoveringTask(FailingTask):
        def put(self, records: SinkRecords) -> None:
            if self.calls < 300:
                super().put(records)

    FailingTask.calls = 0
    RecoveringTask.calls = 0
    assert run_sink(RecoveringTask, {"path": "x"}, [1]).committed == {("test", 0): 1}


def test_equal_retriable_errors_with_a_successful_put_between_them_do_not_fail_the_run() -> None:
    class AlternatingTask(FailingTask):
        def put(self, records: SinkRecords) -> None:
            type(self).calls += len(records)
            if len(records) and self.calls % 2:
                raise RetriableError("locked")

    AlternatingTask.calls = 0
    run = run_sink(AlternatingTask, {"path": "x"}, list(range(150)), max_poll_records=1)
    assert run.committed == {("test", 0): 150}
