"""S3SourceConnector, which reads the objects of an S3 sink, or any other objects in a bucket, into topics.

Each task reads a share of the objects, one object at a time, and searches for new objects when it has read all objects
that it knows. The source offset contains the object and the number of records that were read from it, so a restarted
task continues inside an object. Objects must not change after they were written. Delivery is at least once.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.api.connector import ExactlyOnceSupport, SourceConnector
from headrace.api.errors import ConfigError, ConnectError, DataError
from headrace.api.task import SourceTask
from headrace.data.batch import SourceBatch
from headrace_connectors.common.shares import shared_task_configs
from headrace_connectors.s3.backup_finder import BackupFinder, BackupObject
from headrace_connectors.s3.bucket_check import bucket_errors
from headrace_connectors.s3.file_finder import SLOTS, FileFinder, FoundFile
from headrace_connectors.s3.object_names import BackupNames, SourcePartition
from headrace_connectors.s3.readers import ItemReader, headers_of, object_format, reader_for, side_format_name
from headrace_connectors.s3.source_config import S3SourceConfig, source_format_name, topic_pairs

if TYPE_CHECKING:
    from headrace_connectors.s3.bucket import Bucket

logger = logging.getLogger(__name__)

_IDLE_S = 1.0


class _Reading(NamedTuple):
    """An object that is being read."""

    found: BackupObject | FoundFile
    values: ItemReader | None
    """None for records with null values."""
    keys: ItemReader | None
    headers: ItemReader | None

    def readers(self) -> list[ItemReader]:
        return [reader for reader in (self.values, self.keys, self.headers) if reader is not None]

    def close(self) -> None:
        for reader in self.readers():
            reader.close()


class S3SourceTask(SourceTask[S3SourceConfig]):
    """Reads the objects that are assigned to this task."""

    def __init__(self) -> None:
        self._reading: _Reading | None = None
        self._found: BackupObject | FoundFile | None = None
        self._done = 0
        """The number of records of `_found` that were read."""
        self._search_at_s = 0.0

    def start(self, config: S3SourceConfig) -> None:
        """Create the client, and read the stored offsets."""
        from headrace_connectors.s3.bucket import Bucket  # imports boto3, which is slow

        self._retries = config.retries()
        self._bucket: Bucket = Bucket(config)
        share = (self.context.task_number, self.context.task_count)
        self._finder = self._file_finder(config, share) if config.is_generic else self._backup_finder(config, share)

    def poll(self) -> SourceBatch | None:
        """Return the next records of the current object, or of the next object."""
        from headrace_connectors.s3.bucket import MissingObjectError, TemporaryError

        try:
            if self._found is None and not self._find():
                return None
            batch = self._read()
        except TemporaryError as error:
            self._retry(error)
            return None
        except MissingObjectError as error:
            logger.warning("%s; the object was deleted after it was listed, and is skipped", error)
            return self._skip_rest()
        except DataError as error:
            return self._handle(error)
        if self._retries.succeeded():
            logger.info("The bucket %s can be read again", self._bucket.address)
        return batch

    def stop(self) -> None:
        """Close the connections."""
        self._close()

    # -- finding

    def _find(self) -> bool:
        """Select the next object to read. If there is no object, wait and return False."""
        found = self._finder.next_object()
        if found is None and self.context.monotonic() >= self._search_at_s:
            self._finder.find()
            self._search_at_s = self.context.monotonic() + self.config.poll_interval_ms / 1000
            found = self._finder.next_object()
        if found is None:
            self.context.wait(min(_IDLE_S, max(0.0, self._search_at_s - self.context.monotonic())))
            return False
        self._found, self._done = found, found.done
        return True

    def _backup_finder(self, config: S3SourceConfig, share: tuple[int, int]) -> BackupFinder:
        names = BackupNames(config.file_delimiter, config.extension)

        def read_positions(source_partitions: Sequence[SourcePartition]) -> Sequence[Mapping[str, Any] | None]:
            prefixes = map(names.prefix, source_partitions)
            return self.context.offsets.read_all([_partition_map(self._bucket.name, each) for each in prefixes])

        self._names = names
        return BackupFinder(
            self._bucket.list_page, names, config.root, config.directory_delimiter, read_positions, share,
            config.folder_prefixes, config.tombstone_partition,
        )  # fmt: skip

    def _file_finder(self, config: S3SourceConfig, share: tuple[int, int]) -> FileFinder:
        slots = [slot for slot in range(SLOTS) if slot % share[1] == share[0]]
        stored = self.context.offsets.read_all([_slot_partition(self._bucket.name, slot) for slot in slots])
        positions = {slot: offset for slot, offset in zip(slots, stored, strict=True) if offset is not None}
        pairs = topic_pairs(config.topic_regex_list)

        def topic_of(key: str) -> str | None:
            return next((topic for topic, pattern in pairs if pattern.matches(key)), None)

        return FileFinder(
            self._bucket.list_page, config.folder_prefixes or [config.root], topic_of, positions, share,
            config.starting_timestamp_ms, config.settle_ms,
        )  # fmt: skip

    # -- reading

    def _read(self) -> SourceBatch:
        if self._reading is None:
            self._reading = self._open()
        reading, count = self._reading, self.config.batch_size
        readers = reading.readers()
        length = min(reader.prepare(count) for reader in readers)
        is_complete = length < count and all(reader.ends_after(length) for reader in readers)
        if not length and not is_complete:
            for reader in readers:
                reader.raise_error()
            raise DataError("the objects with values, keys and headers have different numbers of records")
        self._done += length
        values = None if reading.values is None else reading.values.take(length)
        batch = self._batch([None] * length if values is None else values.values, is_complete)
        if values is not None:
            batch.value_schema = values.schema
        if reading.keys is not None:
            batch.key_schema, batch.keys = reading.keys.take(length)
        if reading.headers is not None:
            batch.headers = reading.headers.take(length).values
        if is_complete:
            self._close()
            self._found = None
        return batch

    def _open(self) -> _Reading:
        found, opened = self._found, []
        assert found is not None
        name = source_format_name(self.config.format_class) or "json"

        def open_reader(key: str | None, format_name: str, convert: Any = None) -> ItemReader | None:
            if key is None:
                return None
            reader = self._open_object(key, format_name, convert)
            opened.append(reader)
            reader.skip(self._done)
            return reader

        try:
            if isinstance(found, FoundFile):
                return _Reading(found, open_reader(found.key, name), None, None)
            keys_format, headers_format = side_format_name(found.keys or ""), side_format_name(found.headers or "")
            self._compare_counts([(found.values, name), (found.keys, keys_format), (found.headers, headers_format)])
            return _Reading(
                found,
                open_reader(found.values, name),
                open_reader(found.keys, keys_format),
                open_reader(found.headers, headers_format, headers_of),
            )
        except BaseException:
            for reader in opened:
                reader.close()
            raise

    def _open_object(self, key: str, format_name: str, convert: Any = None) -> ItemReader:
        """Return a reader for the object with this key. The reader calls `convert` for each item.

        If the object was deleted after it was listed, raises MissingObjectError or DataError. DataError means that the
        object contains only the keys or headers of records, and that another object contains the values of the same
        records.
        """
        from headrace_connectors.s3.bucket import MissingObjectError

        form = object_format(format_name, self.config.separator, self.config.record_max_bytes)
        try:
            return reader_for(self._bucket.open(key), key, form, convert)
        except MissingObjectError as error:
            if isinstance(self._found, BackupObject) and self._found.values not in (None, key):
                raise DataError(
                    f"the object that contains the record keys or headers was deleted after it was listed: {error}"
                ) from error
            raise

    def _compare_counts(self, objects: Sequence[tuple[str | None, str]]) -> None:
        """Raise DataError if `objects` (pairs of object key and format) do not all have the same number of records.

        If a record in ByteArrayFormat contains the separator, it is read as several records. All later records would
        then get the record keys and headers of other records. Therefore, the task reads objects in ByteArrayFormat
        twice: first to compare the numbers of records, and then to restore the records.
        """
        present = [(key, format_name) for key, format_name in objects if key is not None]
        if len(present) < 2 or all(format_name != "bytearray" for _, format_name in present):
            return
        counts: dict[str, int] = {}
        for key, format_name in present:
            reader = self._open_object(key, format_name)
            try:
                counts[key] = reader.skip(sys.maxsize)
            finally:
                reader.close()
        if len(set(counts.values())) > 1:
            numbers = ", ".join(f"{key}: {count}" for key, count in counts.items())
            raise DataError(
                f"the objects with values, keys and headers have different numbers of records ({numbers}), because "
                "records contain format.bytearray.separator. The keys and headers cannot be assigned to the values"
            )

    def _batch(self, values: list[Any], is_complete: bool) -> SourceBatch:
        """Return a batch with these values, and with the source offset after its last record.

        `is_complete` is true if the object has no further records.
        """
        found = self._found
        assert found is not None
        progress = {"record": self._done, "complete": is_complete}
        if isinstance(found, FoundFile):
            return SourceBatch(
                found.topic, values,
                source_partition=_slot_partition(self._bucket.name, found.slot),
                source_offset={"modified": found.modified_ms, "object": found.key, **progress},
            )  # fmt: skip
        source_partition = found.source_partition
        return SourceBatch(
            source_partition.topic, values, partition=source_partition.partition,
            source_partition=_partition_map(self._bucket.name, self._names.prefix(source_partition)),
            source_offset={"start": found.start, **progress},
        )  # fmt: skip

    # -- errors

    def _retry(self, error: Exception) -> None:
        """Close the object and wait, so that the next `poll` reads the object again from the next record."""
        self._close()
        retry = self._retries.failed(error)
        retry.log(logger)
        self.context.wait(retry.pause_s)

    def _handle(self, error: DataError) -> SourceBatch:
        """Skip the rest of the object if behavior.on.error allows it. Otherwise, raise ConnectError."""
        self._close()
        key = "" if self._found is None else _key_of(self._found)
        form = self.config.format_class
        text = f"Cannot read object {key} in {self._bucket.address} with format.class={form}: {error}"
        if self.config.on_error.lower() == "fail":
            raise ConnectError(f"{text}; set behavior.on.error=log to skip the remaining part of the object") from error
        if self.config.on_error.lower() == "log":
            logger.error("%s; skipping the remaining part of the object, after record %d", text, self._done)
        return self._skip_rest()

    def _skip_rest(self) -> SourceBatch:
        self._close()
        batch = self._batch([], True)
        self._found = None
        return batch

    def _close(self) -> None:
        if self._reading is not None:
            self._reading.close()
            self._reading = None


def _key_of(found: BackupObject | FoundFile) -> str:
    return found.key if isinstance(found, FoundFile) else str(found.values or found.keys)


def _partition_map(bucket: str, prefix: str) -> dict[str, Any]:
    return {"bucket": bucket, "prefix": prefix}


def _slot_partition(bucket: str, slot: int) -> dict[str, Any]:
    return {"bucket": bucket, "slot": slot}


class S3SourceConnector(SourceConnector[S3SourceConfig]):
    """Starts `tasks.max` tasks. Each reads a share of the topic partitions or, with mode=GENERIC, of the objects."""

    task_class = S3SourceTask
    java_names = ("io.confluent.connect.s3.source.S3SourceConnector",)

    @classmethod
    def shared_modules(cls, props: Mapping[str, str]) -> Sequence[str]:
        """Return the names of the S3 client's modules. The worker imports them before it starts task processes."""
        modules = [__name__, f"{__package__}.api_description"]
        return (
            [*modules, "headrace_connectors.common.parquet_rows"]
            if "Parquet" in props.get("format.class", "")
            else modules
        )

    def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
        """Return the connector's configuration for each of `max_tasks` tasks."""
        return shared_task_configs(self.config.originals, "headrace.s3.share", max_tasks)

    def validate_config(self, config: S3SourceConfig) -> Iterator[ConfigError]:
        """Yield an error if the bucket does not exist or is not accessible."""
        return bucket_errors(config)

    def exactly_once_support(self, config: S3SourceConfig) -> ExactlyOnceSupport:
        """Return SUPPORTED, because a restarted task continues at the record in the source offset."""
        return ExactlyOnceSupport.SUPPORTED

    def alter_offsets(self, config: S3SourceConfig, offsets: Mapping[Any, Mapping[str, Any] | None]) -> bool:
        """Validate source partitions and offsets. Raises ConnectError if one is invalid."""
        names = {"bucket", "slot"} if config.is_generic else {"bucket", "prefix"}
        first = {"modified": int, "object": str} if config.is_generic else {"start": str}
        types: dict[str, type] = {**first, "record": int, "complete": bool}
        for partition, offset in offsets.items():
            if {name for name, _ in partition} != names:
                raise ConnectError(f"A source partition must have the fields {sorted(names)}, not {dict(partition)}")
            if offset is None:
                continue
            if set(offset) != set(types) or any(type(offset[name]) is not types[name] for name in types):
                wanted = {name: type_.__name__ for name, type_ in types.items()}
                raise ConnectError(f"A source offset must have the fields {wanted}, not {dict(offset)}")
            if "start" in types and not str(offset["start"]).isdecimal():
                raise ConnectError(
                    "A source offset's field 'start' must contain the Kafka offset from the object's name, in decimal "
                    f"digits, but is {offset['start']}"
                )
        return True
