"""Tests that JdbcSourceConnector passes the conformance suite for sources, with SQLite."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing

from headrace.testing.conformance import SourceConformance
from headrace_connectors.jdbc.source import JdbcSourceConnector

_RENAME = {"type": "org.apache.kafka.connect.transforms.RegexRouter", "regex": ".*", "replacement": "orders"}


class JdbcConformance(SourceConformance):
    plugin = JdbcSourceConnector
    tables = ("orders", "select", "Upper Case", "ünï-中", 'quo"te', "per%cent", "x" * 60, "drop;--")

    def config(self) -> dict[str, str]:
        return {
            "connection.url": f"jdbc:sqlite:{self.directory / 'shop.db'}",
            "topic.prefix": "db-",
            "batch.max.rows": "3",
            "table.whitelist": self._create_table(self.tables[0]),
            **self.mode(),
        }

    def mode(self) -> dict[str, str]:
        return {"mode": "incrementing", "incrementing.column.name": "id"}

    def invalid_configs(self) -> Sequence[Mapping[str, str]]:
        return [{}, {**self.config(), "mode": "sometimes"}, {**self.config(), "batch.max.rows": "0"}]

    def hostile_configs(self) -> Sequence[dict[str, str]]:
        # Some of the tables have valid topics only with a transform.
        renamed = {"transforms": "topic", **{f"transforms.topic.{name}": value for name, value in _RENAME.items()}}
        return [{**self.config(), **renamed, "table.whitelist": self._create_table(table)} for table in self.tables]

    def produce(self, count: int) -> None:
        table = self._quoted(self.tables[self.hostile_index or 0])
        with closing(sqlite3.connect(self.directory / "shop.db")) as database, database:
            [first] = database.execute(f"SELECT count(*) FROM {table}").fetchone()
            database.executemany(
                f"INSERT INTO {table} VALUES (?, ?, ?)",
                [(number, f"item {number}", f"2024-01-01 00:00:{number:02}") for number in range(first, first + count)],
            )

    def _create_table(self, table: str) -> str:
        with closing(sqlite3.connect(self.directory / "shop.db")) as database, database:
            database.execute(
                f"CREATE TABLE IF NOT EXISTS {self._quoted(table)} "
                "(id INTEGER PRIMARY KEY, name TEXT NOT NULL, changed TIMESTAMP NOT NULL)"
            )
        return table

    def _quoted(self, table: str) -> str:
        return '"' + table.replace('"', '""') + '"'


class TestIncrementingMode(JdbcConformance):
    pass


class TestTimestampMode(JdbcConformance):
    def mode(self) -> dict[str, str]:
        return {"mode": "timestamp", "timestamp.column.name": "changed"}


class TestTimestampAndIncrementingMode(JdbcConformance):
    def mode(self) -> dict[str, str]:
        return {
            "mode": "timestamp+incrementing",
            "timestamp.column.name": "changed",
            "incrementing.column.name": "id",
        }
