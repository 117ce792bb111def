"""Tests of the columns that the JDBC sink creates, and of its errors for values that a column cannot store.

Each test runs with real servers: PostgreSQL, and in the long tests also MariaDB.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import psycopg
import pymysql
import pytest

from headrace.api.errors import DataError
from headrace.data.logical import DATE_SCHEMA, TIME_SCHEMA, TIMESTAMP_SCHEMA, decimal_schema
from headrace.data.records import SinkRecord
from headrace.data.schema import (
    BOOLEAN_SCHEMA,
    BYTES_SCHEMA,
    FLOAT32_SCHEMA,
    FLOAT64_SCHEMA,
    INT8_SCHEMA,
    INT16_SCHEMA,
    INT32_SCHEMA,
    INT64_SCHEMA,
    OPTIONAL_STRING_SCHEMA,
    STRING_SCHEMA,
    Schema,
    Type,
    struct,
)
from support import mariadb, postgres
from support.jdbc_sink import put, record

pytestmark = pytest.mark.integration

MANY = 60
"""More rows than the sink sends to PostgreSQL with INSERT."""


@dataclass(frozen=True)
class Server:
    """A running server, and a connection with which a test prepares and reads its tables."""

    kind: str
    url: str
    connection: Any

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Execute a statement, and return its rows."""
        with self.connection.cursor() as cursor:
            cursor.execute(sql)
            return list(cursor.fetchall()) if cursor.description else []


@contextmanager
def postgresql_server() -> Iterator[Server]:
    with postgres.running() as server, psycopg.connect(server.conninfo, autocommit=True) as connection:
        yield Server("postgresql", f"{server.jdbc_url}?user={server.user}", connection)


@contextmanager
def mariadb_server() -> Iterator[Server]:
    with (
        mariadb.running() as server,
        pymysql.connect(
            host="127.0.0.1", port=server.port, user=server.user, database="shop", autocommit=True
        ) as connection,
    ):
        yield Server("mariadb", f"{server.jdbc_url}?user={server.user}", connection)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(postgresql_server, id="postgresql", marks=pytest.mark.postgres),
        pytest.param(mariadb_server, id="mariadb", marks=pytest.mark.slow),
    ],
)
def running_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    support = postgres if request.param is postgresql_server else mariadb
    if reason := support.unavailable_reason():
        pytest.skip(reason)
    with request.param() as server:
        yield server


