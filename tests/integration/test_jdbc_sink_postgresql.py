"""Tests of the JDBC sink with a real PostgreSQL server."""

from __future__ import annotations

import datetime as dt
import threading
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from headrace.api.errors import ConnectError, DataError
from headrace.data.logical import (
    DATE_SCHEMA,
    OPTIONAL_TIMESTAMP_SCHEMA,
    TIME_SCHEMA,
    TIMESTAMP_SCHEMA,
    Date,
    Timestamp,
    decimal_schema,
)
from headrace.data.schema import (
    BOOLEAN_SCHEMA,
    BYTES_SCHEMA,
    FLOAT64_SCHEMA,
    INT8_SCHEMA,
    INT32_SCHEMA,
    INT64_SCHEMA,
    OPTIONAL_STRING_SCHEMA,
    STRING_SCHEMA,
    array,
    struct,
)
from support import postgres
from support.jdbc_sink import item, put, put_after_change, record, tombstone, validation_errors

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.integration,
    pytest.mark.skipif(bool(postgres.unavailable_reason()), reason=postgres.unavailable_reason() or ""),
]

MANY = 60
"""More rows than the sink sends with INSERT."""

ONLY_ID = struct([("id", INT32_SCHEMA)])

Database = psycopg.Connection[Any]


@pytest.fixture(scope="module")
def server() -> Iterator[postgres.Postgres]:
    with postgres.running() as running:
        yield running


@pytest.fixture
def database(server: postgres.Postgres) -> Iterator[Database]:
    with psycopg.connect(server.conninfo, autocommit=True) as connection:
        yield connection
        connection.execute("DROP SCHEMA public CASCADE; DROP SCHEMA IF EXISTS other CASCADE; CREATE SCHEMA public")


@pytest.fixture
def url(server: postgres.Postgres) -> str:
    return f"{server.jdbc_url}?user={server.user}"


def query(database: Database, sql: str) -> list[tuple[Any, ...]]:
    return database.execute(sql).fetchall()  # type: ignore[call-overload,no-any-return]


@pytest.mark.parametrize("count", [3, MANY])
class TestInsertModes:
    def test_rows_are_inserted_into_a_new_table(self, url: str, database: Database, count: int) -> None:
        put(url, [item(number, "tab\t\\N\nline\r", 0.5) for number in range(count)])
        found = query(database, "SELECT id, name, price FROM items ORDER BY id")
        assert found == [(number, "tab\t\\N\nline\r", 0.5) for number in range(count)]

    def test_upsert_writes_the_last_value_of_each_key(self, url: str, database: Database, count: int) -> None:
        props = {"insert__mode": "upsert", "pk__mode": "record_key"}
        put(url, [item(number) for number in range(count)], **props)
        later = [item(1, "a", offset=0), *(item(number, "b", offset=number + 1) for number in range(count))]
        put(url, [*later, item(2, "c", offset=count + 1)], **props)
        names = dict(query(database, "SELECT id, name FROM items"))
        assert names == dict.fromkeys(range(count), "b") | {2: "c"}

    def test_insert_mode_update_changes_only_existing_rows(self, url: str, database: Database, count: int) -> None:
        props = {"pk__mode": "record_key"}
        put(url, [item(number) for number in range(count)], **props)
        put(url, [item(number, "new") for number in range(1, count + 1)], insert__mode="update", **props)
        assert query(database, "SELECT count(*), count(*) FILTER (WHERE name = 'new') FROM items") == [
            (count, count - 1)
        ]

    def test_tombstones_delete_rows_if_delete_enabled_is_true(self, url: str, database: Database, count: int) -> None:
        props = {"insert__mode": "upsert", "pk__mode": "record_key", "delete__enabled": "true"}
        records = [
            *(item(number) for number in range(count)),
            *(tombstone(number, count + number) for number in range(2)),
        ]
        put(url, records, **props)
        assert query(database, "SELECT count(*), min(id) FROM items") == [(count - 2, 2)]

    def test_records_that_the_database_rejects_are_reported_and_other_records_are_written(
        self, url: str, database: Database, count: int
    ) -> None:
        database.execute("CREATE TABLE items (id int PRIMARY KEY, name varchar(5), price float8 CHECK (price > 0))")
        records = [item(number, price=1.0) for number in range(count)]
        records[1] = item(1, "much too long", 1.0)
        records[2] = item(2, price=-1.0)
        run = put(url, records, errors__tolerance="all", insert__mode="upsert", pk__mode="record_key")
        assert [found.offset for found, _ in run.reported] == [1, 2]
        texts = [str(error) for _, error in run.reported]
        assert "value too long for type character varying(5)" in texts[0]
        assert "items_price_check" in texts[1]
        assert query(database, "SELECT count(*) FROM items") == [(count - 2,)]

    def test_record_that_the_database_rejects_fails_the_task_and_no_record_of_its_batch_is_written(
        self, url: str, database: Database, count: int
    ) -> None:
        database.execute("CREATE TABLE items (id int, name text, price float8 CHECK (price > 0))")
        with pytest.raises(DataError, match=r"rejects record items-0@2 for table .items."):
            put(url, [item(number, price=-1.0 if number == 2 else 1.0) for number in range(count)])
        assert query(database, "SELECT count(*) FROM items") == [(0,)]


