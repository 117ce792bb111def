"""Tests of the JDBC source with a real MariaDB server."""

from __future__ import annotations

import datetime as dt
import threading
import time
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pymysql
import pytest

from headrace.api.errors import ConfigError, ConnectError
from headrace.data.logical import Date, Time, Timestamp
from headrace.data.schema import Type
from headrace_connectors.jdbc.mysql import MysqlDialect
from headrace_connectors.jdbc.source import JdbcSourceConnector, JdbcSourceTask
from headrace_connectors.jdbc.source_config import JdbcSourceConfig, JdbcSourceTaskConfig
from support import mariadb
from support.jdbc import Context, Offsets, read_all, rows
from support.late_commits import ids_read

pytestmark = [
    pytest.mark.slow,
    pytest.mark.integration,
    pytest.mark.skipif(bool(mariadb.unavailable_reason()), reason=mariadb.unavailable_reason() or ""),
]


@pytest.fixture(scope="module")
def server() -> Iterator[mariadb.MariaDb]:
    with mariadb.running() as running:
        yield running


@pytest.fixture
def database(server: mariadb.MariaDb) -> Iterator[Any]:
    connection = pymysql.connect(
        host="127.0.0.1", port=server.port, user=server.user, database="shop", autocommit=True
    )  # fmt: skip
    with connection, connection.cursor() as cursor:
        cursor.execute("SET time_zone = '+02:00', sql_mode = ''")
        yield cursor
        cursor.execute("DROP DATABASE shop")
        cursor.execute("CREATE DATABASE shop CHARACTER SET utf8mb4")


@pytest.fixture
def props(server: mariadb.MariaDb) -> dict[str, str]:
    return {"connection.url": server.jdbc_url, "connection.user": server.user, "topic.prefix": "my-"}


def test_mariadb_types_have_the_same_connect_types_as_in_confluents_jdbc_source(
    database: Any, props: dict[str, str]
) -> None:
    database.execute(
        "CREATE TABLE kinds (id bigint AUTO_INCREMENT PRIMARY KEY, tiny tinyint, utiny tinyint unsigned, "
        "flag boolean, small smallint, usmall smallint unsigned, medium mediumint, num int, unum int unsigned, "
        "ubig bigint unsigned, f float, d double, n decimal(10,2), b1 bit(1), b9 bit(9), day date, clock time(3), "
        "at datetime(6), zoned timestamp(3) NULL, y year, c char(3), t text, doc json, e enum('x','y'), "
        "s set('p','q'), raw varbinary(9), bb blob)"
    )
    database.execute(
        "INSERT INTO kinds VALUES (1, -5, 200, true, -300, 60000, 8000000, -70000, 4000000000, 9000000000, 0.1, 0.2, "
        "12.34, b'1', b'100000001', '2026-02-03', '04:05:06.789', '2026-02-03 04:05:06.123456', "
        "'2026-02-03 04:05:06.789', 2026, 'abc', 'hé', '{\"a\": 1}', 'y', 'p,q', x'00ff', x'01')"
    )
    database.execute("INSERT INTO kinds (id) VALUES (2)")
    (batch,) = read_all({**props, "mode": "incrementing"})
    assert batch.topic == "my-kinds"
    assert batch.source_partition == {"protocol": "1", "table": "shop.kinds"}
    assert batch.value_schema is not None
    types = [field.schema.type for field in batch.value_schema.fields[:14]]
    assert types == [
        *(Type.INT64, Type.INT8, Type.INT16, Type.INT8, Type.INT16, Type.INT32, Type.INT32, Type.INT32, Type.INT64),
        *(Type.INT64, Type.FLOAT32, Type.FLOAT64, Type.BYTES, Type.INT8),
    ]
    full, empty = batch.values
    assert full == (
        *(1, -5, 200, 1, -300, 60000, 8000000, -70000, 4000000000, 9000000000, 0.1, 0.2, Decimal("12.34"), 1),
        b"\x01\x01",
        Date.of(dt.date(2026, 2, 3)),
        Time.of(dt.time(4, 5, 6, 789000)),
        Timestamp.of(dt.datetime(2026, 2, 3, 4, 5, 6, 123456)),
        Timestamp.of(dt.datetime(2026, 2, 3, 2, 5, 6, 789000)),
        Date.of(dt.date(2026, 1, 1)),
        *("abc", "hé", '{"a": 1}', "y", "p,q", b"\x00\xff", b"\x01"),
    )
    assert empty == (2, *[None] * 26)


