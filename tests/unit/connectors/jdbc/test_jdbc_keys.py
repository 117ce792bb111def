"""Tests of configuration keys of the JDBC source with real SQLite databases."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from headrace.api.config import config_def
from headrace.api.errors import ConfigError
from headrace_connectors.jdbc.source import JdbcSourceConnector
from headrace_connectors.jdbc.source_config import JdbcSourceConfig
from support.jdbc import read_all, rows


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
    yield connection
    connection.close()


@pytest.fixture
def props(tmp_path: Path, database: sqlite3.Connection) -> dict[str, str]:
    return {"connection.url": f"jdbc:sqlite:{tmp_path / 'shop.db'}", "mode": "bulk", "topic.prefix": "t"}


def validation_errors(props: Mapping[str, str]) -> dict[str, list[str]]:
    values = config_def(JdbcSourceConfig).validate(props)
    JdbcSourceConnector().validate(props, values)
    return {name: value.errors for name, value in values.items() if value.errors}


class TestQuoteSqlIdentifiers:
    HOSTILE_TABLE = "orders WHERE 0 UNION SELECT secret FROM vault --"
    HOSTILE_COLUMN = "(SELECT secret FROM vault)"

    @pytest.fixture
    def never(self, props: dict[str, str], database: sqlite3.Connection) -> dict[str, str]:
        database.executescript("CREATE TABLE vault (secret TEXT); INSERT INTO vault VALUES ('gold')")
        return {**props, "quote.sql.identifiers": "never", "table.blacklist": "vault", "transforms": "topic"}

    def test_never_reads_names_that_need_no_quotes(self, never: dict[str, str], database: sqlite3.Connection) -> None:
        database.executescript('CREATE TABLE _größe$1 (id INTEGER PRIMARY KEY, "b$_2" TEXT)')
        database.execute("INSERT INTO _größe$1 VALUES (1, 'x')")
        props = {**never, "mode": "incrementing", "incrementing.column.name": "id"}
        assert rows(read_all(props)) == [(1, "x")]

    @pytest.mark.parametrize("table", [HOSTILE_TABLE, "1st", "$a", "a b", 'a"b', "a;b", "a-b"])
    def test_never_rejects_a_table_whose_name_needs_quotes(
        self, never: dict[str, str], database: sqlite3.Connection, table: str
    ) -> None:
        quoted = table.replace('"', '""')
        database.execute("CREATE TABLE orders (id TEXT)")
        database.execute(f'CREATE TABLE "{quoted}" (id INTEGER PRIMARY KEY)')
        database.execute(f'INSERT INTO "{quoted}" VALUES (1)')
        with pytest.raises(ConfigError, match=r"configuration quote\.sql\.identifiers: table ") as found:
            read_all({**never, "table.blacklist": "vault,orders"})
        assert table in str(found.value).replace('""', '"')
        assert rows(read_all({**never, "table.blacklist": "vault,orders", "quote.sql.identifiers": "always"})) == [(1,)]

    def test_never_rejects_a_column_whose_name_needs_quotes(
        self, never: dict[str, str], database: sqlite3.Connection
    ) -> None:
        database.execute(f'CREATE TABLE orders (id INTEGER PRIMARY KEY, "{self.HOSTILE_COLUMN}" TEXT)')
        database.execute("INSERT INTO orders VALUES (1, 'mine')")
        message = r"configuration quote\.sql\.identifiers: column \(SELECT secret FROM vault\) of table orders: "
        with pytest.raises(ConfigError, match=message):
            read_all(never)
        assert rows(read_all({**never, "quote.sql.identifiers": "always"})) == [(1, "mine")]

    def test_validation_reports_names_that_need_quotes(
        self, never: dict[str, str], database: sqlite3.Connection
    ) -> None:
        database.execute('CREATE TABLE "a b" (id INTEGER PRIMARY KEY)')
        database.execute('CREATE TABLE orders (id INTEGER PRIMARY KEY, "c d" TEXT, "e f" INTEGER NOT NULL)')
        del never["table.blacklist"]
        assert "table a b: " in validation_errors({**never, "table.whitelist": "a b"})["quote.sql.identifiers"][0]
        errors = validation_errors({**never, "table.whitelist": "orders"})
        assert "column c d of table orders: " in errors["quote.sql.identifiers"][0]
        query = {**never, "query": 'SELECT "e f" FROM orders', "mode": "incrementing"}
        errors = validation_errors({**query, "incrementing.column.name": "e f"})
        assert "column e f of the query: " in errors["quote.sql.identifiers"][0]

    def test_never_applies_to_the_offset_columns_of_a_query(
        self, never: dict[str, str], database: sqlite3.Connection
    ) -> None:
        database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item TEXT)")
        database.execute("INSERT INTO orders VALUES (1, 'pen')")
        del never["table.blacklist"]
        query = {**never, "mode": "incrementing", "incrementing.column.name": "id > 0 OR 1"}
        with pytest.raises(ConfigError, match=r"identifiers: column id > 0 OR 1 of the query: "):
            read_all({**query, "query": 'SELECT * FROM (SELECT id AS "id > 0 OR 1" FROM orders)'})
        props = {**query, "query": "SELECT id, count(*) FROM orders", "mode": "bulk"}
        assert rows(read_all(props)) == [(1, 1)]


def test_validation_reports_a_whitelisted_table_whose_topic_would_be_invalid(
    props: dict[str, str], database: sqlite3.Connection
) -> None:
    database.executescript('CREATE TABLE "my table" (id INTEGER); CREATE TABLE orders (id INTEGER)')
    props = {**props, "table.whitelist": "my table,orders"}
    (message,) = validation_errors(props)["table.whitelist"]
    assert "table my table cannot be read: its topic would be 'tmy table'" in message
    assert validation_errors({**props, "transforms": "topic"}) == {}
    assert validation_errors({**props, "table.whitelist": "orders"}) == {}