@pytest.fixture
def server(running_server: Server) -> Iterator[Server]:
    yield running_server
    if running_server.kind == "postgresql":
        running_server.query("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    else:
        for statement in ("DROP DATABASE shop", "CREATE DATABASE shop CHARACTER SET utf8mb4", "USE shop"):
            running_server.query(statement)


TYPES: list[tuple[str, Schema, Any, str, str]] = [
    # the field, its schema, a value, and the types of its column in PostgreSQL and in MariaDB
    ("i8", INT8_SCHEMA, -(2**7), "smallint", "tinyint(4)"),
    ("i16", INT16_SCHEMA, -(2**15), "smallint", "smallint(6)"),
    ("i32", INT32_SCHEMA, -(2**31), "integer", "int(11)"),
    ("i64", INT64_SCHEMA, -(2**63), "bigint", "bigint(20)"),
    ("f32", FLOAT32_SCHEMA, 1.1754943508222875e-38, "real", "float"),
    ("f64", FLOAT64_SCHEMA, 1.7976931348623157e308, "double precision", "double"),
    ("bool", BOOLEAN_SCHEMA, True, "boolean", "tinyint(4)"),
    ("text", STRING_SCHEMA, "é", "text", "text"),
    ("bytes", BYTES_SCHEMA, b"\x00\xff", "bytea", "varbinary(1024)"),
    ("dec", decimal_schema(5), Decimal("-1234.56789"), "numeric", "decimal(65,5)"),
    ("d", DATE_SCHEMA, dt.date(2026, 2, 3), "date", "date"),
    ("t", TIME_SCHEMA, dt.time(23, 59, 59, 999000), "time without time zone", "time(3)"),
    ("ts", TIMESTAMP_SCHEMA, dt.datetime(2026, 7, 1, 12, 0, 0, 5000, tzinfo=dt.UTC), "timestamp without time zone",
     "datetime(3)"),
]  # fmt: skip


def column_types(server: Server, table: str) -> dict[str, str]:
    if server.kind == "postgresql":
        sql = (
            "SELECT attname, format_type(atttypid, atttypmod) FROM pg_attribute "
            f"WHERE attrelid = '{table}'::regclass AND attnum > 0"
        )
    else:
        sql = f"SELECT column_name, column_type FROM information_schema.columns WHERE table_name = '{table}'"
    return dict(server.query(sql))


@pytest.mark.parametrize("added", [False, True], ids=["create", "evolve"])
def test_created_and_added_columns_have_the_sql_type_of_their_connect_type(server: Server, added: bool) -> None:
    fields = [(name, schema.replace(optional=True)) for name, schema, *_ in TYPES]
    schema = struct([("id", INT32_SCHEMA), *fields])
    row = {"id": 1} | {name: value for name, _, value, *_ in TYPES}
    if added:
        put(server.url, [record(0, {"id": 0}, struct([("id", INT32_SCHEMA)]))])
    put(server.url, [record(1, row, schema)], auto__evolve="true")
    expected = {name: postgresql if server.kind == "postgresql" else maria for name, *_, postgresql, maria in TYPES}
    types = column_types(server, "items")
    assert types.pop("id") in ("integer", "int(11)")
    assert types == expected


def test_string_in_a_primary_key_has_a_column_type_that_can_be_indexed(server: Server) -> None:
    keyed = record(0, {"id": 1}, struct([("id", INT32_SCHEMA)]), key="k", key_schema=STRING_SCHEMA)
    put(server.url, [keyed], insert__mode="upsert", pk__mode="record_key", pk__fields="code")
    assert column_types(server, "items")["code"] == ("text" if server.kind == "postgresql" else "varchar(255)")


def test_error_for_a_topic_with_a_dot_says_that_the_schema_is_missing(server: Server) -> None:
    found = record(0, {"id": 1}, struct([("id", INT32_SCHEMA)]), topic="mx.a")
    problem = r"Cannot create table mx.a .*; the sink reads the part of the name before the last dot \(mx\) as schema"
    with pytest.raises(DataError, match=problem):
        put(server.url, [found])


@pytest.mark.parametrize("count", [2, MANY])
def test_extreme_values_of_int16_and_float32_are_stored_without_loss(server: Server, count: int) -> None:
    schema = struct([("id", INT32_SCHEMA), ("i16", INT16_SCHEMA), ("f32", FLOAT32_SCHEMA)])
    low, high = (-(2**15), -3.4028234663852886e38), (2**15 - 1, 1.1754943508222875e-38)
    rows = [(n, *(high if n % 2 else low)) for n in range(count)]
    put(server.url, [record(n, {"id": n, "i16": i, "f32": f}, schema) for n, i, f in rows])
    # MariaDB shows a FLOAT with six digits, and its sum with 0e0 exactly.
    expression = "f32::float8" if server.kind == "postgresql" else "f32 + 0e0"
    assert server.query(f"SELECT id, i16, {expression} FROM items ORDER BY id") == rows


@pytest.mark.parametrize("count", [2, MANY])
@pytest.mark.parametrize("mode", ["insert", "upsert"])
def test_float32_is_stored_in_decimal_and_text_columns_with_the_digits_of_java(
    server: Server, count: int, mode: str
) -> None:
    double = "double precision" if server.kind == "postgresql" else "double"
    server.query(f"CREATE TABLE items (id int PRIMARY KEY, exact numeric(20, 10), words varchar(30), wide {double})")
    names = ("exact", "words", "wide")
    schema = struct([("id", INT32_SCHEMA), *((name, FLOAT32_SCHEMA.replace(optional=True)) for name in names)])
    single = 0.10000000149011612  # the double with the value of the 32-bit float 0.1
    rows = [{"id": number} if number % 2 else {"id": number, **dict.fromkeys(names, single)} for number in range(count)]
    put(server.url, [record(n, row, schema) for n, row in enumerate(rows)], insert__mode=mode, pk__mode="record_value",
        pk__fields="id")  # fmt: skip
    stored = server.query("SELECT exact, words, wide FROM items ORDER BY id")
    expected = [(None, None, None) if number % 2 else (Decimal("0.1"), "0.1", single) for number in range(count)]
    assert stored == expected


REJECTED: list[tuple[str, Schema, Any, str, str, str]] = [
    # what is wrong, the field's schema, its value, the type of the column, and the server's names for this type
    ("too long", OPTIONAL_STRING_SCHEMA, "much too long", "varchar(5)", "character varying(5)", "varchar(5)"),
    ("out of range", INT64_SCHEMA, 5_000_000_000, "integer", "integer", "int(11)"),
    ("too many digits", decimal_schema(2), Decimal("123456.78"), "numeric(5,2)", "numeric(5,2)", "decimal(5,2)"),
    ("not a number", OPTIONAL_STRING_SCHEMA, 'a,"b\\', "integer", "integer", "int(11)"),
    ("not a date", OPTIONAL_STRING_SCHEMA, "yesterday noon", "date", "date", "date"),
    ("null", OPTIONAL_STRING_SCHEMA, None, "varchar(5) NOT NULL", "character varying(5)", "varchar(5)"),
]


@pytest.mark.parametrize("name", ["value", "a'b", 'a"b`c', "naïve %s"])
@pytest.mark.parametrize("case", REJECTED, ids=[case[0] for case in REJECTED])
def test_error_for_a_rejected_value_names_the_column_its_type_and_the_type_of_the_value(
    server: Server, case: tuple[str, Schema, Any, str, str, str], name: str
) -> None:
    _, field, value, declared, in_postgresql, in_mariadb = case
    is_postgresql = server.kind == "postgresql"
    mark = '"' if is_postgresql else "`"
    quoted = mark + name.replace(mark, 2 * mark) + mark
    server.query(f"CREATE TABLE items (gone int, id int, other {declared.split()[0]}, {quoted} {declared})")
    server.query("ALTER TABLE items DROP COLUMN gone")
    schema = struct([("id", INT32_SCHEMA), (name, field)])
    run = put(server.url, [record(0, {"id": 1, name: value}, schema)], errors__tolerance="all")
    [(_, error)] = run.reported
    column_type = in_postgresql if is_postgresql else in_mariadb
    value_type = field.name or field.type.name
    assert str(error).endswith(f"(column {name}: type {column_type}, value {value_type})")


def test_error_for_a_missing_value_names_the_column_that_the_record_does_not_contain(server: Server) -> None:
    server.query("CREATE TABLE items (id int, name varchar(5) NOT NULL)")
    run = put(server.url, [record(0, {"id": 1}, struct([("id", INT32_SCHEMA)]))], errors__tolerance="all")
    [(_, error)] = run.reported
    column_type = "character varying(5)" if server.kind == "postgresql" else "varchar(5)"
    assert str(error).endswith(f"(column name: type {column_type}, missing from the record)")


def test_error_for_a_rejected_value_has_the_present_type_of_the_column(server: Server) -> None:
    schema = struct([("id", INT32_SCHEMA), ("name", OPTIONAL_STRING_SCHEMA)])
    server.query("CREATE TABLE items (id int, name varchar(5))")
    records = [record(n, {"id": n, "name": "x" * 9}, schema) for n in range(2)]
    first = put(server.url, records[:1], errors__tolerance="all")
    change = "ALTER COLUMN name TYPE varchar(8)" if server.kind == "postgresql" else "MODIFY name varchar(8)"
    server.query(f"ALTER TABLE items {change}")
    second = put(server.url, records[1:], errors__tolerance="all")
    assert [("(5)," in str(error), "(8)," in str(error)) for _, error in first.reported + second.reported] == [
        (True, False),
        (False, True),
    ]


def test_error_describes_all_columns_if_the_column_at_fault_is_unknown(server: Server) -> None:
    server.query("CREATE TABLE items (id int, name varchar(5), CHECK (id < 0 OR name = 'x'))")
    schema = struct([("id", INT32_SCHEMA), ("name", OPTIONAL_STRING_SCHEMA)])
    run = put(server.url, [record(0, {"id": 1, "name": "y"}, schema)], errors__tolerance="all")
    [(_, error)] = run.reported
    types = ("integer", "character varying(5)") if server.kind == "postgresql" else ("int(11)", "varchar(5)")
    assert str(error).endswith(f"(column id: type {types[0]}, value INT32; column name: type {types[1]}, value STRING)")


DEBEZIUM_TIMES: list[tuple[str, Type, Any, str, str, str, Any]] = [
    # Debezium's type, its schema type, a value, the types of columns in PostgreSQL and in MariaDB, and the stored text
    ("Date", Type.INT32, 17843, "date", "date", "date", "2018-11-08"),
    ("Time", Type.INT32, 36_000_123, "time(6)", "time without time zone", "time(3)", "10:00:00.123"),
    ("MicroTime", Type.INT64, 36_000_123_456, "time(6)", "time without time zone", "time(6)", "10:00:00.123456"),
    ("NanoTime", Type.INT64, 36_000_123_456_789, "time(6)", "time without time zone", "time(6)", "10:00:00.123456"),
    ("Timestamp", Type.INT64, 1541671200123, "timestamp(6)", "timestamp without time zone", "datetime(3)",
     "2018-11-08 10:00:00.123"),
    ("MicroTimestamp", Type.INT64, 1541671200123456, "timestamp(6)", "timestamp without time zone", "datetime(6)",
     "2018-11-08 10:00:00.123456"),
    ("NanoTimestamp", Type.INT64, 1541671200123456789, "timestamp(6)", "timestamp without time zone", "datetime(6)",
     "2018-11-08 10:00:00.123456"),
    ("ZonedTimestamp", Type.STRING, "2018-11-08T11:00:00.123456789+01:00", "timestamp(6)",
     "timestamp without time zone", "datetime(6)", "2018-11-08 10:00:00.123456"),
]  # fmt: skip


def debezium_records(count: int, *, default: bool = False) -> list[SinkRecord]:
    fields = [
        (name, Schema(type_, name=f"io.debezium.time.{name}", optional=True, default=value if default else None))
        for name, type_, value, *_ in DEBEZIUM_TIMES
    ]
    schema = struct([("id", INT32_SCHEMA), *fields])
    row = {name: value for name, _, value, *_ in DEBEZIUM_TIMES}
    return [record(n, {"id": n, **(row if n else {})}, schema) for n in range(count)]


def stored_times(server: Server) -> list[tuple[Any, ...]]:
    kind = "text" if server.kind == "postgresql" else "char"
    mark = '"' if server.kind == "postgresql" else "`"
    columns = ", ".join(f"CAST({mark}{name}{mark} AS {kind})" for name, *_ in DEBEZIUM_TIMES)
    return [
        tuple(text and text.rstrip("0") if "." in str(text) else text for text in row)
        for row in server.query(f"SELECT {columns} FROM items ORDER BY id")
    ]


@pytest.mark.parametrize("count", [2, MANY])
@pytest.mark.parametrize("existing", [True, False], ids=["existing table", "created table"])
def test_debezium_dates_and_times_are_stored_as_dates_and_times(server: Server, existing: bool, count: int) -> None:
    mark = '"' if server.kind == "postgresql" else "`"
    if existing:
        columns = "".join(f", {mark}{name}{mark} {declared}" for name, _, _, declared, *_ in DEBEZIUM_TIMES)
        if server.kind == "mariadb":
            columns = columns.replace("timestamp(", "datetime(")
        server.query(f"CREATE TABLE items (id int{columns})")
    put(server.url, debezium_records(count))
    text = tuple(text for *_, text in DEBEZIUM_TIMES)
    assert stored_times(server) == [(None,) * len(text), *[text] * (count - 1)]
    if not existing:
        types = column_types(server, "items")
        position = 4 if server.kind == "postgresql" else 5
        assert {name: types[name] for name, *_ in DEBEZIUM_TIMES} == {row[0]: row[position] for row in DEBEZIUM_TIMES}


def test_debezium_times_are_stored_unchanged_in_columns_of_numbers_and_text(server: Server) -> None:
    mark = '"' if server.kind == "postgresql" else "`"
    columns = "".join(
        f", {mark}{name}{mark} {'varchar(99)' if type_ is Type.STRING else 'bigint'}"
        for name, type_, *_ in DEBEZIUM_TIMES
    )
    server.query(f"CREATE TABLE items (id int{columns})")
    put(server.url, debezium_records(2))
    values = tuple(str(value) for _, _, value, *_ in DEBEZIUM_TIMES)
    assert server.query("SELECT * FROM items WHERE id = 1") == [(1, *(int(v) if v.isdigit() else v for v in values))]


def test_default_of_a_debezium_time_becomes_the_default_of_the_created_column(server: Server) -> None:
    put(server.url, debezium_records(1, default=True), replace__null__with__default="false")
    server.query("INSERT INTO items (id) VALUES (1)")
    assert stored_times(server)[1] == tuple(text for *_, text in DEBEZIUM_TIMES)


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("Time", 86_400_000, "field Time: 86400000 is not a valid io.debezium.time.Time: the time is not between"),
        ("MicroTime", -1, "field MicroTime: -1 is not a valid io.debezium.time.MicroTime: the time is not between"),
        ("ZonedTimestamp", "soon", "field ZonedTimestamp: 'soon' is not a valid .* not an ISO 8601 timestamp"),
    ],
)
def test_invalid_debezium_time_is_rejected_with_an_error_that_names_its_type(
    server: Server, kind: str, value: Any, text: str
) -> None:
    type_ = next(type_ for name, type_, *_ in DEBEZIUM_TIMES if name == kind)
    schema = struct([("id", INT32_SCHEMA), (kind, Schema(type_, name=f"io.debezium.time.{kind}", optional=True))])
    with pytest.raises(DataError, match=text):
        put(server.url, [record(0, {"id": 0}, schema), record(1, {"id": 1, kind: value}, schema)])


