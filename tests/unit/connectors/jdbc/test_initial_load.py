"""Tests of the initial load of a table in key ranges, with real SQLite databases."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.api.errors import ConfigErrors
from headrace_connectors.jdbc.initial_load import InitialLoad, KeyRange, distribute
from headrace_connectors.jdbc.source import JdbcSourceConnector
from headrace_connectors.jdbc.source_config import JdbcSourceConfig
from support.jdbc import Context, Offsets, drain, read_all, rows


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
    connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, changed INTEGER NOT NULL)")
    connection.execute("BEGIN")
    connection.executemany("INSERT INTO orders VALUES (?, 1000)", [(i,) for i in range(1, 1001)])
    connection.execute("COMMIT")
    yield connection
    connection.close()


@pytest.fixture
def props(tmp_path: Path) -> dict[str, str]:
    return {
        "connection.url": f"jdbc:sqlite:{tmp_path / 'shop.db'}",
        "mode": "incrementing",
        "initial.load.chunks": "4",
        "batch.max.rows": "100",
    }


@given(first=st.integers(-50, 50), count=st.integers(1, 100), chunks=st.integers(1, 20))
def test_key_ranges_of_an_initial_load_cover_every_key_exactly_once(first: int, count: int, chunks: int) -> None:
    last = first + count - 1
    ranges = InitialLoad(first, last, chunks, 0).ranges("t")
    assert [value for each in ranges for value in range(each.first, each.last + 1)] == list(range(first, last + 1))
    assert len(ranges) == min(chunks, count)


def test_key_ranges_of_an_initial_load_are_assigned_to_the_least_loaded_tasks() -> None:
    ranges = [KeyRange("a", n, n, "") for n in range(4)]
    tasks = distribute([["a", "b"], ["c"]], ranges, 3)
    assert [(tables, len(own)) for tables, own in tasks] == [(["a", "b"], 1), (["c"], 1), ([], 2)]


def test_initial_load_with_several_tasks_reads_each_row_once(
    database: sqlite3.Connection, props: dict[str, str]
) -> None:
    offsets = Offsets()
    batches = read_all(props, offsets, 3)
    assert sorted(row[0] for row in rows(batches)) == list(range(1, 1001))
    assert {batch.source_partition.get("range") for batch in batches} == {
        None, "1..250", "251..500", "501..750", "751..1000",
    }  # fmt: skip
    assert read_all(props, offsets, 3) == []
    database.execute("INSERT INTO orders VALUES (1001, 1000)")
    (batch,) = read_all(props, offsets, 3)
    assert batch.values == [(1001, 1000)]
    assert batch.source_offset is not None
    assert batch.source_offset["initial_load"].startswith("1:1000:4:")


@pytest.mark.parametrize("chunks", ["4", "1", "7"])
def test_interrupted_initial_load_is_completed_by_the_next_run_even_with_another_number_of_chunks(
    database: sqlite3.Connection, props: dict[str, str], chunks: str
) -> None:
    offsets = Offsets()
    connector = JdbcSourceConnector()
    connector.context = Context(offsets)
    connector.start(JdbcSourceConfig.parse(props))
    found = [row for config in connector.task_configs(2) for row in rows(drain(config, offsets, polls=3))]
    connector.stop()
    assert 0 < len(found) < 1000
    database.execute("INSERT INTO orders VALUES (1001, 1000)")
    found += rows(read_all({**props, "initial.load.chunks": chunks}, offsets, 3))
    assert sorted(row[0] for row in found) == list(range(1, 1002))


@pytest.mark.parametrize("chunks", ["4", "1"])
def test_table_whose_offset_was_reset_is_read_again_although_the_offsets_of_its_ranges_are_stored(
    database: sqlite3.Connection, props: dict[str, str], chunks: str
) -> None:
    offsets = Offsets()
    read_all(props, offsets, 3)
    del offsets.committed[("protocol", "1"), ("table", "orders")]
    found = rows(read_all({**props, "initial.load.chunks": chunks}, offsets, 3))
    assert sorted(row[0] for row in found) == list(range(1, 1001))


def test_task_that_is_restarted_during_a_new_initial_load_ignores_the_offsets_of_earlier_initial_loads() -> None:
    earlier, current = InitialLoad(1, 10, 2, 5, created_ms=6), InitialLoad(1, 10, 2, 5, created_ms=7)
    (each, _) = current.ranges("orders")
    assert each.own_offset({"incrementing": 3, "initial_load": earlier.to_offset()}) is None
    assert each.own_offset({"incrementing": 3, "initial_load": current.to_offset()})
    assert each.own_offset({"incrementing": 3})  # an offset that a user has stored


def test_rows_that_change_after_the_start_of_an_initial_load_are_read_again_in_timestamp_mode(
    database: sqlite3.Connection, props: dict[str, str]
) -> None:
    offsets = Offsets()
    props |= {"mode": "timestamp+incrementing", "timestamp.column.name": "changed", "incrementing.column.name": "id"}
    assert len(rows(read_all(props, offsets, 3))) == 1000
    # This time is one second ahead and after the start of the initial load. The loop below waits until it has passed.
    database.execute("UPDATE orders SET changed = unixepoch() * 1000 + 1000 WHERE id = 7")
    found: list[int] = []
    deadline_s = time.monotonic() + 30
    while not found and time.monotonic() < deadline_s:
        time.sleep(0.1)
        found = [row[0] for row in rows(read_all(props, offsets, 3))]
    assert found == [7]


def test_table_with_a_stored_source_offset_has_no_initial_load(
    database: sqlite3.Connection, props: dict[str, str]
) -> None:
    offsets = Offsets()
    read_all({**props, "initial.load.chunks": "1"}, offsets)
    database.execute("INSERT INTO orders VALUES (1001, 1000)")
    assert [row[0] for row in rows(read_all(props, offsets, 3))] == [1001]


def test_empty_table_is_read_without_an_initial_load(database: sqlite3.Connection, props: dict[str, str]) -> None:
    database.execute("DELETE FROM orders")
    offsets = Offsets()
    assert read_all(props, offsets, 3) == []
    database.execute("INSERT INTO orders VALUES (5, 1000)")
    assert [row[0] for row in rows(read_all(props, offsets, 3))] == [5]


@pytest.mark.parametrize(
    "more",
    [{"mode": "bulk"}, {"query": "SELECT 1 AS id", "topic.prefix": "t", "incrementing.column.name": "id"}],
)
def test_configuration_of_an_initial_load_with_a_query_or_with_bulk_mode_is_rejected(
    props: dict[str, str], more: dict[str, str]
) -> None:
    with pytest.raises(ConfigErrors, match="works only without query and with mode=incrementing"):
        JdbcSourceConfig.parse({**props, **more})
