"""Tests that the last record of each row in the topic has the row's newest version after an initial load.

Rows change during the load, tasks commit late, and the connector is killed. The databases are real SQLite databases,
and the database's clock is virtual.
"""

from __future__ import annotations

import datetime as dt
import random
import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from headrace_connectors.jdbc.source import JdbcSourceConnector, JdbcSourceTask
from headrace_connectors.jdbc.source_config import JdbcSourceConfig, JdbcSourceTaskConfig
from headrace_connectors.jdbc.sqlite import SqliteDialect
from support.jdbc import Context, Offsets

ROWS = 60
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


class Run:
    """A database, a connector with its tasks, and the topic to which the tasks write."""

    def __init__(self, directory: Path, clock: list[int], **props: str) -> None:
        self.clock = clock
        self.props = {
            "connection.url": f"jdbc:sqlite:{directory / 'shop.db'}",
            "mode": "timestamp+incrementing",
            "timestamp.column.name": "changed",
            "incrementing.column.name": "id",
            "initial.load.chunks": "3",
            "batch.max.rows": "5",
            "poll.interval.ms": "500",
        } | props
        self.database = sqlite3.connect(directory / "shop.db", isolation_level=None)
        self.database.execute("PRAGMA journal_mode=WAL")  # rows can change while a task reads
        self.database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, changed INTEGER NOT NULL, version INTEGER)")
        self.database.executemany("INSERT INTO orders VALUES (?, 1000, 0)", [(number,) for number in range(ROWS)])
        self.offsets = Offsets()
        self.topic: list[tuple[int, int]] = []
        self.tasks: list[JdbcSourceTask] = []
        self.uncommitted: list[list[tuple[Mapping[str, Any], Mapping[str, Any]]]] = []
        self.start()

    def start(self) -> None:
        self.contexts: list[Context] = []
        connector = JdbcSourceConnector()
        connector.context = Context(self.offsets)
        connector.start(JdbcSourceConfig.parse(self.props))
        for config in connector.task_configs(3):
            task = JdbcSourceTask()
            task.poll_block_s = 0.0
            self.contexts.append(Context(self.offsets))
            task.context = self.contexts[-1]  # type: ignore[assignment]
            task.start(JdbcSourceTaskConfig.parse(config))
            self.tasks.append(task)
        self.uncommitted = [[] for _ in self.tasks]
        connector.stop()

    def poll(self, number: int) -> bool:
        """Poll a task and write its records to the topic. Return whether the task returned a batch."""
        self.contexts[number].now_s += 1
        batch = self.tasks[number].poll()
        if batch is None:
            return False
        self.topic += [(row[0], row[2]) for row in batch.values]
        self.uncommitted[number].append((batch.source_partition, batch.source_offset))
        return True

    def commit(self, number: int) -> None:
        for partition, offset in self.uncommitted[number]:
            self.offsets.commit(partition, offset)
        self.uncommitted[number] = []

    def kill(self) -> None:
        """Stop all tasks without a commit."""
        for task in self.tasks:
            task.stop()
        self.tasks = []

    def update(self, number: int) -> None:
        self.clock[0] += 1000
        sql = "UPDATE orders SET version = version + 1, changed = ? WHERE id = ?"
        self.database.execute(sql, (self.clock[0], number))

    def finish(self) -> None:
        """Poll and commit until no task returns a batch: first the end of a running statement, then a new statement."""
        self.clock[0] += 2000
        tasks = range(len(self.tasks))
        idle_rounds = 0
        while idle_rounds < 2:
            for number in tasks:
                self.commit(number)
            polled = [self.poll(number) for number in tasks]
            idle_rounds = 0 if any(polled) else idle_rounds + 1
        self.kill()
        self.versions = dict(self.database.execute("SELECT id, version FROM orders").fetchall())
        self.database.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The time of the database in milliseconds."""
    now_ms = [1_700_000_000_000]
    monkeypatch.setattr(SqliteDialect, "now", lambda *_: EPOCH + dt.timedelta(milliseconds=now_ms[0]))
    return now_ms


def test_row_that_changes_while_its_range_is_read_is_written_with_its_new_version_last(
    tmp_path: Path, clock: list[int]
) -> None:
    run = Run(tmp_path, clock)
    while run.poll(0):  # the task of the table reads a range, too
        run.commit(0)
    for number in range(1, len(run.tasks)):
        run.poll(number)  # these statements still return the old versions of their other rows
    for number in range(ROWS):
        run.update(number)
    clock[0] += 2000
    assert not run.poll(0)
    run.finish()
    assert dict(run.topic) == run.versions == dict.fromkeys(range(ROWS), 1)


@pytest.mark.parametrize("seed", range(60))
def test_last_record_of_each_row_has_its_newest_version_after_updates_late_commits_and_kills(
    tmp_path: Path, clock: list[int], seed: int
) -> None:
    random_ = random.Random(seed)
    run = Run(tmp_path, clock)
    for _ in range(random_.randrange(5, 80)):
        number = random_.randrange(len(run.tasks))
        action = random_.choices(("poll", "update", "commit", "kill"), (10, 5, 4, 0.5))[0]
        if action == "poll":
            run.poll(number)
        elif action == "update":
            run.update(random_.randrange(ROWS))
        elif action == "commit":
            run.commit(number)
        else:
            run.kill()
            run.start()
    run.finish()
    assert dict(run.topic) == run.versions
