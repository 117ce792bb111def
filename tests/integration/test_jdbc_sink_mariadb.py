"""Tests of the JDBC sink with a real MariaDB server."""

from __future__ import annotations

import datetime as dt
import tempfile
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import pymysql
import pytest

from headrace.api.errors import ConnectError, DataError
from headrace.data.logical import DATE_SCHEMA, TIME_SCHEMA, TIMESTAMP_SCHEMA, Date, Timestamp, decimal_schema
from headrace.data.records import SinkRecord
from headrace.data.schema import (
    BOOLEAN_SCHEMA,
    BYTES_SCHEMA,
    FLOAT64_SCHEMA,
    INT8_SCHEMA,
    INT32_SCHEMA,
    INT64_SCHEMA,
    OPTIONAL_STRING_SCHEMA,
    STRING_SCHEMA,
    struct,
)
from support import mariadb
from support.certificates import create_certificates
from support.jdbc_sink import item, put, put_after_change, record, tombstone, validation_errors

pytestmark = [
    pytest.mark.slow,
    pytest.mark.integration,
    pytest.mark.skipif(bool(mariadb.unavailable_reason()), reason=mariadb.unavailable_reason() or ""),
]

COUNT = 50
ONLY_ID = struct([("id", INT32_SCHEMA)])


@pytest.fixture(scope="module")
def server() -> Iterator[mariadb.MariaDb]:
    with mariadb.running() as running:
        yield running


@pytest.fixture
def database(server: mariadb.MariaDb) -> Iterator[Any]:
    connection = pymysql.connect(host="127.0.0.1", port=server.port, user=server.user, database="shop", autocommit=True)
    try:
        yield connection
        with connection.cursor() as cursor:
            cursor.execute("DROP DATABASE shop")
            cursor.execute("CREATE DATABASE shop CHARACTER SET utf8mb4")
    finally:
        connection.close()


@pytest.fixture
def url(server: mariadb.MariaDb) -> str:
    return f"{server.jdbc_url}?user={server.user}"


def query(database: Any, sql: str) -> list[Any]:
    with database.cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall())


def test_rows_are_inserted_into_a_new_table(url: str, database: Any) -> None:
    put(url, [item(number, "it's \\ ü 100%s", 0.5) for number in range(COUNT)])
    assert query(database, "SELECT * FROM items ORDER BY id") == [(n, "it's \\ ü 100%s", 0.5) for n in range(COUNT)]


def test_upserts_updates_and_deletes_are_applied_in_the_order_of_the_records(url: str, database: Any) -> None:
    props = {"insert__mode": "upsert", "pk__mode": "record_key", "delete__enabled": "true"}
    records = [*(item(number) for number in range(COUNT)), item(1, "new", offset=COUNT), tombstone(2, COUNT + 1)]
    put(url, records, **props)
    put(url, [item(3, "updated"), item(999)], insert__mode="update", pk__mode="record_key")
    assert query(database, "SELECT count(*), min(id) FROM items") == [(COUNT - 1, 0)]
    assert query(database, "SELECT name FROM items WHERE id IN (1, 3) ORDER BY id") == [("new",), ("updated",)]


def test_every_connect_type_is_stored_without_loss(url: str, database: Any) -> None:
    schema = struct(
        [("i8", INT8_SCHEMA), ("i64", INT64_SCHEMA), ("f", FLOAT64_SCHEMA), ("b", BOOLEAN_SCHEMA),
         ("bytes", BYTES_SCHEMA), ("dec", decimal_schema(5)), ("d", DATE_SCHEMA), ("t", TIME_SCHEMA),
         ("ts", TIMESTAMP_SCHEMA), ("o", OPTIONAL_STRING_SCHEMA)],
    )  # fmt: skip
    row = {"i8": -128, "i64": -(2**63), "f": 0.1, "b": True, "bytes": b"\x00\xff'\\", "dec": Decimal("-1234.56789"),
           "d": dt.date(2026, 2, 3), "t": dt.time(23, 59, 59, 999000),
           "ts": dt.datetime(2026, 7, 1, 12, 0, 0, 5000, tzinfo=dt.UTC), "o": None}  # fmt: skip
    put(url, [record(0, row, schema), record(1, row, schema)])
    stored = {**row, "b": 1, "t": dt.timedelta(hours=23, minutes=59, seconds=59, milliseconds=999),
              "ts": dt.datetime(2026, 7, 1, 12, 0, 0, 5000)}  # fmt: skip
    assert query(database, "SELECT * FROM items") == [tuple(stored.values())] * 2


