"""Tests of the JDBC source with real SQLite databases: modes, restarts, types and errors."""

from __future__ import annotations

import datetime as dt
import logging
import queue
import sqlite3
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from headrace.api.config import config_def
from headrace.api.errors import ConfigErrors, ConnectError, RetriableError
from headrace.data.batch import SourceBatch
from headrace.data.columns import CheckedRows
from headrace.data.logical import Date, Time, Timestamp
from headrace.data.schema import INT64_SCHEMA, OPTIONAL_STRING_SCHEMA, Field, Type
from headrace.metrics import logs
from headrace.testing import run_source
from headrace_connectors.jdbc import sqlite, url
from headrace_connectors.jdbc.database_validation import database_errors
from headrace_connectors.jdbc.source import JdbcSourceConnector, JdbcSourceTask
from headrace_connectors.jdbc.source_config import JdbcSourceConfig, JdbcSourceTaskConfig
from headrace_connectors.jdbc.sqlite import SqliteDialect
from support.jdbc import Context, Offsets, drain, read_all, rows
from support.worker import wait_for


@pytest.fixture
def database(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(tmp_path / "shop.db", isolation_level=None)
    yield connection
    connection.close()


def _props(database: sqlite3.Connection, **props: str) -> dict[str, str]:
    (path,) = [row[2] for row in database.execute("PRAGMA database_list")]
    return {"connection.url": f"jdbc:sqlite:{path}", **{name.replace("_", "."): value for name, value in props.items()}}


def _orders(database: sqlite3.Connection, count: int, start: int = 1) -> None:
    database.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER PRIMARY KEY, item TEXT)")
    database.executemany("INSERT INTO orders VALUES (?, ?)", [(i, f"item-{i}") for i in range(start, start + count)])


def test_incrementing_mode_reads_each_row_once_and_reads_only_new_rows_after_a_restart(
    database: sqlite3.Connection,
) -> None:
    _orders(database, 25)
    props, offsets = _props(database, mode="incrementing", topic_prefix="db-", batch_max_rows="10"), Offsets()
    batches = read_all(props, offsets)
    assert [len(batch) for batch in batches] == [10, 10, 5]
    assert rows(batches) == [(i, f"item-{i}") for i in range(1, 26)]
    first = batches[0]
    assert first.topic == "db-orders"
    assert first.source_partition == {"protocol": "1", "table": "orders"}
    assert first.source_offset == {"incrementing": 10}
    assert first.value_schema is not None
    assert first.value_schema.name == "orders"
    assert [field.schema for field in first.value_schema.fields] == [INT64_SCHEMA, OPTIONAL_STRING_SCHEMA]
    _orders(database, 3, start=26)
    assert rows(read_all(props, offsets)) == [(i, f"item-{i}") for i in range(26, 29)]


def test_bulk_mode_reads_the_whole_table_in_every_run(database: sqlite3.Connection) -> None:
    _orders(database, 3)
    props, offsets = _props(database, mode="bulk"), Offsets()
    assert len(rows(read_all(props, offsets))) == 3
    assert len(rows(read_all(props, offsets))) == 3


