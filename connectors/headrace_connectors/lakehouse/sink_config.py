"""Configuration of LakehouseSinkConnector, and validation that involves several keys."""

from __future__ import annotations

import codecs
import importlib.util
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import ClassVar

from headrace.api.config import Config, Importance, config_def, key
from headrace.api.errors import ConfigError
from headrace_connectors.lakehouse.column_types import SchemaError, TableColumn
from headrace_connectors.lakehouse.ddl import parse_ddl

TOPIC_VARIABLE = "${topic}"
"""The part of `lakehouse.table.name.format` that is replaced with the topic's name."""

_TABLE_NAME = re.compile(r"[A-Za-z0-9._=-]+(/[A-Za-z0-9._=-]+)*")
_CHECKPOINTS = "_checkpoints"
_CONVERTERS = {
    "org.apache.kafka.connect.json.JsonConverter": "json",
    "JsonConverter": "json",
    "Json": "json",
    "org.apache.kafka.connect.storage.StringConverter": "string",
    "StringConverter": "string",
    "String": "string",
}
_FIXED_SPARK_KEYS = ("spark.sql.session.timeZone", "spark.sql.caseSensitive", "spark.sql.ansi.enabled")


class LakehouseSinkConfig(Config):
    """Configuration keys `lakehouse.*` and `spark.*`. `ValueFormat` reads the value converter's keys."""

    passthrough_prefixes: ClassVar[tuple[str, ...]] = ("spark.", "lakehouse.table.")

    path: str = key(
        "lakehouse.path",
        doc="Directory of the tables. Each table is a subdirectory.",
        importance=Importance.HIGH,
    )
    format: str = key(
        "lakehouse.format",
        default="delta",
        one_of=("delta", "parquet"),
        doc="File format of the tables.",
        importance=Importance.HIGH,
    )
    table_name_format: str = key(
        "lakehouse.table.name.format",
        default=TOPIC_VARIABLE,
        doc="Name of a topic's table. ${topic} is replaced with the topic's name, and / creates a subdirectory.",
    )
    metadata_columns: bool = key(
        "lakehouse.metadata.columns",
        default=True,
        doc="Whether tables have the columns _kafka_topic, _kafka_partition, _kafka_offset and _kafka_timestamp.",
    )
    checkpoint_path: str | None = key(
        "lakehouse.checkpoint.path",
        default=None,
        doc="Directory of Spark's checkpoint of the current run. It may be deleted at any time, because the tables"
        " contain the offsets. Default: <lakehouse.path>/_checkpoints/<connector>.",
    )
    source: str = key(
        "lakehouse.source",
        default="auto",
        one_of=("auto", "python", "jvm"),
        doc="How Spark reads the topics. python needs no jars; auto is the same as python.",
    )
    schema_ddl: str | None = key(
        "lakehouse.schema",
        default=None,
        doc="Columns of records without schemas, as Spark DDL (id BIGINT, name STRING)."
        " Set lakehouse.table.<table>.schema for one table.",
    )
    batch_rows_max: int = key(
        "lakehouse.batch.rows.max",
        default=250_000,
        at_least=1,
        doc="Maximum number of records in a micro-batch.",
    )
    batch_bytes_max: int = key(
        "lakehouse.batch.bytes.max",
        default=256 << 20,
        at_least=1 << 10,
        doc="Maximum payload bytes in a micro-batch, estimated from samples. Limits the memory that a batch needs.",
    )
    trigger_interval_ms: int = key(
        "lakehouse.trigger.interval.ms",
        default=2_000,
        at_least=0,
        doc="Milliseconds between checks for new records and topics. A longer interval creates fewer, larger files.",
    )
    fail_on_data_loss: bool = key(
        "lakehouse.fail.on.data.loss",
        default=True,
        doc="Whether the task fails if retention deleted records before they were loaded. If false, the task logs a"
        " warning and continues with the remaining records.",
    )
    spark_master: str = key(
        "spark.master",
        default="local[*]",
        doc="Spark master: local[*] to use all cores of this machine, local[N] to use N cores.",
    )

    @property
    def root(self) -> Path:
        """The directory of the tables."""
        return Path(self.path.removeprefix("file://")).expanduser().absolute()

    def checkpoint_root(self, connector: str) -> Path:
        """Return the directory that contains the checkpoints of the connector's queries."""
        if self.checkpoint_path is not None:
            return Path(self.checkpoint_path.removeprefix("file://")).expanduser().absolute()
        return self.root / _CHECKPOINTS / connector

    def spark_conf(self) -> dict[str, str]:
        """Return all `spark.*` keys."""
        given = {f"spark.{name}": text for name, text in self.originals_with_prefix("spark.").items()}
        return {"spark.master": self.spark_master, **given}

    def declared_schemas(self) -> dict[str, tuple[TableColumn, ...]]:
        """Return the columns that `lakehouse.table.<table>.schema` declares, by table."""
        return {table: parse_ddl(text) for _, table, text in _table_schemas(self.originals)}

    def declared_default(self) -> tuple[TableColumn, ...] | None:
        """Return the columns that `lakehouse.schema` declares, or None if this key is not set."""
        return parse_ddl(self.schema_ddl) if self.schema_ddl else None


