"""Tests of the JDBC source without a database: URLs, SQL statements, offsets, types and configuration."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from sqlalchemy import DECIMAL, NUMERIC, UUID, BigInteger, DateTime, Integer
from sqlalchemy.types import TypeEngine

from headrace.api.errors import ConfigError, ConfigErrors, ConnectError
from headrace.data.logical import DATE_SCHEMA, TIMESTAMP_SCHEMA, Date, decimal_schema
from headrace.data.schema import (
    BYTES_SCHEMA,
    FLOAT64_SCHEMA,
    INT16_SCHEMA,
    INT32_SCHEMA,
    INT64_SCHEMA,
    STRING_SCHEMA,
    Schema,
)
from headrace_connectors.common.instants import microseconds
from headrace_connectors.jdbc import generic, names, postgresql_dates, types
from headrace_connectors.jdbc.connections import credentials
from headrace_connectors.jdbc.offsets import TimestampIncrementingOffset
from headrace_connectors.jdbc.postgresql import PostgresqlDialect
from headrace_connectors.jdbc.query_text import single_statement
from headrace_connectors.jdbc.rows import RowConverter
from headrace_connectors.jdbc.source_config import JdbcSourceConfig
from headrace_connectors.jdbc.statements import OffsetExpressions, TimestampExpression, coalesce, select
from headrace_connectors.jdbc.tables import Table, group_tables, names_of_types
from headrace_connectors.jdbc.temporal_values import FIRST_INSTANT, LAST_INSTANT, instant_converter
from headrace_connectors.jdbc.types import JdbcColumn, TypeOptions, base_schema
from headrace_connectors.jdbc.url import JdbcUrl, parse, validate_known

NOON = microseconds(dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC))
NO_OFFSET = TimestampIncrementingOffset()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("jdbc:sqlite:/data/shop.db", JdbcUrl("sqlite", "/data/shop.db")),
        ("jdbc:sqlite:file:shop.db?cache=shared", JdbcUrl("sqlite", "shop.db", properties={"cache": "shared"})),
        ("jdbc:postgresql://db:5433/shop", JdbcUrl("postgresql", "shop", "db", 5433)),
        ("jdbc:postgresql://[::1]/shop", JdbcUrl("postgresql", "shop", "::1")),
        (
            "jdbc:postgresql://db1:5433,db2,[::1]:5434/shop",
            JdbcUrl(
                "postgresql",
                "shop",
                "db1:5433,db2,[::1]:5434",
                hosts=(("db1", 5433), ("db2", None), ("::1", 5434)),
            ),
        ),
        ("jdbc:postgresql:shop", JdbcUrl("postgresql", "shop", "localhost")),
        ("jdbc:duckdb:/data/shop.db", JdbcUrl("duckdb", "/data/shop.db")),
        ("jdbc:mssql+pyodbc://db/shop", JdbcUrl("mssql+pyodbc", "shop", "db")),
        ("duckdb:////data/shop.db", JdbcUrl("duckdb", "", is_sqlalchemy=True)),
        (
            "jdbc:postgresql://db/shop?user=a&password=b%26c&sslmode=require",
            JdbcUrl("postgresql", "shop", "db", properties={"user": "a", "password": "b&c", "sslmode": "require"}),
        ),
    ],
)
def test_jdbc_url_is_parsed_to_database_type_name_host_port_and_properties(text: str, expected: JdbcUrl) -> None:
    assert parse(text) == expected


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("postgresql://db/shop", "must look like"),
        ("oracle", "must look like"),
        ("jdbc:sqlite:", "must name a database file"),
        ("jdbc:oracle:thin:@//h:1521/XE", r"JDBC URLs of Oracle are not supported.*oracle\+oracledb://host:1521"),
        ("jdbc:sqlserver://h:1433;databaseName=x", r"JDBC URLs of SQL Server are not supported.*mssql\+pyodbc://"),
        ("jdbc:mysql://h1,h2/shop", "several hosts are supported only with PostgreSQL"),
        ("jdbc:postgresql://h:x/shop", "must look like jdbc:postgresql://host:port/database"),
        (
            "jdbc:postgresql://u:secret@h/shop",
            "host:port/database; set the user in connection.user and connection.pass",
        ),
        ("jdbc:postgresql://u@h/shop", "host:port/database; set the user in connection.user and connection.password"),
    ],
)
def test_invalid_jdbc_url_is_rejected(text: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as error:
        parse(text)
    assert error.value.key == "connection.url"


@pytest.mark.parametrize(
    "text", ["jdbc:oracle:thin:@//h:1521/XE", "jdbc:sqlserver://h;databaseName=x", "jdbc:db2://h/x"]
)
def test_error_for_an_unsupported_database_lists_the_databases_that_the_jdbc_sink_supports(text: str) -> None:
    with pytest.raises(
        ValueError, match="is not supported; supported databases are sqlite, postgresql, mysql, mariadb"
    ):
        validate_known(text)


def _expressions(incrementing: str | None = None, *timestamps: str) -> OffsetExpressions:
    return OffsetExpressions(
        incrementing, TimestampExpression(coalesce(timestamps), lambda instant: instant) if timestamps else None
    )


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
def test_select_statement_has_the_where_and_order_by_clauses_that_the_mode_requires(
    columns: OffsetExpressions, offset: TimestampIncrementingOffset, end: Any, sql: str, parameters: tuple[Any, ...]
) -> None:
    statement = select("SELECT * FROM t", columns, offset, end, marker="?")
    assert (statement.sql, statement.parameters) == (sql, parameters)


def test_query_suffix_is_appended_after_the_order_by_clause() -> None:
    statement = select("SELECT 1", _expressions("id"), NO_OFFSET, None, marker="?", suffix="LIMIT 5")
    assert statement.sql.endswith("ASC LIMIT 5")


def test_source_offsets_have_the_format_of_confluents_connector() -> None:
    offset = TimestampIncrementingOffset(1767225600123456, 42)
    offset_map = {"incrementing": 42, "timestamp": 1767225600123, "timestamp_nanos": 123456000}
    assert offset.to_map() == offset_map
    assert TimestampIncrementingOffset.from_map(offset_map) == offset
    assert TimestampIncrementingOffset.from_map(None) == NO_OFFSET
    without_nanos = TimestampIncrementingOffset.from_map({"timestamp": 1767225600123})
    assert without_nanos.timestamp == 1767225600123000


def decimal_with_precision(precision: int, scale: int) -> Schema:
    parameters = {"scale": str(scale), "connect.decimal.precision": str(precision)}
    return decimal_schema(scale).replace(parameters=parameters)


@pytest.mark.parametrize(
    ("sql_type", "mapping", "schema"),
    [
        (Integer(), "none", INT32_SCHEMA),
        (BigInteger(), "none", INT64_SCHEMA),
        (UUID(), "none", STRING_SCHEMA),
        (DateTime(), "none", TIMESTAMP_SCHEMA),
        (NUMERIC(10, 2), "none", decimal_with_precision(10, 2)),
        (NUMERIC(10, 2), "best_fit", FLOAT64_SCHEMA),
        (NUMERIC(4, 0), "best_fit", INT16_SCHEMA),
        (NUMERIC(9, 0), "precision_only", INT32_SCHEMA),
        (NUMERIC(18, 0), "precision_only", INT64_SCHEMA),
        (NUMERIC(19, 0), "precision_only", decimal_with_precision(19, 0)),
        (NUMERIC(30, 2), "best_fit", decimal_with_precision(30, 2)),
        (NUMERIC(30, 2), "best_fit_eager_double", FLOAT64_SCHEMA),
        (DECIMAL(10, 2), "best_fit", decimal_with_precision(10, 2)),
        (NUMERIC(), "none", decimal_schema(20)),
        (NUMERIC(), "best_fit_eager_double", FLOAT64_SCHEMA),
    ],
)
def test_sql_types_map_to_connect_schemas(sql_type: TypeEngine[Any], mapping: str, schema: Schema) -> None:
    assert base_schema(sql_type, TypeOptions(numeric_mapping=mapping)) == schema


def test_decimal_conversion_that_would_lose_digits_is_rejected() -> None:
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
def test_timestamp_granularity_setting_determines_the_type_and_unit_of_timestamp_values(
    granularity: str, expected: Any
) -> None:
    assert instant_converter(granularity, dt.UTC)(NOON + 1) == expected


@pytest.mark.parametrize(
    ("granularity", "zeros"), [("micros_iso_datetime_string", ""), ("nanos_iso_datetime_string", "000")]
)
def test_timestamps_that_are_converted_to_text_are_in_the_time_zone_of_the_database(
    granularity: str, zeros: str
) -> None:
    convert = instant_converter(granularity, ZoneInfo("America/New_York"))
    assert convert(NOON) == "2026-01-01T07:00:00.000000" + zeros
    noon_of_123 = microseconds(dt.datetime(123, 7, 1, 12))
    assert convert(noon_of_123) == "0123-07-01T07:03:58.000000" + zeros  # the local mean time
    assert convert(LAST_INSTANT) == "+292278994-08-17T03:12:55.807999" + zeros
    assert convert(FIRST_INSTANT) == "-292275055-05-16T11:51:02.192000" + zeros


def test_error_for_a_value_of_a_wrong_type_contains_the_table_the_column_and_the_row() -> None:
    columns = [
        JdbcColumn("id", INT64_SCHEMA),
        JdbcColumn("size", INT64_SCHEMA.replace(optional=True), declared="INTEGER"),
    ]
    convert = RowConverter("shoes", columns, is_checked=True).convert
    assert convert([(1, 2), (2, None)]) == [(1, 2), (2, None)]
    with pytest.raises(
        ConnectError,
        match=r"shoes, column size, row \(3, 'big'\): the column's type is INTEGER, but the value is 'big'",
    ):
        convert([(1, 2), (3, "big")])


def test_rows_whose_values_have_the_expected_types_are_returned_without_conversion() -> None:
    columns = [
        JdbcColumn("id", INT64_SCHEMA),
        JdbcColumn("ratio", FLOAT64_SCHEMA.replace(optional=True), convert=float),
    ]
    convert = RowConverter("shoes", columns, is_checked=True).convert
    rows = [(1, 0.5), (2, None)]
    assert convert(rows) is rows
    assert [type(ratio) for _, ratio in convert([(1, 2), (2, 0.5)])] == [float, float]


@pytest.mark.parametrize(("schema", "value"), [(INT64_SCHEMA, 1.0), (STRING_SCHEMA, b"x"), (BYTES_SCHEMA, "eHg=")])
def test_column_value_of_a_wrong_type_is_rejected_even_if_it_could_be_converted(schema: Schema, value: Any) -> None:
    convert = RowConverter("shoes", [JdbcColumn("size", schema)], is_checked=True).convert
    with pytest.raises(ConnectError, match="shoes, column size, row"):
        convert([(value,)])


def test_integer_conversion_that_would_lose_digits_is_rejected() -> None:
    assert types.to_integer(Decimal("12")) == 12
    with pytest.raises(ValueError, match=r"1\.5 is not an integer"):
        types.to_integer(1.5)


def test_tables_are_divided_evenly_among_tasks_and_stay_in_order() -> None:
    assert group_tables(["a", "b", "c", "d", "e"], 2) == [["a", "b", "c"], ["d", "e"]]
    assert group_tables(["a"], 4) == [["a"]]
    assert group_tables([], 4) == []


def test_validation_reports_all_invalid_configuration_keys_together() -> None:
    with pytest.raises(ConfigErrors) as error:
        JdbcSourceConfig.parse({"connection.url": "jdbc:db2", "mode": "sideways", "batch.max.rows": "0"})
    assert {item.key for item in error.value.errors} == {"connection.url", "mode", "batch.max.rows"}


@pytest.mark.parametrize(
    ("props", "key"),
    [
        ({"mode": "timestamp"}, "timestamp.column.name"),
        ({"mode": "bulk", "table.whitelist": "a", "query": "SELECT 1", "topic.prefix": "t"}, "query"),
        ({"mode": "bulk", "query": "SELECT 1"}, "topic.prefix"),
    ],
)
def test_jdbc_source_rejects_missing_and_conflicting_configuration_keys(props: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigErrors) as error:
        JdbcSourceConfig.parse({"connection.url": "jdbc:sqlite:/a", **props})
    assert [item.key for item in error.value.errors] == [key]


def test_jdbc_source_reports_conflicting_and_invalid_configuration_keys_together() -> None:
    with pytest.raises(ConfigErrors) as error:
        JdbcSourceConfig.parse({"query": "SELECT 1", "table.whitelist": "a", "batch.max.rows": "many"})
    assert [item.key for item in error.value.errors] == [
        "connection.url", "mode", "batch.max.rows", "query", "topic.prefix",
    ]  # fmt: skip


def test_error_for_an_invalid_jdbc_url_does_not_contain_the_password() -> None:
    with pytest.raises(ConfigError) as error:
        parse("jdbc:postgresql:a/b?user=u&password=secret&ssl=true")
    assert "secret" not in str(error.value)
    assert "user=u&password=****&ssl=true" in str(error.value)


def test_rendered_database_url_contains_no_password() -> None:
    address = "jdbc:postgresql://host/shop?user=other&password=secret"
    props = {"connection.url": address, "mode": "bulk", "connection.user": "me", "connection.password": "mine"}
    engine = PostgresqlDialect(parse(address), JdbcSourceConfig.parse(props)).engine
    assert engine.url.render_as_string() == "postgresql+psycopg://me:***@host/shop?connect_timeout=10"


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT 1", "SELECT 1"),
        ("SELECT 1; ", "SELECT 1"),
        ("SELECT 1 -- all rows", "SELECT 1"),
        ("SELECT 1; -- done\n ;/* really */ ", "SELECT 1"),
        ("SELECT ';' -- x", "SELECT ';'"),
        ("SELECT '--', \"a;b\" /* c */ FROM t", "SELECT '--', \"a;b\" /* c */ FROM t"),
        ("-- first\nSELECT 'it''s'", "-- first\nSELECT 'it''s'"),
        ("SELECT E'\\';' ;", "SELECT E'\\';'"),
        ("SELECT $$;--$$;", "SELECT $$;--$$"),
        ("SELECT $q$ $$ ; $q$;", "SELECT $q$ $$ ; $q$"),
        ("", ""),
    ],
)
def test_semicolons_and_comments_at_the_end_of_a_query_are_removed(sql: str, expected: str) -> None:
    assert single_statement(sql) == expected


@pytest.mark.parametrize("sql", ["SELECT 1; SELECT 2", "SELECT 1; DROP TABLE t --"])
def test_query_with_several_statements_is_rejected(sql: str) -> None:
    with pytest.raises(ValueError, match="must be one statement"):
        single_statement(sql)


@pytest.mark.parametrize(
    ("parts", "name"),
    [
        (["orders"], "orders"),
        (["public", "orders"], "public.orders"),
        (["public", "a.b"], 'public."a.b"'),
        (["public", 'say "hi"'], 'public."say ""hi"""'),
        (["odd.schema", "Upper Case"], '"odd.schema".Upper Case'),
    ],
)
def test_qualified_table_name_quotes_parts_that_contain_dots_or_quotes_and_can_be_split_into_its_parts(
    parts: list[str], name: str
) -> None:
    assert names.qualified_name(parts) == name
    assert names.split_name(name) == tuple(parts)
    assert names.unquoted(name) == ".".join(parts)


