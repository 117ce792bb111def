"""Tests of the JDBC source with a real PostgreSQL server."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from headrace.api.config import config_def
from headrace.api.errors import ConnectError, RetriableError
from headrace.data.logical import Date, Time, Timestamp
from headrace.data.schema import Type
from headrace_connectors.jdbc.postgresql import PostgresqlDialect
from headrace_connectors.jdbc.source import JdbcSourceConnector, JdbcSourceTask
from headrace_connectors.jdbc.source_config import JdbcSourceConfig, JdbcSourceTaskConfig
from support import postgres
from support.jdbc import Context, Offsets, read_all, rows
from support.ports import free_port

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.integration,
    pytest.mark.skipif(bool(postgres.unavailable_reason()), reason=postgres.unavailable_reason() or ""),
]


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Postgres]:
    with postgres.running() as running:
        yield running


@pytest.fixture
def database(server: postgres.Postgres) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        yield connection
        connection.execute("DROP SCHEMA public CASCADE; DROP SCHEMA IF EXISTS other CASCADE; CREATE SCHEMA public")


@pytest.fixture
def props(server: postgres.Postgres) -> dict[str, str]:
    return {"connection.url": server.jdbc_url, "connection.user": server.user, "schema.pattern": "public"}


def test_postgresql_types_are_converted_to_connect_types(
    database: psycopg.Connection[Any], props: dict[str, str]
) -> None:
    database.execute("CREATE TYPE mood AS ENUM ('sad', 'glad')")
    database.execute(
        "CREATE TABLE kinds (id bigserial PRIMARY KEY, s smallint, i int, r real, d double precision, n numeric(10,2), "
        "free numeric, flag boolean, day date, clock time, at timestamp, zoned timestamptz, note text, "
        "code varchar(5), doc jsonb, uid uuid, raw bytea, feeling mood, one bit, page xml, span interval, many int[])"
    )
    database.execute(
        "INSERT INTO kinds VALUES (1, 2, 3, 0.5, 0.1, 12.34, 1.5, true, '2026-02-03', '04:05:06', "
        "'2026-02-03 04:05:06.123456', '2026-02-03 04:05:06+02', 'hé', 'abc', '{\"a\": 1}', "
        "'00000000-0000-0000-0000-000000000001', '\\x00ff', 'glad', B'1', '<a/>', '1 day', '{1,2}')"
    )
    database.execute("INSERT INTO kinds (id) VALUES (2)")
    (batch,) = read_all({**props, "mode": "incrementing", "topic.prefix": "pg-"})
    assert batch.topic == "pg-kinds"
    assert batch.source_partition == {"protocol": "1", "table": "public.kinds"}
    assert batch.value_schema is not None
    assert [field.schema.type for field in batch.value_schema.fields[:5]] == [
        Type.INT64,
        Type.INT16,
        Type.INT32,
        Type.FLOAT32,
        Type.FLOAT64,
    ]
    full, empty = batch.values
    assert full == (
        1,
        2,
        3,
        0.5,
        0.1,
        Decimal("12.34"),
        Decimal("1.5").quantize(Decimal("1e-20")),
        True,
        Date.of(dt.date(2026, 2, 3)),
        Time.of(dt.time(4, 5, 6)),
        Timestamp.of(dt.datetime(2026, 2, 3, 4, 5, 6, 123456)),
        Timestamp.of(dt.datetime(2026, 2, 3, 2, 5, 6)),
        "hé",
        "abc",
        '{"a": 1}',
        "00000000-0000-0000-0000-000000000001",
        b"\x00\xff",
        "glad",
        True,
        "<a/>",
        "1 day",
        "{1,2}",
    )
    assert empty == (2, *[None] * 21)


def test_bit_strings_of_varying_length_are_read_as_text(
    database: psycopg.Connection[Any], props: dict[str, str]
) -> None:
    database.execute(
        "CREATE TABLE bits (one bit, varying varbit, short varbit(1)); INSERT INTO bits VALUES ('1', '101', '0')"
    )
    (batch,) = read_all({**props, "mode": "bulk", "topic.prefix": "pg-"})
    assert batch.values == [(True, "101", "0")]


@pytest.mark.parametrize("unmappable", ["fail", "null", "skip"])
def test_property_unmappable_values_sets_how_nan_in_numeric_columns_is_handled(
    database: psycopg.Connection[Any], props: dict[str, str], unmappable: str
) -> None:
    database.execute("CREATE TABLE t (id int, n numeric(6,2), free numeric); INSERT INTO t VALUES (1, 'NaN', 'NaN')")
    settings = {**props, "mode": "bulk", "topic.prefix": "pg-", "unmappable.values": unmappable}
    if unmappable == "fail":
        with pytest.raises(ConnectError, match="NaN does not fit a decimal with 2 decimal places"):
            read_all(settings)
    else:
        assert rows(read_all(settings)) == ([(1, None, None)] if unmappable == "null" else [])


@pytest.mark.parametrize("kind", ["timestamp", "timestamptz"])
def test_timestamp_and_incrementing_mode_resumes_between_rows_with_equal_timestamps(
    database: psycopg.Connection[Any], props: dict[str, str], kind: str
) -> None:
    database.execute(f"CREATE TABLE orders (id serial PRIMARY KEY, at {kind} NOT NULL)")
    database.execute("INSERT INTO orders (at) SELECT '2026-01-01 00:00:00.000001' FROM generate_series(1, 7)")
    props = {**props, "mode": "timestamp+incrementing", "timestamp.column.name": "at", "batch.max.rows": "3"}
    props["incrementing.column.name"] = "id"
    offsets = Offsets()
    first = read_all(props, Offsets())[0]
    assert first.source_offset["timestamp_nanos"] == 1000
    offsets.commit(first.source_partition, first.source_offset)
    assert [row[0] for row in rows(read_all(props, offsets))] == [4, 5, 6, 7]
    database.execute("UPDATE orders SET at = '2026-01-02' WHERE id = 2")
    # The source does not read this row yet: its timestamp is later than the database's current time.
    database.execute("INSERT INTO orders (at) VALUES (now() + interval '1 hour')")
    assert [row[0] for row in rows(read_all(props, offsets))] == [2]


@pytest.mark.parametrize("is_query", [False, True])
@pytest.mark.parametrize(
    ("kind", "digits"), [("timestamp(0)", 0), ("timestamp(3)", 3), ("timestamp", 6), ("whole_seconds", 0)]
)
def test_row_is_not_read_while_further_rows_with_the_same_timestamp_can_be_inserted(
    database: psycopg.Connection[Any],
    props: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    digits: int,
    is_query: bool,
) -> None:
    database.execute("CREATE DOMAIN whole_seconds AS timestamp(0)")
    database.execute(f"CREATE TABLE t (id int PRIMARY KEY, at {kind} NOT NULL)")
    now = [dt.datetime(2026, 1, 1, 12, 0, 0, 123_999, tzinfo=dt.UTC)]
    monkeypatch.setattr(PostgresqlDialect, "now", lambda *_: now[0])
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


def test_connection_url_may_name_several_hosts_and_schemas(
    server: postgres.Postgres, database: psycopg.Connection[Any], props: dict[str, str]
) -> None:
    database.execute("CREATE SCHEMA other; CREATE TABLE other.orders (id int); INSERT INTO other.orders VALUES (7)")
    address = (
        f"jdbc:postgresql://127.0.0.1:{free_port()},127.0.0.1:{server.port}/postgres?targetServerType=primary"
        "&currentSchema=public,%20other&options=-c%20statement_timeout=5s"
    )
    query = "SELECT id, current_setting('statement_timeout') AS wait FROM orders"
    props = {**props, "connection.url": address, "mode": "bulk", "query": query, "topic.prefix": "orders"}
    assert rows(read_all(props)) == [(7, "5s")]


def test_db_timezone_applies_to_columns_of_type_timestamp_without_time_zone(
    database: psycopg.Connection[Any], props: dict[str, str]
) -> None:
    database.execute("CREATE TABLE visits (at timestamp NOT NULL)")
    database.execute("INSERT INTO visits VALUES ('2026-01-01 12:00:00')")
    props = {**props, "mode": "timestamp", "timestamp.column.name": "at", "db.timezone": "America/New_York"}
    (batch,) = read_all(props)
    assert batch.values == [(Timestamp.of(dt.datetime(2026, 1, 1, 17)),)]
    assert batch.source_offset["timestamp"] == 1767286800000


def test_timestamp_mode_reads_the_right_rows_if_the_session_time_zone_is_not_utc(
    database: psycopg.Connection[Any], props: dict[str, str]
) -> None:
    database.execute("ALTER ROLE postgres SET timezone TO 'America/New_York'")
    try:
        database.execute("CREATE TABLE visits (id serial PRIMARY KEY, at timestamptz NOT NULL)")
        database.execute("INSERT INTO visits (at) VALUES (now() - interval '2 hours'), (now() + interval '2 hours')")
        props = {**props, "mode": "timestamp", "timestamp.column.name": "at"}
        offsets = Offsets()
        assert [row[0] for row in rows(read_all(props, offsets))] == [1]
        database.execute("INSERT INTO visits (at) VALUES (now() - interval '1 hour')")
        assert [row[0] for row in rows(read_all(props, offsets))] == [3]
    finally:
        database.execute("ALTER ROLE postgres RESET timezone")


def test_binary_format_returns_the_same_values_as_text_format(
    database: psycopg.Connection[Any], props: dict[str, str]
) -> None:
    kinds = (
        "s smallint, i int, b bigint, d double precision, n numeric(10,2), free numeric, flag boolean, "
        "day date, clock time, at timestamp, zoned timestamptz, note text, code varchar(5), fixed char(3), raw bytea"
    )
    database.execute(f"CREATE TABLE as_text ({kinds}, uid uuid); CREATE TABLE as_binary ({kinds})")
    for day in ("0001-01-01", "1969-12-31", "2026-02-03", "9999-12-31"):
        database.execute(
            f"INSERT INTO as_binary VALUES (-1, -2147483648, 9223372036854775807, 1e300, -12.34, 0.00001, false, "
            f"'{day}', '23:59:59.999999', '{day} 04:05:06.123456', '2026-{day[5:]} 04:05:06+02', 'hé 100%', 'abc', "
            "'d', '\\x00ff')"
        )
    database.execute("INSERT INTO as_text SELECT *, gen_random_uuid() FROM as_binary")
    binary = read_all({**props, "mode": "bulk", "table.whitelist": "as_binary"})
    assert [row[:-1] for row in rows(read_all({**props, "mode": "bulk", "table.whitelist": "as_text"}))] == rows(binary)
    database.execute("CREATE TABLE measures (r real)")
    database.execute("INSERT INTO measures VALUES (0.1)")
    assert rows(read_all({**props, "mode": "bulk", "table.whitelist": "measures"})) == [(0.1,)]
    query = {"mode": "bulk", "query": "SELECT * FROM as_binary", "topic.prefix": "t"}
    assert rows(read_all({**props, **query})) == rows(binary)


def test_query_may_contain_percent_signs_and_return_json_columns(
    database: psycopg.Connection[Any], props: dict[str, str]
) -> None:
    database.execute("CREATE TABLE notes (id serial PRIMARY KEY, note text, doc json)")
    database.execute("INSERT INTO notes (note, doc) VALUES ('100% wool', '{\"a\":1}'), ('silk', null)")
    query = "SELECT id, note, doc FROM notes WHERE note LIKE '%wool%'"
    (batch,) = read_all({**props, "mode": "bulk", "query": query, "topic.prefix": "wool"})
    assert (batch.topic, batch.values) == ("wool", [(1, "100% wool", '{"a":1}')])
    wrapped = f"SELECT * FROM ({query}) AS wool"
    incremental = {"mode": "incrementing", "incrementing.column.name": "id", "query": wrapped, "topic.prefix": "wool"}
    offsets = Offsets()
    assert len(rows(read_all({**props, **incremental}, offsets))) == 1
    assert rows(read_all({**props, **incremental}, offsets)) == []


def test_tables_with_equal_names_in_two_schemas_are_rejected(
    database: psycopg.Connection[Any], props: dict[str, str]
) -> None:
    database.execute("CREATE TABLE orders (id serial PRIMARY KEY); CREATE SCHEMA other")
    database.execute("CREATE TABLE other.orders (id serial PRIMARY KEY)")
    del props["schema.pattern"]
    with pytest.raises(ConnectError, match=r"other\.orders and public\.orders would be written to the same topic"):
        read_all({**props, "mode": "bulk"})
    assert read_all({**props, "mode": "bulk", "table.whitelist": "other.orders"}) == []


def test_invalid_sql_fails_the_task_without_retries(database: psycopg.Connection[Any], props: dict[str, str]) -> None:
    with pytest.raises(ConnectError, match='the query failed: relation "nowhere" does not exist'):
        read_all({**props, "mode": "bulk", "query": "SELECT * FROM nowhere", "topic.prefix": "t"})


def test_validation_rejects_missing_and_unsuitable_offset_columns(
    database: psycopg.Connection[Any], props: dict[str, str]
) -> None:
    database.execute("CREATE TABLE orders (order_id bigserial PRIMARY KEY, placed_at timestamptz NOT NULL, price real)")

    def errors(**more: str) -> dict[str, list[str]]:
        config = {**props, "mode": "timestamp+incrementing", "table.whitelist": "orders"}
        config |= {f"{name}.column.name": value for name, value in more.items()}
        values = config_def(JdbcSourceConfig).validate(config)
        JdbcSourceConnector().validate(config, values)
        return {name: value.errors for name, value in values.items() if value.errors}

    assert errors(incrementing="order_id", timestamp="placed_at") == {}
    assert errors(timestamp="placed_at") == {}
    [(key, [message])] = errors(incrementing="orderid", timestamp="placed_at").items()
    assert (key, message.partition(": ")[2]) == (
        "incrementing.column.name",
        "table public.orders has no column orderid; did you mean order_id?",
    )
    [message] = errors(incrementing="order_id", timestamp="price")["timestamp.column.name"]
    assert message.endswith("table public.orders: the column's type is REAL, not a timestamp")
    [message] = errors(incrementing="price", timestamp="placed_at")["incrementing.column.name"]
    assert message.endswith("table public.orders: the column's type is REAL, but must be an integer type")


def test_incrementing_column_may_have_a_numeric_type_with_scale_0(
    database: psycopg.Connection[Any], props: dict[str, str]
) -> None:
    database.execute("CREATE TABLE orders (id numeric(30,0) PRIMARY KEY)")
    database.execute("INSERT INTO orders VALUES (1), (123456789012345678901234567890)")
    props = {**props, "mode": "incrementing", "incrementing.column.name": "id"}
    offsets = Offsets()
    [batch] = read_all(props, offsets)
    assert json.dumps(batch.source_offset) == '{"incrementing": 123456789012345678901234567890}'
    assert read_all(props, offsets) == []


def poll_all(task: JdbcSourceTask) -> None:
    while task.poll() is not None:
        pass


def test_no_row_is_lost_if_the_connection_closes_during_a_query(
    database: psycopg.Connection[Any], props: dict[str, str]
) -> None:
    database.execute("CREATE TABLE orders (id serial PRIMARY KEY, at timestamp NOT NULL)")
    database.execute("INSERT INTO orders (at) SELECT '2026-01-01' FROM generate_series(1, 100)")
    props = {**props, "mode": "timestamp", "timestamp.column.name": "at", "batch.max.rows": "6"}
    task = JdbcSourceTask()
    task.poll_block_s = 0.0
    task.context = Context(Offsets())  # type: ignore[assignment]
    task.start(JdbcSourceTaskConfig.parse({**props, "tables": "public.orders"}))
    try:
        assert task.poll() is not None
        database.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
        with pytest.raises(RetriableError, match=r"(?s)the query failed: .*; retrying in 200 ms \(attempt 2\)"):
            poll_all(task)  # the task has requested some of the rows before the connection closed
        found: list[int] = []
        while (batch := task.poll()) is not None:
            found += [row[0] for row in batch.values]
        assert found == list(range(1, 101))  # the source has read all rows with the timestamp again
    finally:
        task.stop()


def test_connection_error_names_the_server_and_the_number_of_attempts(props: dict[str, str]) -> None:
    bad = {**props, "connection.url": "jdbc:postgresql://127.0.0.1:1/shop", "connection.attempts": "2", "mode": "bulk"}
    address = r"jdbc:postgresql://127\.0\.0\.1:1/shop"
    with pytest.raises(ConnectError, match=rf"(?s)Cannot connect to {address}: .*; giving up after 2 attempts"):
        read_all(bad)


@pytest.mark.parametrize(
    ("mode", "level"),
    [
        ("DEFAULT", "read committed"),
        ("SQL_SERVER_SNAPSHOT", "read committed"),
        ("READ_UNCOMMITTED", "read uncommitted"),
        ("repeatable_read", "repeatable read"),
        ("SERIALIZABLE", "serializable"),
    ],
)
def test_statements_run_with_the_configured_isolation_level(props: dict[str, str], mode: str, level: str) -> None:
    query = {"query": "SELECT current_setting('transaction_isolation') AS level", "topic.prefix": "t"}
    assert rows(read_all({**props, **query, "mode": "bulk", "transaction.isolation.mode": mode})) == [(level,)]
