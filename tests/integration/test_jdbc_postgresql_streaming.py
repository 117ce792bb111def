"""Tests that the JDBC source streams tables of any size from a PostgreSQL server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from headrace_connectors.jdbc import postgresql_rows
from headrace_connectors.jdbc.postgresql_rows import ServerSideRows
from headrace_connectors.jdbc.statements import Statement
from support import postgres
from support.jdbc import read_all, rows

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.integration,
    pytest.mark.skipif(bool(postgres.unavailable_reason()), reason=postgres.unavailable_reason() or ""),
]

Database = psycopg.Connection[Any]


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Postgres]:
    with postgres.running() as running:
        yield running


@pytest.fixture
def database(server: postgres.Postgres) -> Iterator[Database]:
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        yield connection
        connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")


@pytest.fixture
def props(server: postgres.Postgres) -> dict[str, str]:
    return {
        "connection.url": server.jdbc_url,
        "connection.user": server.user,
        "mode": "incrementing",
        "incrementing.column.name": "id",
    }


def test_rows_are_read_once_and_in_order_if_a_date_out_of_range_follows_many_rows(
    database: Database, props: dict[str, str]
) -> None:
    database.execute("CREATE TABLE moments (id int PRIMARY KEY, at date, note text)")
    database.execute(  # more than fits in the socket's buffers, so that the server is still sending rows
        "INSERT INTO moments SELECT n, CASE n WHEN 2500 THEN 'infinity' ELSE '2026-01-01' END::date, repeat('x', 2000) "
        "FROM generate_series(1, 10000) n"
    )
    found = rows(read_all({**props, "unmappable.values": "null"}))
    assert [row[0] for row in found] == list(range(1, 10001))
    assert [row[0] for row in found if row[1] is None] == [2500]


def test_large_table_is_read_with_several_fetch_statements(
    database: Database, props: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgresql_rows, "_ROWS_PER_FETCH", 300)
    database.execute("CREATE TABLE numbers (id int PRIMARY KEY)")
    database.execute("INSERT INTO numbers SELECT generate_series(1, 3000)")
    batches = read_all({**props, "batch.max.rows": "700"})
    assert [len(batch) for batch in batches] == [700, 700, 700, 700, 200]
    assert [row[0] for row in rows(batches)] == list(range(1, 3001))


@pytest.mark.parametrize("count", [1, 10_000])
def test_connection_can_be_used_after_a_cursor_is_closed_before_its_last_row(
    server: postgres.Postgres, count: int
) -> None:
    statement = Statement("SELECT n, repeat('x', 2000) FROM generate_series(1, 10000) n", ())
    with psycopg.connect(server.conninfo) as connection:
        for _ in range(2):
            cursor = ServerSideRows(connection, statement, binary=True, loaders={})
            assert len(cursor.fetchmany(count)) == count
            cursor.close()
        assert connection.execute("SELECT 1").fetchone() == (1,)
