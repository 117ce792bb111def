"""Tests of the groups of rows that the JDBC sink writes, and of the SQL statements that write the groups.

A group (class `Run`) consists of consecutive rows of one table with the same columns.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from headrace.data.batch import SinkBatch
from headrace.data.schema import INT32_SCHEMA, STRING_SCHEMA, struct
from headrace.data.sink_records import SinkRecords
from headrace_connectors.jdbc import url
from headrace_connectors.jdbc.sink_config import JdbcSinkConfig
from headrace_connectors.jdbc.writing.databases import database_for
from headrace_connectors.jdbc.writing.runs import Run, RunBuilder
from headrace_connectors.jdbc.writing.table_cache import TableCache
from headrace_connectors.jdbc.writing.transaction import Writer

ROW = struct([("id", INT32_SCHEMA), ("name", STRING_SCHEMA)])
OTHER = struct([("id", INT32_SCHEMA), ("price", INT32_SCHEMA)])


def batch(first: int, count: int, schema: Any = ROW) -> SinkBatch:
    values = [(number, f"n{number}" if schema is ROW else number) for number in range(first, first + count)]
    return SinkBatch("items", values, partition=0, offsets=range(first, first + count), value_schema=schema)


def runs(*batches: SinkBatch, size: int = 3000, **config: str) -> list[Run]:
    parsed = JdbcSinkConfig.parse({"connection.url": "jdbc:sqlite:x.db", "batch.size": str(size), **config})
    found, errors = RunBuilder("sink", parsed).build(SinkRecords(list(batches)))
    assert errors == {}
    return found


def test_consecutive_batches_with_the_same_schema_are_combined_into_one_group_of_rows() -> None:
    (run,) = runs(batch(0, 3), batch(3, 2))
    assert [list(column) for column in run.values] == [[0, 1, 2, 3, 4], ["n0", "n1", "n2", "n3", "n4"]]
    assert list(run.indexes) == [0, 1, 2, 3, 4]


def test_group_of_rows_has_at_most_batch_size_rows() -> None:
    found = runs(batch(0, 3), batch(3, 2), size=2)
    assert [list(run.values[0]) for run in found] == [[0, 1], [2, 3], [4]]
    assert [list(run.indexes) for run in found] == [[0, 1], [2, 3], [4]]


def test_batches_with_different_schemas_become_separate_groups_in_record_order() -> None:
    found = runs(batch(0, 2), batch(2, 1, OTHER), batch(3, 1))
    assert [[column.name for column in run.columns] for run in found] == [
        ["id", "name"],
        ["id", "price"],
        ["id", "name"],
    ]
    assert [list(run.values[0]) for run in found] == [[0, 1], [2], [3]]


def test_each_row_keeps_the_index_of_its_record_if_an_invalid_record_between_two_rows_is_left_out() -> None:
    parsed = JdbcSinkConfig.parse({"connection.url": "jdbc:sqlite:x.db"})
    without_schema = SinkBatch("items", [{"id": 2}], partition=0, offsets=[2])
    found, errors = RunBuilder("sink", parsed).build(SinkRecords([batch(0, 2), without_schema, batch(3, 1)]))
    assert list(errors) == [2]
    assert [(list(run.values[0]), list(run.indexes)) for run in found] == [([0, 1, 3], [0, 1, 3])]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "shop.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE items (id INTEGER, name TEXT CHECK (name <> 'n2'))")
    connection.close()
    return path


def write(path: Path, count: int, *, uses_savepoints: bool = False) -> tuple[list[str], list[int]]:
    """Write `count` records to the database. Return the executed statements, and the indexes of rejected records."""
    config = JdbcSinkConfig.parse({"connection.url": f"jdbc:sqlite:{path}"})
    database = database_for(url.parse(config.connection_url), config)
    records = SinkRecords([batch(0, count)])
    runs, _ = RunBuilder("sink", config).build(records)
    connection = database.connect()
    statements: list[str] = []
    connection.set_trace_callback(statements.append)
    try:
        tables = TableCache(database, config)
        writer = Writer(database, tables, connection, records, True, uses_savepoints=uses_savepoints)
        return statements, list(writer.write(runs))
    finally:
        connection.close()


def is_about_savepoint(statement: str) -> bool:
    return "SAVEPOINT" in statement


def test_records_that_the_database_accepts_are_written_without_savepoints(path: Path) -> None:
    statements, rejected = write(path, 2)
    assert rejected == []
    assert not any(map(is_about_savepoint, statements))


def test_writer_repeats_a_write_with_savepoints_to_find_the_record_that_the_database_rejected(path: Path) -> None:
    statements, rejected = write(path, 4)
    assert rejected == [2]
    transactions = [each for each in statements if each in ("BEGIN IMMEDIATE", "ROLLBACK", "COMMIT")]
    assert transactions == ["BEGIN IMMEDIATE", "ROLLBACK", "BEGIN IMMEDIATE", "COMMIT"]
    assert "SAVEPOINT headrace" in statements


def test_writer_that_uses_savepoints_finds_a_rejected_record_without_repeating_the_write(path: Path) -> None:
    statements, rejected = write(path, 4, uses_savepoints=True)
    assert rejected == [2]
    assert statements.count("BEGIN IMMEDIATE") == 1
