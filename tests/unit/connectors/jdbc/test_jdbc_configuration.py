"""Tests of the configurations that the JDBC source and the JDBC sink accept and reject."""

from __future__ import annotations

import pytest

from headrace.api.config import Config
from headrace_connectors.jdbc.sink_config import JdbcSinkConfig
from headrace_connectors.jdbc.source_config import JdbcSourceConfig
from headrace_connectors.jdbc.tables import select_tables

SOURCE = {"connection.url": "jdbc:postgresql://localhost/shop", "mode": "bulk", "topic.prefix": "shop-"}
SINK = {"connection.url": "jdbc:postgresql://localhost/shop"}
SERIALIZABLE = {"transaction.isolation.mode": "SERIALIZABLE"}


def source_errors(**props: str) -> dict[str, str]:
    """Return the errors of a source's configuration by key. `__` in a keyword stands for a dot."""
    return _errors(JdbcSourceConfig, SOURCE, props)


def sink_errors(**props: str) -> dict[str, str]:
    """Return the errors of a sink's configuration by key. `__` in a keyword stands for a dot."""
    return _errors(JdbcSinkConfig, SINK, props)


def _errors(model: type[Config], base: dict[str, str], props: dict[str, str]) -> dict[str, str]:
    settings = base | {name.replace("__", "."): value for name, value in props.items()}
    return {error.key: str(error) for error in model.errors(settings)}


class TestTimeZones:
    @pytest.mark.parametrize("name", ["UTC", "Europe/Berlin", "GMT+2", "+02:00", "PST"])
    def test_time_zone_names_that_java_accepts_are_valid(self, name: str) -> None:
        assert source_errors(db__timezone=name) == sink_errors(db__timezone=name) == {}

    def test_unknown_time_zone_name_is_an_error_of_the_configuration(self) -> None:
        for errors in (source_errors(db__timezone="Mars/X"), sink_errors(db__timezone="Mars/X")):
            assert "unknown time zone 'Mars/X'" in errors["db.timezone"]


class TestEnumerations:
    @pytest.mark.parametrize(
        ("key", "value", "field", "expected"),
        [
            ("numeric.mapping", "BEST_FIT", "numeric_mapping", "best_fit"),
            ("timestamp.granularity", "MICROS_LONG", "timestamp_granularity", "micros_long"),
            ("transaction.isolation.mode", "read_committed", "transaction_isolation_mode", "READ_COMMITTED"),
            ("unmappable.values", "Null", "unmappable_values", "null"),
            ("unsupported.columns", "WARN", "unsupported_columns", "warn"),
            ("quote.sql.identifiers", "Never", "quote_sql_identifiers", "NEVER"),
        ],
    )
    def test_enumeration_values_are_case_insensitive(self, key: str, value: str, field: str, expected: str) -> None:
        assert getattr(JdbcSourceConfig.parse({**SOURCE, key: value}), field) == expected

    def test_configuration_value_that_is_not_one_of_the_allowed_values_of_its_key_is_an_error(self) -> None:
        assert "String must be one of" in source_errors(numeric__mapping="best")["numeric.mapping"]


class TestTablePatterns:
    @pytest.mark.parametrize("key", ["table.include.list", "table.exclude.list"])
    def test_invalid_table_pattern_is_an_error(self, key: str) -> None:
        assert "Invalid regex" in _errors(JdbcSourceConfig, SOURCE, {key: "public\\.(orders"})[key]

    @pytest.mark.parametrize(
        "pattern",
        [
            r"public\.\p{Alpha}+",
            "(?i)PUBLIC[.]Orders",
            "public[.][a-z&&[^x]]++",
            r"\Qpublic.\Eorders",
            "(?<n>public)[.]o.*",
        ],
    )
    def test_table_patterns_have_the_syntax_of_java_regular_expressions(self, pattern: str) -> None:
        config = JdbcSourceConfig.parse({**SOURCE, "table.include.list": pattern})
        assert select_tables(config, ["public.orders", "public.x1"]) == ["public.orders"]
        config = JdbcSourceConfig.parse(
            {**SOURCE, "mode": "incrementing", "incrementing.column.mapping": f"{pattern}:id"}
        )
        assert config.incrementing_column_of("public.orders") == "id"


