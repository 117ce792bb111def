"""Tests of configuration keys of the JDBC source with SQLite, PostgreSQL and DuckDB."""

from __future__ import annotations

import datetime as dt
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest

from headrace.api.errors import ConfigError
from headrace.data.logical import Timestamp
from support import postgres
from support.jdbc import Offsets, read_all, rows

pytestmark = pytest.mark.integration
AT = {"mode": "timestamp", "timestamp.column.name": "seen"}
ID = {"mode": "incrementing", "incrementing.column.name": "id"}
AT_AND_ID = {**AT, **ID, "mode": "timestamp+incrementing"}


@dataclass(frozen=True)
class Database:
    """A database, the properties of a connector that reads it, and a function that executes a statement."""

    kind: str
    props: dict[str, str]
    execute: Callable[[str], Any]


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Postgres]:
    if reason := postgres.unavailable_reason():
        pytest.skip(reason)
    with postgres.running() as running:
        yield running


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("postgresql", marks=[pytest.mark.slow, pytest.mark.postgres]),
        pytest.param("duckdb", marks=pytest.mark.slow),
    ]
)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    kind: str = request.param
    path = tmp_path / "shop"
    props = {"connection.url": f"jdbc:{kind}:{path}", "topic.prefix": "t"}
    if kind == "sqlite":
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            yield Database(kind, props, connection.execute)
    elif kind == "duckdb":

        def execute(sql: str) -> None:
            with duckdb.connect(str(path)) as connection:  # DuckDB locks the file
                connection.execute(sql)

        yield Database(kind, props, execute)
    else:
        server: postgres.Postgres = request.getfixturevalue("server")
        with psycopg.connect(server.conninfo, autocommit=True) as connection:
            props |= {"connection.url": server.jdbc_url, "connection.user": server.user}
            yield Database(kind, props, lambda sql: connection.execute(sql.encode()))
            connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")


@pytest.fixture
def events(database: Database) -> Database:
    """The database with a table of three events, at 0, 5 and 10 seconds."""
    database.execute("CREATE TABLE events (id INTEGER PRIMARY KEY, seen TIMESTAMP NOT NULL)")
    database.execute(
        "INSERT INTO events VALUES (1, '2026-01-01 00:00:00'), (2, '2026-01-01 00:00:05'), (3, '2026-01-01 00:00:10')"
    )
    return database


def ids(props: dict[str, str], offsets: Offsets | None = None) -> list[int]:
    return [row[0] for row in rows(read_all(props, offsets))]


@pytest.mark.parametrize("mode", [ID, AT, AT_AND_ID], ids=lambda mode: mode["mode"])
def test_mode_reads_each_row_once(events: Database, mode: dict[str, str]) -> None:
    props, offsets = {**events.props, **mode}, Offsets()
    assert ids(props, offsets) == [1, 2, 3]
    events.execute("INSERT INTO events VALUES (4, '2026-01-01 00:00:10.5')")
    assert ids(props, offsets) == [4]
    assert ids(props, offsets) == []


@pytest.mark.parametrize("mode", [AT, AT_AND_ID], ids=lambda mode: mode["mode"])
def test_timestamp_delay_interval_ms_delays_rows_with_recent_timestamps(events: Database, mode: dict[str, str]) -> None:
    now = dt.datetime.now(dt.UTC).replace(tzinfo=None)
    events.execute(f"INSERT INTO events VALUES (4, '{now - dt.timedelta(hours=2)}')")
    events.execute(f"INSERT INTO events VALUES (5, '{now - dt.timedelta(minutes=30)}')")
    props, offsets = {**events.props, **mode}, Offsets()
    assert ids({**props, "timestamp.delay.interval.ms": "3600000"}, offsets) == [1, 2, 3, 4]
    assert ids({**props, "timestamp.delay.interval.ms": "600000"}, offsets) == [5]


@pytest.mark.parametrize("mode", [AT, AT_AND_ID], ids=lambda mode: mode["mode"])
def test_timestamp_initial_skips_the_rows_up_to_this_timestamp(events: Database, mode: dict[str, str]) -> None:
    initial = dt.datetime(2026, 1, 1, 0, 0, 5, tzinfo=dt.UTC)
    props = {**events.props, **mode, "timestamp.initial": str(int(initial.timestamp() * 1000))}
    offsets = Offsets()
    assert ids(props, offsets) == [3]
    assert ids({**props, "timestamp.initial": "0"}, offsets) == []  # a stored source offset takes precedence
    assert ids({**props, "timestamp.initial": "0"}) == [1, 2, 3]


@pytest.mark.parametrize("source", [{}, {"query": "SELECT id, seen FROM events"}], ids=["table", "query"])
def test_query_suffix_is_part_of_each_statement(events: Database, source: dict[str, str]) -> None:
    props = {**events.props, **source, "query.suffix": "LIMIT 2"}
    assert ids({**props, "mode": "bulk"}) == [1, 2]
    offsets = Offsets()
    assert ids({**props, **ID}, offsets) == [1, 2]
    assert ids({**props, **ID}, offsets) == [3]


