"""Configuration of the JDBC sink, with the keys and defaults of Confluent's connector."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from headrace.api.config import Config, ConfigType, Importance, Password, key
from headrace.api.errors import ConfigError
from headrace_connectors.common.null_replacement import replaces_null_with_default
from headrace_connectors.common.time_zones import check_time_zone
from headrace_connectors.jdbc import url
from headrace_connectors.jdbc.connections import (
    CREDENTIALS_PROVIDER_DOC,
    check_credentials_provider,
    warnings_about_dialect,
)

KAFKA_KEY_COLUMNS = ("__connect_topic", "__connect_partition", "__connect_offset")
_CONNECTION, _WRITES, _MAPPING, _DDL, _RETRIES = "Connection", "Writes", "Data Mapping", "DDL Support", "Retries"


_TABLE_TYPES = ("TABLE", "PARTITIONED TABLE", "FOREIGN TABLE", "VIEW")


def ways_to_a_schema(side: str) -> str:
    """Return how to configure the converter if keys or values have no schema. `side` is "key" or "value"."""
    return (
        f"With {side}.converter=JsonConverter and {side}.converter.schemas.enable=true, each {side} must be "
        f'{{"schema": ..., "payload": ...}}, or {side}.converter.schema.content must contain the schema of all '
        f"{side}s. Or use a converter that returns schemas"
    )


class JdbcSinkConfig(Config):
    """Configuration of the JDBC sink. Unknown `connection.*` keys are passed to the driver as properties."""

    passthrough_prefixes = ("connection.",)
    without_effect: ClassVar[Mapping[str, str]] = {
        "date.calendar.system": "dates always use the proleptic Gregorian calendar",
        "date.timezone": "a Date is always written as the calendar date that it contains",
        "mssql.use.merge.holdlock": "SQL Server is not supported",
    }

    connection_url: str = key(
        "connection.url",
        doc="JDBC URL of the database, such as jdbc:postgresql://localhost:5432/shop, jdbc:mysql://localhost:3306/shop "
        "or jdbc:sqlite:/data/shop.db.",
        importance=Importance.HIGH,
        group=_CONNECTION,
        validator=url.validate_known,
    )
    connection_user: str | None = key("connection.user", default=None, doc="Database user.", group=_CONNECTION)
    connection_password: Password | None = key(
        "connection.password", default=None, doc="Password of the database user.", group=_CONNECTION
    )
    connection_attempts: int = key(
        "connection.attempts",
        default=3,
        at_least=1,
        doc="Maximum number of attempts to connect when the task starts.",
        group=_CONNECTION,
    )
    connection_backoff_ms: int = key(
        "connection.backoff.ms",
        default=10000,
        at_least=0,
        type=ConfigType.LONG,
        doc="Milliseconds to wait between two attempts to connect.",
        group=_CONNECTION,
    )
    credentials_provider_class: str = key(
        "jdbc.credentials.provider.class",
        default="",
        doc=CREDENTIALS_PROVIDER_DOC,
        group=_CONNECTION,
        validator=check_credentials_provider,
    )
    dialect_name: str = key(
        "dialect.name",
        default="",
        doc="Accepted for compatibility and ignored: connection.url determines the database. If they contradict each "
        "other, the connector logs a warning.",
        group=_CONNECTION,
    )
    insert_mode: str = key(
        "insert.mode",
        default="insert",
        one_of=("insert", "upsert", "update"),
        case_insensitive=True,
        doc="insert: INSERT. upsert: insert a row, or update the row with the same primary key. update: UPDATE only.",
        importance=Importance.HIGH,
        group=_WRITES,
    )
    batch_size: int = key(
        "batch.size", default=3000, at_least=1, doc="Maximum number of rows in one statement.", group=_WRITES
    )
    delete_enabled: bool = key(
        "delete.enabled",
        default=False,
        doc="Whether a tombstone (a record with a null value) deletes the row with its key. Needs pk.mode=record_key.",
        group=_WRITES,
    )
    table_name_format: str = key(
        "table.name.format",
        default="${topic}",
        doc="The table of a record; ${topic} is the record's topic. A dot separates the schema from the table, "
        "except in double quotes.",
        group=_MAPPING,
    )
    table_types: list[str] = key(
        "table.types",
        default=["TABLE"],
        doc="Types of tables that may be written to: TABLE, PARTITIONED TABLE and VIEW.",
        group=_MAPPING,
    )
    pk_mode: str = key(
        "pk.mode",
        default="none",
        one_of=("none", "kafka", "record_key", "record_value"),
        case_insensitive=True,
        doc="The primary key. none: no key. kafka: topic, partition and offset of the record before transforms. "
        "record_key: the record's key. record_value: fields of the value.",
        importance=Importance.HIGH,
        group=_MAPPING,
    )
    pk_fields: list[str] = key(
        "pk.fields",
        default=[],
        doc="Columns of the primary key. pk.mode=kafka: three names (default "
        f"{','.join(KAFKA_KEY_COLUMNS)}). record_key with a primitive key: one name. record_key or record_value with a "
        "struct: the names of fields, empty for all fields.",
        group=_MAPPING,
    )
    fields_whitelist: list[str] = key(
        "fields.whitelist",
        default=[],
        doc="Fields of the value to write, empty for all. Primary key columns are always written.",
        group=_MAPPING,
    )
    db_timezone: str = key(
        "db.timezone",
        default="UTC",
        doc="Time zone of database timestamps without a time zone: a name such as Europe/Berlin, or an offset such as "
        "+02:00.",
        group=_MAPPING,
        validator=check_time_zone,
    )
    date_timezone: str = key(
        "date.timezone",
        default="db_timezone",
        one_of=("db_timezone", "utc"),
        case_insensitive=True,
        doc="Accepted for compatibility: a Date is always written as the calendar date that it contains.",
        group=_MAPPING,
    )
    date_calendar_system: str = key(
        "date.calendar.system",
        default="LEGACY",
        one_of=("LEGACY", "PROLEPTIC_GREGORIAN"),
        case_insensitive=True,
        doc="Accepted for compatibility: dates always use the proleptic Gregorian calendar.",
        group=_MAPPING,
    )
    timestamp_fields_list: list[str] = key(
        "timestamp.fields.list",
        default=[],
        doc="INT64 or STRING fields that are written as timestamps. They contain the time since the epoch in the unit "
        "of timestamp.precision.mode; a STRING may also contain an ISO 8601 date and time.",
        group=_MAPPING,
    )
    timestamp_precision_mode: str = key(
        "timestamp.precision.mode",
        default="microseconds",
        one_of=("microseconds", "nanoseconds"),
        case_insensitive=True,
        doc="Unit of the fields in timestamp.fields.list. Timestamps are written with microsecond precision.",
        group=_MAPPING,
    )
    string_column: str = key(
        "string.output.value.column.name",
        default="record_value",
        doc="The column for values that are plain strings with a schema.",
        group=_MAPPING,
    )
    replace_null_with_default: bool = key(
        "replace.null.with.default",
        default=True,
        doc="Whether to replace null with the default in fields that have a default. The converter's key of this name "
        "has no effect on the sink.",
        group=_MAPPING,
    )
    auto_create: bool = key(
        "auto.create", default=False, doc="Whether a missing table is created from the record's schema.", group=_DDL
    )
    auto_evolve: bool = key(
        "auto.evolve",
        default=False,
        doc="Whether missing columns are added. Their fields must be optional or have a default. Columns are never "
        "dropped or changed.",
        group=_DDL,
    )
    quote_sql_identifiers: str = key(
        "quote.sql.identifiers",
        default="always",
        one_of=("always", "never"),
        case_insensitive=True,
        doc="Whether names of tables and columns are quoted. With never, names must be plain SQL identifiers.",
        group=_DDL,
    )
    mssql_use_merge_holdlock: bool = key(
        "mssql.use.merge.holdlock",
        default=True,
        doc="Accepted for compatibility and ignored: SQL Server is not supported.",
        group=_DDL,
    )
    max_retries: int = key(
        "max.retries",
        default=10,
        at_least=0,
        doc="How many times in a row the task writes the same records again after an error that may be temporary, such "
        "as a lost connection or a deadlock. Records that the database rejects are not retried.",
        group=_RETRIES,
    )
    retry_backoff_ms: int = key(
        "retry.backoff.ms", default=3000, at_least=0, doc="Milliseconds to wait before a retry.", group=_RETRIES
    )
    trim_sensitive_log: bool = key(
        "trim.sensitive.log",
        default=False,
        doc="Whether error messages omit the database's message, which may contain values of the record.",
        group=_RETRIES,
    )

    @classmethod
    def errors_between(cls, values: Mapping[str, Any]) -> Iterator[ConfigError]:
        """Yield errors about invalid combinations of keys. `values` maps each key to its parsed value."""
        insert_mode, pk_mode = str(values.get("insert.mode")).lower(), str(values.get("pk.mode")).lower()
        pk_fields = values.get("pk.fields") or []
        if values.get("delete.enabled") and pk_mode in ("none", "kafka", "record_value"):
            yield ConfigError("delete.enabled", "true", "Deletes are only supported for pk.mode record_key")
        if insert_mode in ("upsert", "update") and pk_mode == "none":
            yield ConfigError("pk.mode", "none", f"insert.mode={insert_mode} needs a primary key: set pk.mode")
        if pk_mode == "kafka" and len(pk_fields) not in (0, 3):
            yield ConfigError("pk.fields", ",".join(pk_fields), "pk.mode=kafka needs no names or exactly three names")

    def warnings_about_keys(self) -> list[str]:
        """Return one warning for each key that is set and has no effect."""
        unknown = [kind for kind in self.table_types if kind.strip().upper() not in _TABLE_TYPES]
        reason = f"unknown table types; the types are {', '.join(_TABLE_TYPES)}"
        types = [f"Configuration table.types={','.join(unknown)} has no effect: {reason}"] if unknown else []
        return [
            *super().warnings_about_keys(),
            *warnings_about_dialect(self),
            *types,
            *self._warnings_about_nulls(),
            *self._warnings_about_schemas(),
        ]

    def _warnings_about_nulls(self) -> list[str]:
        """Return a warning if the converter keeps nulls and the sink replaces them, as in Confluent's sink."""
        own = "replace.null.with.default"
        if replaces_null_with_default(self, "value.converter") or own in self.originals:
            return []
        return [
            f"Configuration value.converter.{own}=false: the sink still replaces null with the default; set {own}=false"
        ]

    def _warnings_about_schemas(self) -> list[str]:
        """Return a warning if the connector's own converter returns records without schemas."""
        converter = self.originals.get("value.converter", "").rsplit(".", 1)[-1].removesuffix("Converter")
        has_schemas = self.originals.get("value.converter.schemas.enable", "true").strip().lower() != "false"
        if converter != "Json" or has_schemas:
            return []
        return [
            "Configuration value.converter.schemas.enable=false: records have no schema, and the JDBC sink rejects "
            f"them unless a transform adds a schema. {ways_to_a_schema('value')}"
        ]
