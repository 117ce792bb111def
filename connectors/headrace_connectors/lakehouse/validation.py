"""Validation of a lakehouse sink's configuration that involves several keys, packages or servers."""

from __future__ import annotations

import codecs
import importlib.util
import os
import re
from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

from headrace.api.config import config_def
from headrace.api.errors import ConfigError, ConnectError
from headrace_connectors.lakehouse.column_types import STRING, SchemaError, TableColumn
from headrace_connectors.lakehouse.ddl import parse_ddl
from headrace_connectors.lakehouse.files.layout import FileLayout
from headrace_connectors.lakehouse.files.layout_text import (
    LayoutError,
    layout_problems,
    parse_partition_spec,
    parse_sort_order,
)
from headrace_connectors.lakehouse.sink_config import LakehouseSinkConfig, table_keys
from headrace_connectors.lakehouse.spark.java import JavaNotFoundError, find_java
from headrace_connectors.lakehouse.table_names import TOPIC_VARIABLE, name_problem
from headrace_connectors.lakehouse.table_uri import TableUri, TableUriError
from headrace_connectors.lakehouse.values.options import KEY_COLUMN

_JSON_CONVERTERS = ("org.apache.kafka.connect.json.JsonConverter", "JsonConverter", "Json")
_STRING_CONVERTERS = ("org.apache.kafka.connect.storage.StringConverter", "StringConverter", "String")
_LOCAL_MASTER = re.compile(r"local(\[(\*|\d+)(,\d+)?\])?")
_CLUSTER_MASTER = re.compile(r"(spark|k8s)://.+|yarn")
_LOOPBACK = ("localhost", "127.", "[::1]", "::1")
_TABLE_KEYS = ("schema", "partition.by", "sort.by")
_KEYS_OF_APACHE_ICEBERG = {
    r"iceberg\.tables": "set lakehouse.table.name.format",
    r"iceberg\.tables\.(dynamic-enabled|route-field)": "use a transform that changes the topic",
    r"iceberg\.tables\.default-partition-by": "set lakehouse.partition.by",
    r"iceberg\.table\..+\.partition-by": "set lakehouse.table.<table>.partition.by",
    r"iceberg\.tables\.auto-create-enabled": "the sink always creates missing tables",
    r"iceberg\.tables\.(evolve-schema-enabled|upsert-mode-enabled|cdc-field|default-id-columns)": (
        "the sink only appends, and does not change columns"
    ),
    r"iceberg\.control\.commit\.interval-ms": "set lakehouse.trigger.interval.ms",
}
_PACKAGES = {"delta": ("deltalake",), "iceberg": ("pyiceberg",), "parquet": ()}


def check(properties: Mapping[str, str]) -> Iterator[ConfigError]:
    """Yield configuration errors that the validation of single keys does not find.

    `properties` contains the settings of the value converter with their defaults, if the connector sets a converter.
    Raises ModuleNotFoundError if a package is missing.
    """
    format_ = _text(properties, "lakehouse.format")
    _check_packages(format_)
    yield from _check_paths(properties, format_)
    yield from _check_layout(properties, format_)
    yield from _check_spark(properties)
    yield from _check_values(properties)


def check_environment(config: LakehouseSinkConfig) -> Iterator[ConfigError]:
    """Yield the errors that only the environment shows: Java, the bucket, the catalog, the package for executors."""
    if config.spark_remote is None:
        try:
            find_java(os.environ)
        except JavaNotFoundError as error:
            yield ConfigError("spark.master", config.spark_master, str(error))
    package = config.job_settings().package
    if package is not None and not package.is_file():
        yield ConfigError("lakehouse.executors.package", str(package), "there is no such file")
    yield from declared_errors(config)
    if config.root is not None and config.root.is_s3:
        from headrace_connectors.lakehouse.location_check import check_bucket

        yield from check_bucket(config, config.root, conditional_writes=config.format == "delta")
    if config.format == "iceberg":
        from headrace_connectors.lakehouse.committers.iceberg_catalog import catalog_errors
        from headrace_connectors.lakehouse.committers.iceberg_config import may_vend_credentials
        from headrace_connectors.lakehouse.s3_settings import AccessProvider

        try:
            required = not may_vend_credentials(config.originals, config.root)
            access = AccessProvider(config).current(required=required) if config.uses_s3() else None
        except ConnectError as error:
            yield ConfigError.with_text("aws.access.key.id", str(error))
        else:
            yield from catalog_errors(config.originals, config.root, access)


