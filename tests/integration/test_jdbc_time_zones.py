"""Tests of the JDBC source with timestamp columns in time zones other than UTC, with real servers."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pymysql
import pytest

from headrace.api.errors import ConfigError
from headrace.data.batch import SourceBatch
from headrace_connectors.jdbc.source import JdbcSourceTask
from headrace_connectors.jdbc.source_config import JdbcSourceTaskConfig
from support import mariadb, postgres
from support.jdbc import Context, Offsets, read_all, rows

pytestmark = [pytest.mark.slow, pytest.mark.integration]


@pytest.fixture(scope="module")
def postgresql() -> Iterator[postgres.Postgres]:
    if reason := postgres.unavailable_reason():
        pytest.skip(reason)
    with postgres.running() as running:
        yield running


@pytest.fixture(scope="module")
def mysql() -> Iterator[mariadb.MariaDb]:
    if reason := mariadb.unavailable_reason():
        pytest.skip(reason)
    with mariadb.running() as running:
        yield running


@pytest.fixture
def postgresql_database(postgresql: postgres.Postgres) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgresql.conninfo, autocommit=True) as connection:
        yield connection
        connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public; ALTER ROLE postgres RESET timezone")


@pytest.fixture
def mysql_database(mysql: mariadb.MariaDb) -> Iterator[Any]:
    connection = pymysql.connect(
        host="127.0.0.1", port=mysql.port, user=mysql.user, database="shop", autocommit=True
    )  # fmt: skip
    with connection, connection.cursor() as cursor:
        yield cursor
        cursor.execute("SET GLOBAL time_zone = 'SYSTEM'")
        cursor.execute("DROP DATABASE shop")
        cursor.execute("CREATE DATABASE shop CHARACTER SET utf8mb4")


@pytest.fixture
def postgresql_props(postgresql: postgres.Postgres) -> dict[str, str]:
    return {"connection.url": postgresql.jdbc_url, "connection.user": postgresql.user, "topic.prefix": "t-"}


@pytest.fixture
def mysql_props(mysql: mariadb.MariaDb) -> dict[str, str]:
    return {"connection.url": mysql.jdbc_url, "connection.user": mysql.user, "topic.prefix": "t-"}


def _ids(props: dict[str, str], offsets: Offsets) -> list[int]:
    return [row[0] for row in rows(read_all(props, offsets))]


@contextmanager
def _running_task(task_config: dict[str, str]) -> Iterator[JdbcSourceTask]:
    task = JdbcSourceTask()
    task.poll_block_s = 0.0
    task.context = Context(Offsets())  # type: ignore[assignment]
    task.start(JdbcSourceTaskConfig.parse({"poll.interval.ms": "0", **task_config}))
    try:
        yield task
    finally:
        task.stop()


def _ids_of(batch: SourceBatch | None) -> list[int]:
    return [row[0] for row in rows([batch] if batch else [])]


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/New_York"])
@pytest.mark.parametrize("db_timezone", ["UTC", "Europe/Berlin", "-05:30"])
def test_postgresql_timestamp_columns_are_compared_in_the_configured_time_zone(
    postgresql_database: psycopg.Connection[Any], postgresql_props: dict[str, str], zone: str, db_timezone: str
) -> None:
    """The setting is `db.timezone`. One column has the type timestamptz, and the other has the type timestamp."""
    postgresql_database.execute(f"ALTER ROLE postgres SET timezone = '{zone}'")
    postgresql_database.execute("CREATE TABLE t (id int, updated timestamptz, created timestamp NOT NULL)")
    columns = {"mode": "timestamp", "timestamp.column.name": "updated,created", "db.timezone": db_timezone}
    offsets = Offsets()
    for first in (0, 3, 6):
        for number in range(first, first + 3):
            postgresql_database.execute(f"INSERT INTO t VALUES ({number}, NULL, '2025-10-26 02:1{number}')")
        assert _ids({**postgresql_props, **columns}, offsets) == [first, first + 1, first + 2]
        assert _ids({**postgresql_props, **columns}, offsets) == []


@pytest.mark.parametrize("db_timezone", ["UTC", "Europe/Berlin", "Asia/Tokyo", "-05:30"])
def test_mysql_timestamp_and_datetime_columns_are_compared_in_the_configured_time_zone(
    mysql_database: Any, mysql_props: dict[str, str], db_timezone: str
) -> None:
    """The setting is `db.timezone`."""
    mysql_database.execute("CREATE TABLE t (id int, updated timestamp(6) NULL, created datetime(6) NOT NULL)")
    columns = {"mode": "timestamp", "timestamp.column.name": "updated,created", "db.timezone": db_timezone}
    offsets = Offsets()
    for first in (0, 3, 6):
        for number in range(first, first + 3):
            mysql_database.execute(f"INSERT INTO t VALUES ({number}, NULL, '2025-10-26 02:10:00.00000{number}')")
        assert _ids({**mysql_props, **columns}, offsets) == [first, first + 1, first + 2]
        assert _ids({**mysql_props, **columns}, offsets) == []
    mysql_database.execute("SET time_zone = '+00:00'")
    mysql_database.execute("INSERT INTO t VALUES (9, '2025-10-27', '2025-01-01')")
    mysql_database.execute("INSERT INTO t VALUES (10, NULL, '2025-10-28')")
    assert _ids({**mysql_props, **columns}, offsets) == [9, 10]


@pytest.mark.parametrize("zone", ["-05:00", "+02:00"])
@pytest.mark.parametrize("mode", ["timestamp", "timestamp+incrementing"])
def test_each_row_with_a_datetime_that_the_server_sets_in_its_own_time_zone_is_read_exactly_once(
    mysql_database: Any, mysql_props: dict[str, str], zone: str, mode: str
) -> None:
    mysql_database.execute(f"SET GLOBAL time_zone = '{zone}'")
    mysql_database.execute(f"SET time_zone = '{zone}'")
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY AUTO_INCREMENT, at datetime NOT NULL DEFAULT now())")
    settings = {**mysql_props, "mode": mode, "timestamp.column.name": "at", "incrementing.column.name": "id"}
    offsets, found = Offsets(), list[int]()
    inserted = 0
    deadline_s = time.monotonic() + 3
    while time.monotonic() < deadline_s:
        mysql_database.execute("INSERT INTO t VALUES ()")
        inserted += 1
        found += _ids(settings, offsets)
    mysql_database.execute("DO SLEEP(1.1)")
    found += _ids(settings, offsets)
    # The mode timestamp does not order rows that have the same timestamp.
    assert (sorted(found) if mode == "timestamp" else found) == list(range(1, inserted + 1))


@pytest.mark.parametrize("zone", ["-05:00", "+02:00"])
def test_row_whose_datetime_is_the_current_time_in_utc_is_not_read_before_the_current_second_has_ended(
    mysql_database: Any, mysql_props: dict[str, str], zone: str
) -> None:
    mysql_database.execute(f"SET GLOBAL time_zone = '{zone}'")
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY AUTO_INCREMENT, at datetime NOT NULL)")
    is_same_second = False
    for _ in range(30):  # the task must read the table within the second of the current row
        mysql_database.execute("TRUNCATE TABLE t")
        mysql_database.execute("DO SLEEP(1 - microsecond(utc_timestamp(6)) / 1000000)")
        mysql_database.execute("INSERT INTO t (at) VALUES (utc_timestamp() - interval 1 day), (utc_timestamp())")
        mysql_database.execute("INSERT INTO t (at) VALUES (utc_timestamp() + interval 1 hour)")
        ids = _ids({**mysql_props, "mode": "timestamp", "timestamp.column.name": "at"}, Offsets())
        mysql_database.execute("SELECT at = utc_timestamp() FROM t WHERE id = 2")
        [(is_same_second,)] = mysql_database.fetchall()
        if is_same_second:
            break
    assert is_same_second, "the task never read the table within one second"
    assert ids == [1]


@pytest.mark.parametrize("zone", ["-05:00", "+02:00"])
def test_timestamp_initial_minus_1_skips_rows_inserted_before_the_task_start_in_every_time_zone_of_the_database(
    mysql_database: Any, mysql_props: dict[str, str], zone: str
) -> None:
    mysql_database.execute(f"SET GLOBAL time_zone = '{zone}'")
    mysql_database.execute(f"SET time_zone = '{zone}'")
    mysql_database.execute("CREATE TABLE t (id int PRIMARY KEY AUTO_INCREMENT, at datetime(6) NOT NULL DEFAULT now(6))")
    mysql_database.execute("INSERT INTO t VALUES ()")
    settings = {**mysql_props, "mode": "timestamp", "timestamp.column.name": "at", "timestamp.initial": "-1"}
    with _running_task({**settings, "tables": "shop.t"}) as task:
        assert task.poll() is None
        mysql_database.execute("INSERT INTO t VALUES ()")
        mysql_database.execute("DO SLEEP(0.1)")
        assert _ids_of(task.poll()) == [2]


def test_missing_db_timezone_is_an_error_if_timestamp_and_datetime_columns_have_different_time_zones(
    mysql_database: Any, mysql_props: dict[str, str]
) -> None:
    mysql_database.execute("SET GLOBAL time_zone = '-05:00'")
    mysql_database.execute("CREATE TABLE t (id int, updated timestamp NULL, created datetime NOT NULL DEFAULT now())")
    settings = {**mysql_props, "mode": "timestamp", "timestamp.column.name": "updated,created"}
    with pytest.raises(ConfigError, match="column created: the server's time zone is -05:00") as caught:
        read_all(settings)
    assert caught.value.key == "db.timezone"


def test_rows_with_local_times_that_do_not_exist_in_db_timezone_are_read_once_and_in_order(
    postgresql_database: psycopg.Connection[Any], postgresql_props: dict[str, str]
) -> None:
    database = postgresql_database
    database.execute("CREATE TABLE t (id int, at timestamp NOT NULL)")
    database.execute("INSERT INTO t VALUES (1, '2026-03-29 01:59'), (2, '2026-03-29 02:10'), (3, '2026-03-29 02:30')")
    settings = {**postgresql_props, "mode": "timestamp", "timestamp.column.name": "at", "db.timezone": "Europe/Berlin"}
    offsets = Offsets()
    assert _ids(settings, offsets) == [1, 2, 3]
    database.execute("INSERT INTO t VALUES (4, '2026-03-29 02:40'), (5, '2026-03-29 03:20'), (6, '2026-03-29 03:40')")
    assert _ids(settings, offsets) == [4, 5, 6]


def test_running_task_reads_rows_with_timestamps_after_a_daylight_saving_change_exactly_once(
    postgresql_database: psycopg.Connection[Any], postgresql_props: dict[str, str]
) -> None:
    database = postgresql_database
    database.execute("CREATE TABLE t (id int, at timestamp NOT NULL)")
    database.execute("INSERT INTO t VALUES (1, '2026-03-29 03:10'), (2, '2026-03-29 03:30')")
    settings = {**postgresql_props, "mode": "timestamp", "timestamp.column.name": "at", "db.timezone": "Europe/Berlin"}
    with _running_task({**settings, "tables": "public.t"}) as task:
        assert _ids_of(task.poll()) == [1, 2]
        assert [_ids_of(task.poll()) for _ in range(3)] == [[], [], []]
        database.execute("INSERT INTO t VALUES (3, '2026-03-29 03:31')")
        assert _ids_of(task.poll()) == [3]