def test_numeric_precision_mapping_converts_decimals_without_decimal_places_to_integers(database: Database) -> None:
    database.execute("CREATE TABLE prices (a NUMERIC(6,0), b NUMERIC(12,0), c NUMERIC(6,2))")
    database.execute("INSERT INTO prices VALUES (7, 123456789012, 1.5)")
    props = {**database.props, "mode": "bulk"}
    for given in ({"numeric.precision.mapping": "true"}, {"numeric.mapping": "precision_only"}):
        ((a, b, c),) = rows(read_all({**props, **given}))
        assert (a, b, c) == (7, 123456789012, Decimal("1.50"))
        assert [type(a), type(b), type(c)] == [int, int, Decimal]
    for given in ({"numeric.precision.mapping": "false"}, {}):
        assert [type(value) for value in rows(read_all({**props, **given}))[0]] == [Decimal, Decimal, Decimal]


@pytest.mark.parametrize(
    ("granularity", "expected"),
    [
        ("connect_logical", Timestamp.of(dt.datetime(2026, 1, 2, 3, 4, 5, 123456))),
        ("micros_long", 1767323045123456),
        ("micros_string", "1767323045123456"),
        ("micros_iso_datetime_string", "2026-01-02T03:04:05.123456"),
        ("nanos_long", 1767323045123456000),
        ("nanos_string", "1767323045123456000"),
        ("nanos_iso_datetime_string", "2026-01-02T03:04:05.123456000"),
    ],
)
def test_timestamp_granularity_is_the_type_and_unit_of_timestamps(
    database: Database, granularity: str, expected: object
) -> None:
    database.execute("CREATE TABLE events (seen TIMESTAMP NOT NULL)")
    database.execute("INSERT INTO events VALUES ('2026-01-02 03:04:05.123456')")
    props, offsets = {**database.props, **AT, "timestamp.granularity": granularity}, Offsets()
    assert rows(read_all(props, offsets)) == [(expected,)]
    assert read_all(props, offsets) == []


def test_task_continues_after_the_source_offset_of_a_legacy_source_partition(events: Database) -> None:
    offsets = Offsets()
    offsets.commit({"table": "events"}, {"incrementing": 1})
    props = {**events.props, **ID}
    assert ids(props, offsets) == [2, 3]
    assert ids(props, offsets) == []  # the source offset of the new source partition takes precedence
    table = "public.events" if events.kind == "postgresql" else "events"
    assert offsets.read({"protocol": "1", "table": table}) == {"incrementing": 3}


def test_quote_sql_identifiers_never_rejects_names_that_need_quotes(events: Database) -> None:
    props = {**events.props, **ID, "quote.sql.identifiers": "NEVER", "transforms": "topic"}
    assert ids(props) == [1, 2, 3]
    events.execute('CREATE TABLE "events WHERE id > 1 --" (id INTEGER PRIMARY KEY)')
    with pytest.raises(ConfigError, match=r"quote\.sql\.identifiers: table .*events WHERE id > 1 --"):
        read_all({**props, "table.include.list": ".*--"})
    events.execute('CREATE TABLE columns (id INTEGER PRIMARY KEY, "id + 1" INTEGER)')
    with pytest.raises(ConfigError, match=r"quote\.sql\.identifiers: column id \+ 1 of table .*columns"):
        read_all({**props, "table.whitelist": "columns"})


@pytest.mark.slow
def test_hostile_names_of_tables_and_columns_are_read(database: Database) -> None:
    names = (
        "select",
        "Upper Case",
        'quo"te',
        "quo'te",
        "ünï-中",
        "per%cent",
        "%s",
        ":name",
        "drop;--",
        "a.b",
        "a\\b",
        "`?",
    )
    for number, name in enumerate(names):
        quoted = '"' + name.replace('"', '""') + '"'
        database.execute(f'CREATE TABLE {quoted} ({quoted} INTEGER PRIMARY KEY, {quoted[:-1]} at" TIMESTAMP NOT NULL)')
        database.execute(f"INSERT INTO {quoted} VALUES ({number}, '2026-01-01 00:00:00')")
    for number, name in enumerate(names):
        columns = {"incrementing.column.name": name, "timestamp.column.name": f"{name} at"}
        props = {**database.props, **columns, "mode": "timestamp+incrementing", "transforms": "topic"}
        pattern = rf"(public[.])?\Q{name}\E"
        offsets = Offsets()
        (batch,) = read_all({**props, "table.include.list": pattern}, offsets)
        assert (batch.topic, [row[0] for row in batch.values]) == (f"t{name}", [number])
        assert batch.value_schema is not None
        assert [field.name for field in batch.value_schema.fields] == [name, f"{name} at"]
        assert read_all({**props, "table.include.list": pattern}, offsets) == []