@pytest.mark.parametrize("mode", ["update", "upsert"])
@pytest.mark.parametrize(
    ("type_", "keys"),
    [
        ("uuid", ("8a36daae-7626-4f4c-bb45-e0782c7a4d2b", "8A36DAAE-7626-4F4C-BB45-E0782C7A4D2B")),
        ("char(4)", ("a", "a ")),
        ("numeric", ("1.0", "1")),
    ],
)
def test_last_of_several_records_is_written_if_the_database_considers_their_keys_equal(
    url: str, database: Database, mode: str, type_: str, keys: tuple[str, str]
) -> None:
    database.execute(f"CREATE TABLE items (code {type_} PRIMARY KEY, id int)")  # type: ignore[call-overload]
    database.execute("INSERT INTO items VALUES (%s, -1)", [keys[0]])
    for last in (MANY, MANY + 1):
        records = [record(n, {"id": n}, ONLY_ID, key=keys[n % 2], key_schema=STRING_SCHEMA) for n in range(last)]
        put(url, records, insert__mode=mode, pk__mode="record_key", pk__fields="code")
        assert query(database, "SELECT id FROM items") == [(last - 1,)]


def test_every_connect_type_is_stored_without_loss(url: str, database: Database) -> None:
    schema = struct(
        [("i8", INT8_SCHEMA), ("i64", INT64_SCHEMA), ("f", FLOAT64_SCHEMA), ("b", BOOLEAN_SCHEMA),
         ("bytes", BYTES_SCHEMA), ("dec", decimal_schema(20)), ("d", DATE_SCHEMA), ("t", TIME_SCHEMA),
         ("ts", TIMESTAMP_SCHEMA), ("o", OPTIONAL_STRING_SCHEMA), ("list", array(STRING_SCHEMA)),
         ("numbers", array(INT32_SCHEMA))],
    )  # fmt: skip
    row = {"i8": -128, "i64": -(2**63), "f": 0.1, "b": True, "bytes": b"\x00\xff\t", "o": None,
           "dec": Decimal("123456789012345678901234567890.12345678901234567890"), "d": dt.date(1, 2, 3),
           "t": dt.time(23, 59, 59, 999000), "ts": dt.datetime(2026, 7, 1, 12, 0, 0, 5000, tzinfo=dt.UTC),
           "list": ['a "quoted" \\ item', "NULL", "", "a,b"], "numbers": [1, 2]}  # fmt: skip
    for count in (1, MANY):
        put(url, [record(number, row, schema) for number in range(count)])
    names = ", ".join(f'"{name}"' for name in row)
    stored = tuple({**row, "ts": dt.datetime(2026, 7, 1, 12, 0, 0, 5000)}.values())
    assert set(map(repr, query(database, f"SELECT {names} FROM items"))) == {repr(stored)}


@pytest.mark.parametrize("count", [3, MANY])
def test_text_of_numbers_and_booleans_in_text_columns_does_not_depend_on_the_number_of_records(
    url: str, database: Database, count: int
) -> None:
    database.execute("CREATE TABLE items (id text, number text, flag text)")
    schema = struct([("id", INT32_SCHEMA), ("number", FLOAT64_SCHEMA), ("flag", BOOLEAN_SCHEMA)])
    put(url, [record(n, {"id": 7, "number": 1e16, "flag": True}, schema) for n in range(count)])
    assert query(database, "SELECT DISTINCT * FROM items") == [("7", "1e16", "t")]


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
def test_nan_and_infinities_are_stored(url: str, database: Database, value: float) -> None:
    put(url, [item(1, price=value)])
    assert repr(query(database, "SELECT price FROM items")) == repr([(value,)])


