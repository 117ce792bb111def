"""Tests of changes to tables after the JDBC source has read their columns and before it reads their rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headrace.api.errors import ConnectError
from headrace.data.columns import CheckedRows
from headrace_connectors.jdbc import reader
from headrace_connectors.jdbc.source import JdbcSourceTask
from headrace_connectors.jdbc.source_config import JdbcSourceTaskConfig
from headrace_connectors.jdbc.sqlite import SqliteDialect
from support.jdbc import Context, Offsets, read_all, rows

CHANGES = {
    "new column": ("ADD COLUMN note TEXT DEFAULT 'new'", ["id", "item", "size", "note"], (1, "pen", 3, "new")),
    # SQLite reads the name of a missing column as a text if the name is in double quotes.
    "renamed column": ("RENAME COLUMN item TO name", ["id", "name", "size"], (1, "pen", 3)),
    "dropped column": ("DROP COLUMN size", ["id", "item"], (1, "pen")),
}


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
    connection.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT, size INTEGER)")
    connection.execute("INSERT INTO orders VALUES (1, 'pen', 3)")
    yield connection
    connection.close()


@pytest.fixture
def props(database: sqlite3.Connection, tmp_path: Path) -> dict[str, str]:
    return {"connection.url": f"jdbc:sqlite:{tmp_path / 'shop.db'}", "mode": "bulk", "topic.prefix": "t"}


@contextmanager
def running_task(props: Mapping[str, str]) -> Iterator[JdbcSourceTask]:
    task = JdbcSourceTask()
    task.context = Context(Offsets())  # type: ignore[assignment]
    task.start(JdbcSourceTaskConfig.parse(props))
    try:
        yield task
    finally:
        task.stop()


def poll_rows(task: JdbcSourceTask, polls: int) -> list[tuple[Any, ...]]:
    """Call `poll` `polls` times and return all rows."""
    return rows([batch for _ in range(polls) if (batch := task.poll()) is not None])


@pytest.fixture
def before_each_statement(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], Any]], None]:
    """Return a function that registers a callback.

    The callback is called before each SELECT statement. The argument of the callback is the number of previous
    statements.
    """
    select, numbers = reader.select, iter(range(100))

    def set_action(action: Callable[[int], Any]) -> None:
        monkeypatch.setattr(reader, "select", lambda *a, **more: (action(next(numbers)), select(*a, **more))[1])

    return set_action


@pytest.mark.parametrize("selection", [{"table.whitelist": "orders"}, {"query": "SELECT * FROM orders"}])
@pytest.mark.parametrize("name", CHANGES)
def test_rows_of_a_changed_table_or_query_have_the_new_schema(
    database: sqlite3.Connection, props: Any, before_each_statement: Any, name: str, selection: dict[str, str]
) -> None:
    change, names, row = CHANGES[name]
    before_each_statement(lambda number: number or database.execute(f"ALTER TABLE orders {change}"))
    (batch,) = read_all({**props, **selection})
    assert batch.value_schema is not None
    assert ([field.name for field in batch.value_schema.fields], list(batch.values)) == (names, [row])
    if "query" not in selection:
        assert isinstance(batch.compact, CheckedRows)  # the changed table is still read with the fast path


def test_read_is_retried_if_the_columns_of_the_table_change_before_each_attempt(
    database: sqlite3.Connection, props: Any, before_each_statement: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def change(number: int) -> None:
        if number < 12:
            database.execute(f"ALTER TABLE orders ADD COLUMN c{number}")

    before_each_statement(change)
    with running_task({**props, "tables": "orders"}) as task:
        (row,) = poll_rows(task, 4)
    assert len(row) == 3 + 12
    assert [each.getMessage() for each in caplog.records if each.levelname == "WARNING"] == [
        "table orders: the columns changed 5 times while the task was starting to read rows; retrying in 200 ms "
        "(attempt 2). The task continues to read its other tables"
    ]


def test_task_fails_after_the_last_retry_if_the_columns_change_before_each_attempt(
    database: sqlite3.Connection, props: Any, before_each_statement: Any
) -> None:
    before_each_statement(lambda number: database.execute(f"ALTER TABLE orders ADD COLUMN c{number}"))
    with running_task({**props, "tables": "orders", "query.retry.attempts": "2"}) as task:
        assert [task.poll(), task.poll()] == [None, None]
        with pytest.raises(
            ConnectError, match=r"table orders: the columns changed 5 times .*; giving up after 3 attempts"
        ):
            task.poll()


@pytest.mark.parametrize("selection", [{"tables": "orders"}, {"query": "SELECT * FROM orders"}])
def test_ddl_statements_for_other_tables_do_not_interrupt_reading(
    database: sqlite3.Connection, props: Any, before_each_statement: Any, selection: dict[str, str]
) -> None:
    before_each_statement(lambda number: database.execute(f"CREATE TABLE other{number} (id INTEGER)"))
    with running_task({**props, **selection, "query.retry.attempts": "0"}) as task:
        assert poll_rows(task, 1) == [(1, "pen", 3)]


def test_columns_are_compared_once_after_a_ddl_statement_for_another_table(
    database: sqlite3.Connection, props: Any
) -> None:
    statements: list[str] = []
    with running_task({**props, "tables": "orders", "poll.interval.ms": "0"}) as task:
        poll_rows(task, 2)
        database.execute("CREATE TABLE other (id INTEGER)")
        task._connection.set_trace_callback(statements.append)
        assert poll_rows(task, 4) == [(1, "pen", 3)] * 2
    assert [each.split("(")[0] for each in statements if each.startswith("PRAGMA")] == [
        "PRAGMA schema_version",
        "PRAGMA schema_version",
        "PRAGMA main.table_xinfo",
        "PRAGMA schema_version",
    ]


def test_change_that_is_reversed_while_the_source_reads_the_columns_does_not_affect_the_schema(
    database: sqlite3.Connection, props: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute("PRAGMA journal_mode = wal")
    table_info, describe = SqliteDialect._table_info, SqliteDialect._describe

    def change(*args: Any) -> Any:
        rows = table_info(*args)
        monkeypatch.undo()
        database.execute("ALTER TABLE orders RENAME COLUMN item TO name")
        return rows

    def change_back(*args: Any) -> Any:
        columns = describe(*args)
        database.execute("ALTER TABLE orders RENAME COLUMN name TO item")
        return columns

    with running_task({**props, "tables": "orders"}) as task:
        monkeypatch.setattr(SqliteDialect, "_table_info", change)
        with monkeypatch.context() as patch:
            patch.setattr(SqliteDialect, "_describe", change_back)
            batch = task.poll()
    assert batch is not None
    assert batch.value_schema is not None
    assert [field.name for field in batch.value_schema.fields] == ["id", "item", "size"]


def test_task_resumes_reading_a_dropped_table_when_the_table_exists_again(
    database: sqlite3.Connection, props: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Until then, the task continues to read its other tables."""
    caplog.set_level("INFO")
    database.execute("CREATE TABLE people (id INTEGER PRIMARY KEY)")
    with running_task({**props, "mode": "incrementing", "tables": "orders,people", "poll.interval.ms": "1"}) as task:
        assert poll_rows(task, 4) == [(1, "pen", 3)]
        connection = task._connection
        database.execute("DROP TABLE orders")
        poll_rows(task, 20)
        database.execute("INSERT INTO people VALUES (7)")
        assert poll_rows(task, 20) == [(7,)]
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, price TEXT)")
        database.execute("INSERT INTO orders VALUES (2, '5')")
        assert poll_rows(task, 2000) == [(2, "5")]
        assert task._connection is connection
    warnings = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
    assert len(warnings) == 1
    assert "table orders does not exist" in warnings[0]
    assert "table orders can be read again" in caplog.text