@pytest.mark.parametrize("form", ["text", "millis"])
def test_source_offset_in_timestamp_mode_advances_only_after_all_rows_with_equal_timestamps_are_read(
    database: sqlite3.Connection, form: str
) -> None:
    database.execute("CREATE TABLE events (name TEXT, at TIMESTAMP NOT NULL)")
    base = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
    for i in range(10):
        at = base + dt.timedelta(seconds=i // 4)
        value = at.isoformat(sep=" ")[:19] if form == "text" else int(at.timestamp() * 1000)
        database.execute("INSERT INTO events VALUES (?, ?)", (f"e{i}", value))
    props = _props(database, mode="timestamp", timestamp_column_name="at", batch_max_rows="3")
    batches = read_all(props)
    assert [row[0] for row in rows(batches)] == [f"e{i}" for i in range(10)]
    assert rows(batches)[0][1] == Timestamp.of(base)
    millis = [batch.source_offset.get("timestamp") for batch in batches]
    start = int(base.timestamp() * 1000)
    # Rows 0-3, 4-7 and 8-9 have equal timestamps. Batches of 3 end at rows 2, 5, 8 and 9.
    assert millis == [None, start, start + 1000, start + 2000]


@pytest.mark.parametrize("mode", ["timestamp", "timestamp+incrementing"])
def test_rows_with_microsecond_timestamps_are_read_once_and_are_not_lost_in_a_restart(
    database: sqlite3.Connection, mode: str
) -> None:
    database.execute("CREATE TABLE events (id INTEGER PRIMARY KEY, at TIMESTAMP NOT NULL)")
    stored = [
        "2026-01-01 00:00:00.123600",
        "2026-01-01 00:00:00.123700",
        "2026-01-01T01:00:00.1238+01:00",
        1767225600124,
        "2026-01-01 00:00:59.999900",
        "2026-01-01 00:00:59.9999005Z",
        "2026-01-01 00:01",
    ]
    database.executemany("INSERT INTO events (at) VALUES (?)", [(at,) for at in stored])
    props = _props(database, mode=mode, timestamp_column_name="at", incrementing_column_name="id", batch_max_rows="1")
    for count in range(1, len(stored)):
        offsets = Offsets()
        for batch in read_all(props, Offsets())[:count]:
            offsets.commit(batch.source_partition, batch.source_offset)
        ids = [row[0] for row in rows(read_all(props, offsets))]
        assert ids in (list(range(count + 1, 8)), list(range(count, 8)) if count in (5, 6) else [])
    offsets = Offsets()
    assert [row[0] for row in rows(read_all(props, offsets))] == list(range(1, 8))
    assert read_all(props, offsets) == []


@pytest.mark.parametrize("mode", ["timestamp", "timestamp+incrementing"])
def test_row_with_a_timestamp_in_the_current_second_is_not_read_before_this_second_has_ended(
    database: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    now = [dt.datetime(2026, 1, 1, 12, 0, 0, 300_000, tzinfo=dt.UTC)]
    monkeypatch.setattr(SqliteDialect, "now", lambda *_: now[0])
    database.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, v INT, at TIMESTAMP NOT NULL)")
    database.execute("INSERT INTO orders VALUES (1, 0, '2026-01-01 11:59:59'), (2, 0, '2026-01-01 12:00:00')")
    offsets = Offsets()
    props = _props(database, mode=mode, **{"timestamp.column.name": "at", "incrementing.column.name": "id"})
    if mode == "timestamp":
        del props["incrementing.column.name"]
    assert [row[0] for row in rows(read_all(props, offsets))] == [1]
    database.execute("UPDATE orders SET v = 1, at = '2026-01-01 12:00:00' WHERE id = 1")
    database.execute("INSERT INTO orders VALUES (3, 0, '2026-01-01 12:00:00')")
    now[0] = dt.datetime(2026, 1, 1, 12, 0, 0, 999_999, tzinfo=dt.UTC)
    assert rows(read_all(props, offsets)) == []
    now[0] = dt.datetime(2026, 1, 1, 12, 0, 1, tzinfo=dt.UTC)
    assert [row[:2] for row in rows(read_all(props, offsets))] == [(1, 1), (2, 0), (3, 0)]


def test_error_for_a_text_that_is_not_a_timestamp_contains_the_text(database: sqlite3.Connection) -> None:
    database.execute("CREATE TABLE events (at TIMESTAMP NOT NULL)")
    database.executemany("INSERT INTO events VALUES (?)", [("2026-01-01",), ("yesterday",)])
    with pytest.raises(ConnectError, match="table events: the query failed: 'yesterday' is not a timestamp"):
        read_all(_props(database, mode="timestamp", timestamp_column_name="at"))
    with pytest.raises(
        ConnectError, match=r"events, column at, row .*: the column's type is TIMESTAMP, but .*; correct the row"
    ):
        read_all(_props(database, mode="bulk"))


def test_restart_between_rows_with_equal_timestamps_reads_all_rows_with_this_timestamp_again(
    database: sqlite3.Connection,
) -> None:
    database.execute("CREATE TABLE events (name TEXT, at TIMESTAMP NOT NULL)")
    database.executemany("INSERT INTO events VALUES (?, '2026-01-01 00:00:00')", [(f"e{i}",) for i in range(5)])
    offsets = Offsets()
    props = _props(database, mode="timestamp", timestamp_column_name="at", batch_max_rows="2")
    first = read_all(props, Offsets())[0]
    offsets.commit(first.source_partition, first.source_offset)  # the task crashes after this batch
    assert [row[0] for row in rows(read_all(props, offsets))] == [f"e{i}" for i in range(5)]


@pytest.mark.parametrize("column", ["name TEXT", "name TEXT, price REAL"])
def test_text_that_is_not_utf_8_is_reported_with_its_row(database: sqlite3.Connection, column: str) -> None:
    database.execute(f"CREATE TABLE items (id INTEGER PRIMARY KEY, {column})")
    database.execute("INSERT INTO items (id, name) VALUES (1, 'a'), (2, CAST(x'62ff' AS TEXT)), (3, 'c')")
    props = _props(database, mode="incrementing", incrementing_column_name="id")
    with pytest.raises(ConnectError, match=r"items, column name, row id=2: .* but the value is b'b\\xff'"):
        read_all(props)
    skipped = read_all({**props, "unmappable.values": "skip"})
    assert [row[0] for row in rows(skipped)] == [1, 3]


def test_invalid_utf_8_in_a_query_result_is_reported_with_its_row(database: sqlite3.Connection) -> None:
    props = _props(database, mode="bulk", query="SELECT 7 AS id, CAST(x'62ff' AS TEXT) AS name", topic_prefix="q")
    with pytest.raises(ConnectError, match=r"query, column name, row .*7.* but the value is b'b\\xff'"):
        read_all(props)


def test_source_offset_does_not_advance_before_the_last_batch_of_rows_with_equal_timestamps(
    database: sqlite3.Connection,
) -> None:
    database.execute("CREATE TABLE events (id INTEGER, at TIMESTAMP NOT NULL)")
    numbers = "WITH RECURSIVE numbers(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM numbers WHERE i < 2500)"
    database.execute(f"INSERT INTO events {numbers} SELECT i, '2026-01-01 00:00:00' FROM numbers")
    batches = read_all(_props(database, mode="timestamp", timestamp_column_name="at", batch_max_rows="1200"))
    assert [len(batch) for batch in batches] == [1000, 1200, 300]
    assert [batch.source_offset.get("timestamp") is None for batch in batches] == [True, True, False]


def test_timestamp_incrementing_mode_reads_rows_with_equal_timestamps_once(database: sqlite3.Connection) -> None:
    database.execute("CREATE TABLE events (id INTEGER PRIMARY KEY, at DATETIME NOT NULL)")
    database.executemany("INSERT INTO events VALUES (?, '2026-01-01T00:00:00.5')", [(i,) for i in range(1, 8)])
    offsets = Offsets()
    props = _props(
        database,
        mode="timestamp+incrementing",
        timestamp_column_name="at",
        incrementing_column_name="id",
        batch_max_rows="3",
    )
    first = read_all(props, Offsets())[0]
    assert first.source_offset["incrementing"] == 3
    offsets.commit(first.source_partition, first.source_offset)
    assert [row[0] for row in rows(read_all(props, offsets))] == [4, 5, 6, 7]
    database.execute("UPDATE events SET at = '2026-01-02 00:00:00' WHERE id = 2")
    assert [row[0] for row in rows(read_all(props, offsets))] == [2]


def test_records_of_a_custom_query_have_the_topic_prefix_as_topic_and_a_source_partition_named_query(
    database: sqlite3.Connection,
) -> None:
    _orders(database, 5)
    props = _props(
        database,
        mode="incrementing",
        incrementing_column_name="id",
        query="SELECT * FROM (SELECT id, upper(item) AS loud FROM orders)",
        topic_prefix="loud",
    )
    offsets = Offsets()
    batches = read_all(props, offsets)
    assert rows(batches)[0] == (1, "ITEM-1")
    assert [(f.name, f.schema.type) for f in _fields(batches[0])] == [("id", Type.INT64), ("loud", Type.STRING)]
    assert (batches[0].topic, batches[0].source_partition) == ("loud", {"query": "query"})
    _orders(database, 1, start=6)
    assert rows(read_all(props, offsets)) == [(6, "ITEM-6")]


def test_type_of_an_expression_in_a_query_is_derived_from_its_first_value(database: sqlite3.Connection) -> None:
    _orders(database, 2)
    query = (
        "SELECT count(*) AS n, 3 * 0.5 AS half, NULL AS nil, max(item) AS last, x'00' AS raw, id + 0 FROM orders "
        "GROUP BY id ORDER BY id"
    )
    props = _props(database, mode="bulk", query=query, topic_prefix="t")
    (batch,) = read_all(props, Offsets())
    kinds = [Type.INT64, Type.FLOAT64, Type.STRING, Type.STRING, Type.BYTES, Type.INT64]
    assert [field.schema.type for field in _fields(batch)] == kinds
    assert batch.values == [(1, 1.5, None, "item-1", b"\x00", 1), (1, 1.5, None, "item-2", b"\x00", 2)]


def _fields(batch: SourceBatch) -> tuple[Field, ...]:
    assert batch.value_schema is not None
    return batch.value_schema.fields


def test_values_and_nulls_of_every_column_type_are_converted_to_connect_values(database: sqlite3.Connection) -> None:
    database.execute(
        "CREATE TABLE kinds (id INTEGER PRIMARY KEY, big BIGINT, ratio REAL, price DECIMAL(10,2), flag BOOLEAN, "
        "day DATE, clock TIME, at TIMESTAMP, raw BLOB, note VARCHAR(10))"
    )
    values = (1, 2**40, 1, 19.99, 1, "2026-02-03", "04:05:06", "2026-02-03 04:05:06", b"\x00\xff", "hé")
    database.execute("INSERT INTO kinds VALUES (?,?,?,?,?,?,?,?,?,?)", values)
    database.execute("INSERT INTO kinds (id) VALUES (2)")
    full, empty = rows(read_all(_props(database, mode="incrementing")))
    assert full == (
        1,
        2**40,
        1.0,
        Decimal("19.99"),
        True,
        Date.of(dt.date(2026, 2, 3)),
        Time.of(dt.time(4, 5, 6)),
        Timestamp.of(dt.datetime(2026, 2, 3, 4, 5, 6)),
        b"\x00\xff",
        "hé",
    )
    assert empty == (2, *[None] * 9)


def test_value_schema_contains_a_column_that_was_added_between_two_runs(database: sqlite3.Connection) -> None:
    _orders(database, 1)
    props, offsets = _props(database, mode="incrementing"), Offsets()
    read_all(props, offsets)
    database.execute("ALTER TABLE orders ADD COLUMN price REAL")
    database.execute("INSERT INTO orders VALUES (2, 'x', 1.5)")
    (batch,) = read_all(props, offsets)
    assert batch.value_schema is not None
    assert [(field.name, field.schema.type) for field in batch.value_schema.fields][-1] == ("price", Type.FLOAT64)


def test_source_reads_only_the_tables_selected_in_the_configuration(database: sqlite3.Connection) -> None:
    """The configuration keys are table.whitelist, table.blacklist, table.include.list and table.exclude.list."""
    for name in ("orders", "old_orders", "people"):
        database.execute(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY)")
        database.execute(f"INSERT INTO {name} VALUES (1)")

    def topics(**props: str) -> list[str]:
        return [batch.topic for batch in read_all(_props(database, mode="bulk", **props))]

    assert topics() == ["old_orders", "orders", "people"]
    assert topics(table_whitelist="people,orders") == ["orders", "people"]
    assert topics(table_blacklist="people") == ["old_orders", "orders"]
    assert topics(table_include_list=".*orders", table_exclude_list="old_.*") == ["orders"]


@pytest.mark.parametrize(
    ("ddl", "props", "message"),
    [
        ("CREATE TABLE t (id INTEGER)", {"incrementing_column_name": "id"}, "column id is nullable"),
        (
            "CREATE TABLE t (id INTEGER NOT NULL)",
            {"incrementing_column_name": "idd"},
            r"has no column idd; did you mean id\?",
        ),
        (
            "CREATE TABLE t (key INTEGER NOT NULL)",
            {"incrementing_column_name": "id"},
            "has no column id; its columns are key",
        ),
        ("CREATE TABLE t (a TEXT)", {}, "0 autoincrement columns"),
        (
            "CREATE TABLE t (a TEXT NOT NULL)",
            {"incrementing_column_name": "a"},
            "a for .*: the column's type is TEXT, but must be an integer type",
        ),
    ],
)
def test_missing_or_unusable_offset_columns_fail_the_task(
    database: sqlite3.Connection, ddl: str, props: dict[str, str], message: str
) -> None:
    database.execute(ddl)
    with pytest.raises(ConnectError, match=message):
        read_all(_props(database, mode="incrementing", **props))


def _errors(props: dict[str, str]) -> dict[str, list[str]]:
    """Validate the configuration and return the errors by configuration key."""
    values = config_def(JdbcSourceConfig).validate(props)
    JdbcSourceConnector().validate(props, values)
    return {name: value.errors for name, value in values.items() if value.errors}


def test_validation_reports_a_missing_database_file_or_table(database: sqlite3.Connection, tmp_path: Path) -> None:
    _orders(database, 1)
    good = _props(database, mode="incrementing", table_whitelist="orders")
    assert _errors(good) == {}
    (message,) = _errors({**good, "table.whitelist": "orders,ordrs"})["table.whitelist"]
    reason = "table ordrs does not exist in the database; did you mean orders?"
    assert message == f"Invalid value ordrs for configuration table.whitelist: {reason}"
    (message,) = _errors({**good, "connection.url": f"jdbc:sqlite:{tmp_path}/no.db"})["connection.url"]
    assert "no.db does not exist" in message
    assert not (tmp_path / "no.db").exists()


def test_validation_reports_missing_or_nullable_offset_columns(database: sqlite3.Connection) -> None:
    _orders(database, 1)
    database.execute("CREATE TABLE visits (visit_id INTEGER, at TIMESTAMP)")
    props = _props(database, mode="timestamp+incrementing", table_whitelist="orders,visits")
    props |= {"incrementing.column.name": "visitid", "timestamp.column.name": "at"}
    prefix = "Invalid value visitid for configuration incrementing.column.name"
    missing, nullable = _errors(props)["timestamp.column.name"]
    assert "table orders has no column at; its columns are id, item" in missing
    assert "table visits: column at is nullable" in nullable
    assert _errors(props)["incrementing.column.name"] == [
        f"{prefix}: table orders has no column visitid; its columns are id, item",
        f"{prefix}: table visits has no column visitid; did you mean visit_id?",
    ]
    props["table.whitelist"], props["incrementing.column.name"] = "visits", "visit_id"
    (message,) = _errors(props)["incrementing.column.name"]
    assert "table visits: column visit_id is nullable" in message
    props["validate.non.null"] = "false"
    assert _errors(props) == {}
    props["timestamp.column.name"] = "at,before"
    assert list(_errors(props)) == ["timestamp.column.name"]
    del props["table.whitelist"]
    props |= {"query": "SELECT * FROM visits", "topic.prefix": "visits"}
    (message,) = _errors(props)["timestamp.column.name"]
    assert "query has no column before; its columns are visit_id, at" in message
    props["timestamp.column.name"] = "at"
    assert _errors(props) == {}


@pytest.mark.parametrize("selection", [{"table.whitelist": "visits"}, {"query": "SELECT * FROM visits"}])
def test_validation_reports_all_misspelt_offset_columns(
    database: sqlite3.Connection, selection: dict[str, str]
) -> None:
    database.execute("CREATE TABLE visits (visit_id INTEGER, at TIMESTAMP, changed TIMESTAMP)")
    props = {**_props(database, mode="timestamp+incrementing", topic_prefix="t"), **selection}
    props |= {"incrementing.column.name": "visitid", "timestamp.column.name": "att,change"}
    errors = _errors(props)
    assert sorted(errors) == ["incrementing.column.name", "timestamp.column.name"]
    assert [len(errors[key]) for key in sorted(errors)] == [1, 2]
    assert "has no column visitid; did you mean visit_id?" in errors["incrementing.column.name"][0]
    assert "has no column att; did you mean at?" in errors["timestamp.column.name"][0]
    assert "has no column change; did you mean changed?" in errors["timestamp.column.name"][1]


@pytest.mark.parametrize("query", ["SELECT * FRM orders", "SELECT * FROM missing", "SELECT missing FROM orders"])
def test_validation_reports_a_query_that_the_database_rejects(database: sqlite3.Connection, query: str) -> None:
    _orders(database, 1)
    props = _props(database, mode="bulk", topic_prefix="orders", query=query)
    (message,) = _errors(props)["query"]
    assert "for configuration query: the database rejects the query: " in message


def test_validation_reports_a_file_that_is_not_a_database_as_an_error_of_connection_url(tmp_path: Path) -> None:
    file = tmp_path / "text.db"
    file.write_text("no database\n" * 1000)
    for selection in ({}, {"table.whitelist": "t"}):
        (message,) = _errors({"connection.url": f"jdbc:sqlite:{file}", "mode": "bulk", **selection})["connection.url"]
        assert f"for configuration connection.url: cannot connect to sqlite:///{file}: " in message


def test_several_timestamp_columns_are_accepted_if_one_of_them_is_not_nullable(database: sqlite3.Connection) -> None:
    database.execute(
        "CREATE TABLE visits (id INTEGER PRIMARY KEY, changed TIMESTAMP, seen TIMESTAMP, created TIMESTAMP NOT NULL)"
    )
    database.execute("INSERT INTO visits VALUES (1, NULL, NULL, '2026-01-01'), (2, '2026-01-03', NULL, '2026-01-02')")
    props = _props(database, mode="timestamp", table_whitelist="visits", timestamp_column_name="changed,created")
    assert _errors(props) == {}
    assert [row[0] for row in rows(read_all(props))] == [1, 2]
    ((message,),) = _errors({**props, "timestamp.column.name": "changed,seen"}).values()
    assert "columns changed, seen are nullable, and rows with NULL in all of them are never read" in message


def test_validation_of_a_slow_database_skips_the_remaining_tables_after_the_time_limit(
    database: sqlite3.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    _orders(database, 1)
    names = [f"t{number}" for number in range(5)]
    config = JdbcSourceConfig.parse(_props(database, mode="incrementing", table_whitelist=",".join(names)))
    clock = iter([0.0, 4.0, 8.0, 12.0])
    found = database_errors(config, SqliteDialect(url.parse(config.connection_url), config), lambda: next(clock))
    assert [error.value for error in found] == ["t0", "t1"]
    assert "skipping the remaining 3 tables" in caplog.text


def test_rows_with_a_null_in_the_incrementing_column_are_skipped(database: sqlite3.Connection) -> None:
    database.execute("CREATE TABLE events (id INTEGER, at DATETIME NOT NULL)")
    database.executemany("INSERT INTO events VALUES (?, '2026-01-01')", [(None,), (1,), (None,), (2,)])
    props = _props(database, incrementing_column_name="id", validate_non_null="false", batch_max_rows="1")
    offsets = Offsets()
    assert [row[0] for row in rows(read_all({**props, "mode": "incrementing"}, offsets))] == [1, 2]
    props |= {"mode": "timestamp+incrementing", "timestamp.column.name": "at"}
    first, _ = read_all(props, Offsets())
    offsets.commit(first.source_partition, first.source_offset)
    assert [row[0] for row in rows(read_all(props, offsets))] == [2]


def test_rows_that_the_source_reads_as_json_equal_the_stored_rows(database: sqlite3.Connection) -> None:
    database.execute("CREATE TABLE notes (id INTEGER PRIMARY KEY, note TEXT, at TIMESTAMP, flag BOOLEAN, day DATE)")
    notes = ["", 'a"b\\c/\u2028', "line\none\x00\x1f", "hé 😀", '{"a": [1]}', None, "1", "null"]
    database.executemany(
        "INSERT INTO notes VALUES (?, ?, ?, ?, ?)",
        [
            (number * (2**63 - 1) // 7, note, number if number % 2 else "2026-01-01T00:00:00.5", number % 2, None)
            for number, note in enumerate(notes)
        ],
    )
    found = rows(read_all(_props(database, mode="incrementing", batch_max_rows="3")))
    assert [row[1] for row in found] == notes
    stored = database.execute("SELECT id, note, flag FROM notes ORDER BY id").fetchall()
    assert [(row[0], row[1], row[3]) for row in found] == stored
    assert [row[2] % 1000 for row in found] == [500, 1, 500, 3, 500, 5, 500, 7]


@pytest.mark.parametrize(
    ("value", "zone", "milliseconds"),
    [
        ("9999-12-31 23:59:59", "America/New_York", 253402318799000),
        ("0001-01-01 00:00:00", "Europe/Berlin", -62135600008000),
        ("0001-01-01", "Europe/Berlin", -62135600008000),
        ("12345-07-01 12:00:00", "Europe/Berlin", 327419056800000),
        ("-0043-03-15 12:00:00", "UTC", -63517780800000),
        (2**63 - 1, "UTC", 2**63 - 1),
        (-(2**63), "America/New_York", -(2**63)),
    ],
)
def test_timestamps_of_all_years_are_read(
    database: sqlite3.Connection, value: str | int, zone: str, milliseconds: int
) -> None:
    database.execute("CREATE TABLE prices (id INTEGER PRIMARY KEY, valid_to TIMESTAMP NOT NULL, day DATE)")
    database.execute("INSERT INTO prices VALUES (1, ?, ?)", (value, milliseconds))
    props = _props(database, mode="bulk", db_timezone=zone)
    (batch,) = read_all({**props, "unmappable.values": "clamp"})
    day = min(max(milliseconds // 86_400_000, -(2**31)), 2**31 - 1)
    assert batch.values == [(1, milliseconds, day)]
    assert list(map(type, batch.values[0])) == [int, Timestamp, Date]


def test_timestamps_of_early_years_may_be_source_offsets(database: sqlite3.Connection) -> None:
    database.execute("CREATE TABLE prices (id INTEGER PRIMARY KEY, since TIMESTAMP NOT NULL)")
    texts = ["-0043-03-15", "0000-12-31 23:59:59.5", "0001-01-01", "2026-01-01"]
    database.executemany("INSERT INTO prices VALUES (?, ?)", enumerate(texts))
    props = _props(database, mode="timestamp", timestamp_column_name="since", db_timezone="Europe/Berlin",
                   batch_max_rows="1", tables="prices", poll_interval_ms="600000")  # fmt: skip
    offsets = Offsets()
    found = [row[0] for _ in texts for row in rows(drain(props, offsets, polls=1))]  # a restart after each row
    assert found == [0, 1, 2, 3]


def test_nanosecond_timestamps_that_exceed_int64_are_rejected_or_clamped_as_configured(
    database: sqlite3.Connection,
) -> None:
    database.execute("CREATE TABLE prices (valid_to TIMESTAMP)")
    database.execute("INSERT INTO prices VALUES ('2300-01-01 00:00:00'), ('1600-01-01 00:00:00')")
    (batch,) = read_all(_props(database, mode="bulk"))
    assert isinstance(batch.compact, CheckedRows)
    props = _props(database, mode="bulk", timestamp_granularity="nanos_long")
    with pytest.raises(ConnectError, match=r"column valid_to, .* 2300-01-01 00:00:00.000000 is out of range; .*clamp"):
        read_all(props)
    clamped = rows(read_all({**props, "unmappable.values": "clamp"}))
    assert clamped == [(2**63 - 1,), (-(2**63),)]


def test_rows_with_null_in_a_primary_key_column_are_checked_by_the_converter_instead_of_the_source(
    database: sqlite3.Connection,
) -> None:
    database.execute("CREATE TABLE codes (code TEXT PRIMARY KEY)")  # SQLite accepts NULL in such a primary key
    props = _props(database, mode="bulk")
    database.execute("INSERT INTO codes VALUES ('a')")
    (batch,) = read_all(props)
    assert isinstance(batch.compact, CheckedRows)
    database.execute("INSERT INTO codes VALUES (NULL)")
    (batch,) = read_all(props, checks_values=False)
    assert batch.compact is None
    assert batch.values == [("a",), (None,)]


@pytest.mark.parametrize(("value", "message"), [(1.5, r"the value is 1\.5"), ("x", "'x'"), (b"x", "b'x'")])
def test_non_integer_value_in_an_integer_column_fails_the_task(
    database: sqlite3.Connection, value: object, message: str
) -> None:
    database.execute("CREATE TABLE odd (id INTEGER PRIMARY KEY, size INTEGER)")
    database.executemany("INSERT INTO odd VALUES (?, ?)", [(1, 1), (2, 2), (3, value)])
    props, offsets = _props(database, mode="incrementing", batch_max_rows="2"), Offsets()
    with pytest.raises(ConnectError, match=rf"odd, column size, row id=3: .*{message}"):
        read_all(props, offsets)
    assert offsets.read({"protocol": "1", "table": "odd"}) == {"incrementing": 2}


@pytest.mark.parametrize("extra", ["", ", money REAL"])  # a REAL column disables the JSON fast path
def test_texts_true_and_false_in_a_boolean_column_are_converted_and_other_texts_are_rejected(
    database: sqlite3.Connection, extra: str
) -> None:
    database.execute(f"CREATE TABLE flags (id INTEGER PRIMARY KEY, flag BOOLEAN{extra})")
    database.executemany("INSERT INTO flags (flag) VALUES (?)", [(0,), (1,), ("false",), ("TRUE",), (None,)])
    database.commit()
    props = _props(database, mode="bulk")
    assert [row[1] for row in rows(read_all(props))] == [False, True, False, True, None]
    database.execute("INSERT INTO flags (flag) VALUES ('no')")
    database.commit()
    with pytest.raises(ConnectError, match=r"flags, column flag, row id=6: .* but 'no' is not a boolean"):
        read_all(props)


def test_table_with_more_columns_than_the_json_function_of_sqlite_accepts_is_read(database: sqlite3.Connection) -> None:
    names = ", ".join(f"c{number} INTEGER" for number in range(300))
    database.execute(f"CREATE TABLE wide (id INTEGER PRIMARY KEY, {names})")
    database.execute("INSERT INTO wide (id, c299) VALUES (1, 2)")
    [row] = rows(read_all(_props(database, mode="incrementing")))
    assert (row[0], row[1], row[300]) == (1, None, 2)


def test_non_integer_value_in_the_incrementing_column_fails_the_task(database: sqlite3.Connection) -> None:
    database.execute("CREATE TABLE t (id NUMERIC(20,0) NOT NULL)")
    database.executemany("INSERT INTO t VALUES (?)", [(1,), (1.5,)])
    with pytest.raises(ConnectError, match=r"t: .* must be integers: 1\.5 is not an integer\. The row is \(1\.5,\)"):
        read_all(_props(database, mode="incrementing", incrementing_column_name="id"))


def test_table_monitor_requests_reconfiguration_for_new_tables(database: sqlite3.Connection) -> None:
    _orders(database, 1)
    connector = JdbcSourceConnector()
    connector.context = context = Context(Offsets())
    connector.start(JdbcSourceConfig.parse(_props(database, mode="bulk", table_poll_interval_ms="10")))
    try:
        database.execute("CREATE TABLE people (id INTEGER PRIMARY KEY)")
        deadline = dt.datetime.now() + dt.timedelta(seconds=10)
        while not context.reconfigurations and dt.datetime.now() < deadline:
            connector._stopping.wait(0.01)
        assert connector.task_configs(1)[0]["tables"] == "orders,people"
    finally:
        connector.stop()


def test_table_monitor_requests_reconfiguration_for_dropped_tables(database: sqlite3.Connection) -> None:
    _orders(database, 1)
    database.execute("CREATE TABLE people (id INTEGER PRIMARY KEY)")
    connector = JdbcSourceConnector()
    connector.context = context = Context(Offsets())
    connector.start(JdbcSourceConfig.parse(_props(database, mode="bulk", table_poll_interval_ms="10")))
    try:
        database.execute("DROP TABLE orders")
        wait_for(lambda: context.reconfigurations == 1, "the monitor requests a reconfiguration", 40)
        assert [each["tables"] for each in connector.task_configs(1)] == ["people"]
        database.execute("DROP TABLE people")
        wait_for(lambda: context.reconfigurations == 2, "the monitor requests a reconfiguration", 40)
        assert connector.task_configs(1) == []
    finally:
        connector.stop()


def test_log_lines_of_the_table_monitor_contain_the_connector_context(
    database: sqlite3.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "headrace_connectors.jdbc.source")
    _orders(database, 1)
    lines: queue.Queue[str] = queue.Queue()
    handler = logging.Handler()
    handler.setFormatter(logs.LineFormatter())
    handler.emit = lambda record: lines.put(handler.format(record))  # type: ignore[method-assign]
    logger = logging.getLogger("headrace_connectors.jdbc.source")
    connector = JdbcSourceConnector()
    connector.context = Context(Offsets())
    logger.addHandler(handler)
    token = logs.connector_context.set(logs.context("shop", "worker"))
    try:
        connector.start(JdbcSourceConfig.parse(_props(database, mode="bulk", table_poll_interval_ms="10")))
        connector._dialect.table_names = lambda: ["people"]  # type: ignore[method-assign]
        while "The tables to read are now" not in (line := lines.get(timeout=30)):
            pass
        assert "[shop|worker] The tables to read are now people" in line
    finally:
        logs.connector_context.reset(token)
        logger.removeHandler(handler)
        connector.stop()


@pytest.mark.parametrize(
    ("statement", "reason"),
    [
        ("CREATE TABLE bad (name TEXT)", "bad"),
        ("CREATE VIEW bad AS SELECT * FROM missing", "no such table: main.missing"),
    ],
)
def test_table_that_cannot_be_read_does_not_stop_the_healthy_tables(
    database: sqlite3.Connection, caplog: pytest.LogCaptureFixture, statement: str, reason: str
) -> None:
    _orders(database, 1)
    connector = JdbcSourceConnector()
    connector.context = context = Context(Offsets())
    props = _props(
        database,
        mode="incrementing",
        incrementing_column_name="id",
        table_poll_interval_ms="10",
        table_types="TABLE,VIEW",
    )
    connector.start(JdbcSourceConfig.parse(props))

    def errors() -> list[str]:
        return [line.getMessage() for line in caplog.records if line.levelno == logging.ERROR]

    try:
        database.execute(statement)
        wait_for(lambda: errors(), "the monitor logs an error", 30)
        assert errors()[0].startswith("Table bad is skipped: ")
        assert reason in errors()[0]
        database.execute("CREATE TABLE people (id INTEGER PRIMARY KEY)")
        wait_for(lambda: context.reconfigurations == 1, "the monitor requests a reconfiguration", 30)
        assert [each["tables"] for each in connector.task_configs(1)] == ["orders,people"]
        assert len(errors()) == 1
    finally:
        connector.stop()
    assert {batch.topic for batch in read_all(props)} == {"orders"}  # also after a restart


def test_only_table_that_cannot_be_read_fails_the_task(database: sqlite3.Connection) -> None:
    database.execute("CREATE TABLE bad (name TEXT)")
    with pytest.raises((ConnectError, ConfigErrors)):
        read_all(_props(database, mode="incrementing", incrementing_column_name="id"))


def test_table_monitor_skips_a_new_table_that_would_be_written_to_the_topic_of_another_table(
    database: sqlite3.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    _orders(database, 1)
    connector = JdbcSourceConnector()
    connector.context = context = Context(Offsets())
    connector.start(JdbcSourceConfig.parse(_props(database, mode="bulk", table_poll_interval_ms="10")))
    try:
        connector._dialect.table_names = lambda: ["new.orders", "orders"]  # type: ignore[method-assign]
        wait_for(lambda: "would be written to the same topic" in caplog.text, "the monitor logs an error", 30)
        assert "Table new.orders is skipped: tables orders and new.orders would be written to" in caplog.text
        assert context.reconfigurations == 0
        assert connector.task_configs(1)[0]["tables"] == "orders"
    finally:
        connector.stop()


@pytest.mark.parametrize("column", ["name TEXT", "n INT, name TEXT, at TIMESTAMP"])
@pytest.mark.parametrize(
    ("settings", "read"),
    [({}, [1, 3]), ({"unmappable.values": "null"}, [1, 2, 3]), ({"unmappable.values": "fail"}, None)],
)
def test_row_with_an_unmappable_value_is_skipped_and_reported_if_errors_are_tolerated(
    database: sqlite3.Connection, column: str, settings: dict[str, str], read: list[int] | None
) -> None:
    database.execute(f"CREATE TABLE items (id INTEGER PRIMARY KEY, {column})")
    database.execute("INSERT INTO items (id, name) VALUES (1, 'a'), (2, CAST(x'62ff' AS TEXT)), (3, 'c')")
    props = _props(database, mode="incrementing", incrementing_column_name="id") | settings
    if read is None:
        with pytest.raises(ConnectError, match="row id=2"):
            run_source(JdbcSourceConnector, {**props, "errors.tolerance": "all"}, records=10)
        return
    run = run_source(JdbcSourceConnector, {**props, "errors.tolerance": "all"}, records=len(read))
    assert [record.value["id"] for record in run.records] == read
    assert len(run.skipped) == 3 - len(read)


def test_query_that_failed_thousands_of_times_is_still_retried(
    database: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    _orders(database, 1)
    # Without a busy timeout, a query on a locked database fails immediately. With a timeout, it waits for 10 s.
    monkeypatch.setattr(sqlite, "_BUSY_TIMEOUT_S", 0.0)
    task = JdbcSourceTask()
    task.context = Context(Offsets())  # type: ignore[assignment]
    task.poll_block_s = 0.0
    task.start(JdbcSourceTaskConfig.parse(_props(database, mode="bulk", tables="orders")))
    task._retries._failures = 5000
    database.execute("BEGIN EXCLUSIVE")
    try:
        with pytest.raises(RetriableError, match="locked"):
            task.poll()
        database.execute("COMMIT")
        assert task.poll() is not None
        assert not task._retries.are_pending
    finally:
        task.stop()


def test_error_for_a_file_that_is_not_a_database_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("not a database file " * 150)
    with pytest.raises(ConnectError, match=r"Cannot connect to jdbc:sqlite:.*notes\.txt"):
        read_all({"connection.url": f"jdbc:sqlite:{path}", "mode": "bulk"})


def test_query_with_an_sql_error_fails_the_task_without_retries(database: sqlite3.Connection) -> None:
    _orders(database, 1)
    props = _props(database, mode="bulk", query="SELECT wrong FROM orders", topic_prefix="t")
    with pytest.raises(ConnectError, match="the query failed: no such column: wrong"):
        read_all(props)


def test_column_without_a_declared_type_is_read_as_text_or_skipped_or_rejected_as_configured(
    database: sqlite3.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, anything)")
    database.executemany("INSERT INTO t VALUES (?, ?)", [(1, "a"), (2, 5), (3, 0.5), (4, b"x"), (5, None)])
    props = _props(database, mode="incrementing", incrementing_column_name="id")
    assert rows(read_all(props)) == [(1, "a"), (2, "5"), (3, "0.5"), (4, "x"), (5, None)]
    assert rows(read_all({**props, "unsupported.columns": "warn"})) == [(1,), (2,), (3,), (4,), (5,)]
    assert "no Connect type can represent the columns anything (unknown type)" in caplog.text
    with pytest.raises(ConnectError, match=r"set unsupported\.columns=text"):
        read_all({**props, "unsupported.columns": "fail"})


def test_invalid_timestamp_fails_the_task_or_is_skipped_or_replaced_by_null_as_configured(
    database: sqlite3.Connection,
) -> None:
    database.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, at TIMESTAMP)")
    database.executemany("INSERT INTO t VALUES (?, ?)", [(1, "2026-01-01"), (2, "soon"), (3, None)])
    props = _props(database, mode="incrementing", incrementing_column_name="id")
    with pytest.raises(ConnectError, match=r"t, column at, row id=2: .*or set unmappable\.values=null or skip"):
        read_all(props)
    assert [row[0] for row in rows(read_all({**props, "unmappable.values": "skip"}))] == [1, 3]
    assert [row[1] is None for row in rows(read_all({**props, "unmappable.values": "null"}))] == [False, True, True]


def test_running_task_reads_a_column_that_is_added_to_the_table(database: sqlite3.Connection) -> None:
    _orders(database, 1)
    task = JdbcSourceTask()
    task.context = Context(Offsets())
    task.start(JdbcSourceTaskConfig.parse(_props(database, mode="bulk", tables="orders", poll_interval_ms="0")))
    try:
        before = task.poll()
        database.execute("ALTER TABLE orders ADD COLUMN note TEXT DEFAULT 'new'")
        task.poll()  # the first statement returns no more rows
        after = task.poll()
    finally:
        task.stop()
    assert before is not None
    assert after is not None
    assert [row[-1] for row in rows([after])] == ["new"]
    assert len(rows([after])[0]) == len(rows([before])[0]) + 1


def test_table_with_a_comma_in_its_name_is_skipped_and_other_tables_are_read(
    database: sqlite3.Connection, caplog: pytest.LogCaptureFixture
) -> None:
    _orders(database, 1)
    database.execute('CREATE TABLE "a,b" (id INTEGER PRIMARY KEY)')
    assert rows(read_all(_props(database, mode="bulk"))) == [(1, "item-1")]
    assert "Table a,b is not read: table names with commas are not supported" in caplog.text


@pytest.mark.parametrize("name", ["my table", "größe", "x" * 249, "a/b"])
def test_table_whose_topic_would_be_invalid_is_skipped_and_other_tables_are_read(
    database: sqlite3.Connection, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    _orders(database, 1)
    database.execute(f'CREATE TABLE "{name}" (id INTEGER PRIMARY KEY)')
    database.execute(f'INSERT INTO "{name}" VALUES (7)')
    props = _props(database, mode="bulk", topic_prefix="x-")
    assert rows(read_all(props)) == [(1, "item-1")]
    errors = [record for record in caplog.records if record.levelname == "ERROR"]
    (message,) = [record.getMessage() for record in errors]
    assert message.startswith(f"Table {name} is not read: its topic would be 'x-{name}', but a topic name has 1 to 249")
    assert "RegexRouter" in message
    # A transform may rename the topic.
    assert sorted(row[0] for row in rows(read_all({**props, "transforms": "topic"}))) == [1, 7]