@pytest.mark.parametrize(
    ("wanted", "name", "is_match"),
    [
        ("orders", "public.orders", True),
        ("public.orders", "public.orders", True),
        ("shop.public.orders", "public.orders", True),
        ("other.public.orders", "public.orders", False),
        ('"orders"', "public.orders", True),
        ('"public"."a.b"', 'public."a.b"', True),
        ("a.b", 'public."a.b"', True),
        ("public.a.b", 'public."a.b"', True),
        ("b", 'public."a.b"', False),
        ("rders", "public.orders", False),
        ('"broken', "public.orders", False),
    ],
)
def test_configured_table_name_matches_a_qualified_name_with_the_same_last_parts(
    wanted: str, name: str, is_match: bool
) -> None:
    assert names.matches(wanted, name, "shop") is is_match


def test_partitions_of_a_table_are_not_read_separately_if_the_partitioned_table_is_read() -> None:
    tables = [
        Table("events", "PARTITIONED TABLE"),
        Table("events_1", "TABLE", is_partition=True),
        Table("orders", "TABLE"),
        Table("totals", "MATERIALIZED VIEW"),
    ]
    assert names_of_types(tables, ["TABLE"]) == ["events_1", "orders"]
    assert names_of_types(tables, ["table", " partitioned table"]) == ["events", "orders"]
    assert names_of_types(tables, ["PARTITIONED TABLE", "MATERIALIZED VIEW"]) == ["events", "totals"]


