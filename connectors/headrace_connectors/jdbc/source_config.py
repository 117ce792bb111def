"""Configuration of the JDBC source, with the keys and defaults of Confluent's connector."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import field_validator

from headrace.api.config import Config, ConfigType, Importance, Password, key
from headrace.api.errors import ConfigError
from headrace_connectors.common.time_zones import check_time_zone
from headrace_connectors.jdbc import url
from headrace_connectors.jdbc.config_rules import (
    SQL_SERVER_SNAPSHOT,
    UNSUPPORTED_TABLE_TYPES,
    check_java_patterns,
    errors_of_source,
    warnings_about_values,
)
from headrace_connectors.jdbc.connections import (
    CREDENTIALS_PROVIDER_DOC,
    check_credentials_provider,
    warnings_about_dialect,
)
from headrace_connectors.jdbc.names import java_pattern, like_to_regex, unquoted
from headrace_connectors.jdbc.query_text import single_statement

Mode = Literal["bulk", "incrementing", "timestamp", "timestamp+incrementing"]
_NUMERIC_MAPPINGS = ("none", "precision_only", "best_fit", "best_fit_eager_double")
_UNSUPPORTED_COLUMNS = ("text", "warn", "fail")
_UNMAPPABLE_VALUES = ("fail", "null", "clamp", "skip")
_ISOLATION_MODES = (
    "DEFAULT",
    "READ_UNCOMMITTED",
    "READ_COMMITTED",
    "REPEATABLE_READ",
    "SERIALIZABLE",
    SQL_SERVER_SNAPSHOT,
)
_GRANULARITIES = (
    "connect_logical",
    "micros_long",
    "micros_string",
    "micros_iso_datetime_string",
    "nanos_long",
    "nanos_string",
    "nanos_iso_datetime_string",
)

_TOPIC_PREFIX = re.compile(r"[a-zA-Z0-9._-]*")
_DATABASE, _MODE, _CONNECTOR = "Database", "Mode", "Connector"


def _check_topic_prefix(prefix: str) -> None:
    if not _TOPIC_PREFIX.fullmatch(prefix):
        raise ValueError("a topic name can contain only ASCII letters, digits, '.', '_' and '-'")


class JdbcSourceConfig(Config):
    """Configuration of the JDBC source. Unknown `connection.*` keys are passed to the driver as properties."""

    passthrough_prefixes = ("connection.",)
    without_effect: ClassVar[Mapping[str, str]] = {
        "date.calendar.system": "dates always use the proleptic Gregorian calendar",
        "max.buffer.size": "the connector streams rows and buffers none",
        "poll.linger.ms": "a poll returns as soon as there are rows",
    }

    connection_url: str = key(
        "connection.url",
        doc="JDBC URL of the database, such as jdbc:postgresql://localhost:5432/shop or jdbc:sqlite:/data/shop.db.",
        importance=Importance.HIGH,
        group=_DATABASE,
        validator=url.validate,
    )
    connection_user: str | None = key("connection.user", default=None, doc="Database user.", group=_DATABASE)
    connection_password: Password | None = key(
        "connection.password", default=None, doc="Password of the database user.", group=_DATABASE
    )
    connection_attempts: int = key(
        "connection.attempts",
        default=3,
        at_least=1,
        doc="Maximum number of attempts to connect before the task fails.",
        group=_DATABASE,
    )
    connection_backoff_ms: int = key(
        "connection.backoff.ms",
        default=10000,
        at_least=0,
        type=ConfigType.LONG,
        doc="Milliseconds to wait between two attempts to connect.",
        group=_DATABASE,
    )
    table_whitelist: list[str] = key("table.whitelist", default=[], doc="Names of tables to read.", group=_DATABASE)
    table_blacklist: list[str] = key("table.blacklist", default=[], doc="Names of tables to skip.", group=_DATABASE)
    table_include_list: list[str] = key(
        "table.include.list",
        default=[],
        doc="Java regular expressions that match the qualified names of tables to read.",
        validator=check_java_patterns,
        group=_DATABASE,
    )
    table_exclude_list: list[str] = key(
        "table.exclude.list",
        default=[],
        doc="Java regular expressions that match the qualified names of tables to skip.",
        validator=check_java_patterns,
        group=_DATABASE,
    )
    schema_pattern: str | None = key(
        "schema.pattern",
        default=None,
        doc="Read only tables of schemas whose names match this SQL LIKE pattern. It has no effect in SQLite.",
        group=_DATABASE,
    )
    catalog_pattern: str | None = key(
        "catalog.pattern",
        default=None,
        doc="Accepted for compatibility and ignored: the connector reads the database in connection.url, and logs a "
        "warning if its name does not match.",
        group=_DATABASE,
    )
    table_types: list[str] = key(
        "table.types",
        default=["TABLE"],
        doc="Types of tables to read: TABLE, VIEW, and with PostgreSQL PARTITIONED TABLE, MATERIALIZED VIEW and "
        "FOREIGN TABLE. TABLE includes the partitions of partitioned tables, unless PARTITIONED TABLE is listed too. "
        f"Accepted and ignored with a warning: {', '.join(UNSUPPORTED_TABLE_TYPES)}.",
        group=_DATABASE,
    )
    credentials_provider_class: str = key(
        "jdbc.credentials.provider.class",
        default="",
        doc=CREDENTIALS_PROVIDER_DOC,
        group=_DATABASE,
        validator=check_credentials_provider,
    )
    db_timezone: str = key(
        "db.timezone",
        default="UTC",
        doc="Time zone of database timestamps without a time zone: a name such as Europe/Berlin, or an offset such as "
        "+02:00.",
        group=_DATABASE,
        validator=check_time_zone,
    )
    date_calendar_system: str = key(
        "date.calendar.system",
        default="LEGACY",
        one_of=("LEGACY", "PROLEPTIC_GREGORIAN"),
        case_insensitive=True,
        doc="Accepted for compatibility and ignored: dates always use the proleptic Gregorian calendar.",
        group=_DATABASE,
    )
    numeric_mapping: str = key(
        "numeric.mapping",
        default="none",
        one_of=_NUMERIC_MAPPINGS,
        case_insensitive=True,
        doc="How to map NUMERIC columns. none: to Decimal. precision_only: to integers if columns have at most 18 "
        "digits and no decimal places. best_fit: to integers or doubles if columns have at most 18 digits. "
        "best_fit_eager_double: like best_fit, but to doubles for all columns with decimal places or no precision. "
        "Has no effect on MySQL and MariaDB, where each such column is a DECIMAL column.",
        group=_DATABASE,
    )
    numeric_precision_mapping: bool = key(
        "numeric.precision.mapping",
        default=False,
        doc="Deprecated: true is the same as numeric.mapping=precision_only.",
        group=_DATABASE,
    )
    numeric_unconstrained_scale: int = key(
        "numeric.unconstrained.scale",
        default=20,
        at_least=0,
        doc="Decimal places of NUMERIC columns without precision and scale. Their values can have any number of "
        "decimal places, but a Connect Decimal has a fixed number. A value with more decimal places cannot be mapped.",
        group=_DATABASE,
    )
    unsupported_columns: str = key(
        "unsupported.columns",
        default="text",
        one_of=_UNSUPPORTED_COLUMNS,
        case_insensitive=True,
        doc="What to do with columns whose SQL type has no Connect type, such as arrays, intervals, ranges, network "
        "addresses, money and times with time zone. text: read their values as text. warn: skip the columns and "
        "log a warning, as Confluent's connector does. fail: reject the configuration.",
        group=_DATABASE,
    )
    unmappable_values: str = key(
        "unmappable.values",
        default="fail",
        one_of=_UNMAPPABLE_VALUES,
        case_insensitive=True,
        doc="What to do with values that their Connect type cannot represent, such as infinite timestamps, MySQL's "
        "zero date, the time 24:00:00, timestamps that are too large for timestamp.granularity, and SQLite values "
        "whose type is not their column's type. fail: fail the task. null: write null, if the column is nullable. "
        "clamp: write the nearest date, time or timestamp that the field's type can represent: its largest value for "
        "infinity, 23:59:59.999 for 24:00:00, and 0001-01-01 for the zero date; other values fail the task. skip: skip "
        "the row and log a warning; with errors.tolerance=all, the row is also sent to the dead letter queue. If this "
        "key is not set, errors.tolerance=all means skip.",
        group=_DATABASE,
    )
    timestamp_granularity: str = key(
        "timestamp.granularity",
        default="connect_logical",
        one_of=_GRANULARITIES,
        case_insensitive=True,
        doc="How to write timestamp columns to records: as Connect's Timestamp type, or as a number or string in "
        "microseconds or nanoseconds. An iso_datetime_string has the time zone of db.timezone.",
        group=_DATABASE,
    )
    quote_sql_identifiers: str = key(
        "quote.sql.identifiers",
        default="ALWAYS",
        one_of=("ALWAYS", "NEVER"),
        case_insensitive=True,
        doc="Whether to quote table and column names in SQL statements. With NEVER, the names can contain only "
        "letters, digits, _ and $, and cannot start with a digit or $. Otherwise the task fails.",
        group=_DATABASE,
    )
    dialect_name: str = key(
        "dialect.name",
        default="",
        doc="Accepted for compatibility and ignored: connection.url determines the dialect. If they contradict each "
        "other, the connector logs a warning.",
        group=_DATABASE,
    )
    transaction_isolation_mode: str = key(
        "transaction.isolation.mode",
        default="DEFAULT",
        one_of=_ISOLATION_MODES,
        case_insensitive=True,
        doc="Isolation level of the transactions that read tables. It has an effect only in PostgreSQL, MySQL and "
        "MariaDB. SQL_SERVER_SNAPSHOT is accepted and has no effect.",
        group=_DATABASE,
    )

    mode: Mode = key(
        "mode",
        doc="How to find new rows. bulk: read the whole table every time. incrementing: read rows with a larger id "
        "than the last row read. timestamp: read rows with a later timestamp than the last row read. "
        "timestamp+incrementing: use both, so that rows with equal timestamps are read once.",
        importance=Importance.HIGH,
        group=_MODE,
    )
    incrementing_column_name: str = key(
        "incrementing.column.name",
        default="",
        doc="Column with increasing ids. Empty: the table's only autoincrement column.",
        group=_MODE,
    )
    timestamp_column_name: list[str] = key(
        "timestamp.column.name",
        default=[],
        doc="Timestamp columns. A row's timestamp is the first of these columns that is not NULL (SQL COALESCE).",
        group=_MODE,
    )
    incrementing_column_mapping: list[str] = key(
        "incrementing.column.mapping",
        default=[],
        doc="Incrementing columns by table, as regex:column. The Java regular expression matches the qualified table "
        "name.",
        group=_MODE,
    )
    timestamp_columns_mapping: list[str] = key(
        "timestamp.columns.mapping",
        default=[],
        doc="Timestamp columns by table, as regex:[column1|column2]. The Java regular expression matches the qualified "
        "table name.",
        group=_MODE,
    )
    timestamp_initial: int | None = key(
        "timestamp.initial",
        default=None,
        type=ConfigType.LONG,
        doc="Timestamp to start from if there is no stored offset, in milliseconds since the epoch. -1: current time.",
        group=_MODE,
    )
    snapshot_horizon: bool = key(
        "snapshot.horizon",
        default=False,
        doc="Whether to read a row only when no running transaction can still commit a row with an earlier timestamp "
        "or a smaller id. If false, rows that are committed late may never be read. Supported for PostgreSQL, MySQL "
        "and MariaDB. A long transaction delays the rows of all later transactions. The user needs the role "
        "pg_read_all_stats (PostgreSQL) or the privilege PROCESS (MySQL, MariaDB). The database must set the "
        "timestamps, and sequences must not cache values.",
        group=_MODE,
    )
    initial_load_chunks: int = key(
        "initial.load.chunks",
        default=1,
        at_least=1,
        doc="Number of ranges of the incrementing column into which the first read of a table is split. Tasks read "
        "the ranges at the same time, so these records are not in the order of that column. With "
        "mode=timestamp+incrementing, rows that changed meanwhile are read again after all ranges.",
        group=_MODE,
    )
    validate_non_null: bool = key(
        "validate.non.null",
        default=True,
        doc="Whether to reject a nullable incrementing column, and timestamp columns that are all nullable. Rows with "
        "NULL in them are never read.",
        group=_MODE,
    )
    query: str = key(
        "query",
        default="",
        doc="Query to read instead of tables. The connector appends the mode's WHERE and ORDER BY clauses to it.",
        group=_MODE,
    )
    query_masked: Password | None = key(
        "query.masked", default=None, doc="Like query, but hidden wherever configurations are shown.", group=_MODE
    )
    query_suffix: str = key(
        "query.suffix", default="", doc="Text to append to every query, after ORDER BY.", group=_MODE
    )
    query_retry_attempts: int = key(
        "query.retry.attempts",
        default=-1,
        at_least=-1,
        doc="Maximum number of retries of a query after a transient error, or while its table or an offset column is "
        "missing. -1: unlimited.",
        group=_MODE,
    )

    topic_prefix: str = key(
        "topic.prefix",
        default="",
        doc="Prefix of topic names: a table's topic is the prefix followed by the table name. If query is set, this is "
        "the complete name of the topic.",
        importance=Importance.HIGH,
        group=_CONNECTOR,
        validator=_check_topic_prefix,
    )
    poll_interval_ms: int = key(
        "poll.interval.ms",
        default=5000,
        at_least=0,
        doc="Milliseconds to wait between two queries of the same table.",
        group=_CONNECTOR,
    )
    batch_max_rows: int = key(
        "batch.max.rows", default=1000, at_least=1, doc="Maximum number of rows in a batch.", group=_CONNECTOR
    )
    poll_linger_ms: int = key(
        "poll.linger.ms",
        default=5000,
        at_least=0,
        doc="Accepted for compatibility and ignored: a poll returns as soon as there are rows.",
        group=_CONNECTOR,
    )
    max_buffer_size: int = key(
        "max.buffer.size",
        default=0,
        at_least=0,
        doc="Accepted for compatibility and ignored: the connector streams rows and buffers none.",
        group=_CONNECTOR,
    )
    table_poll_interval_ms: int = key(
        "table.poll.interval.ms",
        default=60000,
        at_least=1,
        type=ConfigType.LONG,
        doc="How often to check for new and deleted tables, in milliseconds.",
        group=_CONNECTOR,
    )
    timestamp_delay_interval_ms: int = key(
        "timestamp.delay.interval.ms",
        default=0,
        at_least=0,
        type=ConfigType.LONG,
        doc="Milliseconds to wait after a row's timestamp before reading the row, so that transactions with earlier "
        "timestamps can commit.",
        group=_CONNECTOR,
    )

    @field_validator("numeric_mapping", "unsupported_columns", "unmappable_values", "timestamp_granularity")
    @classmethod
    def _to_lower_case(cls, value: str) -> str:
        return value.lower()

    @field_validator("quote_sql_identifiers", "transaction_isolation_mode")
    @classmethod
    def _to_upper_case(cls, value: str) -> str:
        return value.upper()

    def warnings_about_keys(self) -> list[str]:
        """Return one warning for each key that is set and has no effect."""
        found = super().warnings_about_keys()
        database = url.parse(self.connection_url)
        if self.catalog_pattern and not like_to_regex(self.catalog_pattern).fullmatch(database.database):
            found.append(
                f"Configuration catalog.pattern={self.catalog_pattern} has no effect: the connector reads the database "
                "in connection.url"
            )
        found += warnings_about_values(
            database,
            schema_pattern=self.schema_pattern,
            table_types=self.table_types,
            isolation_mode=self.transaction_isolation_mode,
            numeric_mapping=self.numeric_mapping.upper(),
        )
        return found + warnings_about_dialect(self)

    @property
    def isolation_level(self) -> str | None:
        """The isolation level to set in PostgreSQL, MySQL or MariaDB, or None to keep the database's default."""
        mode = self.transaction_isolation_mode
        return None if mode in ("DEFAULT", SQL_SERVER_SNAPSHOT) else mode

    @property
    def sql(self) -> str:
        """The custom query, or an empty string if the connector reads tables.

        The semicolons and comments after the end of the query are removed. All other comments remain.
        """
        return single_statement(self.query or (self.query_masked.value if self.query_masked else ""))

    def incrementing_column_of(self, table: str) -> str:
        """Return the configured incrementing column of a table, or of the query if `table` is empty."""
        found = _mapped(self.incrementing_column_mapping, table)
        return self.incrementing_column_name if found is None else found

    def timestamp_columns_of(self, table: str) -> list[str]:
        """Return the configured timestamp columns of a table, or of the query if `table` is empty."""
        found = _mapped(self.timestamp_columns_mapping, table)
        return self.timestamp_column_name if found is None else found.removeprefix("[").removesuffix("]").split("|")

    @property
    def uses_incrementing(self) -> bool:
        return "incrementing" in self.mode

    @property
    def uses_timestamp(self) -> bool:
        return "timestamp" in self.mode

    @classmethod
    def errors_between(cls, values: Mapping[str, Any]) -> Iterator[ConfigError]:
        """Yield errors in keys and in combinations of keys. `values` maps each key to its parsed value."""
        return errors_of_source(values)


def _mapped(mapping: list[str], table: str) -> str | None:
    """Return the columns in the first entry of `mapping` whose pattern matches `table`, or None if none matches."""
    for item in mapping:
        pattern, _, columns = item.rpartition(":")
        if table and any(map(java_pattern(pattern.strip()).matches, (table, unquoted(table)))):
            return columns.strip()
    return None


class JdbcSourceTaskConfig(JdbcSourceConfig):
    """Configuration of a JDBC source task: the connector's keys and the tables assigned to the task."""

    tables: list[str] = key("tables", default=[], doc="Qualified names of the tables assigned to the task.")
    initial_load: str = key(
        "initial.load", default="", doc="The initial loads of the tables, and the ranges assigned to the task, as JSON."
    )
    tables_fetched: bool = key(
        "tables.fetched", default=False, doc="Whether the connector has fetched the list of tables."
    )
