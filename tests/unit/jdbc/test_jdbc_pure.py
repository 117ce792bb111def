"""Unit tests of the JDBC source without a database: URLs, SQL statements, offsets, types and configuration."""

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
from headrace_connectors.jdbc.offsets import TimestampIncrementingOffset
from headrace_connectors.jdbc.postgresql import PostgresqlDialect, libpq_options
from headrace_connectors.jdbc.rows import row_converter
from headrace_connectors.jdbc.statements import OffsetExpressions, select
from headrace_connectors.jdbc.tables import group_tables
from headrace_connectors.jdbc.types import JdbcColumn, TypeOptions, base_schema
from headrace_connectors.jdbc.url import JdbcUrl, parse

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
NO_OFFSET = TimestampIncrementingOffset()


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
def test_jdbc_url_is_parsed(text: str, expected: JdbcUrl) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("postgresql://db/shop", "must look like"),
        ("jdbc:oracle:thin:@db", "jdbc:oracle is not supported"),
        ("jdbc:sqlite:", "must name a database file"),
    ],
)
def test_invalid_jdbc_url_is_rejected(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as error:
        parse(text)
    assert error.value.key == "connection.url"


def _expressions(incrementing: str | None = None, *timestamps: str) -> OffsetExpressions:
    return OffsetExpressions(incrementing, timestamps, lambda instant: instant)


@pytest.mark.parametrize(
    ("columns", "offset", "end", "sql", "parameters"),
    [
        (_expressions(), NO_OFFSET, None, "SELECT * FROM t", ()),
        (_expressions("id"), NO_OFFSET, None, "SELECT * FROM t ORDER BY id ASC", ()),
        (
            _expressions("id"),
            TimestampIncrementingOffset(None, 7),
            None,
            "SELECT * FROM t WHERE id > ? ORDER BY id ASC",
            (7,),
        ),
        (_expressions(None, "ts"), NO_OFFSET, NOON, "SELECT * FROM t WHERE ts < ? ORDER BY ts ASC", (NOON,)),
        (
            _expressions(None, "a", "b"),
            TimestampIncrementingOffset(NOON),
            NOON,
            "SELECT * FROM t WHERE COALESCE(a,b) < ? AND COALESCE(a,b) > ? ORDER BY COALESCE(a,b) ASC",
            (NOON, NOON),
        ),
        (
            _expressions("id", "ts"),
            TimestampIncrementingOffset(NOON, 7),
            NOON,
            "SELECT * FROM t WHERE ts < ? AND ((ts = ? AND id > ?) OR ts > ?) ORDER BY ts ASC,id ASC",
            (NOON, NOON, 7, NOON),
        ),
    ],
)
def test_select_statement_has_the_where_and_order_by_clauses_of_the_mode(
    columns: OffsetExpressions, offset: TimestampIncrementingOffset, end: Any, sql: str, parameters: tuple[Any, ...]
) -> None:
    statement = select("SELECT * FROM t", columns, offset, end, marker="?")
    assert (statement.sql, statement.parameters) == (sql, parameters)


def test_query_suffix_is_appended_after_order_by() -> None:
    statement = select("SELECT 1", _expressions("id"), NO_OFFSET, None, marker="?", suffix="LIMIT 5")
    assert statement.sql.endswith("ASC LIMIT 5")


def test_source_offsets_have_the_format_of_confluents_connector() -> None:
    offset = TimestampIncrementingOffset(dt.datetime(2026, 1, 1, 0, 0, 0, 123456, tzinfo=dt.UTC), 42)
    offset_map = {"incrementing": 42, "timestamp": 1767225600123, "timestamp_nanos": 123456000}
    assert offset.to_map() == offset_map
    assert TimestampIncrementingOffset.from_map(offset_map) == offset
    assert TimestampIncrementingOffset.from_map(None) == NO_OFFSET
    without_nanos = TimestampIncrementingOffset.from_map({"timestamp": 1767225600123})
    assert without_nanos.timestamp == offset.timestamp.replace(microsecond=123000)  # type: ignore[union-attr]


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
def test_sql_types_map_to_connect_schemas(sql_type: TypeEngine[Any], mapping: str, schema: Schema) -> None:
    assert base_schema(sql_type, TypeOptions(numeric_mapping=mapping)) == schema


def test_decimal_conversion_rejects_a_loss_of_digits() -> None:
    convert = types.to_decimal(2)
    assert convert(1.5) == Decimal("1.50")
    assert convert(Decimal("12345678901234567890.12")) == Decimal("12345678901234567890.12")
    with pytest.raises(ValueError, match=r"1\.234 does not fit a decimal with 2 decimal places"):
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
def test_timestamp_granularity_determines_field_values(granularity: str, expected: Any) -> None:
    convert = types.from_instant(granularity)
    assert convert is not None
    assert convert(NOON.replace(microsecond=1)) == expected


def test_value_that_does_not_match_its_columns_type_is_rejected_with_table_column_and_row() -> None:
    columns = [
        JdbcColumn("id", INT64_SCHEMA),
        JdbcColumn("size", INT64_SCHEMA.replace(optional=True), declared="INTEGER"),
    ]
    convert = row_converter("shoes", columns, checked=True)
    assert convert([(1, 2), (2, None)]) == [(1, 2), (2, None)]
    with pytest.raises(
        ConnectError,
        match=r"shoes, column size, row \(3, 'big'\): the column's type is INTEGER, but the value is 'big'",
    ):
        convert([(1, 2), (3, "big")])


def test_values_with_the_expected_type_are_not_converted() -> None:
    columns = [
        JdbcColumn("id", INT64_SCHEMA),
        JdbcColumn("ratio", FLOAT64_SCHEMA.replace(optional=True), convert=float),
    ]
    convert = row_converter("shoes", columns, checked=True)
    rows = [(1, 0.5), (2, None)]
    assert convert(rows) is rows
    assert [type(ratio) for _, ratio in convert([(1, 2), (2, 0.5)])] == [float, float]


@pytest.mark.parametrize(("schema", "value"), [(INT64_SCHEMA, 1.0), (STRING_SCHEMA, b"x"), (BYTES_SCHEMA, "eHg=")])
def test_type_check_rejects_values_that_msgspec_would_convert(schema: Schema, value: Any) -> None:
    convert = row_converter("shoes", [JdbcColumn("size", schema)], checked=True)
    with pytest.raises(ConnectError, match="shoes, column size, row"):
        convert([(value,)])


def test_integer_conversion_rejects_a_loss_of_digits() -> None:
    assert types.to_integer(Decimal("12")) == 12
    with pytest.raises(ValueError, match=r"1\.5 is not an integer"):
        types.to_integer(1.5)


def test_tables_are_split_into_contiguous_even_groups() -> None:
    assert group_tables(["a", "b", "c", "d", "e"], 2) == [["a", "b", "c"], ["d", "e"]]
    assert group_tables(["a"], 4) == [["a"]]
    assert group_tables([], 4) == []


def test_validation_reports_all_invalid_keys_at_once() -> None:
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
def test_conflicting_keys_are_rejected(props: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigErrors) as error:
        JdbcSourceConfig.parse({"connection.url": "jdbc:sqlite:/a", **props})
    assert [item.key for item in error.value.errors] == [key]


def test_validation_reports_conflicting_keys_together_with_invalid_keys() -> None:
    with pytest.raises(ConfigErrors) as error:
        JdbcSourceConfig.parse({"query": "SELECT 1", "table.whitelist": "a", "batch.max.rows": "many"})
    assert [item.key for item in error.value.errors] == [
        "connection.url", "mode", "batch.max.rows", "query", "topic.prefix",
    ]  # fmt: skip


def test_errors_redact_passwords_in_urls() -> None:
    with pytest.raises(ConfigError) as error:
        parse("jdbc:db2://host/shop?user=u&password=secret&ssl=true")
    assert "secret" not in str(error.value)
    assert "user=u&password=****&ssl=true" in str(error.value)


def test_rendered_url_contains_no_password() -> None:
    address = "jdbc:postgresql://host/shop?user=other&password=secret"
    props = {"connection.url": address, "mode": "bulk", "connection.user": "me", "connection.password": "mine"}
    engine = PostgresqlDialect(parse(address), JdbcSourceConfig.parse(props)).engine
    assert engine.url.render_as_string() == "postgresql+psycopg://me:***@host/shop?connect_timeout=10"


def test_jdbc_driver_properties_are_converted_to_libpq_options(caplog: pytest.LogCaptureFixture) -> None:
    given = {"ApplicationName": "a", "currentSchema": "s", "ssl": "true", "loginTimeout": "3", "tcpKeepAlive": "true"}
    assert libpq_options({**given, "sslrootcert": "/ca", "prepareThreshold": "0"}) == {
        "application_name": "a",
        "options": "-csearch_path=s",
        "sslmode": "verify-full",
        "connect_timeout": "3",
        "keepalives": "1",
        "sslrootcert": "/ca",
    }
    assert "Connection property prepareThreshold is ignored" in caplog.text
