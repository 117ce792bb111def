"""Tests of the JDBC source whose tables change after it has read the columns and before it starts a statement."""

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
from headrace_connectors.jdbc.config import JdbcSourceTaskConfig
from headrace_connectors.jdbc.source import JdbcSourceTask
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
    """Call `poll` this often and return all rows."""
    return rows([batch for _ in range(polls) if (batch := task.poll()) is not None])


@pytest.fixture
def before_each_statement(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], Any]], None]:
    """Return a function whose argument is called before each statement, with the number of previous statements."""
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


def test_table_that_changes_each_time_the_source_reads_it_fails_the_task(
    database: sqlite3.Connection, props: Any, before_each_statement: Any
) -> None:
    before_each_statement(lambda number: database.execute(f"ALTER TABLE orders ADD COLUMN c{number}"))
    with pytest.raises(ConnectError, match="table orders: the columns changed 5 times"):
        read_all({**props, "table.whitelist": "orders"})


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


def test_dropped_table_is_reported_as_missing(
    database: sqlite3.Connection, props: Any, before_each_statement: Any
) -> None:
    before_each_statement(lambda number: database.execute("DROP TABLE orders"))
    with pytest.raises(ConnectError, match="table orders does not exist"):
        read_all({**props, "table.whitelist": "orders"})