class TestCombinations:
    @pytest.mark.parametrize(
        ("props", "key", "message"),
        [
            ({"query": "SELECT 1", "query.masked": "SELECT 2"}, "query.masked", "together with query:"),
            ({"table.whitelist": "a", "table.exclude.list": "b"}, "table.exclude.list", "with table.whitelist,"),
            ({"table.blacklist": "a", "table.exclude.list": "b"}, "table.exclude.list", "with table.blacklist,"),
            ({"query": "SELECT 1", "table.exclude.list": "b"}, "table.exclude.list", "with query,"),
            ({"table.exclude.list": "b"}, "table.exclude.list", "needs table.include.list; set table.include.list=.*"),
        ],
    )
    def test_contradictory_table_and_query_selections_are_rejected(
        self, props: dict[str, str], key: str, message: str
    ) -> None:
        assert message in _errors(JdbcSourceConfig, SOURCE, props)[key]

    def test_table_exclude_list_is_accepted_together_with_table_include_list(self) -> None:
        assert source_errors(table__include__list=".*", table__exclude__list="b") == {}

    def test_topic_prefix_with_characters_that_topic_names_may_not_contain_is_rejected(self) -> None:
        assert "can contain only ASCII letters" in source_errors(topic__prefix="bad topic/")["topic.prefix"]


