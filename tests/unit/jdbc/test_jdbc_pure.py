"""URLs, SQL texts, offsets and types of the JDBC source."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import DECIMAL, NUMERIC, UUID, BigInteger, DateTime, Integer
from sqlalchemy.types import TypeEngine

from headrace.api.errors import ConfigError, ConfigErrors, ConnectError
from headrace.data.logical import TIMESTAMP_SCHEMA, decimal_schema
from headrace.data.schema import (
    BYTES_SCHEMA,
    FLOAT64_SCHEMA,
    INT16_SCHEMA,
    INT32_SCHEMA,
    INT64_SCHEMA,
    STRING_SCHEMA,
    Schema,
)
from headrace_connectors.jdbc import types
from headrace_connectors.jdbc.config import JdbcSourceConfig
from headrace_connectors.jdbc.offsets import Position
from headrace_connectors.jdbc.postgresql import PostgresqlDialect, libpq_options
from headrace_connectors.jdbc.rows import row_converter
from headrace_connectors.jdbc.statements import Cursor, select
from headrace_connectors.jdbc.tables import groups
from headrace_connectors.jdbc.types import Column, TypeOptions, base_schema
from headrace_connectors.jdbc.url import JdbcUrl, parse

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("jdbc:sqlite:/data/shop.db", JdbcUrl("sqlite", "/data/shop.db")),
        ("jdbc:sqlite:file:shop.db?cache=shared", JdbcUrl("sqlite", "shop.db", properties={"cache": "shared"})),
        ("jdbc:postgresql://db:5433/shop", JdbcUrl("postgresql", "shop", "db", 5433)),
        ("jdbc:postgresql://[::1]/shop", JdbcUrl("postgresql", "shop", "::1")),
        ("jdbc:postgresql:shop", JdbcUrl("postgresql", "shop", "localhost")),
        (
            "jdbc:postgresql://db/shop?user=a&password=b%26c&sslmode=require",
            JdbcUrl("postgresql", "shop", "db", properties={"user": "a", "password": "b&c", "sslmode": "require"}),
        ),
    ],
)
def test_url(text: str, expected: JdbcUrl) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("postgresql://db/shop", "must look like"),
        ("jdbc:oracle:thin:@db", "no driver for jdbc:oracle"),
        ("jdbc:sqlite:", "no database file"),
    ],
)
def test_url_is_refused_with_its_key(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as error:
        parse(text)
    assert error.value.key == "connection.url"


def _cursor(incrementing: str | None = None, *timestamps: str) -> Cursor:
    return Cursor(incrementing, timestamps, lambda instant: instant)


@pytest.mark.parametrize(
    ("cursor", "position", "end", "sql", "parameters"),
    [
        (_cursor(), Position(), None, "SELECT * FROM t", ()),
        (_cursor("id"), Position(), None, "SELECT * FROM t ORDER BY id ASC", ()),
        (_cursor("id"), Position(None, 7), None, "SELECT * FROM t WHERE id > ? ORDER BY id ASC", (7,)),
        (_cursor(None, "ts"), Position(), NOON, "SELECT * FROM t WHERE ts < ? ORDER BY ts ASC", (NOON,)),
        (
            _cursor(None, "a", "b"),
            Position(NOON),
            NOON,
            "SELECT * FROM t WHERE COALESCE(a,b) < ? AND COALESCE(a,b) > ? ORDER BY COALESCE(a,b) ASC",
            (NOON, NOON),
        ),
        (
            _cursor("id", "ts"),
            Position(NOON, 7),
            NOON,
            "SELECT * FROM t WHERE ts < ? AND ((ts = ? AND id > ?) OR ts > ?) ORDER BY ts ASC,id ASC",
            (NOON, NOON, 7, NOON),
        ),
    ],
)
def test_select(cursor: Cursor, position: Position, end: Any, sql: str, parameters: tuple[Any, ...]) -> None:
    statement = select("SELECT * FROM t", cursor, position, end, mark="?")
    assert (statement.sql, statement.parameters) == (sql, parameters)


def test_suffix_comes_last() -> None:
    assert select("SELECT 1", _cursor("id"), Position(), None, mark="?", suffix="LIMIT 5").sql.endswith("ASC LIMIT 5")


def test_offset_maps_are_confluents() -> None:
    position = Position(dt.datetime(2026, 1, 1, 0, 0, 0, 123456, tzinfo=dt.UTC), 42)
    offset = {"incrementing": 42, "timestamp": 1767225600123, "timestamp_nanos": 123456000}
    assert position.to_map() == offset
    assert Position.from_map(offset) == position
    assert Position.from_map(None) == Position()
    assert Position.from_map({"timestamp": 1767225600123}).timestamp == position.timestamp.replace(microsecond=123000)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("sql_type", "mapping", "schema"),
    [
        (Integer(), "none", INT32_SCHEMA),
        (BigInteger(), "none", INT64_SCHEMA),
        (UUID(), "none", STRING_SCHEMA),
        (DateTime(), "none", TIMESTAMP_SCHEMA),
        (NUMERIC(10, 2), "none", decimal_schema(2)),
        (NUMERIC(10, 2), "best_fit", FLOAT64_SCHEMA),
        (NUMERIC(4, 0), "best_fit", INT16_SCHEMA),
        (NUMERIC(9, 0), "precision_only", INT32_SCHEMA),
        (NUMERIC(18, 0), "precision_only", INT64_SCHEMA),
        (NUMERIC(19, 0), "precision_only", decimal_schema(0)),
        (NUMERIC(30, 2), "best_fit", decimal_schema(2)),
        (NUMERIC(30, 2), "best_fit_eager_double", FLOAT64_SCHEMA),
        (DECIMAL(10, 2), "best_fit", decimal_schema(2)),
    ],
)
def test_types(sql_type: TypeEngine[Any], mapping: str, schema: Schema) -> None:
    assert base_schema(sql_type, TypeOptions(numeric_mapping=mapping)) == schema


def test_decimals_never_lose_digits() -> None:
    convert = types.to_decimal(2)
    assert convert(1.5) == Decimal("1.50")
    assert convert(Decimal("12345678901234567890.12")) == Decimal("12345678901234567890.12")
    with pytest.raises(ValueError, match=r"1\.234 does not fit a decimal with 2 digits"):
        convert(Decimal("1.234"))


@pytest.mark.parametrize(
    ("granularity", "expected"),
    [
        ("micros_long", 1767268800000001),
        ("nanos_long", 1767268800000001000),
        ("micros_string", "1767268800000001"),
        ("micros_iso_datetime_string", "2026-01-01T12:00:00.000001"),
        ("nanos_iso_datetime_string", "2026-01-01T12:00:00.000001000"),
    ],
)
def test_timestamp_granularity(granularity: str, expected: Any) -> None:
    convert = types.from_instant(granularity)
    assert convert is not None
    assert convert(NOON.replace(microsecond=1)) == expected


def test_a_value_of_another_type_is_refused_with_its_place() -> None:
    columns = [Column("id", INT64_SCHEMA), Column("size", INT64_SCHEMA.replace(optional=True), declared="INTEGER")]
    convert = row_converter("shoes", columns, checked=True)
    assert convert([(1, 2), (2, None)]) == [(1, 2), (2, None)]
    with pytest.raises(
        ConnectError, match=r"shoes, column size, row \(3, 'big'\): the column is INTEGER and the row holds 'big'"
    ):
        convert([(1, 2), (3, "big")])


def test_values_of_the_right_type_are_not_converted() -> None:
    columns = [Column("id", INT64_SCHEMA), Column("ratio", FLOAT64_SCHEMA.replace(optional=True), convert=float)]
    convert = row_converter("shoes", columns, checked=True)
    rows = [(1, 0.5), (2, None)]
    assert convert(rows) is rows
    assert [type(ratio) for _, ratio in convert([(1, 2), (2, 0.5)])] == [float, float]


@pytest.mark.parametrize(("schema", "value"), [(INT64_SCHEMA, 1.0), (STRING_SCHEMA, b"x"), (BYTES_SCHEMA, "eHg=")])
def test_types_that_look_alike_are_told_apart(schema: Schema, value: Any) -> None:
    convert = row_converter("shoes", [Column("size", schema)], checked=True)
    with pytest.raises(ConnectError, match="shoes, column size, row"):
        convert([(value,)])


def test_whole_numbers_never_lose_digits() -> None:
    assert types.to_whole_number(Decimal("12")) == 12
    with pytest.raises(ValueError, match=r"1\.5 is no whole number"):
        types.to_whole_number(1.5)


def test_groups_are_contiguous_and_even() -> None:
    assert groups(["a", "b", "c", "d", "e"], 2) == [["a", "b", "c"], ["d", "e"]]
    assert groups(["a"], 4) == [["a"]]
    assert groups([], 4) == []


def test_every_error_at_once() -> None:
    with pytest.raises(ConfigErrors) as error:
        JdbcSourceConfig.parse({"connection.url": "jdbc:db2:x", "mode": "sideways", "batch.max.rows": "0"})
    assert {item.key for item in error.value.errors} == {"connection.url", "mode", "batch.max.rows"}


@pytest.mark.parametrize(
    ("props", "key"),
    [
        ({"mode": "timestamp"}, "timestamp.column.name"),
        ({"mode": "bulk", "table.whitelist": "a", "query": "SELECT 1", "topic.prefix": "t"}, "query"),
        ({"mode": "bulk", "query": "SELECT 1"}, "topic.prefix"),
    ],
)
def test_keys_that_do_not_fit_together(props: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigErrors) as error:
        JdbcSourceConfig.parse({"connection.url": "jdbc:sqlite:/a", **props})
    assert [item.key for item in error.value.errors] == [key]


def test_keys_that_do_not_fit_together_are_told_beside_keys_that_are_wrong() -> None:
    with pytest.raises(ConfigErrors) as error:
        JdbcSourceConfig.parse({"query": "SELECT 1", "table.whitelist": "a", "batch.max.rows": "many"})
    assert [item.key for item in error.value.errors] == [
        "connection.url", "mode", "batch.max.rows", "query", "topic.prefix",
    ]  # fmt: skip


def test_passwords_of_urls_are_not_shown() -> None:
    with pytest.raises(ConfigError) as error:
        parse("jdbc:db2://host/shop?user=u&password=secret&ssl=true")
    assert "secret" not in str(error.value)
    assert "user=u&password=****&ssl=true" in str(error.value)


def test_a_password_stands_nowhere_but_in_its_place() -> None:
    address = "jdbc:postgresql://host/shop?user=other&password=secret"
    props = {"connection.url": address, "mode": "bulk", "connection.user": "me", "connection.password": "mine"}
    engine = PostgresqlDialect(parse(address), JdbcSourceConfig.parse(props)).engine
    assert engine.url.render_as_string() == "postgresql+psycopg://me:***@host/shop?connect_timeout=10"


def test_properties_of_the_jdbc_driver_become_options_of_the_c_library(caplog: pytest.LogCaptureFixture) -> None:
    given = {"ApplicationName": "a", "currentSchema": "s", "ssl": "true", "loginTimeout": "3", "tcpKeepAlive": "true"}
    assert libpq_options({**given, "sslrootcert": "/ca", "prepareThreshold": "0"}) == {
        "application_name": "a",
        "options": "-csearch_path=s",
        "sslmode": "verify-full",
        "connect_timeout": "3",
        "keepalives": "1",
        "sslrootcert": "/ca",
    }
    assert "connection property prepareThreshold" in caplog.text