def jdbc_errors(**props: str) -> dict[str, str]:
    given = {"connection.url": "jdbc:postgresql://h/shop", "mode": "bulk", "topic.prefix": "t-"}
    given |= {name.replace("__", "."): value for name, value in props.items()}
    return {error.key: str(error) for error in JdbcSourceConfig.errors(given)}


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("table__types", "TABLE,SEQUENCE", "unknown table type SEQUENCE; the types are TABLE, VIEW"),
        ("jdbc__credentials__provider__class", "com.example.Vault", "credentials providers are not supported"),
        ("query", "SELECT 1; SELECT 2", "must be one statement"),
        ("timestamp__columns__mapping", "orders:changed", "must have the format regex:[column1|column2]"),
        ("timestamp__columns__mapping", "(:[changed]", "is not a regular expression"),
        ("incrementing__column__mapping", "id", "must have the format regex:column"),
        ("unsupported__columns", "ignore", "text"),
        ("unmappable__values", "drop", "clamp"),
    ],
)
def test_jdbc_source_rejects_invalid_configuration_values_with_the_reason(key: str, value: str, message: str) -> None:
    assert message in jdbc_errors(**{key: value})[key.replace("__", ".")]


def test_timestamp_columns_mapping_together_with_timestamp_column_name_is_rejected() -> None:
    errors = jdbc_errors(
        mode="timestamp", timestamp__column__name="changed", timestamp__columns__mapping=".*:[changed]"
    )
    assert "cannot be set together with timestamp.column.name" in errors["timestamp.columns.mapping"]


