"""Configuration of the S3 sink, with the keys and defaults of Confluent's connector."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from headrace.api.config import ConfigType, Importance, Password, key
from headrace.api.errors import ConfigError
from headrace_connectors.common.time_zones import check_time_zone, time_zone
from headrace_connectors.s3.connection import S3ConnectionConfig
from headrace_connectors.s3.joda import JodaFormat

_PACKAGE = "io.confluent.connect.s3.format."
_PARTITIONERS = "io.confluent.connect.storage.partitioner."
FORMATS = {
    "json": f"{_PACKAGE}json.JsonFormat",
    "bytearray": f"{_PACKAGE}bytearray.ByteArrayFormat",
    "parquet": f"{_PACKAGE}parquet.ParquetFormat",
}
PARTITIONERS = {
    name: f"{_PARTITIONERS}{name}Partitioner" for name in ("Default", "Field", "TimeBased", "Daily", "Hourly")
}
EXTRACTORS = ("Wallclock", "Record", "RecordField")
_TIME_BASED = ("TimeBased", "Daily", "Hourly")
_CANNED_ACLS = (
    "", "private", "public-read", "public-read-write", "authenticated-read", "log-delivery-write", "bucket-owner-read",
    "bucket-owner-full-control", "aws-exec-read",
)  # fmt: skip
_S3, _FILES, _PARTITIONS, _COMPAT = "S3", "Files", "Partitioner", "Accepted for compatibility"


def format_name(text: str) -> str | None:
    """Return json, bytearray or parquet, or None if the format is unknown.

    `text` is the class name of the format, with or without its package.
    """
    short = text.rsplit(".", 1)[-1].lower().removesuffix("format")
    return short if short in FORMATS else None


def partitioner_name(text: str) -> str | None:
    """Return the partitioner's name in `PARTITIONERS`, or None if the partitioner is unknown.

    `text` is the class name of the partitioner, with or without its package.
    """
    short = text.rsplit(".", 1)[-1].removesuffix("Partitioner")
    return short if short in PARTITIONERS else None


def extractor_name(text: str) -> str | None:
    """Return Wallclock, Record or RecordField, or None if the timestamp extractor is unknown.

    `text` is the name or the class name of the extractor.
    """
    short = text.rsplit(".", 1)[-1].rpartition("$")[2].removesuffix("TimestampExtractor")
    return next((name for name in EXTRACTORS if name.lower() == short.lower()), None)


def _check_extractor(text: str) -> None:
    if extractor_name(text) is None:
        raise ValueError(f"unknown timestamp extractor; the extractors are {', '.join(EXTRACTORS)}")


def _check_format(text: str) -> None:
    if text.rsplit(".", 1)[-1] == "AvroFormat":
        raise ValueError("Avro is not supported yet; use JsonFormat, ParquetFormat or ByteArrayFormat")
    if format_name(text) is None:
        raise ValueError(f"unknown format; the formats are {', '.join(FORMATS.values())}")


def _check_partitioner(text: str) -> None:
    if partitioner_name(text) is None:
        raise ValueError(f"unknown partitioner; the partitioners are {', '.join(PARTITIONERS.values())}")


def _check_zone(text: str) -> None:
    if text:
        check_time_zone(text)


def _check_path(text: str) -> None:
    if text:
        JodaFormat(text)


class S3SinkConfig(S3ConnectionConfig):
    """Configuration of the S3 sink."""

    without_effect: ClassVar[Mapping[str, str]] = {
        **S3ConnectionConfig.without_effect,
        "avro.codec": "Avro is not supported yet",
        "enhanced.avro.schema.support": "Avro is not supported yet",
        "connect.meta.data": "Avro is not supported yet",
        "allow.optional.map.keys": "Avro is not supported yet",
        "schema.cache.size": "the connector caches no schemas",
        "s3.elastic.buffer.enable": "buffers always grow with the data; buffer.memory.bytes limits them",
        "s3.elastic.buffer.init.capacity": "buffers always grow with the data; buffer.memory.bytes limits them",
        "max.write.duration.ms": "a put writes only the records that it receives",
        "max.files.scan.limit": "the metadata of an existing object contains its last offset",
        "locale": "names of months and days are English",
    }

    part_size: int = key(
        "s3.part.size",
        default=26214400,
        at_least=5242880,
        doc="Size of a part of a multipart upload, in bytes. A file that grows larger is uploaded in parts while it is "
        "open.",
        importance=Importance.HIGH,
        group=_S3,
    )
    acl: str | None = key(
        "s3.acl.canned", default=None, one_of=_CANNED_ACLS, doc="The canned ACL of objects.", group=_S3
    )
    storage_encryption: str = key(
        "s3.ssea.name",
        default="",
        one_of=("", "AES256", "aws:kms"),
        doc="Server-side encryption. With s3.sse.customer.key, AES256 means encryption with this key.",
        group=_S3,
    )
    kms_key_id: str = key(
        "s3.sse.kms.key.id", default="", doc="The KMS key of the encryption s3.ssea.name=aws:kms.", group=_S3
    )
    object_tagging: bool = key(
        "s3.object.tagging",
        default=False,
        doc="Whether objects are tagged with startOffset, endOffset and recordCount.",
        group=_S3,
    )
    tag_pairs: list[str] = key(
        "s3.object.tagging.key.value.pairs", default=[], doc="Additional tags of objects, as key:value.", group=_S3
    )
    on_tagging_error: str = key(
        "s3.object.behavior.on.tagging.error",
        default="ignore",
        one_of=("ignore", "fail"),
        case_insensitive=True,
        doc="Whether the task fails if an object cannot be tagged.",
        group=_S3,
    )
    send_digest: bool = key(
        "s3.send.digest", default=False, doc="Whether requests contain the MD5 digest of their data.", group=_S3
    )
    memory_limit: int = key(
        "buffer.memory.bytes",
        default=8388608,
        at_least=1048576,
        type=ConfigType.LONG,
        doc="Bytes of memory that all open files of a task may use. If they need more, the largest are moved to disk.",
        group=_FILES,
    )
    format_class: str = key(
        "format.class",
        doc="The format of objects: JsonFormat (one document per line), ParquetFormat or ByteArrayFormat.",
        validator=_check_format,
        importance=Importance.HIGH,
        group=_FILES,
    )
    storage_class: str = key(
        "storage.class",
        default="io.confluent.connect.s3.storage.S3Storage",
        doc="Accepted for compatibility: the storage is always S3.",
        group=_COMPAT,
    )
    flush_size: int = key(
        "flush.size",
        at_least=1,
        doc="Number of records of a topic partition after which its files are completed.",
        importance=Importance.HIGH,
        group=_FILES,
    )
    rotate_interval_ms: int = key(
        "rotate.interval.ms",
        default=-1,
        type=ConfigType.LONG,
        doc="Span of record timestamps in a file, in ms, after which the files of a topic partition are completed. "
        "timestamp.extractor selects the timestamps. Only with a time-based partitioner. -1: no limit.",
        importance=Importance.HIGH,
        group=_FILES,
    )
    rotate_schedule_interval_ms: int = key(
        "rotate.schedule.interval.ms",
        default=-1,
        type=ConfigType.LONG,
        doc="Complete files whenever the wall clock reaches a multiple of this many ms after midnight in timezone. The "
        "content of objects then depends on the clock; see enable.conditional.writes. -1: off.",
        group=_FILES,
    )
    rotate_on_partition_change: bool = key(
        "rotate.file.on.partition.change",
        default=True,
        doc="Whether, if rotate.interval.ms is set, a record with another directory than the previous record also "
        "completes the files.",
        group=_FILES,
    )
    topics_dir: str = key("topics.dir", default="topics", doc="The first directory of object keys.", group=_FILES)
    directory_delimiter: str = key(
        "directory.delim", default="/", doc="Separator of directories.", group=_FILES, non_empty=True
    )
    file_delimiter: str = key("file.delim", default="+", doc="Separator in names of files.", group=_FILES)
    offset_width: int = key(
        "filename.offset.zero.pad.width",
        default=10,
        at_least=0,
        doc="Minimum number of digits of the offset in names of files. Do not change it while an S3 source reads the "
        "objects, because the source may then skip new objects.",
        group=_FILES,
    )
    compression_type: str = key(
        "s3.compression.type",
        default="none",
        one_of=("none", "gzip"),
        case_insensitive=True,
        doc="Compression of JSON and bytes.",
        group=_FILES,
    )
    compression_level: int = key(
        "s3.compression.level", default=-1, at_least=-1, at_most=9, doc="Level of gzip. -1: its default.", group=_FILES
    )
    bytes_extension: str = key(
        "format.bytearray.extension", default=".bin", doc="Extension of files with bytes.", group=_FILES
    )
    bytes_separator: str | None = key(
        "format.bytearray.separator",
        default=None,
        doc="Text that ByteArrayFormat writes after each record. Default: a line feed.",
        group=_FILES,
    )
    json_decimal_format: str = key(
        "json.decimal.format",
        default="BASE64",
        one_of=("BASE64", "NUMERIC"),
        case_insensitive=True,
        doc="How JSON contains decimals: the unscaled value in base64, or a number.",
        group=_FILES,
    )
    parquet_codec: str = key(
        "parquet.codec",
        default="snappy",
        one_of=("none", "gzip", "snappy", "lz4", "zstd", "brotli"),
        case_insensitive=True,
        doc="Compression of Parquet.",
        group=_FILES,
    )
    store_keys: bool = key(
        "store.kafka.keys",
        default=False,
        doc="Whether record keys are stored, in separate files beside the files with values.",
        group=_FILES,
    )
    keys_format_class: str = key(
        "keys.format.class",
        default=FORMATS["json"],
        doc="The format of files with keys.",
        group=_FILES,
    )
    store_headers: bool = key(
        "store.kafka.headers",
        default=False,
        doc="Whether record headers are stored, in separate files beside the files with values.",
        group=_FILES,
    )
    headers_format_class: str = key(
        "headers.format.class",
        default=FORMATS["json"],
        doc="The format of files with headers.",
        group=_FILES,
    )
    on_null_values: str = key(
        "behavior.on.null.values",
        default="fail",
        one_of=("fail", "ignore", "write"),
        case_insensitive=True,
        doc="What happens to a record with a null value. fail: it is an error. ignore: it is skipped. write: its key "
        "is written to the directory tombstone.encoded.partition, which needs store.kafka.keys=true.",
        group=_FILES,
    )
    tombstone_partition: str = key(
        "tombstone.encoded.partition",
        default="tombstone",
        doc="The directory of records with null values.",
        group=_FILES,
    )
    schema_compatibility: str = key(
        "schema.compatibility",
        default="NONE",
        one_of=("NONE", "BACKWARD", "FORWARD", "FULL"),
        case_insensitive=True,
        doc="What happens to a value whose schema differs from the schema of the open file. NONE: the files of the "
        "topic partition are completed. BACKWARD, FULL: a value with an older or equal schema version is projected to "
        "the schema of the file, unless it would lose a field. FORWARD: a value with a newer or equal schema version "
        "is projected, and loses the fields that are new in a newer version. Otherwise, the files are completed. "
        "BACKWARD, FORWARD and FULL need schemas with a version.",
        group=_FILES,
    )
    partitioner_class: str = key(
        "partitioner.class",
        default=PARTITIONERS["Default"],
        doc="Determines the directory of a record: DefaultPartitioner (partition=N), FieldPartitioner, "
        "TimeBasedPartitioner, DailyPartitioner or HourlyPartitioner.",
        validator=_check_partitioner,
        importance=Importance.HIGH,
        group=_PARTITIONS,
    )
    partition_fields: list[str] = key(
        "partition.field.name", default=[], doc="The fields of FieldPartitioner.", group=_PARTITIONS
    )
    schema_affix: str = key(
        "s3.schema.partition.affix.type",
        default="NONE",
        one_of=("NONE", "PREFIX", "SUFFIX"),
        case_insensitive=True,
        doc="Whether the directory schema_name=NAME, with the name of the value's schema, is added before or after "
        "the other directories.",
        group=_PARTITIONS,
    )
    partition_duration_ms: int = key(
        "partition.duration.ms",
        default=-1,
        type=ConfigType.LONG,
        doc="TimeBasedPartitioner: timestamps are rounded down to a multiple of this duration.",
        group=_PARTITIONS,
    )
    path_format: str = key(
        "path.format",
        default="",
        doc="TimeBasedPartitioner: Joda-Time pattern of the directory, such as 'year'=YYYY/'month'=MM/'day'=dd.",
        validator=_check_path,
        group=_PARTITIONS,
    )
    locale: str = key(
        "locale", default="", doc="Accepted for compatibility: names of months and days are English.", group=_COMPAT
    )
    timezone: str = key(
        "timezone", default="", doc="Time zone of directories and schedules.", validator=_check_zone, group=_PARTITIONS
    )
    timestamp_extractor: str = key(
        "timestamp.extractor",
        default="Wallclock",
        validator=_check_extractor,
        doc="The timestamp of a record: the time at which it is processed (Wallclock), the record's timestamp (Record) "
        "or a field of the value (RecordField).",
        group=_PARTITIONS,
    )
    timestamp_field: str = key(
        "timestamp.field",
        default="timestamp",
        doc="The field for timestamp.extractor=RecordField: a Timestamp, milliseconds or ISO 8601 text. Dots separate "
        "the names of nested fields.",
        group=_PARTITIONS,
    )

    avro_codec: str = key("avro.codec", default="null", doc="Has no effect: Avro is not supported yet.", group=_COMPAT)
    enhanced_avro: bool = key(
        "enhanced.avro.schema.support", default=True, doc="Has no effect: Avro is not supported yet.", group=_COMPAT
    )
    connect_meta_data: bool = key(
        "connect.meta.data", default=True, doc="Has no effect: Avro is not supported yet.", group=_COMPAT
    )
    optional_map_keys: bool = key(
        "allow.optional.map.keys", default=False, doc="Has no effect: Avro is not supported yet.", group=_COMPAT
    )
    schema_cache_size: int = key(
        "schema.cache.size", default=1000, doc="Has no effect: the connector caches no schemas.", group=_COMPAT
    )
    elastic_buffer: bool = key(
        "s3.elastic.buffer.enable", default=False, doc="Has no effect: see buffer.memory.bytes.", group=_COMPAT
    )
    elastic_buffer_capacity: int = key(
        "s3.elastic.buffer.init.capacity", default=131072, doc="Has no effect: see buffer.memory.bytes.", group=_COMPAT
    )
    max_write_duration_ms: int = key(
        "max.write.duration.ms",
        default=9223372036854775807,
        type=ConfigType.LONG,
        doc="Has no effect: a put writes only the records that it receives.",
        group=_COMPAT,
    )
    report_null_values: bool = key(
        "report.null.values.to.dlq",
        default=True,
        doc="Whether a record that behavior.on.null.values=ignore skips is sent to the dead letter queue. "
        "Only with errors.tolerance=all.",
        group=_FILES,
    )
    conditional_writes: bool = key(
        "enable.conditional.writes",
        default=True,
        doc="Do not overwrite existing objects, and write only the records that they do not contain. Has an effect "
        "only with rotate.schedule.interval.ms and without files for keys and headers.",
        group=_FILES,
    )
    max_files_scan_limit: int = key(
        "max.files.scan.limit",
        default=100,
        doc="Has no effect: the metadata of an existing object contains its last offset.",
        group=_COMPAT,
    )

    @property
    def zone(self) -> dt.tzinfo:
        """The time zone of directories and schedules."""
        return time_zone(self.timezone or "UTC")

    @property
    def has_timestamps(self) -> bool:
        """Whether the partitioner is time-based, so that directories and rotate.interval.ms depend on timestamps."""
        return partitioner_name(self.partitioner_class) in _TIME_BASED

    @property
    def directories_depend_on_clock(self) -> bool:
        """Whether the time at which a record is processed determines its directory."""
        return self.has_timestamps and extractor_name(self.timestamp_extractor) == "Wallclock"

    @property
    def reads_header_values(self) -> bool:
        """Whether the sink stores headers."""
        return self.store_headers

    @property
    def keeps_existing_objects(self) -> bool:
        """Whether uploads do not overwrite existing objects."""
        stores_values_only = not self.store_keys and not self.store_headers
        return self.conditional_writes and self.rotate_schedule_interval_ms > 0 and stores_values_only

    def warnings_about_keys(self) -> list[str]:
        """Return one warning for each key that is set and has no effect."""
        found = super().warnings_about_keys()
        if self.locale.split("-")[0].split("_")[0] in ("", "en"):
            found = [warning for warning in found if not warning.startswith("Configuration locale ")]
        if self.storage_class.rsplit(".", 1)[-1] != "S3Storage":
            found.append(f"Configuration storage.class={self.storage_class} has no effect: the storage is always S3")
        if self.rotate_interval_ms > 0 and not self.has_timestamps:
            found.append(
                "Configuration rotate.interval.ms has no effect: it needs TimeBasedPartitioner, DailyPartitioner or "
                "HourlyPartitioner; set rotate.schedule.interval.ms to complete files by the wall clock"
            )
        return found

    @classmethod
    def errors_between(cls, values: Mapping[str, Any]) -> Iterator[ConfigError]:
        """Yield errors about invalid combinations of keys. `values` maps each key to its parsed value."""
        yield from super().errors_between(values)
        algorithm, kms_key = values.get("s3.ssea.name"), values.get("s3.sse.kms.key.id")
        customer_key: Password | None = values.get("s3.sse.customer.key")
        if customer_key and customer_key.value and algorithm == "aws:kms":
            reason = "cannot be used with s3.ssea.name=aws:kms; set s3.ssea.name=AES256, or remove the customer key"
            yield ConfigError("s3.sse.customer.key", customer_key, reason)
        if kms_key and algorithm != "aws:kms":
            yield ConfigError("s3.sse.kms.key.id", kms_key, "has an effect only with s3.ssea.name=aws:kms; set both")
        partitioner = partitioner_name(str(values.get("partitioner.class")))
        if partitioner == "Field" and not values.get("partition.field.name"):
            yield ConfigError("partition.field.name", None, "must be set for FieldPartitioner")
        if partitioner == "TimeBased":
            if (values.get("partition.duration.ms") or -1) <= 0:
                yield ConfigError(
                    "partition.duration.ms",
                    str(values.get("partition.duration.ms")),
                    "must be positive for TimeBasedPartitioner",
                )
            path = values.get("path.format")
            if path is not None and not str(path).removesuffix(str(values.get("directory.delim"))):
                yield ConfigError("path.format", path, "must be set for TimeBasedPartitioner")
        if partitioner in _TIME_BASED and values.get("timezone") == "":
            yield ConfigError("timezone", "", f"must be set for {partitioner}Partitioner")
        if (values.get("rotate.schedule.interval.ms") or -1) > 0 and values.get("timezone") == "":
            yield ConfigError("timezone", "", "must be set if rotate.schedule.interval.ms is set")
        if str(values.get("behavior.on.null.values")).lower() == "write" and not values.get("store.kafka.keys"):
            yield ConfigError("behavior.on.null.values", "write", "needs store.kafka.keys=true")
        for side in ("keys", "headers"):
            try:
                if values.get(f"store.kafka.{side}"):
                    _check_format(str(values.get(f"{side}.format.class")))
            except ValueError as error:
                yield ConfigError(f"{side}.format.class", str(values.get(f"{side}.format.class")), str(error))
        for pair in values.get("s3.object.tagging.key.value.pairs") or ():
            if ":" not in pair:
                yield ConfigError("s3.object.tagging.key.value.pairs", pair, "must have the format key:value")