def test_columns_of_a_query_have_the_types_of_the_table_columns(database: Any, props: dict[str, str]) -> None:
    database.execute("CREATE TABLE t (id int unsigned PRIMARY KEY, n decimal(8,3), note varchar(5), raw blob, d date)")
    database.execute("INSERT INTO t VALUES (4000000000, 1.5, 'a%b', x'00', '2026-01-02')")
    query = "SELECT id, n, note, raw, d, '%' AS percent FROM t;  -- all"
    (batch,) = read_all({**props, "mode": "incrementing", "incrementing.column.name": "id", "query": query})
    assert batch.topic == "my-"
    assert batch.value_schema is not None
    assert [field.schema.type for field in batch.value_schema.fields[:2]] == [Type.INT64, Type.BYTES]
    assert batch.values == [(4000000000, Decimal("1.500"), "a%b", b"\x00", Date.of(dt.date(2026, 1, 2)), "%")]


def test_float_columns_are_read_with_their_exact_values(database: Any, props: dict[str, str]) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, `a%b` float, fixed float(8,2))")
    database.execute(
        "INSERT INTO t VALUES (1, 16777216, 12.34), (2, 123456.79, 0), (3, NULL, 1), (4, -3.4028235e38, 0)"
    )
    expected = [(1, 16777216.0, 12.34), (2, 123456.79, 0.0), (3, None, 1.0), (4, -3.4028235e38, 0.0)]
    assert rows(read_all({**props, "mode": "incrementing", "incrementing.column.name": "id"})) == expected


@pytest.mark.parametrize("is_query", [False, True])
@pytest.mark.parametrize(("kind", "digits"), [("datetime", 0), ("datetime(3)", 3), ("datetime(6)", 6)])
def test_row_is_not_read_while_further_rows_with_the_same_timestamp_can_be_inserted(
    database: Any, props: dict[str, str], monkeypatch: pytest.MonkeyPatch, kind: str, digits: int, is_query: bool
) -> None:
    database.execute(f"CREATE TABLE t (id int PRIMARY KEY, at {kind} NOT NULL)")
    now = [dt.datetime(2026, 1, 1, 12, 0, 0, 123_999, tzinfo=dt.UTC)]
    monkeypatch.setattr(MysqlDialect, "now", lambda *_: now[0])
    inserted = now[0].replace(microsecond=123_999 // 10 ** (6 - digits) * 10 ** (6 - digits), tzinfo=None)
    settings = {**props, "topic.prefix": "t-", "mode": "timestamp", "timestamp.column.name": "at", "db.timezone": "UTC"}
    if is_query:
        settings["query"] = "SELECT * FROM t"
    offsets = Offsets()
    database.execute(f"INSERT INTO t VALUES (1, '{inserted}')")
    assert rows(read_all(settings, offsets)) == []
    database.execute(f"INSERT INTO t VALUES (2, '{inserted}')")
    now[0] = inserted.replace(tzinfo=dt.UTC) + dt.timedelta(microseconds=10 ** (6 - digits))
    assert [row[0] for row in rows(read_all(settings, offsets))] == [1, 2]


def test_slow_read_of_a_large_table_is_not_restarted(database: Any, props: dict[str, str]) -> None:
    database.execute("CREATE TABLE big (id int PRIMARY KEY, s varchar(1000))")
    database.execute("INSERT INTO big SELECT seq, REPEAT('x', 900) FROM seq_1_to_30000")
    database.execute("SET GLOBAL net_write_timeout = 1")
    task = JdbcSourceTask()
    try:
        connector = JdbcSourceConnector()
        connector.context = Context(Offsets())
        connector.start(JdbcSourceConfig.parse({**props, "mode": "bulk", "batch.max.rows": "10000"}))
        (config,) = connector.task_configs(1)
        connector.stop()
        task.context = Context(Offsets())  # type: ignore[assignment]
        task.start(JdbcSourceTaskConfig.parse(config))
        found: list[int] = []
        while len(found) < 30000:
            batch = task.poll()
            assert batch is not None
            found += [row[0] for row in batch.values]
            time.sleep(3 if len(found) < 5000 else 0)  # longer than the server's net_write_timeout
        assert found == list(range(1, 30001))
    finally:
        task.stop()
        database.execute("SET GLOBAL net_write_timeout = 60")


def test_statement_without_a_response_fails_after_the_socket_timeout(database: Any, props: dict[str, str]) -> None:
    settings = {**props, "connection.url": props["connection.url"] + "?socketTimeout=1000", "mode": "bulk"}
    with pytest.raises(ConnectError, match="timed out"):
        read_all({**settings, "query": "SELECT SLEEP(10) AS slept"})


@pytest.mark.parametrize("column", ["timestamp(3)", "datetime(3)"])
def test_timestamp_and_incrementing_mode_continues_after_the_committed_offset(
    database: Any, props: dict[str, str], column: str
) -> None:
    database.execute(f"CREATE TABLE t (id int PRIMARY KEY, at {column} NOT NULL)")
    database.execute("INSERT INTO t VALUES (1, '2026-01-02 03:04:05.001'), (2, '2026-01-02 03:04:05.002')")
    offsets = Offsets()
    settings = {
        **props,
        "mode": "timestamp+incrementing",
        "timestamp.column.name": "at",
        "incrementing.column.name": "id",
        "db.timezone": "Europe/Berlin",
    }
    assert [row[0] for row in rows(read_all(settings, offsets))] == [1, 2]
    database.execute("INSERT INTO t VALUES (3, '2026-01-02 03:04:05.002'), (0, '2026-01-02 03:04:05.003')")
    found = rows(read_all(settings, offsets))
    assert [row[0] for row in found] == [3, 0]
    hour = 1 if column.startswith("timestamp") else 2  # the session is in +02:00; Berlin is in +01:00
    assert found[0][1] == Timestamp.of(dt.datetime(2026, 1, 2, hour, 4, 5, 2000))


def test_table_and_column_names_with_special_characters_are_quoted(database: Any, props: dict[str, str]) -> None:
    name = "a`b%s'c\"d é"
    quoted = "`" + name.replace("`", "``") + "`"
    database.execute(
        f"CREATE TABLE {quoted} (id int AUTO_INCREMENT PRIMARY KEY, {quoted[:-1]}x` int)".replace("%", "%")
    )
    database.execute(f"INSERT INTO {quoted} VALUES (1, 7)")
    (batch,) = read_all({**props, "mode": "incrementing", "transforms": "topic"})
    assert batch.topic == f"my-{name}"
    assert batch.value_schema is not None
    assert [field.name for field in batch.value_schema.fields] == ["id", name + "x"]
    assert batch.values == [(1, 7)]


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("null", [(1, None), (2, None)]),
        ("clamp", [(1, Date.of(dt.date(1, 1, 1))), (2, Date.of(dt.date(2026, 1, 1)))]),
        ("skip", []),
    ],
)
def test_zero_dates_are_handled_as_configured(
    database: Any, props: dict[str, str], policy: str, expected: list[Any]
) -> None:
    """The setting is `unmappable.values`. By default, a zero date fails the source."""
    database.execute("CREATE TABLE t (id int AUTO_INCREMENT PRIMARY KEY, d date)")
    database.execute("INSERT INTO t VALUES (1, '0000-00-00'), (2, '2026-00-00')")
    with pytest.raises(ConnectError, match=r"shop\.t, column d, row id=1: the column's type is date, but 0000-00-00"):
        read_all({**props, "mode": "incrementing"})
    assert rows(read_all({**props, "mode": "incrementing", "unmappable.values": policy})) == expected


