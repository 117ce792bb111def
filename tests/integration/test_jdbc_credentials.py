"""Tests of the JDBC source and sink while their password is changed on a real PostgreSQL server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from support import postgres
from support.worker import Worker, wait_for

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.integration,
    pytest.mark.skipif(bool(postgres.unavailable_reason()), reason=postgres.unavailable_reason() or ""),
]

Database = psycopg.Connection[Any]


@pytest.fixture
def server() -> Iterator[postgres.Postgres]:
    """Run a PostgreSQL server on which the user `loader` needs a password."""
    with postgres.running() as running:
        with psycopg.connect(running.conninfo, autocommit=True) as admin:
            [(file,)] = admin.execute("SHOW hba_file").fetchall()
            rules = Path(file).read_text()
            Path(file).write_text(f"host all loader 127.0.0.1/32 scram-sha-256\n{rules}")
            admin.execute("SELECT pg_reload_conf()")
            admin.execute("CREATE ROLE loader LOGIN SUPERUSER PASSWORD 'first'")
            admin.execute("CREATE TABLE items (id serial PRIMARY KEY, name text)")
        yield running


def _config(server: postgres.Postgres, password: str | None, **more: str) -> dict[str, str]:
    user = {"connection.user": server.user}
    if password is not None:
        user = {"connection.user": "loader", "connection.password": password}
    settings = {
        "connection.url": server.jdbc_url,
        **user,
        "connection.attempts": "2",
        "connection.backoff.ms": "100",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "true",
    }
    return settings | {key.replace("__", "."): value for key, value in more.items()}


def _source(server: postgres.Postgres, password: str | None) -> dict[str, str]:
    return _config(
        server,
        password,
        connector__class="io.confluent.connect.jdbc.JdbcSourceConnector",
        mode="incrementing",
        incrementing__column__name="id",
        table__whitelist="items",
        topic__prefix="",
        poll__interval__ms="100",
    )


def _sink(server: postgres.Postgres, password: str | None) -> dict[str, str]:
    return _config(
        server,
        password,
        connector__class="io.confluent.connect.jdbc.JdbcSinkConnector",
        topics="items",
        table__name__format="copies",
        insert__mode="upsert",
        pk__mode="record_value",
        pk__fields="id",
        auto__create="true",
        max__retries="1",
        retry__backoff__ms="100",
    )


@pytest.mark.parametrize("rotated", ["source", "sink"])
def test_jdbc_source_and_sink_lose_no_row_if_the_password_is_rotated_before_the_configuration_is_changed(
    server: postgres.Postgres, tmp_path: Path, rotated: str
) -> None:
    configs = {"source": _source, "sink": _sink}
    with psycopg.connect(server.conninfo, autocommit=True) as admin, Worker(tmp_path) as worker:

        def insert(count: int) -> None:
            admin.execute("INSERT INTO items (name) SELECT 'n' || g FROM generate_series(1, %s) g", (count,))

        def copies() -> int:
            try:
                return len(admin.execute("SELECT id FROM copies").fetchall())
            except psycopg.errors.UndefinedTable:
                return 0

        insert(100)
        for name, config in configs.items():
            worker.create(name, config(server, "first" if name == rotated else None))
        wait_for(lambda: copies() == 100, "the first rows", 60, worker.log)
        admin.execute("ALTER ROLE loader PASSWORD 'second'")
        admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'loader'")
        insert(100)
        _wait_for_password_error(worker, rotated, server)
        worker.request("PUT", f"/connectors/{rotated}/config", configs[rotated](server, "second"))
        wait_for(lambda: copies() == 200, "all rows", 60, worker.log)
        assert admin.execute("SELECT id, name FROM items EXCEPT SELECT id, name FROM copies").fetchall() == []


def _wait_for_password_error(worker: Worker, name: str, server: postgres.Postgres) -> None:
    """Wait until the log has an error that names the connector, the server and the cause."""

    def is_logged() -> bool:
        return any(
            f"[{name}" in line and str(server.port) in line and "password authentication failed" in line
            for line in worker.log().splitlines()
        )

    wait_for(is_logged, f"an error of {name}", 60, worker.log)