@pytest.mark.parametrize(
    ("mode", "column"),
    [
        ({"mode": "incrementing", "incrementing.column.name": "id"}, "id"),
        ({"mode": "timestamp", "timestamp.column.name": "item"}, "item"),
    ],
)
def test_task_resumes_reading_a_table_after_its_renamed_offset_column_is_renamed_back(
    database: sqlite3.Connection, props: Any, caplog: pytest.LogCaptureFixture, mode: dict[str, str], column: str
) -> None:
    """The task returns only the new row."""
    database.execute("UPDATE orders SET item = '2026-01-01'")
    settings = {"tables": "orders", "poll.interval.ms": "1", "validate.non.null": "false"}
    with running_task({**props, **settings, **mode}) as task:
        assert poll_rows(task, 4) == [(1, "2026-01-01", 3)]
        database.execute(f"ALTER TABLE orders RENAME COLUMN {column} TO renamed")
        database.execute("INSERT INTO orders VALUES (2, '2026-02-02', 4)")
        assert poll_rows(task, 20) == []
        database.execute(f"ALTER TABLE orders RENAME COLUMN renamed TO {column}")
        assert poll_rows(task, 20) == [(2, "2026-02-02", 4)]
    assert f"table orders has no column {column} any more; retrying in 200 ms (attempt 2)" in caplog.text


def test_task_resumes_reading_a_query_after_the_missing_table_of_the_query_exists_again(
    database: sqlite3.Connection, props: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The task returns only the new row."""
    query = {"query": "SELECT * FROM orders", "mode": "incrementing", "incrementing.column.name": "id"}
    with running_task({**props, **query, "poll.interval.ms": "1"}) as task:
        assert poll_rows(task, 4) == [(1, "pen", 3)]
        database.execute("ALTER TABLE orders RENAME TO old")
        assert poll_rows(task, 20) == []
        database.execute("ALTER TABLE old RENAME TO orders")
        database.execute("INSERT INTO orders VALUES (2, 'ink', 4)")
        assert poll_rows(task, 20) == [(2, "ink", 4)]
    assert "query: no such table: orders; retrying in 200 ms (attempt 2)" in caplog.text


def test_task_fails_if_a_dropped_table_is_still_missing_after_the_last_retry(
    database: sqlite3.Connection, props: Any
) -> None:
    with running_task({**props, "tables": "orders", "poll.interval.ms": "0", "query.retry.attempts": "3"}) as task:
        poll_rows(task, 2)
        database.execute("DROP TABLE orders")
        assert [task.poll() for _ in range(3)] == [None] * 3
        with pytest.raises(ConnectError, match=r"table orders does not exist .*; giving up after 4 attempts"):
            task.poll()


def test_dropped_table_is_reported_as_missing(
    database: sqlite3.Connection, props: Any, before_each_statement: Any
) -> None:
    before_each_statement(lambda number: database.execute("DROP TABLE orders"))
    with pytest.raises(ConnectError, match="table orders does not exist"):
        read_all({**props, "table.whitelist": "orders"})