@pytest.mark.parametrize(("behavior", "expected"), [("CONVERT_TO_NULL", None), ("convertToNull", None), ("ROUND", 1)])
def test_zero_dates_are_read_as_the_connection_url_specifies(
    database: Any, props: dict[str, str], behavior: str, expected: int | None
) -> None:
    """The URL has the parameter `zeroDateTimeBehavior`."""
    database.execute("CREATE TABLE t (id int AUTO_INCREMENT PRIMARY KEY, d date NOT NULL, at datetime NOT NULL)")
    database.execute("INSERT INTO t VALUES (1, '0000-00-00', '0000-00-00 00:00:00'), (2, '2026-02-03', '2026-02-03')")
    address = f"{props['connection.url']}?zeroDateTimeBehavior={behavior}"
    (batch,) = read_all({**props, "connection.url": address, "mode": "incrementing"})
    assert batch.value_schema is not None
    day = expected and Date.of(dt.date(expected, 1, 1))
    assert batch.values == [
        (1, day, expected and Timestamp.of(dt.datetime(expected, 1, 1))),
        (2, Date.of(dt.date(2026, 2, 3)), Timestamp.of(dt.datetime(2026, 2, 3))),
    ]
    assert [field.schema.optional for field in batch.value_schema.fields] == [False, *[expected is None] * 2]