def test_dates_and_timestamps_of_the_years_0_to_9999_are_stored_and_others_are_rejected(
    url: str, database: Any
) -> None:
    """In years before 1893, Berlin has its local mean time."""
    schema = struct([("at", TIMESTAMP_SCHEMA), ("day", DATE_SCHEMA)])
    values = {
        (253402297199000, 2932896): ("9999-12-31 23:59:59.000", "9999-12-31"),
        (-62135600008000, -719162): ("0001-01-01 00:00:00.000", "0001-01-01"),
        (-62156422408000, -719403): ("0000-05-05 00:00:00.000", "0000-05-05"),
        (253402297200000, 0): "field at: Timestamp(253402297200000) is not a valid ",
        (-(2**63), 0): "-292275055-05-16 17:40:32.192000 is not between the years 0 and 9999",
        (0, 2932897): "field day: Date(2932897) is not a valid ",
    }
    records = [
        record(number, {"at": Timestamp(ms), "day": Date(days)}, schema) for number, (ms, days) in enumerate(values)
    ]
    run = put(url, records, errors__tolerance="all", db__timezone="Europe/Berlin")
    stored = query(database, "SELECT CAST(at AS char), CAST(day AS char) FROM items ORDER BY at DESC")
    assert stored == list(values.values())[:3]
    assert [found.offset for found, _ in run.reported] == [3, 4, 5]
    for (_, error), text in zip(run.reported, list(values.values())[3:], strict=True):
        assert text in str(error)


def test_upsert_with_string_keys_creates_a_primary_key_column_of_limited_length(url: str, database: Any) -> None:
    keyed = [record(n, {"id": n}, key=f"k{n}", key_schema=STRING_SCHEMA) for n in range(3)]
    props = {"insert__mode": "upsert", "pk__mode": "record_key", "pk__fields": "code", "fields__whitelist": "id"}
    put(url, [*keyed, record(3, {"id": 7}, key="k1", key_schema=STRING_SCHEMA)], **props)
    assert query(database, "SELECT * FROM items ORDER BY code") == [("k0", 0), ("k1", 7), ("k2", 2)]


def test_records_that_the_database_rejects_are_reported_and_other_records_are_written(url: str, database: Any) -> None:
    query(database, "CREATE TABLE items (id INT, name VARCHAR(5), price DOUBLE)")
    records = [item(number) for number in range(COUNT)]
    records[7] = item(7, "much too long")
    run = put(url, records, errors__tolerance="all")
    assert [found.offset for found, _ in run.reported] == [7]
    assert "Data too long for column 'name'" in str(run.reported[0][1])
    assert query(database, "SELECT count(*) FROM items") == [(COUNT - 1,)]


@pytest.mark.parametrize("is_denied", [True, False])
def test_missing_privilege_fails_the_task_even_if_errors_are_tolerated(
    url: str, database: Any, server: mariadb.MariaDb, is_denied: bool
) -> None:
    query(database, "CREATE TABLE items (id INT, name TEXT, price DOUBLE)")
    query(database, "CREATE OR REPLACE USER reader@'127.0.0.1'")
    query(database, f"GRANT {'SELECT' if is_denied else 'SELECT, INSERT'} ON shop.* TO reader@'127.0.0.1'")
    as_reader = url.replace(f"user={server.user}", "user=reader")
    if is_denied:
        with pytest.raises(ConnectError, match="INSERT command denied to user 'reader'"):
            put(as_reader, [item(1)], errors__tolerance="all")
    with pytest.raises(ConnectError, match="CREATE command denied to user 'reader'"):
        put(as_reader, [item(1)], errors__tolerance="all", table__name__format="others")


def test_values_that_mysql_cannot_represent_are_reported(url: str, database: Any) -> None:
    query(database, "CREATE TABLE items (id INT CHECK (id <> 3), name TEXT NOT NULL, price DOUBLE)")
    records = [item(number, price=0.5) for number in range(6)]
    records[1] = item(1, price=float("nan"))
    run = put(url, records, errors__tolerance="all")
    assert [found.offset for found, _ in run.reported] == [1, 3]
    assert str(run.reported[0][1]).endswith("(column price: type double, value FLOAT64)")
    assert query(database, "SELECT count(*) FROM items") == [(4,)]