class TestKeysWithoutEffect:
    def test_confluents_default_credentials_provider_is_accepted(self) -> None:
        name = "io.confluent.connect.jdbc.util.DefaultJdbcCredentialsProvider"
        props = {"jdbc.credentials.provider.class": name}
        assert _errors(JdbcSourceConfig, SOURCE, props) == _errors(JdbcSinkConfig, SINK, props) == {}

    @pytest.mark.parametrize("converter", ["JsonConverter", "Json", "org.apache.kafka.connect.json.JsonConverter"])
    def test_jdbc_sink_warns_about_a_converter_that_returns_no_schemas(self, converter: str) -> None:
        props = SINK | {"value.converter": converter, "value.converter.schemas.enable": "False"}
        (warning,) = JdbcSinkConfig.parse(props).warnings_about_keys()
        assert warning.startswith("Configuration value.converter.schemas.enable=false: records have no schema")
        for schemas in ({}, {"value.converter.schemas.enable": "true"}):
            props = SINK | {"value.converter": converter, **schemas}
            assert JdbcSinkConfig.parse(props).warnings_about_keys() == []

    @pytest.mark.parametrize(
        ("props", "warning"),
        [
            ({"catalog.pattern": "other"}, "catalog.pattern=other has no effect: the connector reads the database in"),
            ({"dialect.name": "OracleDatabaseDialect"}, "dialect.name=OracleDatabaseDialect has no effect"),
            ({"poll.linger.ms": "1"}, "poll.linger.ms has no effect: a poll returns as soon as there are rows"),
            ({"max.buffer.size": "1"}, "max.buffer.size has no effect"),
            ({"table.types": "TABLE,synonym,view"}, "table.types=synonym has no effect: in postgresql databases"),
            ({"table.types": "SYSTEM TABLE,LOCAL TEMPORARY"}, "table.types=SYSTEM TABLE,LOCAL TEMPORARY has no effect"),
            ({"connection.url": "jdbc:mariadb://h/db", "table.types": "FOREIGN TABLE"}, "reads only TABLE, VIEW"),
            ({"connection.url": "jdbc:duckdb:/db", "table.types": "FOREIGN TABLE"}, "reads only TABLE, VIEW"),
            ({"connection.url": "jdbc:sqlite:/db", "schema.pattern": "shop"}, "schema.pattern=shop has no effect"),
            ({"connection.url": "jdbc:sqlite:/db", **SERIALIZABLE}, "isolation.mode=SERIALIZABLE has no effect"),
            ({"connection.url": "jdbc:duckdb:/db", **SERIALIZABLE}, "isolation.mode=SERIALIZABLE has no effect"),
            ({"connection.url": "duckdb:///db", **SERIALIZABLE}, "isolation.mode=SERIALIZABLE has no effect"),
            ({"transaction.isolation.mode": "sql_server_snapshot"}, "mode=SQL_SERVER_SNAPSHOT has no effect"),
            ({"date.calendar.system": "legacy"}, "date.calendar.system has no effect"),
            (
                {"connection.url": "jdbc:mariadb://h/db", "numeric.mapping": "Best_Fit"},
                "numeric.mapping=best_fit has no",
            ),
        ],
    )
    def test_jdbc_source_warns_about_configs_without_effect(self, props: dict[str, str], warning: str) -> None:
        (found,) = JdbcSourceConfig.parse(SOURCE | props).warnings_about_keys()
        assert warning in found

    @pytest.mark.parametrize(
        "props",
        [
            {"schema.pattern": "shop", **SERIALIZABLE, "table.types": "VIEW,FOREIGN TABLE,PARTITIONED TABLE"},
            {"connection.url": "jdbc:mysql://h/db", "schema.pattern": "shop", **SERIALIZABLE},
            {"connection.url": "jdbc:duckdb:/db", "schema.pattern": "shop", "table.types": "table,View"},
            {
                "connection.url": "jdbc:sqlite:/db",
                "transaction.isolation.mode": "default",
                "numeric.mapping": "best_fit",
            },
        ],
    )
    def test_jdbc_source_does_not_warn_about_values_that_have_an_effect(self, props: dict[str, str]) -> None:
        assert JdbcSourceConfig.parse(SOURCE | props).warnings_about_keys() == []

    def test_unknown_table_type_or_isolation_mode_is_an_error(self) -> None:
        assert (
            "unknown table type TABEL; the types are TABLE, VIEW" in source_errors(table__types="TABEL")["table.types"]
        )
        errors = source_errors(transaction__isolation__mode="SNAPSHOT")
        assert "SQL_SERVER_SNAPSHOT" in errors["transaction.isolation.mode"]

    @pytest.mark.parametrize(
        ("props", "warning"),
        [
            ({"dialect.name": "MySqlDatabaseDialect"}, "connection.url determines the database, postgresql"),
            ({"date.calendar.system": "PROLEPTIC_GREGORIAN"}, "date.calendar.system has no effect"),
            ({"date.timezone": "UTC"}, "date.timezone has no effect"),
            ({"table.types": "TABLE,SYNONYM"}, "table.types=SYNONYM has no effect: unknown table types"),
        ],
    )
    def test_jdbc_sink_warns_about_configs_without_effect(self, props: dict[str, str], warning: str) -> None:
        (found,) = JdbcSinkConfig.parse(SINK | props).warnings_about_keys()
        assert warning in found

    def test_converter_that_keeps_nulls_causes_a_warning_unless_the_key_of_the_sink_is_set(self) -> None:
        props = SINK | {"value.converter.replace.null.with.default": "false"}
        (found,) = JdbcSinkConfig.parse(props).warnings_about_keys()
        assert found.endswith("the sink still replaces null with the default; set replace.null.with.default=false")
        for value in ("true", "false"):
            assert JdbcSinkConfig.parse(props | {"replace.null.with.default": value}).warnings_about_keys() == []

    def test_dialect_and_catalog_that_match_the_url_are_accepted_without_a_warning(self) -> None:
        props = {"catalog.pattern": "sh%", "dialect.name": "PostgreSqlDatabaseDialect"}
        assert JdbcSourceConfig.parse(SOURCE | props).warnings_about_keys() == []
