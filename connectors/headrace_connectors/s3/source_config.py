"""Configuration of the S3 source, with the keys and defaults of Confluent's connector."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from headrace.api.config import ConfigType, Importance, key
from headrace.api.errors import ConfigError
from headrace.data.java_regex import JavaPattern
from headrace_connectors.s3.connection import S3ConnectionConfig

_SOURCE, _COMPAT = "Source", "Accepted for compatibility"
_FORMATS = ("json", "bytearray", "parquet", "string")
_LICENSE = "the connector needs no license"
_FROM_NAMES = "the names of the objects determine which records have keys and headers, and in which format"
_ANY_LAYOUT = "the connector finds objects in any directory layout"


def source_format_name(text: str) -> str | None:
    """Return json, bytearray, parquet or string, or None if the format is unknown.

    `text` is the class name of the format, with or without its package.
    """
    short = text.rsplit(".", 1)[-1].removeprefix("CloudStorage").lower().removesuffix("format")
    return short if short in _FORMATS else None


def _check_format(text: str) -> None:
    if source_format_name(text) is None:
        more = "; Avro is not supported yet" if "Avro" in text else ""
        raise ValueError(
            f"unknown format; the formats are JsonFormat, ParquetFormat, ByteArrayFormat and StringFormat{more}"
        )


def topic_pairs(texts: list[str]) -> list[tuple[str, Any]]:
    """Parse texts of the format topic:regex to pairs of topic and pattern. Raises ValueError for an invalid text."""
    pairs = []
    for text in texts:
        topic, colon, pattern = text.partition(":")
        if not topic.strip() or not colon or not pattern:
            raise ValueError(f"{text!r} must have the format topic:regex")
        pairs.append((topic.strip(), JavaPattern(pattern)))
    return pairs


def _check_pairs(texts: list[str]) -> None:
    topic_pairs(texts)


class S3SourceConfig(S3ConnectionConfig):
    """Configuration of the S3 source."""

    passthrough_prefixes: ClassVar[tuple[str, ...]] = (*S3ConnectionConfig.passthrough_prefixes, "confluent.topic.")
    without_effect: ClassVar[Mapping[str, str]] = {
        **S3ConnectionConfig.without_effect,
        "partitioner.class": _ANY_LAYOUT,
        "partition.field.name": _ANY_LAYOUT,
        "partition.duration.ms": _ANY_LAYOUT,
        "path.format": _ANY_LAYOUT,
        "locale": _ANY_LAYOUT,
        "timezone": _ANY_LAYOUT,
        "filename.regex": "topics.dir, directory.delim and file.delim define the object names",
        "store.kafka.keys": _FROM_NAMES,
        "store.kafka.headers": _FROM_NAMES,
        "keys.format.class": _FROM_NAMES,
        "headers.format.class": _FROM_NAMES,
        "flush.size": "the source reads objects with any number of records",
        "task.batch.size": "each task reads its share of all objects, one after another",
        "schema.cache.size": "the connector caches no schemas",
        "confluent.license": _LICENSE,
        "confluent.topic": _LICENSE,
        "confluent.topic.": _LICENSE,
    }

    mode: str = key(
        "mode",
        default="RESTORE_BACKUP",
        one_of=("RESTORE_BACKUP", "GENERIC"),
        case_insensitive=True,
        doc="RESTORE_BACKUP reads what an S3 sink has written, into the same topics and partitions. GENERIC reads any "
        "objects; topic.regex.list determines their topics.",
        importance=Importance.HIGH,
        group=_SOURCE,
    )
    format_class: str = key(
        "format.class",
        doc="The format of the objects: JsonFormat (one document per line), ParquetFormat, ByteArrayFormat or "
        "StringFormat (one record per line), with or without their package; CloudStorageJsonFormat and so on are the "
        "same. Objects with the extension .gz are decompressed.",
        validator=_check_format,
        importance=Importance.HIGH,
        group=_SOURCE,
    )
    topics_dir: str | None = key(
        "topics.dir",
        default=None,
        doc="The first directory of object keys. Default: topics (RESTORE_BACKUP) or the whole bucket (GENERIC).",
        group=_SOURCE,
    )
    directory_delimiter: str = key(
        "directory.delim", default="/", doc="Separator of directories.", group=_SOURCE, non_empty=True
    )
    file_delimiter: str = key(
        "file.delim", default="+", doc="Separator in names of files.", group=_SOURCE, non_empty=True
    )
    bytes_extension: str = key(
        "format.bytearray.extension", default=".bin", doc="Extension of files with bytes.", group=_SOURCE
    )
    bytes_separator: str | None = key(
        "format.bytearray.separator",
        default=None,
        doc="Text after each record in objects of ByteArrayFormat. Default: a line feed.",
        group=_SOURCE,
        non_empty=True,
    )
    tombstone_partition: str = key(
        "tombstone.encoded.partition",
        default="tombstone",
        doc="The directory of records with null values (RESTORE_BACKUP).",
        group=_SOURCE,
    )
    poll_interval_ms: int = key(
        "s3.poll.interval.ms",
        default=60000,
        at_least=1,
        type=ConfigType.LONG,
        doc="Milliseconds between two searches for new objects, when all known objects have been read.",
        group=_SOURCE,
    )
    batch_size: int = key(
        "record.batch.max.size", default=200, at_least=1, doc="Maximum number of records in a batch.", group=_SOURCE
    )
    record_max_bytes: int = key(
        "record.max.bytes",
        default=64 * 1024 * 1024,
        at_least=1,
        doc="The largest size of a record in an object with JSON, text or bytes, in bytes. An object with a longer "
        "record is invalid; behavior.on.error applies to it.",
        importance=Importance.LOW,
        group=_SOURCE,
    )
    folders: list[str] = key(
        "folders",
        default=[],
        doc="Read only objects below these folders. A folder is a whole path in the bucket, for example topics/orders. "
        "Default: all objects below topics.dir. "
        "Each object is read once, even if a folder is listed twice or is below another one.",
        group=_SOURCE,
    )
    topic_regex_list: list[str] = key(
        "topic.regex.list",
        default=[],
        doc="GENERIC: pairs of the format topic:regex. The first regular expression that matches a whole object key "
        "determines the topic; objects without a match are skipped.",
        validator=_check_pairs,
        group=_SOURCE,
    )
    starting_timestamp_ms: int = key(
        "file.discovery.starting.timestamp",
        default=0,
        type=ConfigType.LONG,
        doc="GENERIC: skip objects that were modified before this time, in ms since the epoch.",
        group=_SOURCE,
    )
    settle_ms: int = key(
        "file.discovery.settle.ms",
        default=10000,
        at_least=0,
        type=ConfigType.LONG,
        doc="GENERIC: minimum age in ms at which an object is read. If the store reports the start of a multipart "
        "upload as the modification time, as Amazon S3 does, set this longer than the longest upload.",
        group=_SOURCE,
    )
    on_error: str = key(
        "behavior.on.error",
        default="fail",
        one_of=("fail", "ignore", "log"),
        case_insensitive=True,
        doc="What happens if an object is not valid in its format. fail: the task fails. ignore: the rest of the "
        "object is skipped silently. log: the rest of the object is skipped, with an error in the log.",
        group=_SOURCE,
    )
    task_batch_size: int = key("task.batch.size", default=10, doc="Has no effect.", group=_COMPAT)
    partitioner_class: str = key("partitioner.class", default="", doc="Has no effect.", group=_COMPAT)
    partition_fields: list[str] = key("partition.field.name", default=[], doc="Has no effect.", group=_COMPAT)
    partition_duration_ms: int = key(
        "partition.duration.ms", default=-1, type=ConfigType.LONG, doc="Has no effect.", group=_COMPAT
    )
    path_format: str = key("path.format", default="", doc="Has no effect.", group=_COMPAT)
    locale: str = key("locale", default="", doc="Has no effect.", group=_COMPAT)
    timezone: str = key("timezone", default="", doc="Has no effect.", group=_COMPAT)
    filename_regex: str = key("filename.regex", default="", doc="Has no effect: see file.delim.", group=_COMPAT)
    store_kafka_keys: bool = key("store.kafka.keys", default=False, doc="Has no effect.", group=_COMPAT)
    store_kafka_headers: bool = key("store.kafka.headers", default=False, doc="Has no effect.", group=_COMPAT)
    keys_format_class: str = key("keys.format.class", default="", doc="Has no effect.", group=_COMPAT)
    headers_format_class: str = key("headers.format.class", default="", doc="Has no effect.", group=_COMPAT)
    flush_size: int = key("flush.size", default=-1, doc="Has no effect.", group=_COMPAT)
    schema_cache_size: int = key("schema.cache.size", default=50, doc="Has no effect.", group=_COMPAT)
    confluent_license: str = key("confluent.license", default="", doc="Has no effect.", group=_COMPAT)
    confluent_topic: str = key("confluent.topic", default="", doc="Has no effect.", group=_COMPAT)

    @property
    def is_generic(self) -> bool:
        """Whether the mode is GENERIC."""
        return self.mode.upper() == "GENERIC"

    @property
    def root(self) -> str:
        """The prefix of the keys of objects below `topics.dir`."""
        delimiter = self.directory_delimiter
        if self.is_generic:
            return self.topics_dir.removesuffix(delimiter) + delimiter if self.topics_dir else ""
        name = "topics" if self.topics_dir is None else self.topics_dir
        return name + delimiter if name else ""  # exactly as in the sink

    @property
    def folder_prefixes(self) -> list[str]:
        """The prefixes of the keys of objects below `folders`. No prefix begins with another prefix."""
        delimiter = self.directory_delimiter
        found: list[str] = []
        for prefix in sorted(folder.removesuffix(delimiter) + delimiter for folder in self.folders):
            if not found or not prefix.startswith(found[-1]):
                found.append(prefix)
        return found

    @property
    def separator(self) -> bytes:
        """The bytes after each record of ByteArrayFormat."""
        text = self.bytes_separator
        return b"\n" if text is None else text.encode().decode("unicode_escape").encode()

    @property
    def extension(self) -> str:
        """The extension of the objects in which a sink with this format stores record values."""
        name = source_format_name(self.format_class)
        return {"json": ".json", "parquet": ".parquet", "string": ".txt"}.get(name or "", self.bytes_extension)

    @classmethod
    def errors_between(cls, values: Mapping[str, Any]) -> Iterator[ConfigError]:
        """Yield errors about invalid combinations of keys. `values` maps each key to its parsed value."""
        yield from super().errors_between(values)
        if str(values.get("mode")).upper() == "GENERIC" and values.get("topic.regex.list") == []:
            yield ConfigError("topic.regex.list", None, "must be set for mode=GENERIC, in the format topic:regex")