def test_dates_and_timestamps_of_all_years_are_read(database: Any, props: dict[str, str]) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, at datetime(6) NOT NULL, d date)")
    database.execute(
        "INSERT INTO t VALUES (1, '9999-12-31 23:59:59', '9999-12-31'), (2, '0001-01-01', '0001-01-01'), "
        "(3, '0000-05-05 00:00:00', '0000-05-05')"
    )
    props = {**props, "mode": "incrementing", "incrementing.column.name": "id", "db.timezone": "Europe/Berlin"}
    assert [row[1:] for row in rows(read_all(props))] == [
        (253402297199000, 2932896),
        (-62135600008000, -719162),
        (-62156422408000, -719403),
    ]
    timestamps = {**props, "mode": "timestamp+incrementing", "timestamp.column.name": "at"}
    assert [row[0] for row in rows(read_all(timestamps))] == [3, 2]  # the other row is in the future
    (batch,) = read_all({**props, "db.timezone": "America/New_York", "timestamp.granularity": "micros_long"})
    assert batch.values[0][1] == 253402318799000000


def test_datetimes_with_zero_days_are_clamped_to_the_nearest_local_time(database: Any, props: dict[str, str]) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, at datetime, clock time)")
    database.execute(
        "INSERT INTO t VALUES (1, '0000-00-00', '-00:00:01'), (2, '2026-02-00', '24:00:00'), "
        "(3, '2026-00-31', '838:59:59')"
    )
    props = {**props, "mode": "incrementing", "incrementing.column.name": "id", "db.timezone": "Europe/Berlin"}
    assert rows(read_all({**props, "unmappable.values": "clamp"})) == [
        (1, -62135600008000, 0),
        (2, 1769900400000, 86_399_999),
        (3, 1769814000000, 86_399_999),
    ]


def test_zero_date_cannot_be_part_of_a_source_offset(database: Any, props: dict[str, str]) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, at datetime NOT NULL)")
    database.execute("INSERT INTO t VALUES (1, '0000-00-00')")
    address = f"{props['connection.url']}?zeroDateTimeBehavior=CONVERT_TO_NULL"
    props = {**props, "connection.url": address, "timestamp.column.name": "at", "incrementing.column.name": "id"}
    for mode in ("timestamp", "timestamp+incrementing"):
        with pytest.raises(ConnectError, match="a zero date that zeroDateTimeBehavior converts to null cannot be part"):
            read_all({**props, "mode": mode})


