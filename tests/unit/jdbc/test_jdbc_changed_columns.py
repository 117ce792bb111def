"""Tests of changes to tables after the JDBC source has read their columns and before it reads their rows."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.api.errors import ConnectError
from headrace.data.columns import CheckedRows
from headrace_connectors.jdbc import reader
from support.jdbc import read_all

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


def test_dropped_table_is_reported_as_missing(
    database: sqlite3.Connection, props: Any, before_each_statement: Any
) -> None:
    before_each_statement(lambda number: database.execute("DROP TABLE orders"))
    with pytest.raises(ConnectError, match="table orders does not exist"):
        read_all({**props, "table.whitelist": "orders"})
