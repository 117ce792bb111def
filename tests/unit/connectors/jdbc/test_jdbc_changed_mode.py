"""Tests of the JDBC source after a change of `mode`, with real SQLite databases."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path

import pytest

from headrace_connectors.jdbc.source import JdbcSourceConnector
from headrace_connectors.jdbc.source_config import JdbcSourceConfig
from support.jdbc import Context, Offsets, drain, read_all, rows

MODE = {"mode": "timestamp+incrementing", "timestamp.column.name": "changed", "incrementing.column.name": "id"}
TIMESTAMP_MODE = {"mode": "timestamp", "incrementing.column.name": ""}


@pytest.fixture
def props(tmp_path: Path) -> dict[str, str]:
    with sqlite3.connect(tmp_path / "shop.db") as database:
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, changed INTEGER NOT NULL)")
        database.executemany("INSERT INTO orders VALUES (?, ?)", [(id_, 1000 * (id_ // 10)) for id_ in range(1, 41)])
    return {"connection.url": f"jdbc:sqlite:{tmp_path / 'shop.db'}", "batch.max.rows": "5", **MODE}


def read_some(props: Mapping[str, str], offsets: Offsets, polls: int) -> list[int]:
    """Run one task for some polls, and return the ids of the rows."""
    connector = JdbcSourceConnector()
    connector.context = Context(offsets)
    connector.start(JdbcSourceConfig.parse(props))
    (config,) = connector.task_configs(1)
    connector.stop()
    return [row[0] for row in rows(drain(config, offsets, polls))]


@pytest.mark.parametrize("polls", range(1, 9))
def test_no_row_is_lost_if_the_mode_changes_between_rows_with_equal_timestamps(
    props: dict[str, str], polls: int
) -> None:
    offsets = Offsets()
    before = read_some(props, offsets, polls)
    # The next task ends in the middle of a group of rows with equal timestamps, too.
    interrupted = read_some({**props, **TIMESTAMP_MODE, "batch.max.rows": "3"}, offsets, 1)
    after = [row[0] for row in rows(read_all({**props, **TIMESTAMP_MODE}, offsets))]
    assert set(before) | set(interrupted) | set(after) == set(range(1, 41))
    assert len(before) + len(interrupted) + len(after) <= 40 + 10 + 10  # only rows with one timestamp are repeated
    assert read_all({**props, **TIMESTAMP_MODE}, offsets) == []


@pytest.mark.parametrize("polls", range(1, 13))
def test_no_row_is_lost_if_the_mode_changes_during_an_initial_load(props: dict[str, str], polls: int) -> None:
    offsets = Offsets()
    before = read_some({**props, "initial.load.chunks": "2"}, offsets, polls)
    after = [row[0] for row in rows(read_all({**props, **TIMESTAMP_MODE}, offsets))]
    assert set(before) | set(after) == set(range(1, 41))
    assert len(before) == 40 or len(after) == 40
    assert read_all({**props, **TIMESTAMP_MODE}, offsets) == []