def test_stop_of_the_task_cancels_the_statement_that_streams_a_large_table(
    database: Any, props: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute("CREATE TABLE t (id int PRIMARY KEY, note char(200))")
    database.execute("INSERT INTO t SELECT seq, REPEAT('x', 200) FROM seq_1_to_200000")
    settings = {**props, "mode": "incrementing", "incrementing.column.name": "id", "batch.max.rows": "100"}
    connector = JdbcSourceConnector()
    connector.context = Context(Offsets())
    connector.start(JdbcSourceConfig.parse(settings))
    task = JdbcSourceTask()
    task.context = Context(Offsets())
    task.start(JdbcSourceTaskConfig.parse(connector.task_configs(1)[0]))
    batch = task.poll()
    assert batch is not None
    assert len(batch.values) == 100
    stopping = threading.Thread(target=task.stop)
    stopping.start()
    stopping.join(20)
    assert not stopping.is_alive()
    connector.stop()
    database.execute("SELECT COUNT(*) FROM information_schema.processlist WHERE info LIKE '%FROM `shop`.`t`%' "
                     "AND id <> CONNECTION_ID()")  # fmt: skip
    assert database.fetchone() == (0,)


def test_bulk_mode_reads_all_tables_and_views_of_the_database(database: Any, props: dict[str, str]) -> None:
    database.execute("CREATE TABLE a (v int)")
    database.execute("CREATE TABLE b (v int)")
    database.execute("CREATE VIEW c AS SELECT 1 AS v")
    database.execute("INSERT INTO a VALUES (1), (2)")
    database.execute("INSERT INTO b VALUES (3)")
    batches = read_all({**props, "mode": "bulk", "table.types": "TABLE,VIEW"})
    assert {batch.topic: [row[0] for row in batch.values] for batch in batches} == {
        "my-a": [1, 2], "my-b": [3], "my-c": [1],
    }  # fmt: skip


def test_missing_or_unknown_database_in_connection_url_is_reported(
    server: mariadb.MariaDb, props: dict[str, str]
) -> None:
    with pytest.raises(ConfigError, match="must name a database"):
        read_all({**props, "connection.url": f"jdbc:mysql://127.0.0.1:{server.port}", "mode": "bulk"})
    with pytest.raises(ConnectError, match="Unknown database 'nowhere'"):
        read_all({**props, "connection.url": f"jdbc:mysql://127.0.0.1:{server.port}/nowhere", "mode": "bulk",
                  "connection.attempts": "1"})  # fmt: skip


@pytest.mark.parametrize("mode", ["timestamp", "timestamp+incrementing", "incrementing"])
def test_row_that_is_committed_after_a_row_with_a_larger_id_is_skipped_unless_snapshot_horizon_is_true(
    server: mariadb.MariaDb, database: Any, props: dict[str, str], mode: str
) -> None:
    settings = {**props, "mode": mode, "timestamp.column.name": "at", "incrementing.column.name": "id"}
    if mode == "incrementing":
        del settings["timestamp.column.name"]
    with pymysql.connect(
        host="127.0.0.1", port=server.port, user=server.user, database="shop", autocommit=True
    ) as other, other.cursor() as late:  # fmt: skip
        for more, expected in (({}, [2]), ({"snapshot.horizon": "true"}, [1, 2])):
            database.execute(
                "CREATE OR REPLACE TABLE t (id int AUTO_INCREMENT PRIMARY KEY, note text, "
                "at timestamp(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6))"
            )
            assert ids_read(settings | more, database.execute, late.execute) == expected


def test_source_fails_if_the_user_lacks_the_process_privilege(
    server: mariadb.MariaDb, database: Any, props: dict[str, str]
) -> None:
    """With the setting ``snapshot.horizon=true``, the source must see the transactions of all users."""
    database.execute("CREATE TABLE t (id int AUTO_INCREMENT PRIMARY KEY)")
    database.execute("CREATE OR REPLACE USER reader@'127.0.0.1'")
    database.execute("GRANT SELECT ON shop.* TO reader@'127.0.0.1'")
    with pytest.raises(ConnectError, match=r"needs the privilege PROCESS: GRANT PROCESS ON .* TO reader"):
        read_all({**props, "connection.user": "reader", "mode": "incrementing", "snapshot.horizon": "true"})


def test_source_waits_for_an_open_transaction_that_is_not_yet_in_the_cached_list_of_transactions(
    server: mariadb.MariaDb, database: Any, props: dict[str, str]
) -> None:
    """The setting is ``snapshot.horizon=true``. The list is InnoDB's table `innodb_trx`, which InnoDB caches.

    The source reads the row with the larger id, which is already committed, only after the open transaction has ended.
    """
    database.execute("CREATE TABLE t (id int AUTO_INCREMENT PRIMARY KEY, note text)")
    settings = {**props, "mode": "incrementing", "snapshot.horizon": "true"}
    address: dict[str, Any] = {"host": "127.0.0.1", "port": server.port, "user": server.user, "database": "shop"}
    listed, stop = threading.Event(), threading.Event()

    def keep_list_cached() -> None:  # InnoDB renews the list only if no session has read it for 0.1 seconds
        with pymysql.connect(**address, autocommit=True) as session, session.cursor() as cursor:
            while not stop.wait(0.01):
                cursor.execute("SELECT COUNT(*) FROM information_schema.innodb_trx")
                listed.set()

    reading = threading.Thread(target=keep_list_cached)
    timer = threading.Timer(1.5, stop.set)
    with pymysql.connect(**address, autocommit=True) as other, other.cursor() as late:
        reading.start()
        try:
            assert listed.wait(20)
            late.execute("BEGIN")
            late.execute("INSERT INTO t (note) VALUES ('late')")
            database.execute("INSERT INTO t (note) VALUES ('early')")
            timer.start()
            offsets = Offsets()
            assert rows(read_all(settings, offsets)) == []
        finally:
            stop.set()
            reading.join()
        late.execute("COMMIT")
        found: list[Any] = []
        deadline_s = time.monotonic() + 20
        while len(found) < 2 and time.monotonic() < deadline_s:
            found += rows(read_all(settings, offsets))
    assert [row[0] for row in found] == [1, 2]


@pytest.mark.parametrize(
    ("mode", "level"),
    [
        ("DEFAULT", "REPEATABLE-READ"),
        ("SQL_SERVER_SNAPSHOT", "REPEATABLE-READ"),
        ("read_committed", "READ-COMMITTED"),
        ("SERIALIZABLE", "SERIALIZABLE"),
    ],
)
def test_session_has_the_configured_isolation_level(props: dict[str, str], mode: str, level: str) -> None:
    query = {"query": "SELECT @@SESSION.tx_isolation AS level", "topic.prefix": "t"}
    assert rows(read_all({**props, **query, "mode": "bulk", "transaction.isolation.mode": mode})) == [(level,)]
