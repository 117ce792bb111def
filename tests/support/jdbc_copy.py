"""Copies the table `orders` of a database through a topic to the table `copies`, with a JDBC source and a JDBC sink.

A second sink writes each record once to the table `positions`, with the record's topic, partition and offset as the
primary key. The source and the sinks may have different databases.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pymysql

from support.mariadb import MariaDb
from support.postgres import Postgres

TOPIC = "t-orders"
_CREATE = "CREATE TABLE orders (id bigint PRIMARY KEY, item {text}, price double precision)"
_FILL = {
    "postgresql": "INSERT INTO orders SELECT n, 'item ' || n, n / 7.0 FROM generate_series({0}, {1}) n",
    "mariadb": "INSERT INTO orders SELECT seq, CONCAT('item ', seq), seq / 7e0 FROM seq_{0}_to_{1}",
    "sqlite": "WITH RECURSIVE s(n) AS (SELECT {0} UNION ALL SELECT n + 1 FROM s WHERE n < {1}) "
    "INSERT INTO orders SELECT n, 'item ' || n, n / 7.0 FROM s",
}
_TABLES = {
    "postgresql": "SELECT tablename FROM pg_tables WHERE schemaname = 'public'",
    "mariadb": "SHOW TABLES",
    "sqlite": "SELECT name FROM sqlite_master",
}


@dataclass(frozen=True)
class JdbcDatabase:
    """A database, and its JDBC properties. Each call uses a new connection."""

    kind: str
    properties: Mapping[str, str]
    connect: Callable[[], Any]

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Execute a statement, commit it, and return its rows."""
        with closing(self.connect()) as connection, closing(connection.cursor()) as cursor:
            cursor.execute(sql)
            rows = list(cursor.fetchall()) if cursor.description else []
            connection.commit()
            return rows

    def create_orders(self) -> None:
        """Create the table of the source."""
        self.query(_CREATE.format(text="varchar(40)"))

    def fill(self, first: int, last: int) -> None:
        """Insert the orders with the ids from `first` to `last`."""
        self.query(_FILL[self.kind].format(first, last))

    def count(self, table: str) -> int:
        """Return the number of rows of a table, or 0 if the table does not exist yet."""
        if (table,) not in self.query(_TABLES[self.kind]):
            return 0
        [(count,)] = self.query(f"SELECT count(*) FROM {table}")
        return int(count)

    def orders(self, table: str) -> list[tuple[Any, ...]]:
        """Return the rows of `orders` or of a copy, ordered by id."""
        return self.query(f"SELECT id, item, price FROM {table} ORDER BY id")


def postgresql(server: Postgres) -> JdbcDatabase:
    """Return the database of a PostgreSQL server."""
    properties = {"connection.url": server.jdbc_url, "connection.user": server.user}
    return JdbcDatabase("postgresql", properties, lambda: psycopg.connect(server.conninfo))


def mariadb(server: MariaDb) -> JdbcDatabase:
    """Return the database of a MariaDB server."""

    def connect() -> Any:
        return pymysql.connect(host="127.0.0.1", port=server.port, user=server.user, database="shop")

    return JdbcDatabase("mariadb", {"connection.url": server.jdbc_url, "connection.user": server.user}, connect)


def sqlite(file: Path) -> JdbcDatabase:
    """Return the database in a SQLite file."""
    return JdbcDatabase("sqlite", {"connection.url": f"jdbc:sqlite:{file}"}, lambda: sqlite3.connect(file, timeout=60))


def source_config(database: JdbcDatabase) -> dict[str, str]:
    """Return the configuration of a source that reads `orders`."""
    return {
        **database.properties,
        "connection.attempts": "10",
        "connector.class": "io.confluent.connect.jdbc.JdbcSourceConnector",
        "mode": "incrementing",
        "incrementing.column.name": "id",
        "table.whitelist": "orders",
        "topic.prefix": "t-",
        "poll.interval.ms": "100",
        "batch.max.rows": "500",
    }


def copy_config(database: JdbcDatabase) -> dict[str, str]:
    """Return the configuration of a sink that writes `copies`, with the row's id as the primary key."""
    return _sink(database) | {"table.name.format": "copies", "pk.mode": "record_value", "pk.fields": "id"}


def positions_config(database: JdbcDatabase) -> dict[str, str]:
    """Return the configuration of a sink that writes `positions`, with the record's position as the primary key."""
    return _sink(database) | {"table.name.format": "positions", "pk.mode": "kafka"}


def _sink(database: JdbcDatabase) -> dict[str, str]:
    return {
        **database.properties,
        "connection.attempts": "10",
        "connector.class": "io.confluent.connect.jdbc.JdbcSinkConnector",
        "topics": TOPIC,
        "auto.create": "true",
        "insert.mode": "upsert",
        "consumer.override.session.timeout.ms": "3000",
        "consumer.override.heartbeat.interval.ms": "500",
        "consumer.override.auto.offset.reset": "earliest",
        "consumer.override.metadata.max.age.ms": "500",
    }