def test_offset_columns_of_a_table_come_from_the_first_mapping_pattern_that_matches_the_table() -> None:
    config = JdbcSourceConfig.parse(
        {
            "connection.url": "jdbc:postgresql://h/shop",
            "mode": "timestamp+incrementing",
            "timestamp.columns.mapping": r"public\.o.*:[changed|created],.*:[at]",
            "incrementing.column.mapping": "public[.]orders:number",
        }
    )
    assert config.timestamp_columns_of("public.orders") == ["changed", "created"]
    assert config.timestamp_columns_of("public.people") == ["at"]
    assert config.incrementing_column_of("public.orders") == "number"
    assert config.incrementing_column_of("public.people") == ""


DAY = JdbcColumn("day", DATE_SCHEMA.replace(optional=True), postgresql_dates.to_date, nullable=True, declared="DATE")
KEYED = [JdbcColumn("id", INT64_SCHEMA, is_key=True, nullable=False), DAY]
INFINITE = 2**31 - 1  # PostgreSQL's binary format


def convert_days(policy: str, *days: Any, column: JdbcColumn = DAY) -> list[Any]:
    converter = RowConverter("shoes", [KEYED[0], column], is_checked=False, unmappable_values=policy)
    return converter.convert(list(enumerate(days)))


def test_date_out_of_range_is_replaced_or_skipped_or_rejected_as_configured() -> None:
    """The configuration key is unmappable.values."""
    day = dt.date(2026, 1, 1)
    count = Date.of(day)
    assert convert_days("null", day, INFINITE) == [(0, count), (1, None)]
    assert convert_days("clamp", day, INFINITE) == [(0, count), (1, 2**31 - 1)]
    assert convert_days("skip", day, INFINITE, None) == [(0, count), (2, None)]
    message = (
        r"shoes, column day, row id=1: the column's type is DATE, but infinity is out of range; .* "
        "or set unmappable.values=null or clamp or skip"
    )
    with pytest.raises(ConnectError, match=message):
        convert_days("fail", day, INFINITE)


