"""Determines the directory of each record, and its timestamp. This module does no I/O.

Each record has the same directory as with Confluent's partitioners.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headrace.api.errors import DataError
from headrace.data.batch import SinkBatch
from headrace.data.logical import Date, Time
from headrace.data.schema import Schema
from headrace.data.struct import Struct, from_rows
from headrace.data.text import java_string
from headrace_connectors.common.instants import in_python_years, parse_timestamp
from headrace_connectors.common.null_replacement import replaces_null_with_default
from headrace_connectors.common.time_zones import offset_at
from headrace_connectors.s3.joda import JodaFormat
from headrace_connectors.s3.sink_config import S3SinkConfig, extractor_name, partitioner_name

_DAY_MS, _HOUR_MS = 86_400_000, 3_600_000
_WHOLE_MINUTES_SINCE_MS = 94_694_400_000
_FORMATS = {
    "Daily": (_DAY_MS, "'year'=YYYY/'month'=MM/'day'=dd"),
    "Hourly": (_HOUR_MS, "'year'=YYYY/'month'=MM/'day'=dd/'hour'=HH"),
}


class Partitioner(ABC):
    """Returns the directories of records, relative to the topic's directory."""

    @abstractmethod
    def directories(self, batch: SinkBatch, timestamps: Sequence[int] | None) -> str | list[str]:
        """Return the directory of each record, or one directory for all records.

        `timestamps` are the records' timestamps in ms, from the configured extractor. Raises DataError if a record's
        directory cannot be determined.
        """


class DefaultPartitioner(Partitioner):
    """Returns the directory ``partition=N``, with the number of the topic partition."""

    def directories(self, batch: SinkBatch, timestamps: Sequence[int] | None) -> str:
        """Return one directory for all records of the batch. `timestamps` is not used."""
        return f"partition={batch.original_partition}"


class FieldPartitioner(Partitioner):
    """Returns directories that contain ``field=value`` for each field of ``partition.field.name``."""

    def __init__(self, fields: Sequence[str], delimiter: str, replaces_null: bool) -> None:
        self._fields = fields
        self._replaces_null = replaces_null
        self._delimiter = delimiter
        self._unsafe = re.compile(f"[\\x00-\\x1f\\x7f]|{re.escape(delimiter)}")

    def directories(self, batch: SinkBatch, timestamps: Sequence[int] | None) -> list[str]:
        """Return one directory per record, from the fields of its value. `timestamps` is not used."""
        columns = [self._names(batch, name) for name in self._fields]
        return list(map(self._delimiter.join, zip(*columns, strict=True)))

    def _names(self, batch: SinkBatch, name: str) -> list[str]:
        """Return ``name=value`` for each record."""
        path = (name,) if _is_field(batch, name) else tuple(name.split("."))
        schema = _field_schema(batch.value_schema, path)
        structs = from_rows(batch.value_schema, batch.values)
        values = (_field(value, path, "partition.field.name", self._replaces_null) for value in structs)
        return [f"{name}={self._quoted(java_string(value, schema))}" for value in values]

    def _quoted(self, text: str) -> str:
        """Return the text with delimiters and control characters percent-encoded, as in Hive.

        A value therefore cannot add directories, and a line feed in it cannot change a request.
        """
        if self._unsafe.search(text):
            text = self._unsafe.sub(lambda found: "".join(f"%{code:02X}" for code in found[0].encode()), text)
        return text


class TimeBasedPartitioner(Partitioner):
    """Returns directories that ``path.format`` creates from timestamps, rounded down to ``partition.duration.ms``."""

    def __init__(self, duration_ms: int, path_format: str, zone: dt.tzinfo) -> None:
        self._duration_ms = duration_ms
        self._format = JodaFormat(path_format).format
        self._zone = zone
        self._directories: dict[int, str] = {}

    def directories(self, batch: SinkBatch, timestamps: Sequence[int] | None) -> list[str]:
        """Return one directory for each of the records' `timestamps`."""
        return [self._directory(timestamp) for timestamp in timestamps or ()]

    def _directory(self, timestamp_ms: int) -> str:
        # One cache entry per minute, because zone offsets are whole minutes since 1973.
        slot_ms = min(self._duration_ms, 60_000 if timestamp_ms >= _WHOLE_MINUTES_SINCE_MS else 1000)
        slot = timestamp_ms - timestamp_ms % slot_ms
        found = self._directories.get(slot)
        if found is None:
            if len(self._directories) > 10_000:
                self._directories.clear()
            found = self._directories[slot] = self._format(*self._rounded(timestamp_ms))
        return found

    def _rounded(self, timestamp_ms: int) -> tuple[dt.datetime, int]:
        """Round a timestamp down in local time, as Confluent's partitioner does: a day begins at local midnight.

        Return a datetime and the number of years to add to it (see `JodaFormat.format`).
        """
        local_ms = timestamp_ms + self._offset_ms(timestamp_ms)
        rounded_ms = self._to_utc_ms(local_ms - local_ms % self._duration_ms)
        moment, years = in_python_years(rounded_ms * 1000)
        local = moment.replace(tzinfo=dt.UTC).astimezone(self._zone)
        return local, years

    def _to_utc_ms(self, local_ms: int) -> int:
        """Convert a local time to UTC with the offset at this local time, by the rules of Joda-Time's DateTimeZone.

        If clocks are set forward at midnight, the local time 00:00 does not exist on this day. It is then converted to
        the first moment of the day.
        """
        estimate_ms = self._offset_ms(local_ms)
        offset_ms = self._offset_ms(local_ms - estimate_ms)
        if estimate_ms < 0 and self._offset_ms(local_ms - offset_ms) != offset_ms:
            offset_ms = estimate_ms
        return local_ms - offset_ms

    def _offset_ms(self, timestamp_ms: int) -> int:
        """Return the difference between local time and UTC at this timestamp."""
        return offset_at(timestamp_ms * 1000, self._zone) // 1000