class ValueFormat:
    """The format of record values, from the value converter's configuration with its defaults.

    `kind` is "envelope" (JsonConverter with schemas), "json" (JsonConverter without schemas), "string",
    or None if the converter is not supported.
    """

    def __init__(self, properties: Mapping[str, str]) -> None:
        self.converter = properties.get("value.converter", "")
        self._settings = properties
        kind = _CONVERTERS.get(self.converter)
        self.kind = kind if kind != "json" else "envelope" if self._flag("schemas.enable") else "json"

    @property
    def encoding(self) -> str:
        """The character encoding of StringConverter."""
        return self._settings.get("value.converter.converter.encoding", "")

    @property
    def decimals_numeric(self) -> bool:
        """The encoding of decimals that is assumed until a record shows it: true for JSON numbers, false for base64."""
        return self._settings.get("value.converter.decimal.format", "").upper() == "NUMERIC"

    @property
    def replace_null_with_default(self) -> bool:
        """Whether null in a field with a default becomes the default."""
        return self._flag("replace.null.with.default")

    def _flag(self, name: str) -> bool:
        return self._settings.get(f"value.converter.{name}", "").strip().lower() == "true"


def check(properties: Mapping[str, str]) -> Iterator[ConfigError]:
    """Yield configuration errors that the validation of single keys does not find.

    `properties` contains the settings of the value converter with their defaults, if the connector sets a converter.
    """
    _check_packages()
    yield from _check_chain(properties)
    yield from _check_paths(properties)
    yield from _check_spark(properties)
    yield from _check_values(properties)
    if properties.get("lakehouse.source") == "jvm":
        yield ConfigError(
            "lakehouse.source",
            "jvm",
            "Spark's built-in Kafka source is not supported yet; set python, which needs no jars",
        )


def _check_packages() -> None:
    """Raise ModuleNotFoundError if a package is missing. The packages are not imported, because this takes seconds."""
    for name in ("pyspark", "pyarrow", "pandas", "deltalake", "confluent_kafka"):
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _check_chain(properties: Mapping[str, str]) -> Iterator[ConfigError]:
    for name in ("transforms", "predicates"):
        if properties.get(name, "").strip():
            yield ConfigError(
                name,
                properties[name],
                "this connector does not support transforms and predicates yet, because Spark reads the topics;"
                " configure them on the source connector instead",
            )