@pytest.mark.parametrize("mode", ["insert", "upsert", "update"])
@pytest.mark.parametrize("packet_bytes", [2**16, 2**20])
def test_only_records_that_are_larger_than_max_allowed_packet_are_rejected(
    url: str, database: Any, packet_bytes: int, mode: str
) -> None:
    query(database, "CREATE TABLE items (id INT PRIMARY KEY, name LONGTEXT, price DOUBLE)")
    if mode == "update":
        query(database, f"INSERT INTO items SELECT seq, '', 0 FROM seq_0_to_{COUNT - 1}")
    records = [item(number, "é" * (packet_bytes // 16)) for number in range(COUNT)]
    records[7] = item(7, "'" * (packet_bytes // 2))  # a quote is escaped with a backslash
    query(database, f"SET GLOBAL max_allowed_packet = {packet_bytes}")
    try:
        run = put(url, records, errors__tolerance="all", insert__mode=mode, pk__mode="record_key")
    finally:
        query(database, f"SET GLOBAL max_allowed_packet = {2**24}")
    assert [found.offset for found, _ in run.reported] == [7]
    assert "max_allowed_packet" in str(run.reported[0][1])
    found = query(database, f"SELECT count(*) FROM items WHERE char_length(name) = {packet_bytes // 16}")
    assert found == [(COUNT - 1,)]


def test_missing_columns_are_added_if_auto_evolve_is_true(url: str, database: Any) -> None:
    put(url, [item(1)], fields__whitelist="id")
    put(url, [item(2)], auto__evolve="true")
    assert query(database, "SELECT id, name FROM items ORDER BY id") == [(1, None), (2, "n2")]


@pytest.mark.parametrize("name", ["a`; DROP TABLE keep; --", "select", "naïve 表", "x'y", 'q"q', "100%s"])
def test_table_and_column_names_with_special_characters_are_quoted(url: str, database: Any, name: str) -> None:
    query(database, "CREATE TABLE keep (id INT)")
    schema = struct([(name, INT32_SCHEMA), ("id", INT32_SCHEMA)])
    put(url, [record(n, {name: 5, "id": 1}, schema) for n in range(2)],
        pk__mode="record_value", pk__fields="id", insert__mode="upsert")  # fmt: skip
    assert query(database, "SELECT `" + name.replace("`", "``") + "` FROM items") == [(5,)]
    assert query(database, "SELECT count(*) FROM keep") == [(0,)]


def test_sink_retries_after_the_server_reports_a_deadlock(url: str, database: Any) -> None:
    put(url, [item(1)])
    with database.cursor() as cursor:
        cursor.execute("CREATE TABLE attempts (n INT AUTO_INCREMENT PRIMARY KEY) ENGINE=Aria")
        cursor.execute(
            "CREATE TRIGGER die_once BEFORE INSERT ON items FOR EACH ROW BEGIN "
            "INSERT INTO attempts VALUES (NULL); "
            "IF LAST_INSERT_ID() = 1 THEN SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213; END IF; END"
        )
    put(url, [item(2)])
    assert query(database, "SELECT id FROM items ORDER BY id") == [(1,), (2,)]


@pytest.mark.parametrize("engine", ["MyISAM", "Aria"])
@pytest.mark.parametrize("key", ["", "PRIMARY KEY"])
def test_only_records_with_too_long_values_are_rejected_if_the_storage_engine_has_no_transactions(
    url: str, database: Any, engine: str, key: str
) -> None:
    query(database, f"CREATE TABLE items (id INT {key}, name VARCHAR(5), price DOUBLE) ENGINE={engine}")
    records = [item(number, "too long" if number in (30, 31) else "ok") for number in range(COUNT)]
    others = [record(number, {"id": number}, ONLY_ID, topic="others", key={"id": number}) for number in range(COUNT)]
    run = put(url, [*records, *others], errors__tolerance="all", pk__mode="record_key")
    assert [found.offset for found, _ in run.reported] == [30, 31]
    assert query(database, "SELECT count(*) FROM others") == [(COUNT,)]
    found = query(database, "SELECT count(*), count(DISTINCT id), max(name) FROM items")
    assert found == [(COUNT - 2, COUNT - 2, "ok")]


@pytest.mark.parametrize("state", ["02000", "45000"])
def test_rows_that_a_trigger_rejects_are_reported(url: str, database: Any, state: str) -> None:
    put(url, [item(0)])
    with database.cursor() as cursor:
        cursor.execute(
            "CREATE TRIGGER check_item BEFORE INSERT ON items FOR EACH ROW "
            f"IF NEW.id = 7 THEN SIGNAL SQLSTATE '{state}' SET MESSAGE_TEXT = 'not seven'; END IF"
        )
    run = put(url, [item(number) for number in range(1, COUNT)], errors__tolerance="all")
    assert [found.offset for found, _ in run.reported] == [7]
    assert query(database, "SELECT count(*) FROM items") == [(COUNT - 1,)]


def test_error_for_an_unreachable_server_names_its_address() -> None:
    with pytest.raises(ConnectError, match=r"Cannot connect to mysql://127\.0\.0\.1:1/shop"):
        put("jdbc:mysql://127.0.0.1:1/shop?user=x", [item(1)], connection__attempts="1")


def test_error_for_an_unknown_user_contains_the_servers_message_access_denied(server: mariadb.MariaDb) -> None:
    with pytest.raises((ConnectError, DataError), match="Access denied"):
        put(f"{server.jdbc_url}?user=nobody", [item(1)])


@pytest.fixture
def lax_server_settings(server: mariadb.MariaDb, database: Any) -> Iterator[None]:
    """Let new sessions accept values that do not fit their columns, and use a time zone other than UTC.

    The previous settings are restored after the test.
    """
    query(database, "SET GLOBAL sql_mode = ''")
    query(database, "SET GLOBAL time_zone = '+05:30'")
    yield
    query(database, "SET GLOBAL sql_mode = DEFAULT")
    query(database, "SET GLOBAL time_zone = DEFAULT")


@pytest.mark.usefixtures("lax_server_settings")
def test_values_that_are_too_long_for_a_column_are_rejected_unless_jdbc_compliant_truncation_is_false(
    url: str, database: Any
) -> None:
    query(database, "CREATE TABLE items (id INT PRIMARY KEY, name VARCHAR(5), price DOUBLE)")
    run = put(url, [item(1, "short"), item(2, "much too long")], errors__tolerance="all")
    assert [found.offset for found, _ in run.reported] == [2]
    assert "Data too long for column 'name'" in str(run.reported[0][1])
    put(f"{url}&jdbcCompliantTruncation=false", [item(3, "much too long")])
    assert query(database, "SELECT id, name FROM items ORDER BY id") == [(1, "short"), (3, "much ")]


@pytest.mark.usefixtures("lax_server_settings")
def test_key_that_is_longer_than_its_column_does_not_replace_another_row(url: str, database: Any) -> None:
    keys = ["k" * 255 + "1", "k" * 255 + "2", "k"]
    records = [record(n, {"id": n}, key=key, key_schema=STRING_SCHEMA) for n, key in enumerate(keys)]
    props = {"insert__mode": "upsert", "pk__mode": "record_key", "pk__fields": "code", "fields__whitelist": "id"}
    run = put(url, records, errors__tolerance="all", **props)
    assert [found.offset for found, _ in run.reported] == [0, 1]
    assert query(database, "SELECT code FROM items") == [("k",)]


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin"])
@pytest.mark.usefixtures("lax_server_settings")
def test_timestamp_columns_contain_the_correct_instants_if_the_server_time_zone_is_not_utc(
    url: str, database: Any, zone: str
) -> None:
    query(database, "CREATE TABLE items (id INT, at TIMESTAMP(3) NULL, local DATETIME(3), micros TIMESTAMP(3) NULL)")
    schema = struct(
        [("id", INT32_SCHEMA), ("at", TIMESTAMP_SCHEMA), ("local", TIMESTAMP_SCHEMA), ("micros", INT64_SCHEMA)]
    )
    instant = dt.datetime(2026, 10, 25, 1, 30, tzinfo=dt.UTC)  # an ambiguous local time in Berlin
    value = {"id": 1, "at": instant, "local": instant, "micros": int(instant.timestamp()) * 1_000_000}
    put(f"{url}&connectionTimeZone=SERVER&forceConnectionTimeZoneToSession=true", [record(1, value, schema)],
        db__timezone=zone, timestamp__fields__list="micros")  # fmt: skip
    found = query(database, "SELECT UNIX_TIMESTAMP(at), UNIX_TIMESTAMP(micros), local FROM items")
    local = dt.datetime(2026, 10, 25, 1 if zone == "UTC" else 2, 30)
    assert found == [(instant.timestamp(), instant.timestamp(), local)]


def test_connection_with_ssl_mode_required_fails_if_the_server_does_not_support_tls(url: str, database: Any) -> None:
    query(database, "CREATE TABLE items (id INT, name TEXT, price DOUBLE)")
    put(f"{url}&sslMode=PREFERRED", [item(1)])
    with pytest.raises(ConnectError, match="SSL is required but the server doesn't support it"):
        put(f"{url}&sslMode=REQUIRED", [item(2)], connection__attempts="1")


def test_ssl_mode_verify_identity_accepts_only_trusted_certificates() -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o755)  # the server runs as another user
        certificates = create_certificates(directory)
        for file in directory.iterdir():
            file.chmod(0o644)
        with mariadb.running(f"--ssl-cert={certificates.server}", f"--ssl-key={certificates.server}") as server:
            url = f"{server.jdbc_url}?user={server.user}&sslMode=VERIFY_IDENTITY"
            put(f"{url}&serverSslCert={certificates.authority}", [item(1)])
            with pytest.raises(ConnectError, match="certificate verify failed"):
                put(url, [item(2)], connection__attempts="1")


@pytest.mark.parametrize("mode", ["insert", "upsert", "update"])
@pytest.mark.parametrize("change", ["DROP TABLE items", "ALTER TABLE items DROP COLUMN name"])
def test_table_or_column_that_was_dropped_is_created_again(url: str, database: Any, mode: str, change: str) -> None:
    first = [item(number) for number in range(3)]
    second = [item(number + len(first)) for number in range(len(first))]
    props = {"insert__mode": mode, "pk__mode": "record_value", "pk__fields": "id", "auto__evolve": "true"}
    run = put_after_change(url, first, lambda: query(database, change), second, errors__tolerance="all", **props)
    assert run.reported == []
    names = [name for (name,) in query(database, "SELECT name FROM items ORDER BY id")]
    if mode == "update":
        assert set(names) <= {None}
    else:
        assert names[-len(second) :] == [f"n{number + len(first)}" for number in range(len(second))]


def test_validation_connects_to_the_server_and_reports_each_connection_error_under_the_key_that_caused_the_error(
    server: mariadb.MariaDb, url: str
) -> None:
    assert validation_errors(url) == {}
    props = {"connection__user": server.user, "connection__password": "wrong"}
    ((key, (message,)),) = validation_errors(server.jdbc_url, **props).items()
    assert (key, "Access denied for user 'tester'" in message) == ("connection.password", True)
    ((key, (message,)),) = validation_errors(f"{url}&sslMode=REQUIRED").items()
    assert (key, "SSL is required" in message) == ("connection.url", True)
    ((key, (message,)),) = validation_errors(f"{url}&sslMode=SECURE").items()
    assert (key, "sslMode=SECURE is unknown" in message) == ("connection.url", True)


CONTACT = struct([("id", INT32_SCHEMA), ("email", STRING_SCHEMA), ("name", OPTIONAL_STRING_SCHEMA)], name="contact")
UPSERT = {"insert__mode": "upsert", "pk__mode": "record_value", "pk__fields": "id"}


def contact(offset: int, number: int, email: str, name: str | None = None) -> SinkRecord:
    return record(offset, {"id": number, "email": email, "name": name}, CONTACT)


@pytest.mark.parametrize("index", ["UNIQUE KEY by_email (email)", "UNIQUE KEY by_email (email(2))"])
@pytest.mark.parametrize("engine", ["InnoDB", "MyISAM"])
def test_upsert_rejects_a_row_that_conflicts_with_another_row_in_a_second_unique_index(
    url: str, database: Any, index: str, engine: str
) -> None:
    columns = f"id INT PRIMARY KEY, email VARCHAR(50), name TEXT, {index}"
    query(database, f"CREATE TABLE items ({columns}) ENGINE={engine}")
    query(database, "INSERT INTO items VALUES (1, 'a1', 'Ann'), (2, 'b2', 'Bob')")
    records = [
        contact(0, 3, "c3", "Carl"),
        contact(1, 4, "a1", "other row"),  # a new row
        contact(2, 2, "a1", "other row"),  # an existing row
        contact(3, 1, "a1", "Anna"),
        contact(4, 2, "d4", "Bert"),
        contact(5, 5, "c3", "other row"),  # conflicts with a row of the same statement
    ]
    run = put(url, records, errors__tolerance="all", **UPSERT)
    assert [found.offset for found, _ in run.reported] == [1, 2, 5]
    errors = [str(error) for _, error in run.reported]
    for offset, error in zip((1, 2, 5), errors, strict=True):
        assert f"rejects record items-0@{offset} for table `items`" in error
        assert "Duplicate entry" in error
        assert "by_email" in error
    rows = query(database, "SELECT * FROM items ORDER BY id")
    assert rows == [(1, "a1", "Anna"), (2, "d4", "Bert"), (3, "c3", "Carl")]


def test_upsert_fails_the_task_at_a_conflict_in_a_second_unique_index(url: str, database: Any) -> None:
    query(database, "CREATE TABLE items (a INT, b INT, PRIMARY KEY (a, b), UNIQUE KEY by_b (b))")
    pair = struct([("a", INT32_SCHEMA), ("b", INT32_SCHEMA)])
    props = {**UPSERT, "pk__fields": "a,b"}
    put(url, [record(0, {"a": 1, "b": 1}, pair), record(1, {"a": 1, "b": 1}, pair)], **props)
    with pytest.raises(DataError, match=r"items-0@0 .*Duplicate entry '1' for key 'by_b'"):
        put(url, [record(0, {"a": 2, "b": 1}, pair)], **props)
    assert query(database, "SELECT * FROM items") == [(1, 1)]


def test_upsert_into_a_view_rejects_a_conflict_in_a_second_unique_index(url: str, database: Any) -> None:
    query(database, "CREATE TABLE stored (id INT PRIMARY KEY, email VARCHAR(50) UNIQUE, name TEXT)")
    query(database, "CREATE VIEW items AS SELECT * FROM stored")
    props = {**UPSERT, "table__types": "VIEW"}
    put(url, [contact(0, 1, "a1"), contact(1, 1, "a1", "Ann")], **props)
    with pytest.raises(DataError, match="Duplicate entry 'a1' for key 'email'"):
        put(url, [contact(0, 2, "a1", "other row")], **props)
    assert query(database, "SELECT * FROM stored") == [(1, "a1", "Ann")]


def test_upsert_needs_a_unique_index_on_columns_of_the_primary_key(url: str, database: Any) -> None:
    query(database, "CREATE TABLE items (id INT, email VARCHAR(50), name TEXT, UNIQUE (id, email), KEY (id))")
    problem = r"^Table `items` has no primary key or unique index on the columns of pk.fields \(`id`\)"
    with pytest.raises(ConnectError, match=problem):
        put(url, [contact(0, 1, "a1")], errors__tolerance="all", **UPSERT)
    put(url, [contact(0, 1, "a1"), contact(1, 1, "a1", "Ann")], **{**UPSERT, "pk__fields": "id,email"})
    assert query(database, "SELECT * FROM items") == [(1, "a1", "Ann")]


def test_upsert_accepts_a_unique_index_on_the_first_characters_of_the_key(url: str, database: Any) -> None:
    query(database, "CREATE TABLE items (id INT, email TEXT NOT NULL, name TEXT, PRIMARY KEY (email(3)))")
    props = {**UPSERT, "pk__fields": "email"}
    put(url, [contact(0, 1, "abc1"), contact(1, 2, "abc1")], **props)
    with pytest.raises(DataError, match="Duplicate entry 'abc' for key 'PRIMARY'"):
        put(url, [contact(0, 3, "abc2")], **props)
    assert query(database, "SELECT id, email FROM items") == [(2, "abc1")]