def declared_errors(config: LakehouseSinkConfig) -> Iterator[ConfigError]:
    """Yield errors about declared columns, and about partition and sort fields that these columns do not permit."""
    from headrace_connectors.lakehouse.values.json_columns import check_declared

    for table, options in {"": config.default_options(), **config.table_options()}.items():
        if options.declared is None:
            continue
        try:
            check_declared(options.declared)
        except SchemaError as error:
            yield _table_key_error(config, table, "schema", str(error))
        columns = (*options.fixed_columns, *options.stored(options.declared))
        layout = config.layout_of(table)
        # The columns of keys depend on the records, so fields of these columns are checked when the table is created.
        if options.key_columns != "none":
            columns = (TableColumn(KEY_COLUMN, STRING), *columns)
        partition_fields = tuple(field for field in layout.partition_fields if not options.is_key_column(field.column))
        sort_fields = tuple(field for field in layout.sort_fields if not options.is_key_column(field.column))
        for problem in layout_problems(FileLayout(partition_fields), columns):
            yield _table_key_error(config, table, "partition.by", problem)
        for problem in layout_problems(FileLayout((), sort_fields), columns):
            yield _table_key_error(config, table, "sort.by", problem)


def _table_key_error(config: LakehouseSinkConfig, table: str, suffix: str, problem: str) -> ConfigError:
    """Return an error in the table's key with this suffix, or in the key for all tables if the table has none."""
    own = f"lakehouse.table.{table}.{suffix}"
    name = own if own in config.originals else f"lakehouse.{suffix}"
    return ConfigError(name, config.originals.get(name), problem)


def check_brokers(spark: str, bootstrap_servers: str) -> Iterator[ConfigError]:
    """Yield an error if the executors of a Spark cluster cannot reach the brokers. `spark` is the master or remote."""
    if _LOCAL_MASTER.fullmatch(spark) or _is_loopback(urlsplit(spark).hostname or ""):
        return
    for server in bootstrap_servers.split(","):
        host = server.strip().rsplit(":", 1)[0]
        if _is_loopback(host):
            yield ConfigError(
                "bootstrap.servers",
                server.strip(),
                f"is a loopback address, which the executors of {spark} cannot reach; set the address at which other"
                " machines reach the brokers",
            )


def check_value_format(properties: Mapping[str, str], declared: bool) -> Iterator[ConfigError]:
    """Yield errors in the configuration of the effective value converter.

    `declared` is true if the configuration declares columns, for example with `lakehouse.schema`.
    """
    converter = properties.get("value.converter", "")
    has_schemas = _flag(properties, "value.converter.schemas.enable") or bool(
        properties.get("value.converter.schema.content", "").strip()
    )
    is_plain_json = converter in _JSON_CONVERTERS and not has_schemas
    if is_plain_json and not declared:
        yield ConfigError(
            "lakehouse.schema",
            None,
            "columns of records without schemas (value.converter.schemas.enable=false) must be declared as Spark DDL,"
            " here or in lakehouse.table.<table>.schema",
        )
    elif declared and converter in (*_JSON_CONVERTERS, *_STRING_CONVERTERS) and not is_plain_json:
        yield ConfigError(
            "lakehouse.schema",
            "set",
            "can be set only with value.converter=JsonConverter and value.converter.schemas.enable=false",
        )
    encoding = properties.get("value.converter.converter.encoding", "")
    if converter in _STRING_CONVERTERS and not _is_encoding(encoding):
        yield ConfigError("value.converter.converter.encoding", encoding, "unknown encoding")


def no_effect_warnings(properties: Mapping[str, str]) -> list[str]:
    """Return warnings about keys of the last release that have no effect."""
    reasons = {
        "lakehouse.checkpoint.path": "the sink has no checkpoint, because the tables contain the offsets",
        "lakehouse.source": "the executors read the topics with headrace's own client",
    }
    return [f"{name} has no effect: {reason}" for name, reason in reasons.items() if properties.get(name)]


def ignored_key_warnings(config: LakehouseSinkConfig) -> list[str]:
    """Return warnings about keys of tables, and keys of Apache Iceberg's sink, that have no effect."""
    return [
        *_table_key_warnings(config),
        *(
            f"{name} is a key of Apache Iceberg's sink and has no effect here: {remedy}"
            for name in sorted(config.originals)
            for pattern, remedy in _KEYS_OF_APACHE_ICEBERG.items()
            if re.fullmatch(pattern, name)
        ),
    ]