def test_timestamps_are_stored_as_local_times_of_the_configured_db_timezone_in_columns_without_time_zone(
    url: str, database: Database
) -> None:
    database.execute("CREATE TABLE items (local timestamp, zoned timestamptz)")
    schema = struct([("local", TIMESTAMP_SCHEMA), ("zoned", TIMESTAMP_SCHEMA)])
    instant = dt.datetime(2026, 7, 1, 12, tzinfo=dt.UTC)
    put(url, [record(0, {"local": instant, "zoned": instant}, schema)], db__timezone="Europe/Berlin")
    ((local, zoned),) = query(database, "SELECT local, zoned FROM items")
    assert local == dt.datetime(2026, 7, 1, 14)
    assert zoned == instant


def test_strings_are_stored_in_jsonb_uuid_and_enum_columns(url: str, database: Database) -> None:
    database.execute("CREATE TYPE mood AS ENUM ('sad', 'glad')")
    database.execute("CREATE TABLE items (doc jsonb, uid uuid, feeling mood)")
    schema = struct([("doc", STRING_SCHEMA), ("uid", STRING_SCHEMA), ("feeling", STRING_SCHEMA)])
    row = {"doc": '{"a": "\\n"}', "uid": "00000000-0000-0000-0000-000000000001", "feeling": "glad"}
    for count in (1, MANY):
        put(url, [record(number, row, schema) for number in range(count)])
    assert query(database, "SELECT DISTINCT doc->>'a', uid::text, feeling::text FROM items") == [
        ("\n", row["uid"], "glad")
    ]


@pytest.mark.parametrize("count", [2, MANY])
@pytest.mark.parametrize("name", ['a"; DROP TABLE keep; --', "select", "naïve 表", "x'y", "100%s", "a\\b"])
def test_table_and_column_names_with_special_characters_are_quoted(
    url: str, database: Database, name: str, count: int
) -> None:
    database.execute("CREATE TABLE keep (id int)")
    schema = struct([(name, INT32_SCHEMA), ("id", INT32_SCHEMA)])
    quoted = '"' + name.replace('"', '""') + '"'
    records = [record(number, {name: 5, "id": number}, schema) for number in range(count)]
    for mode in ("insert", "upsert", "update"):
        put(url, records, table__name__format=quoted, pk__mode="record_value", pk__fields="id", insert__mode=mode)
    assert query(database, f"SELECT count(*), min({quoted}) FROM {quoted}") == [(count, 5)]
    assert query(database, "SELECT count(*) FROM keep") == [(0,)]


def test_sink_creates_and_extends_tables_in_the_database_schema_given_in_table_name_format(
    url: str, database: Database
) -> None:
    database.execute("CREATE SCHEMA other")
    put(url, [item(1)], table__name__format="other.${topic}", fields__whitelist="id")
    put(url, [item(2)], table__name__format="other.${topic}", auto__evolve="true")
    assert query(database, "SELECT id, name FROM other.items ORDER BY id") == [(1, None), (2, "n2")]


def test_sink_writes_to_partitioned_tables_and_views(url: str, database: Database) -> None:
    database.execute("CREATE TABLE items (id int, name text, price float8) PARTITION BY RANGE (id)")
    database.execute("CREATE TABLE items_all PARTITION OF items DEFAULT")
    put(url, [item(number) for number in range(MANY)])
    database.execute("CREATE VIEW seen AS SELECT * FROM items")
    put(url, [item(number) for number in range(MANY)], table__name__format="seen", table__types="TABLE,VIEW")
    assert query(database, "SELECT count(*) FROM items") == [(2 * MANY,)]


UPSERT = {"insert__mode": "upsert", "pk__mode": "record_key"}


def test_upsert_into_a_table_without_a_unique_constraint_is_rejected(url: str, database: Database) -> None:
    database.execute("CREATE TABLE items (id int, name text, price float8)")
    problem = r'Table "items" has no primary key or unique index on the columns of pk.fields \("id"\)'
    for count in (1, MANY):
        with pytest.raises(ConnectError, match=problem):
            put(url, [item(number) for number in range(count)], errors__tolerance="all", **UPSERT)
    assert query(database, "SELECT count(*) FROM items") == [(0,)]