@pytest.mark.parametrize(
    ("field", "value", "declared", "hinted"),
    [
        (STRING_SCHEMA, "2018-11-08T10:00:00Z", "timestamp", False),
        (INT64_SCHEMA, 1541671200123456, "timestamp", True),
        (STRING_SCHEMA, "yesterday", "timestamp", False),
        (INT64_SCHEMA, 5_000_000_000, "int", False),
    ],
)
def test_error_for_an_unconverted_timestamp_names_timestamp_fields_list(
    server: Server, field: Schema, value: Any, declared: str, hinted: bool
) -> None:
    is_mariadb = server.kind == "mariadb"
    type_ = declared.replace("timestamp", "datetime") if is_mariadb else declared
    server.query(f"CREATE TABLE items (id int, at {type_})")
    records = [record(0, {"id": 1, "at": value}, struct([("id", INT32_SCHEMA), ("at", field)]))]
    run = put(server.url, records, errors__tolerance="all")
    if value == "2018-11-08T10:00:00Z":  # PostgreSQL itself reads ISO 8601 text
        hinted = is_mariadb
        assert len(run.reported) == int(is_mariadb)
    hint = "; if the field at contains timestamps, add it to timestamp.fields.list"
    assert [str(error).endswith(hint) for _, error in run.reported] == ([hinted] if run.reported else [])
    if hinted:
        assert not put(server.url, records, timestamp__fields__list="at", errors__tolerance="all").reported


@pytest.mark.parametrize("place", ["table", "column"])
def test_error_for_a_name_that_is_too_long_says_so(server: Server, place: str) -> None:
    name = "n" * 65
    schema = struct([("id", INT32_SCHEMA)] if place == "table" else [(name, INT32_SCHEMA)])
    found = record(0, {schema.fields[0].name: 1}, schema, topic=name if place == "table" else "items")
    with pytest.raises(DataError, match=rf"The name {name} has 65 .* have at most 6\d; set table\.name\.format"):
        put(server.url, [found])
