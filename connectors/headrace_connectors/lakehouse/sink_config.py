"""Configuration of LakehouseSinkConnector, and validation that involves several keys."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, cast

from headrace.api.config import ConfigType, Importance, key
from headrace.api.errors import ConfigError
from headrace_connectors.lakehouse.column_types import TableColumn
from headrace_connectors.lakehouse.ddl import parse_ddl
from headrace_connectors.lakehouse.files.layout import FileLayout
from headrace_connectors.lakehouse.files.layout_text import parse_partition_spec, parse_sort_order
from headrace_connectors.lakehouse.files.settings import WriterSettings
from headrace_connectors.lakehouse.spark.jobs import JobSettings
from headrace_connectors.lakehouse.table_names import DEFAULT_CATALOG, DEFAULT_NAMESPACE, TOPIC_VARIABLE, TableNames
from headrace_connectors.lakehouse.table_uri import TableUri
from headrace_connectors.lakehouse.values.options import KeyColumns, RowOptions
from headrace_connectors.s3.connection import S3AccessConfig

_SPARK_FILES = "_spark"


class LakehouseSinkConfig(S3AccessConfig):
    """Configuration keys `lakehouse.*`, `iceberg.*` and `spark.*`, and the keys of S3 that the S3 sink has too."""

    passthrough_prefixes: ClassVar[tuple[str, ...]] = (
        *S3AccessConfig.passthrough_prefixes,
        "spark.",
        "lakehouse.table.",
        "iceberg.catalog.",
    )

    path: str | None = key(
        "lakehouse.path",
        default=None,
        doc="Directory or s3: URI of the tables. Each table is a subdirectory. Optional for Iceberg, whose catalog"
        " knows the locations.",
        importance=Importance.HIGH,
    )
    format: str = key(
        "lakehouse.format",
        default="delta",
        one_of=("delta", "iceberg", "parquet"),
        doc="Format of the tables.",
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
    key_columns: str = key(
        "lakehouse.key.columns",
        default="none",
        one_of=("none", "key", "fields"),
        doc="Whether tables have the records' keys: none, one column with the key, or one column for each field.",
    )
    headers_column: str | None = key(
        "lakehouse.headers.column",
        default=None,
        doc="Name of the column with the records' headers. Without this key, the headers are not stored.",
    )
    checkpoint_path: str | None = key(
        "lakehouse.checkpoint.path",
        default=None,
        doc="Has no effect: the sink has no checkpoint, because the tables contain the offsets.",
        importance=Importance.LOW,
    )
    source: str | None = key(
        "lakehouse.source",
        default=None,
        doc="Has no effect: the executors read the topics with headrace's own client.",
        importance=Importance.LOW,
    )
    schema_ddl: str | None = key(
        "lakehouse.schema",
        default=None,
        doc="Columns of records without schemas, as Spark DDL (id BIGINT, name STRING)."
        " Set lakehouse.table.<table>.schema for one table.",
    )
    partition_by: str = key(
        "lakehouse.partition.by",
        default="",
        doc="Partition fields of new tables: day(ts), bucket(16, id), region. Only for Delta and Iceberg."
        " Set lakehouse.table.<table>.partition.by for one table.",
    )
    sort_by: str = key(
        "lakehouse.sort.by",
        default="",
        doc="Sort order inside files: ts desc, id. Only for Delta and Iceberg."
        " Set lakehouse.table.<table>.sort.by for one table.",
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
        type=ConfigType.LONG,
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
    worker_memory_bytes: int = key(
        "lakehouse.worker.memory.bytes",
        default=256 << 20,
        type=ConfigType.LONG,
        at_least=1 << 20,
        doc="Maximum bytes of unwritten rows in one Spark task. A task that has more writes row groups.",
    )
    file_size_bytes: int = key(
        "lakehouse.file.size.bytes",
        default=512 << 20,
        type=ConfigType.LONG,
        at_least=1 << 20,
        doc="Approximate size at which a task starts a new file of a table.",
    )
    open_files_max: int = key(
        "lakehouse.open.files.max",
        default=64,
        at_least=1,
        doc="Maximum number of files that a Spark task writes at the same time.",
    )
    take_over: str | None = key(
        "lakehouse.take.over",
        default=None,
        doc="Name of a stopped connector whose offsets in the tables this connector continues. Also renames a"
        " connector.",
    )
    executors_package: str | None = key(
        "lakehouse.executors.package",
        default=None,
        doc="File that headrace lakehouse package has built. Executors of a cluster get their Python packages from it.",
    )
    executors_timeout_ms: int = key(
        "lakehouse.executors.timeout.ms",
        default=120_000,
        at_least=1_000,
        doc="Milliseconds after which the task fails if the Spark cluster provides no executor.",
    )
    java_archive: bool = key(
        "lakehouse.java.archive",
        default=True,
        doc="Whether to store Java's class data in the cache directory, so that Spark starts faster.",
        importance=Importance.LOW,
    )
    iceberg_catalog: str = key(
        "iceberg.catalog",
        default=DEFAULT_CATALOG,
        doc="Name of the Iceberg catalog. The keys iceberg.catalog.* describe it: iceberg.catalog.type (rest, sql, glue"
        " or hive), iceberg.catalog.uri, iceberg.catalog.warehouse, and all other properties of pyiceberg's catalogs.",
    )
    iceberg_namespace: str = key(
        "iceberg.namespace",
        default=DEFAULT_NAMESPACE,
        doc="Namespace of the Iceberg tables. A point separates levels.",
    )
    spark_master: str = key(
        "spark.master",
        default="local[*]",
        doc="Spark master: local[*] for all cores of this machine, local[N] for N cores, or spark://host:port.",
    )
    spark_remote: str | None = key(
        "spark.remote",
        default=None,
        doc="URL of a Spark Connect server: sc://host:port. Replaces spark.master.",
    )

    @classmethod
    def errors_between(cls, values: Mapping[str, Any]) -> Iterator[ConfigError]:
        """Yield errors about invalid combinations of keys. `values` maps each key to its parsed value."""
        yield from super().errors_between(values)
        if not values.get("lakehouse.path") and values.get("lakehouse.format") != "iceberg":
            yield ConfigError("lakehouse.path", None, "is required: the directory or s3: URI of the tables")

    @property
    def root(self) -> TableUri | None:
        """The directory or S3 prefix of the tables, or None if only the Iceberg catalog knows it."""
        return TableUri.parse(self.path) if self.path else None

    def local_tables(self) -> Path | None:
        """Return the local directory of the tables, or None if they are on S3, or where an Iceberg catalog chooses."""
        warehouse = self.originals.get("iceberg.catalog.warehouse", "") if self.format == "iceberg" else ""
        path = self.path or (warehouse if warehouse.startswith(("/", "file:")) else "")
        uri = TableUri.parse(path) if path else None
        return None if uri is None or uri.is_s3 else uri.local

    def uses_s3(self) -> bool:
        """Whether tables may be on S3. An Iceberg catalog may choose a location on S3, or use Glue."""
        root = self.root
        if root is not None and root.is_s3:
            return True
        on_s3 = (self.access_key_id, self.store_url, self.originals.get("s3.region"), self.assumed_role)
        return self.format == "iceberg" and any(on_s3)

    @property
    def names(self) -> TableNames:
        """The names of topics' tables."""
        return TableNames(self.table_name_format.strip())

    def spark_files(self, connector: str) -> Path | None:
        """Return the parent of the directories for Spark's temporary files, or None for the system's directory."""
        root = self.root
        return None if root is None or root.is_s3 else root.local / _SPARK_FILES / _directory_name(connector)

    def spark_conf(self) -> dict[str, str]:
        """Return all `spark.*` keys."""
        given = {f"spark.{name}": text for name, text in self.originals_with_prefix("spark.").items()}
        return {"spark.master": self.spark_master, **given}

    def default_options(self) -> RowOptions:
        """Return how records become rows of tables without a lakehouse.table.<table>.schema."""
        declared = parse_ddl(self.schema_ddl) if self.schema_ddl else None
        return self._options(declared)

    def table_options(self) -> dict[str, RowOptions]:
        """Return how records become rows of the tables with a lakehouse.table.<table>.schema."""
        return {table: self._options(parse_ddl(text)) for table, text in table_keys(self.originals, "schema").items()}

    def layout_of(self, table: str) -> FileLayout:
        """Return the partition fields and the sort order of a new table."""
        partition_by = table_keys(self.originals, "partition.by").get(table, self.partition_by)
        sort_by = table_keys(self.originals, "sort.by").get(table, self.sort_by)
        return FileLayout(parse_partition_spec(partition_by), parse_sort_order(sort_by))

    def job_settings(self) -> JobSettings:
        """Return the settings of Spark jobs that are not part of Spark's configuration."""
        package = Path(self.executors_package).expanduser() if self.executors_package else None
        return JobSettings(package, self.executors_timeout_ms, self.java_archive)

    def writer_settings(self) -> WriterSettings:
        """Return the limits of the files that executors write."""
        return WriterSettings(self.file_size_bytes, self.worker_memory_bytes, self.open_files_max)

    def _options(self, declared: tuple[TableColumn, ...] | None) -> RowOptions:
        return RowOptions(
            self.metadata_columns,
            cast("KeyColumns", self.key_columns),
            self.headers_column,
            declared,
            widens_integers=self.format == "iceberg",
        )


def _directory_name(connector: str) -> str:
    """Return a name that no other connector has. A connector's name may be a path, such as `../orders`."""
    if re.fullmatch(r"[A-Za-z0-9_-]{1,100}", connector):
        return connector
    readable = re.sub(r"[^A-Za-z0-9_-]", "_", connector)[:100]
    return f"{readable}-{hashlib.sha256(connector.encode(errors='surrogatepass')).hexdigest()[:16]}"


def table_keys(properties: Mapping[str, str], name: str) -> dict[str, str]:
    """Return {table: text} for each key lakehouse.table.<table>.<name>."""
    prefix, suffix = "lakehouse.table.", f".{name}"
    return {
        key_[len(prefix) : -len(suffix)]: text
        for key_, text in properties.items()
        if key_.startswith(prefix) and key_.endswith(suffix) and len(key_) > len(prefix) + len(suffix)
    }
