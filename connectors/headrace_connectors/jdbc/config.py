"""Configuration of the JDBC source: Confluent's keys and defaults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from headrace.api.config import Config, ConfigType, Importance, Password, key
from headrace.api.errors import ConfigError
from headrace_connectors.jdbc import url

Mode = Literal["bulk", "incrementing", "timestamp", "timestamp+incrementing"]
NumericMapping = Literal["none", "precision_only", "best_fit", "best_fit_eager_double"]
Granularity = Literal[
    "connect_logical",
    "micros_long",
    "micros_string",
    "micros_iso_datetime_string",
    "nanos_long",
    "nanos_string",
    "nanos_iso_datetime_string",
]

_DATABASE, _MODE, _CONNECTOR = "Database", "Mode", "Connector"


class JdbcSourceConfig(Config):
    """The connector's keys; `connection.*` beyond these are the driver's own properties."""

    passthrough_prefixes = ("connection.",)

    connection_url: str = key(
        "connection.url",
        doc="JDBC URL of the database, such as jdbc:postgresql://localhost:5432/shop or jdbc:sqlite:/data/shop.db.",
        importance=Importance.HIGH,
        group=_DATABASE,
        validator=url.check,
    )
    connection_user: str | None = key("connection.user", default=None, doc="User of the database.", group=_DATABASE)
    connection_password: Password | None = key(
        "connection.password", default=None, doc="The user's password.", group=_DATABASE
    )
    connection_attempts: int = key(
        "connection.attempts",
        default=3,
        at_least=1,
        doc="How often a connection is tried before the task fails.",
        group=_DATABASE,
    )
    connection_backoff_ms: int = key(
        "connection.backoff.ms",
        default=10000,
        at_least=0,
        type=ConfigType.LONG,
        doc="Pause between these tries.",
        group=_DATABASE,
    )
    table_whitelist: list[str] = key("table.whitelist", default=[], doc="The tables to read, by name.", group=_DATABASE)
    table_blacklist: list[str] = key("table.blacklist", default=[], doc="Tables to leave out.", group=_DATABASE)
    table_include_list: list[str] = key(
        "table.include.list",
        default=[],
        doc="Regular expressions for the qualified names of tables to read.",
        group=_DATABASE,
    )
    table_exclude_list: list[str] = key(
        "table.exclude.list",
        default=[],
        doc="Regular expressions for the qualified names of tables to leave out.",
        group=_DATABASE,
    )
    schema_pattern: str | None = key(
        "schema.pattern", default=None, doc="Only tables of schemas like this (SQL wildcards).", group=_DATABASE
    )
    catalog_pattern: str | None = key(
        "catalog.pattern",
        default=None,
        doc="Accepted: a connection reads the one database of its URL.",
        group=_DATABASE,
    )
    table_types: list[str] = key("table.types", default=["TABLE"], doc="TABLE, VIEW, or both.", group=_DATABASE)
    db_timezone: str = key(
        "db.timezone", default="UTC", doc="Time zone of timestamps that carry none.", group=_DATABASE
    )
    numeric_mapping: NumericMapping = key(
        "numeric.mapping",
        default="none",
        doc="How NUMERIC columns are mapped: exact decimals, or integers and doubles where these hold the values.",
        group=_DATABASE,
    )
    numeric_precision_mapping: bool = key(
        "numeric.precision.mapping", default=False, doc="Older form of numeric.mapping=precision_only.", group=_DATABASE
    )
    timestamp_granularity: Granularity = key(
        "timestamp.granularity",
        default="connect_logical",
        doc="The form of timestamp columns in records.",
        group=_DATABASE,
    )
    quote_sql_identifiers: Literal["ALWAYS", "NEVER", "always", "never"] = key(
        "quote.sql.identifiers", default="ALWAYS", doc="Whether names are quoted in SQL.", group=_DATABASE
    )
    dialect_name: str = key(
        "dialect.name", default="", doc="Accepted: the URL says which database it is.", group=_DATABASE
    )
    transaction_isolation_mode: Literal[
        "DEFAULT", "READ_UNCOMMITTED", "READ_COMMITTED", "REPEATABLE_READ", "SERIALIZABLE"
    ] = key(
        "transaction.isolation.mode",
        default="DEFAULT",
        doc="Isolation level of the reading transactions.",
        group=_DATABASE,
    )

    mode: Mode = key(
        "mode",
        doc="bulk: the whole table each time; incrementing: new rows by a growing id; timestamp: new and changed rows "
        "by a timestamp; timestamp+incrementing: both, exact within equal timestamps.",
        importance=Importance.HIGH,
        group=_MODE,
    )
    incrementing_column_name: str = key(
        "incrementing.column.name",
        default="",
        doc="The growing column; empty: the table's one autoincrement column.",
        group=_MODE,
    )
    timestamp_column_name: list[str] = key(
        "timestamp.column.name", default=[], doc="The timestamp columns; several are used as COALESCE.", group=_MODE
    )
    timestamp_initial: int | None = key(
        "timestamp.initial",
        default=None,
        type=ConfigType.LONG,
        doc="Where to begin, ms since the epoch; -1: now.",
        group=_MODE,
    )
    validate_non_null: bool = key(
        "validate.non.null",
        default=True,
        doc="Refuse cursor columns that may be NULL: their rows would be missed.",
        group=_MODE,
    )
    query: str = key(
        "query", default="", doc="A query to read instead of tables; the mode's WHERE is appended to it.", group=_MODE
    )
    query_masked: Password | None = key(
        "query.masked", default=None, doc="The same, hidden in configurations.", group=_MODE
    )
    query_suffix: str = key("query.suffix", default="", doc="Appended to every query, after ORDER BY.", group=_MODE)
    query_retry_attempts: int = key(
        "query.retry.attempts",
        default=-1,
        at_least=-1,
        doc="How often a query is tried after a transient error; -1: for ever.",
        group=_MODE,
    )

    topic_prefix: str = key(
        "topic.prefix",
        default="",
        doc="Topic = prefix + table name; with a query the whole name.",
        importance=Importance.HIGH,
        group=_CONNECTOR,
    )
    poll_interval_ms: int = key(
        "poll.interval.ms", default=5000, at_least=0, doc="Pause between two queries of one table.", group=_CONNECTOR
    )
    batch_max_rows: int = key(
        "batch.max.rows", default=1000, at_least=1, doc="Rows per batch at most.", group=_CONNECTOR
    )
    poll_linger_ms: int = key(
        "poll.linger.ms",
        default=5000,
        at_least=0,
        doc="Accepted: polls return as soon as there are rows.",
        group=_CONNECTOR,
    )
    max_buffer_size: int = key(
        "max.buffer.size",
        default=0,
        at_least=0,
        doc="Accepted: rows are streamed, none are buffered.",
        group=_CONNECTOR,
    )
    table_poll_interval_ms: int = key(
        "table.poll.interval.ms",
        default=60000,
        at_least=1,
        type=ConfigType.LONG,
        doc="How often the list of tables is looked up.",
        group=_CONNECTOR,
    )
    timestamp_delay_interval_ms: int = key(
        "timestamp.delay.interval.ms",
        default=0,
        at_least=0,
        type=ConfigType.LONG,
        doc="How long rows rest before they are read, for transactions that commit late.",
        group=_CONNECTOR,
    )

    @property
    def sql(self) -> str:
        """The custom query, or an empty text."""
        return self.query or (self.query_masked.value if self.query_masked else "")

    @property
    def uses_incrementing(self) -> bool:
        return "incrementing" in self.mode

    @property
    def uses_timestamp(self) -> bool:
        return "timestamp" in self.mode

    @classmethod
    def errors_between(cls, values: Mapping[str, Any]) -> Iterator[ConfigError]:
        sql = values.get("query") or values.get("query.masked")
        selections = [
            (name, value)
            for name, value in (
                ("table.whitelist", values.get("table.whitelist")),
                ("table.blacklist", values.get("table.blacklist")),
                ("table.include.list", values.get("table.include.list")),
                ("query", sql),
            )
            if value
        ]
        if len(selections) > 1:
            yield ConfigError(*selections[1], f"cannot be set beside {selections[0][0]}: choose one")
        mode = values.get("mode", "")
        if "timestamp" in mode and values.get("timestamp.column.name") == []:
            yield ConfigError("timestamp.column.name", None, f"is needed by mode={mode}")
        if sql and mode == "incrementing" and values.get("incrementing.column.name") == "":
            yield ConfigError("incrementing.column.name", None, "is needed by a query in an incrementing mode")
        if sql and values.get("topic.prefix") == "":
            yield ConfigError("topic.prefix", None, "is the topic's name when a query is read, and is empty")


class JdbcSourceTaskConfig(JdbcSourceConfig):
    """What the connector adds for each task."""

    tables: list[str] = key("tables", default=[], doc="Qualified names of the task's tables.")
    tables_fetched: bool = key("tables.fetched", default=False, doc="Whether the list of tables is known yet.")