def test_only_records_whose_upserts_violate_a_unique_constraint_other_than_the_primary_key_are_rejected(
    url: str, database: Database
) -> None:
    database.execute("CREATE TABLE items (id int PRIMARY KEY, name text UNIQUE, price float8)")
    database.execute("INSERT INTO items VALUES (1000, 'taken', 1)")
    names = {7: "taken"}
    records = [item(number, names.get(number, f"n{number}"), offset=number) for number in range(MANY)]
    run = put(url, records, errors__tolerance="all", **UPSERT)
    assert [found.offset for found, _ in run.reported] == [7]
    assert query(database, "SELECT count(*), max(id) FROM items") == [(MANY, 1000)]


def test_upserts_of_new_and_existing_rows_write_every_row(url: str, database: Database) -> None:
    records = []
    for turn in range(12):  # every third batch has new rows only, and the others change rows of earlier batches
        first = turn * MANY if turn % 3 == 0 else (turn - 1) * MANY + 30
        records += [item(first + number, f"turn {turn}", offset=len(records) + number) for number in range(MANY)]
    expected = {each.value.row[0]: each.value.row[1] for each in records}
    put(url, records, batch__size=str(MANY), **UPSERT)
    assert dict(query(database, "SELECT id, name FROM items")) == expected


def test_tasks_that_create_the_same_table_at_the_same_time_succeed(url: str, database: Database) -> None:
    failures: list[Exception] = []

    def task(number: int) -> None:
        try:
            put(url, [record(offset, {"id": offset}, topic="shared") for offset in range(number, number + 5)])
        except Exception as error:  # noqa: BLE001 - the test reports any exception of a thread
            failures.append(error)

    threads = [threading.Thread(target=task, args=(10 * number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert query(database, "SELECT count(*) FROM shared") == [(20,)]


def test_transaction_that_fails_with_a_deadlock_is_retried(url: str, database: Database) -> None:
    put(url, [item(1)], pk__mode="record_key")
    database.execute("CREATE FUNCTION fail_once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                     "IF nextval('attempts') < 3 THEN RAISE SQLSTATE '40P01' USING MESSAGE = 'deadlock'; END IF; "
                     "RETURN NEW; END $$; CREATE SEQUENCE attempts; "
                     "CREATE TRIGGER t BEFORE INSERT ON items FOR EACH ROW EXECUTE FUNCTION fail_once()")  # fmt: skip
    put(url, [item(2)], insert__mode="upsert", pk__mode="record_key")
    assert query(database, "SELECT id FROM items ORDER BY id") == [(1,), (2,)]
    assert query(database, "SELECT last_value FROM attempts") == [(3,)]


def test_sink_reconnects_and_writes_every_row_after_the_server_closed_its_connection(
    url: str, database: Database
) -> None:
    put(url, [item(1)])
    database.execute("CREATE FUNCTION die_once() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
                     "IF nextval('attempts') < 2 THEN PERFORM pg_terminate_backend(pg_backend_pid()); END IF; "
                     "RETURN NEW; END $$; CREATE SEQUENCE attempts; "
                     "CREATE TRIGGER t BEFORE INSERT ON items FOR EACH ROW EXECUTE FUNCTION die_once()")  # fmt: skip
    put(url, [item(number) for number in range(2, MANY)])
    assert query(database, "SELECT count(*) FROM items") == [(MANY - 1,)]


def test_table_that_is_dropped_while_the_task_runs_is_created_again(url: str, database: Database) -> None:
    put(url, [item(1)])
    database.execute("DROP TABLE items")
    put(url, [item(2)])
    assert query(database, "SELECT id FROM items") == [(2,)]


def test_error_for_missing_privileges_names_the_table(url: str, database: Database) -> None:
    database.execute("REVOKE ALL ON SCHEMA public FROM public; CREATE ROLE reader LOGIN")
    database.execute("CREATE TABLE items (id int, name text, price float8)")
    as_reader = url.replace("user=postgres", "user=reader")
    try:
        with pytest.raises(DataError, match=r"Cannot create table items .*: no schema has been selected"):
            put(as_reader, [item(1)])
        database.execute("GRANT USAGE ON SCHEMA public TO reader")
        with pytest.raises(ConnectError, match="permission denied for table items"):
            put(as_reader, [item(1)], errors__tolerance="all")
        with pytest.raises(ConnectError, match=r"Cannot create table others .*permission denied for schema public"):
            put(as_reader, [item(1)], errors__tolerance="all", table__name__format="others")
    finally:
        database.execute("REVOKE USAGE ON SCHEMA public FROM reader; DROP ROLE reader")


def test_error_for_an_unreachable_server_names_its_address() -> None:
    with pytest.raises(ConnectError, match=r"Cannot connect to postgresql://127\.0\.0\.1:1/shop"):
        put("jdbc:postgresql://127.0.0.1:1/shop?user=x", [item(1)], connection__attempts="1")


def test_write_to_a_read_only_server_is_retried_and_then_fails_the_task(url: str, database: Database) -> None:
    put(url, [item(1)])
    database.execute("ALTER ROLE postgres SET default_transaction_read_only = on")
    try:
        with pytest.raises(ConnectError, match=r"read-only transaction; giving up after 3 attempts \(max\.retries\)"):
            put(url, [item(2)], errors__tolerance="all", max__retries="2")
    finally:
        database.execute("ALTER ROLE postgres RESET default_transaction_read_only")


def test_rows_that_a_trigger_rejects_are_reported(url: str, database: Database) -> None:
    put(url, [item(0)])
    database.execute(
        "CREATE FUNCTION check_item() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN IF NEW.id = 7 THEN RAISE EXCEPTION 'not seven'; END IF; RETURN NEW; END $$"
    )
    database.execute("CREATE TRIGGER t BEFORE INSERT ON items FOR EACH ROW EXECUTE FUNCTION check_item()")
    run = put(url, [item(number) for number in range(1, MANY)], errors__tolerance="all")
    assert [found.offset for found, _ in run.reported] == [7]


@pytest.mark.parametrize("count", [3, MANY])
def test_dates_and_timestamps_of_all_years_are_stored(url: str, database: Database, count: int) -> None:
    """In years before 1883, New York has its local mean time."""
    schema = struct(
        [
            ("at", TIMESTAMP_SCHEMA),
            ("day", DATE_SCHEMA),
            ("many", array(OPTIONAL_TIMESTAMP_SCHEMA)),
            ("zoned", TIMESTAMP_SCHEMA),
        ]
    )
    expected = {
        (253402318799000, 2932896): ("9999-12-31 23:59:59", "9999-12-31", "10000-01-01 04:59:59+00"),
        (9224317947600000, 2145042905): ("294276-12-31 00:00:00", "5874897-12-31", "294276-12-31 05:00:00+00"),
        (-62135579038000, -719162): ("0001-01-01 00:00:00", "0001-01-01", "0001-01-01 04:56:02+00"),
        (-63517763038000, -735160): ("0044-03-15 12:00:00 BC", "0044-03-15 BC", "0044-03-15 16:56:02+00 BC"),
    }
    rows = [
        {"at": Timestamp(ms), "day": Date(days), "many": [Timestamp(ms), None], "zoned": Timestamp(ms)}
        for ms, days in expected
    ]
    database.execute("CREATE TABLE items (at timestamp, day date, many timestamp[], zoned timestamptz)")
    records = [record(number, rows[number % len(rows)], schema) for number in range(max(count, len(rows)))]
    put(url, records, db__timezone="America/New_York")
    found = query(
        database, "SELECT DISTINCT at::text, day::text, (many[1])::text, many[2]::text, zoned::text FROM items"
    )
    assert set(found) == {(at, day, at, None, zoned) for at, day, zoned in expected.values()}


@pytest.mark.parametrize("count", [3, MANY])
@pytest.mark.parametrize("milliseconds", [2**63 - 1, -(2**63)])
def test_record_is_rejected_if_postgresql_cannot_store_its_timestamp(
    url: str, database: Database, count: int, milliseconds: int
) -> None:
    schema = struct([("id", INT32_SCHEMA), ("at", TIMESTAMP_SCHEMA)])
    records = [record(n, {"id": n, "at": Timestamp(0)}, schema) for n in range(count)]
    records[1] = record(1, {"id": 1, "at": Timestamp(milliseconds)}, schema)
    run = put(url, records, errors__tolerance="all", db__timezone="Europe/Berlin")
    assert [found.offset for found, _ in run.reported] == [1]
    assert "(column at: type timestamp without time zone" in str(run.reported[0][1])
    assert "timestamp out of range" in str(run.reported[0][1])
    assert query(database, "SELECT count(*) FROM items") == [(count - 1,)]


@pytest.mark.parametrize("count", [3, MANY])
def test_only_records_with_characters_that_the_encoding_cannot_represent_are_rejected(
    server: postgres.Postgres, database: Database, count: int
) -> None:
    database.execute("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    records = [item(number, "é") for number in range(count)]
    records[1] = item(1, "日")
    try:
        run = put(f"{server.jdbc_url[: -len('postgres')]}latin?user={server.user}", records, errors__tolerance="all")
        with psycopg.connect(server.conninfo, dbname="latin") as latin:
            assert latin.execute("SELECT name, count(*) FROM items GROUP BY name").fetchall() == [("é", count - 1)]
    finally:
        database.execute("DROP DATABASE latin WITH (FORCE)")
    assert [found.offset for found, _ in run.reported] == [1]
    assert 'has no equivalent in encoding "LATIN1"' in str(run.reported[0][1])


def test_encoding_of_the_connection_does_not_change_the_stored_characters(url: str, database: Database) -> None:
    for number in range(0, MANY + 1, MANY):
        put(url + "&options=-c%20client_encoding=LATIN1", [item(number + n, "日") for n in range(MANY)])
    assert query(database, "SELECT name, count(*) FROM items GROUP BY name") == [("日", 2 * MANY)]


def test_names_that_postgresql_would_shorten_are_rejected(url: str, database: Database) -> None:
    with pytest.raises(DataError, match=f"The name {64 * 't'} has 64 bytes"):
        put(url, [record(0, {"id": 1}, struct([("id", INT32_SCHEMA)]), topic=64 * "t")])
    with pytest.raises(DataError, match=f"The name {64 * 'c'} has 64 bytes"):
        put(url, [record(0, {64 * "c": 1}, struct([(64 * "c", INT32_SCHEMA)]))])
    assert query(database, "SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == [(0,)]


def test_only_records_whose_strings_contain_a_null_character_are_rejected(url: str, database: Database) -> None:
    records = [item(number) for number in range(MANY)]
    records[7] = item(7, "a\x00b")
    run = put(url, records, errors__tolerance="all")
    assert [found.offset for found, _ in run.reported] == [7]
    assert query(database, "SELECT count(*) FROM items") == [(MANY - 1,)]


@pytest.mark.parametrize("mode", ["insert", "upsert", "update"])
@pytest.mark.parametrize("change", ["DROP TABLE items", "ALTER TABLE items DROP COLUMN name"])
def test_table_or_column_that_was_dropped_is_created_again(
    url: str, database: Database, mode: str, change: str
) -> None:
    first = [item(number) for number in range(MANY)]
    second = [item(number + len(first)) for number in range(len(first))]
    props = {"insert__mode": mode, "pk__mode": "record_value", "pk__fields": "id", "auto__evolve": "true"}
    run = put_after_change(url, first, lambda: database.execute(change), second, errors__tolerance="all", **props)
    assert run.reported == []
    names = [name for (name,) in query(database, "SELECT name FROM items ORDER BY id")]
    if mode == "update":
        assert set(names) <= {None}
    else:
        assert names[-len(second) :] == [f"n{number + len(first)}" for number in range(len(second))]


def test_validation_connects_to_the_server_and_reports_each_connection_error_under_the_key_that_caused_the_error(
    server: postgres.Postgres, url: str
) -> None:
    assert validation_errors(url) == {}
    ((key, (message,)),) = validation_errors(server.jdbc_url, connection__user="nobody").items()
    assert (key, 'role "nobody" does not exist' in message) == ("connection.user", True)
    ((key, (message,)),) = validation_errors(server.jdbc_url + "x", connection__user="postgres").items()
    assert (key, 'database "postgresx" does not exist' in message) == ("connection.url", True)
    ((key, (message,)),) = validation_errors("jdbc:postgresql://127.0.0.1:1/shop").items()
    assert (key, "cannot connect to postgresql://127.0.0.1:1/shop" in message) == ("connection.url", True)
