"""Tests of the JDBC source and sink while their database is stopped, or while it is full."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pymysql
import pytest

from support import jdbc_copy, mariadb, postgres
from support.broker import running_broker
from support.jdbc_copy import JdbcDatabase, copy_config, source_config
from support.small_disk import fill, free, small_disk
from support.worker import Worker, wait_for

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

ROWS, RESTARTS = 30_000, 2
SPACE_BYTES, ROWS_BEFORE = 20 << 20, 5_000
RETRIES = {"retry.backoff.ms": "200", "max.retries": "1000", "connection.backoff.ms": "200"}


@pytest.mark.skipif(bool(postgres.unavailable_reason()), reason=postgres.unavailable_reason() or "")
def test_source_and_sink_continue_after_postgresql_was_stopped_immediately_and_started_again(tmp_path: Path) -> None:
    with postgres.running() as server:
        copy_during_restarts(tmp_path, jdbc_copy.postgresql(server), server.stop, server.start)


@pytest.mark.skipif(bool(mariadb.unavailable_reason()), reason=mariadb.unavailable_reason() or "")
def test_source_and_sink_continue_after_mariadb_was_killed_and_started_again(tmp_path: Path) -> None:
    with mariadb.running("--innodb-flush-log-at-trx-commit=2") as server:
        copy_during_restarts(tmp_path, jdbc_copy.mariadb(server), server.kill, server.start)


def copy_during_restarts(
    directory: Path, database: JdbcDatabase, stop: Callable[[], None], start: Callable[[], None]
) -> None:
    """Stop and start the server while a source and a sink copy rows. Check that both connectors continue."""
    database.create_orders()
    with (
        running_broker(directory, group_min_session_timeout_ms="1000") as broker,
        worker(directory, broker.address) as connect,
    ):
        connect.create("source", source_config(database) | {"connection.backoff.ms": "200"})
        # Each put has few records, so that the server is stopped before the sink has written all of them.
        connect.create("sink", copy_config(database) | RETRIES | {"consumer.override.max.poll.records": "100"})
        for restart in range(RESTARTS):
            database.fill(ROWS * restart + 1, ROWS * (restart + 1))
            wait_for(lambda n=ROWS * restart: database.count("copies") > n, "the sink copies new rows", 60)
            stop()
            for text in ("Cannot write to", "the query failed"):
                wait_for(lambda t=text, n=restart: connect.log().count(t) > n, f"the log contains {text}", 60)
            start()
            last = ROWS * (restart + 1)
            wait_for(lambda n=last: database.count("copies") == n, f"{last} rows are copied", 60,
                     lambda: (database.count("copies"), connect.status("source"), connect.status("sink")))  # fmt: skip
        assert database.orders("copies") == database.orders("orders")
        for name in ("source", "sink"):
            assert [task["state"] for task in connect.status(name)["tasks"]] == ["RUNNING"]


def worker(directory: Path, bootstrap_servers: str) -> Worker:
    settings = {
        "bootstrap.servers": bootstrap_servers,
        "offset.storage.file.filename": str(directory / "offsets"),
        "value.converter.schemas.enable": "true",
    }
    return Worker(directory, settings)


@dataclass(frozen=True)
class SmallDatabase:
    """A database with little space for the table `copies`."""

    database: JdbcDatabase
    fill: Callable[[], None]
    """Use the remaining space."""
    free: Callable[[], None]


@contextmanager
def small_postgresql() -> Iterator[SmallDatabase]:
    """Run a server whose table `copies` and its index are in a tablespace on a small disk."""
    with disk_of("postgres") as disk, postgres.running() as server:
        database = jdbc_copy.postgresql(server)
        with database.connect() as connection:
            connection.autocommit = True
            connection.execute(f"CREATE TABLESPACE small LOCATION '{disk}'")
        database.query(
            "CREATE TABLE copies (id bigint PRIMARY KEY USING INDEX TABLESPACE small, item text, "
            "price double precision) TABLESPACE small"
        )
        yield SmallDatabase(database, lambda: fill(disk), lambda: free(disk))


@contextmanager
def small_mariadb() -> Iterator[SmallDatabase]:
    """Run a server that stores all tables in one file of limited size. On a full disk, the server would crash."""
    options = ("--innodb-file-per-table=0", f"--innodb-data-file-path=ibdata1:12M:autoextend:max:{SPACE_BYTES >> 20}M")
    with mariadb.running(*options) as server:
        database = jdbc_copy.mariadb(server)

        def fill_file() -> None:
            database.query("CREATE TABLE filler (content VARCHAR(7000))")
            with closing(database.connect()) as connection, connection.cursor() as cursor:
                connection.autocommit(True)
                with pytest.raises(pymysql.OperationalError, match="The table 'filler' is full"):
                    insert_repeatedly(cursor)

        def free_file() -> None:
            database.query("DROP TABLE filler")

        yield SmallDatabase(database, fill_file, free_file)


def insert_repeatedly(cursor: Any) -> None:
    while True:
        cursor.execute("INSERT INTO filler VALUES (REPEAT('x', 7000))")


@contextmanager
def small_sqlite() -> Iterator[SmallDatabase]:
    """Create a database in a file on a small disk."""
    with disk_of(None) as disk:
        yield SmallDatabase(jdbc_copy.sqlite(disk / "copies.db"), lambda: fill(disk), lambda: free(disk))


@contextmanager
def disk_of(user: str | None) -> Iterator[Path]:
    """Mount a small disk. If the tests run as root, the disk belongs to `user`, who runs the server."""
    directory = Path(mkdtemp(prefix="headrace-disk-"))
    directory.chmod(0o755)
    try:
        with small_disk(directory / "disk", SPACE_BYTES) as disk:
            if user is not None:
                shutil.chown(disk, user)
            yield disk
    finally:
        shutil.rmtree(directory, ignore_errors=True)


POSTGRES, MARIADB = postgres.unavailable_reason(), mariadb.unavailable_reason()


@pytest.mark.parametrize(
    ("small_database", "unavailable_reason", "message", "max_retries"),
    [
        pytest.param(small_postgresql, POSTGRES, "No space left on device", 1000, id="postgresql"),
        pytest.param(small_postgresql, POSTGRES, "No space left on device", 2, id="postgresql-until-max-retries"),
        pytest.param(small_mariadb, MARIADB, "The table 'copies' is full", 1000, id="mariadb"),
        pytest.param(small_sqlite, None, "database or disk is full", 1000, id="sqlite"),
    ],
)
def test_sink_retries_while_the_database_is_full_and_loses_no_row(
    tmp_path: Path,
    small_database: Callable[[], AbstractContextManager[SmallDatabase]],
    unavailable_reason: str | None,
    message: str,
    max_retries: int,
) -> None:
    if unavailable_reason:
        pytest.skip(unavailable_reason)
    orders = jdbc_copy.sqlite(tmp_path / "orders.db")
    orders.create_orders()
    orders.fill(1, ROWS_BEFORE)
    with (
        small_database() as small,
        running_broker(tmp_path, group_min_session_timeout_ms="1000") as broker,
        worker(tmp_path, broker.address) as connect,
    ):
        database = small.database
        connect.create("source", source_config(orders))
        connect.create("sink", copy_config(database) | RETRIES | {"max.retries": str(max_retries)})
        wait_for(lambda: database.count("copies") == ROWS_BEFORE, "the first rows are copied", 60)
        small.fill()
        orders.fill(ROWS_BEFORE + 1, ROWS)
        if max_retries == 2:
            connect.wait_for_task_state("sink", 0, "FAILED")
            trace = connect.status("sink")["tasks"][0]["trace"]
            assert message in trace
            assert "giving up after 3 attempts (max.retries)" in trace
        else:
            wait_for(lambda: connect.log().count(message) > 3, "the sink has retried a write", 60)
            assert connect.status("sink")["tasks"][0]["state"] == "RUNNING"
        assert database.count("copies") < ROWS
        small.free()
        if max_retries == 2:
            connect.request("POST", "/connectors/sink/tasks/0/restart")
        wait_for(lambda: database.count("copies") == ROWS, "all rows are copied", 60,
                 lambda: (database.count("copies"), connect.status("sink")))  # fmt: skip
        assert database.orders("copies") == orders.orders("orders")