def _table_key_warnings(config: LakehouseSinkConfig) -> Iterator[str]:
    by_suffix = {suffix: table_keys(config.originals, suffix) for suffix in _TABLE_KEYS}
    known = {f"lakehouse.table.{table}.{suffix}" for suffix, tables in by_suffix.items() for table in tables}
    known |= config_def(LakehouseSinkConfig).keys.keys()
    for name in sorted(config.originals):
        if name.startswith("lakehouse.table.") and name not in known:
            keys = ", ".join(f"lakehouse.table.<table>.{suffix}" for suffix in _TABLE_KEYS)
            yield f"Unknown configuration key {name} is ignored; the keys of a table are {keys}"
    topics = [topic.strip() for topic in config.originals.get("topics", "").split(",") if topic.strip()]
    if not topics or config.originals.get("transforms"):
        return  # the tables are not known yet
    tables = sorted({config.names.name_of(topic) for topic in topics})
    for suffix, found in by_suffix.items():
        for table in sorted(found.keys() - set(tables)):
            yield (
                f"lakehouse.table.{table}.{suffix} has no effect: the tables of the connector's topics are"
                f" {', '.join(tables)}"
            )


def _check_packages(format_: str) -> None:
    """Raise ModuleNotFoundError if a package is missing. The packages are not imported, because this takes seconds."""
    for name in ("pyspark", "pyarrow", *_PACKAGES.get(format_, ())):
        if importlib.util.find_spec(name) is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def _check_paths(properties: Mapping[str, str], format_: str) -> Iterator[ConfigError]:
    path = properties.get("lakehouse.path", "").strip()
    if path:
        try:
            uri = TableUri.parse(path)
        except TableUriError as error:
            yield ConfigError("lakehouse.path", path, str(error))
        else:
            if uri.is_s3 and format_ == "parquet":
                yield ConfigError(
                    "lakehouse.path",
                    path,
                    "must be a local directory with lakehouse.format=parquet, because S3 cannot rename files; use"
                    " lakehouse.format=delta or iceberg",
                )
    name_format = _text(properties, "lakehouse.table.name.format")
    problem = name_problem(name_format.replace(TOPIC_VARIABLE, "t"))
    if problem is not None:
        yield ConfigError("lakehouse.table.name.format", name_format, f"{problem} and may contain ${{topic}}")


def _check_layout(properties: Mapping[str, str], format_: str) -> Iterator[ConfigError]:
    for suffix, parse in (("partition.by", parse_partition_spec), ("sort.by", parse_sort_order)):
        given = {f"lakehouse.{suffix}": properties.get(f"lakehouse.{suffix}", "")}
        given |= {f"lakehouse.table.{table}.{suffix}": text for table, text in table_keys(properties, suffix).items()}
        for name, text in given.items():
            if not text.strip():
                continue
            if format_ == "parquet":
                yield ConfigError(name, text, "is supported only with lakehouse.format=delta or iceberg")
                continue
            try:
                parse(text)
            except LayoutError as error:
                yield ConfigError(name, text, str(error))


def _check_spark(properties: Mapping[str, str]) -> Iterator[ConfigError]:
    remote = properties.get("spark.remote", "").strip()
    master = _text(properties, "spark.master")
    if remote and not re.fullmatch(r"sc://[^/;]+(:\d+)?(/;.*)?/?", remote):
        yield ConfigError("spark.remote", remote, "must be the URL of a Spark Connect server: sc://host:port")
    elif not remote and master.startswith("sc://"):
        yield ConfigError("spark.master", master, "is the URL of a Spark Connect server; set it as spark.remote")
    elif not remote and not (_LOCAL_MASTER.fullmatch(master) or _CLUSTER_MASTER.fullmatch(master)):
        yield ConfigError("spark.master", master, "must be local[*], local[N], spark://host:port, yarn or k8s://...")
    memory = properties.get("spark.driver.memory", "").strip()
    if memory and not re.fullmatch(r"\d+[kmgKMG]", memory):
        yield ConfigError("spark.driver.memory", memory, "must be a number followed by k, m or g, such as 2g")


def _check_values(properties: Mapping[str, str]) -> Iterator[ConfigError]:
    declared = {"lakehouse.schema": properties["lakehouse.schema"]} if properties.get("lakehouse.schema") else {}
    declared |= {f"lakehouse.table.{table}.schema": text for table, text in table_keys(properties, "schema").items()}
    for name, text in declared.items():
        try:
            parse_ddl(text)
        except SchemaError as error:
            yield ConfigError(name, text, str(error))
    if properties.get("value.converter"):  # the worker's default converter is validated by the task
        yield from check_value_format(properties, bool(declared))


def _text(properties: Mapping[str, str], name: str) -> str:
    """Return the value of the key `name` as text, or the key's default."""
    text: str = properties.get(name, config_def(LakehouseSinkConfig).keys[name].default)
    return text.strip()


def _flag(properties: Mapping[str, str], name: str) -> bool:
    return properties.get(name, "").strip().lower() == "true"


def _is_encoding(name: str) -> bool:
    try:
        codecs.lookup(name)
    except LookupError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    return host.lower().startswith(_LOOPBACK)