def _check_paths(properties: Mapping[str, str]) -> Iterator[ConfigError]:
    for name in ("lakehouse.path", "lakehouse.checkpoint.path"):
        path = properties.get(name, "").strip()
        if "://" in path and not path.startswith("file://"):
            yield ConfigError(name, path, "only local directories are supported so far")
    name_format = _text(properties, "lakehouse.table.name.format")
    example = name_format.replace(TOPIC_VARIABLE, "t")
    parts = example.split("/")
    if not _TABLE_NAME.fullmatch(example) or any(part in (".", "..") for part in parts) or parts[0] == _CHECKPOINTS:
        yield ConfigError(
            "lakehouse.table.name.format",
            name_format,
            "must be a relative path of letters, digits and . _ = - and may contain ${topic}",
        )


def _text(properties: Mapping[str, str], name: str) -> str:
    """Return the value of the key `name` as text, or the key's default."""
    text: str = properties.get(name, config_def(LakehouseSinkConfig).keys[name].default)
    return text.strip()


def _check_spark(properties: Mapping[str, str]) -> Iterator[ConfigError]:
    master = _text(properties, "spark.master")
    if properties.get("spark.remote") or master.startswith("sc://"):
        name = "spark.remote" if properties.get("spark.remote") else "spark.master"
        yield ConfigError(name, properties[name], "Spark Connect is not supported yet; use spark.master=local[*]")
    elif not re.fullmatch(r"local(\[(\*|\d+)(,\d+)?\])?", master):
        yield ConfigError("spark.master", master, "only a local master is supported so far: local[*] or local[N]")
    memory = properties.get("spark.driver.memory", "").strip()
    if memory and not re.fullmatch(r"\d+[kmgKMG]", memory):
        yield ConfigError("spark.driver.memory", memory, "must be a number followed by k, m or g, such as 2g")
    for name in _FIXED_SPARK_KEYS:
        if name in properties:
            yield ConfigError(name, properties[name], "cannot be changed, because the types of the tables depend on it")


def _check_values(properties: Mapping[str, str]) -> Iterator[ConfigError]:
    declared = [("lakehouse.schema", "", properties["lakehouse.schema"])] if properties.get("lakehouse.schema") else []
    declared += _table_schemas(properties)
    for name, _, text in declared:
        try:
            parse_ddl(text)
        except SchemaError as error:
            yield ConfigError(name, text, str(error))
    if properties.get("value.converter"):  # the worker's default converter is validated by the task
        yield from check_value_format(ValueFormat(properties), bool(declared))


def check_value_format(value: ValueFormat, declared: bool) -> Iterator[ConfigError]:
    """Yield errors in the configuration of the effective value converter.

    `declared` is true if the configuration declares columns, for example with `lakehouse.schema`.
    """
    if value.kind is None:
        yield ConfigError("value.converter", value.converter, "is not supported; set JsonConverter or StringConverter")
    elif value.kind == "json" and not declared:
        yield ConfigError(
            "lakehouse.schema",
            None,
            "columns of records without schemas (value.converter.schemas.enable=false) must be declared as Spark DDL,"
            " here or in lakehouse.table.<table>.schema",
        )
    elif value.kind != "json" and declared:
        yield ConfigError(
            "lakehouse.schema",
            "set",
            "can be set only with value.converter=JsonConverter and value.converter.schemas.enable=false",
        )
    elif value.kind == "string" and not _is_encoding(value.encoding):
        yield ConfigError("value.converter.converter.encoding", value.encoding, "unknown encoding")


def _is_encoding(name: str) -> bool:
    try:
        codecs.lookup(name)
    except LookupError:
        return False
    return True


def _table_schemas(properties: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Return (key, table, DDL) for each lakehouse.table.<table>.schema."""
    prefix, suffix = "lakehouse.table.", ".schema"
    return [
        (name, name[len(prefix) : -len(suffix)], text)
        for name, text in properties.items()
        if name.startswith(prefix) and name.endswith(suffix) and len(name) > len(prefix) + len(suffix)
    ]