def partitioner_for(config: S3SinkConfig) -> Partitioner:
    """Return the configured partitioner."""
    name = partitioner_name(config.partitioner_class)
    if name == "Field":
        return FieldPartitioner(config.partition_fields, config.directory_delimiter, _replaces_null(config))
    if name == "TimeBased":
        path = config.path_format.removesuffix(config.directory_delimiter)  # Confluent's partitioner removes it, too
        return TimeBasedPartitioner(config.partition_duration_ms, path, config.zone)
    if name in _FORMATS:
        duration_ms, path = _FORMATS[name]
        return TimeBasedPartitioner(duration_ms, path.replace("/", config.directory_delimiter), config.zone)
    return DefaultPartitioner()


def with_schema_name(directories: str | list[str], schema: Schema | None, config: S3SinkConfig) -> str | list[str]:
    """Add ``schema_name=NAME`` before or after directories, as s3.schema.partition.affix.type specifies."""
    affix = config.schema_affix.upper()
    if affix == "NONE":
        return directories
    name = f"schema_name={None if schema is None else schema.name}".replace("=None", "=null")
    name = name.replace(config.directory_delimiter, "_")

    def add(directory: str) -> str:
        return config.directory_delimiter.join([name, directory] if affix == "PREFIX" else [directory, name])

    return add(directories) if isinstance(directories, str) else [add(each) for each in directories]


def timestamps_of(config: S3SinkConfig) -> Callable[[SinkBatch, int], list[int]] | None:
    """Return a function that returns the timestamps of a batch's records, or None if no timestamps are needed.

    The arguments of the function are the batch and the current time in ms.
    """
    if not config.has_timestamps:
        return None
    extractor = (extractor_name(config.timestamp_extractor) or "").lower()
    if extractor == "wallclock":
        return lambda batch, now_ms: [now_ms] * len(batch)
    if extractor == "record":
        return lambda batch, now_ms: [_required(timestamp, batch) for timestamp in batch.timestamp_list()]
    path = tuple(config.timestamp_field.split("."))
    replaces_null = _replaces_null(config)
    return lambda batch, now_ms: [
        _to_ms(_required_field(value, path, "timestamp.field", replaces_null), path)
        for value in from_rows(batch.value_schema, batch.values)
    ]


def _required(timestamp: int | None, batch: SinkBatch) -> int:
    if timestamp is None:
        raise DataError(f"timestamp.extractor=Record: a record of topic {batch.topic} has no timestamp")
    return timestamp


def _is_field(batch: SinkBatch, name: str) -> bool:
    """Whether a name with dots is the name of a field of the value, not the path of a nested field."""
    if batch.value_schema is not None:
        return any(field.name == name for field in batch.value_schema.fields)
    return any(isinstance(value, Mapping) and name in value for value in batch.values)


def _field_schema(schema: Schema | None, path: tuple[str, ...]) -> Schema | None:
    for name in path:
        field = schema.field(name) if schema is not None else None
        schema = field.schema if field is not None else None
    return schema


def _replaces_null(config: S3SinkConfig) -> bool:
    return replaces_null_with_default(config, "value.converter")


def _required_field(value: Any, path: tuple[str, ...], config_key: str, replaces_null: bool) -> Any:
    found = _field(value, path, config_key, replaces_null)
    if found is None:
        raise DataError(f"{config_key}: field {'.'.join(path)} is null")
    return found


def _field(value: Any, path: tuple[str, ...], config_key: str, replaces_null: bool) -> Any:
    """Return the field at a path. If `replaces_null` is true, return the default of a null field of a struct."""
    for name in path:
        if not isinstance(value, Mapping):
            raise DataError(f"{config_key}: value must be a struct or map to contain {'.'.join(path)}, found: "
                            f"{type(value).__name__}")  # fmt: skip
        if name not in value:
            raise DataError(f"{config_key}: field {'.'.join(path)} does not exist in the value")
        value = value[name] if replaces_null or not isinstance(value, Struct) else value.get_without_default(name)
    return value


def _to_ms(value: Any, path: tuple[str, ...]) -> int:
    if isinstance(value, (int, float)) and not isinstance(value, (bool, Date, Time)) and math.isfinite(value):
        return int(value)
    if isinstance(value, str):
        if value.lstrip("-").isdecimal():
            return int(value)
        try:
            time, offset = parse_timestamp(value)
        except ValueError:
            raise DataError(
                f"timestamp.field: {value!r:.60} in {'.'.join(path)} is not an ISO 8601 timestamp"
            ) from None
        return (time - (offset or 0)) // 1000
    raise DataError(f"timestamp.field: {'.'.join(path)} must be a Timestamp, a number or STRING, found: "
                    f"{type(value).__name__}")  # fmt: skip