def test_unmappable_value_of_a_not_null_column_fails_the_task_even_if_unmappable_values_is_set_to_null() -> None:
    required = replace(DAY, nullable=False)
    with pytest.raises(ConnectError, match=r"row id=0.*or set unmappable.values=clamp or skip"):
        convert_days("null", INFINITE, column=required)


def test_row_with_a_value_of_the_wrong_type_is_skipped_if_unmappable_values_is_skip(
    caplog: pytest.LogCaptureFixture,
) -> None:
    columns = [KEYED[0], JdbcColumn("size", INT64_SCHEMA, declared="INTEGER")]
    converter = RowConverter("shoes", columns, is_checked=True, unmappable_values="skip")
    assert converter.convert([(1, 2), (2, "big"), (3, 4)]) == [(1, 2), (3, 4)]
    problem = "shoes, column size, row id=2: the column's type is INTEGER, but the value is 'big', not of type int"
    assert f"{problem}; skipping" in caplog.text


def test_configured_connection_user_takes_precedence_over_the_user_in_the_url_for_every_dialect() -> None:
    properties = "user=other&password=secret&x=1"
    props = {"mode": "bulk", "connection.user": "me", "connection.password": "mine"}
    for text in (f"jdbc:duckdb://host/shop?{properties}", f"jdbc:mysql://host/shop?{properties}"):
        config = JdbcSourceConfig.parse({**props, "connection.url": text})
        assert credentials(parse(text), config) == ("me", "mine", {"x": "1"})
    address = generic._address(parse(text := f"jdbc:duckdb://host/shop?{properties}"),
                               JdbcSourceConfig.parse({**props, "connection.url": text}))  # fmt: skip
    assert (address.username, address.password, dict(address.query)) == ("me", "mine", {"x": "1"})
