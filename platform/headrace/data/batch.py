"""Batch: many records with the same topic, partition, key schema and value schema, stored as one list per attribute.

Tasks, transforms and converters pass batches to each other. Per-record objects are created only for code that needs
them. Never modify a batch or its lists after passing it on: `replace` and `take` create modified copies. Struct values
are rows (see `headrace.data.struct`). If `keys`, `timestamps` or `headers` is None, all records lack this attribute. If
`timestamps` is an int (in ms), all records have this timestamp. The values may be stored in a columnar form (see
`headrace.data.columns`): `values` always returns a list, and code that supports the columnar forms uses `compact`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, TypeVar, cast

from headrace.data.columns import ColumnarValues, Values, listed
from headrace.data.headers import Headers
from headrace.data.records import ConnectRecord, SinkRecord, SourceRecord, TimestampType
from headrace.data.schema import Schema
from headrace.data.struct import from_rows, to_rows

_B = TypeVar("_B", bound="Batch")


class Batch:
    """Records with the same topic, partition, key schema and value schema. `len` is the number of records."""

    topic: str
    partition: int | None
    key_schema: Schema | None
    keys: list[Any] | None
    value_schema: Schema | None
    timestamps: list[int | None] | int | None
    headers: list[Headers] | None

    # These attributes contain one item per record; all records share the other attributes.
    _PER_RECORD: tuple[str, ...] = ("keys", "_values", "timestamps", "headers")

    def __init__(
        self,
        topic: str,
        values: Values,
        *,
        value_schema: Schema | None = None,
        keys: list[Any] | None = None,
        key_schema: Schema | None = None,
        partition: int | None = None,
        timestamps: list[int | None] | int | None = None,
        headers: list[Headers] | None = None,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.key_schema = key_schema
        self.keys = keys
        self.value_schema = value_schema
        self._values = values
        self.timestamps = timestamps
        self.headers = headers

    @property
    def values(self) -> list[Any]:
        """One value per record."""
        return listed(self._values)

    @property
    def compact(self) -> ColumnarValues | None:
        """The values in their columnar form, or None if they are stored as a list."""
        return self._values if isinstance(self._values, ColumnarValues) else None

    @property
    def has_null_values(self) -> bool:
        """Whether at least one record has a null value. In a columnar form, no record has a null value."""
        return self.compact is None and None in self.values

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.topic}-{self.partition}, {len(self)} records, {self.value_schema})"

    def replace(self: _B, **changes: Any) -> _B:
        """Return a copy with some attributes changed. A changed list must still have one item per record."""
        if "values" in changes:
            changes["_values"] = changes.pop("values")
        copy = object.__new__(type(self))
        copy.__dict__ = {**self.__dict__, **changes}
        return copy

    def take(self: _B, indexes: Sequence[int]) -> _B:
        """Return a batch of the records at these indexes, in that order."""
        changes: dict[str, Any] = {}
        for name in self._PER_RECORD:
            items = getattr(self, name)
            if isinstance(items, (list, range)):
                changes[name] = [items[index] for index in indexes]
            elif isinstance(items, ColumnarValues):
                changes[name] = items.take(indexes)
        return self.replace(**changes)

    def timestamp_list(self) -> list[int | None]:
        """Return a list with one timestamp per record."""
        timestamps = self.timestamps
        return timestamps if isinstance(timestamps, list) else [timestamps] * len(self)

    def _rows(self) -> Iterator[dict[str, Any]]:
        count = len(self)
        keys = from_rows(self.key_schema, self.keys) if self.keys is not None else [None] * count
        values = from_rows(self.value_schema, self.values)
        headers = self.headers if self.headers is not None else [()] * count
        for key, value, timestamp, header in zip(keys, values, self.timestamp_list(), headers, strict=True):
            yield {
                "topic": self.topic,
                "partition": self.partition,
                "key_schema": self.key_schema,
                "key": key,
                "value_schema": self.value_schema,
                "value": value,
                "timestamp": timestamp,
                "headers": Headers.copy_of(header),  # a copy, because records of the batch may share the object
            }

    def to_records(self) -> list[Any]:
        """Return one object per record. The subclass of `Batch` determines the class of the objects."""
        return [ConnectRecord(**row) for row in self._rows()]


class SourceBatch(Batch):
    """Records from one source partition.

    `source_offset` is the offset of the last record that the task read. `source_offsets`, if given, contains one offset
    per record. If a transform drops records, the batch keeps its `source_offset`, so that the committed offset moves
    past the dropped records. If a batch has no records and its `source_offset` is None, the stored offset of its source
    partition is removed.
    """

    source_partition: Mapping[str, Any]
    source_offset: Mapping[str, Any] | None
    source_offsets: list[Mapping[str, Any]] | None
    _PER_RECORD = (*Batch._PER_RECORD, "source_offsets")

    def __init__(
        self,
        topic: str,
        values: Values,
        *,
        source_partition: Mapping[str, Any],
        source_offset: Mapping[str, Any] | None,
        source_offsets: list[Mapping[str, Any]] | None = None,
        **attributes: Any,
    ) -> None:
        super().__init__(topic, values, **attributes)
        self.source_partition = source_partition
        self.source_offset = source_offset
        self.source_offsets = source_offsets

    def to_records(self) -> list[SourceRecord]:
        """Return one object per record. If `source_offsets` is None, every record has the batch's `source_offset`."""
        offsets = self.source_offsets if self.source_offsets is not None else [self.source_offset] * len(self)
        return [
            SourceRecord(source_partition=self.source_partition, source_offset=offset, **row)
            for row, offset in zip(self._rows(), offsets, strict=True)
        ]


class SinkBatch(Batch):
    """Records from one topic partition, with their offsets.

    The ``original_*`` attributes contain the topic, partition and offsets that the records had before transforms. `raw`
    references the bytes that the platform fetched. The dead letter queue needs them.
    """

    offsets: Sequence[int]
    timestamp_type: TimestampType
    original_topic: str
    original_partition: int
    original_offsets: Sequence[int]
    raw: Any
    _PER_RECORD = (*Batch._PER_RECORD, "offsets", "original_offsets")

    def __init__(
        self,
        topic: str,
        values: Values,
        *,
        partition: int,
        offsets: Sequence[int],
        timestamp_type: TimestampType = TimestampType.CREATE_TIME,
        original_topic: str | None = None,
        original_partition: int | None = None,
        original_offsets: Sequence[int] | None = None,
        raw: Any = None,
        **attributes: Any,
    ) -> None:
        super().__init__(topic, values, partition=partition, **attributes)
        self.raw = raw
        self.offsets = offsets
        self.timestamp_type = timestamp_type
        self.original_topic = topic if original_topic is None else original_topic
        self.original_partition = partition if original_partition is None else original_partition
        self.original_offsets = offsets if original_offsets is None else original_offsets

    def to_records(self) -> list[SinkRecord]:
        """Return one object per record."""
        return [
            SinkRecord(
                offset=offset,
                timestamp_type=self.timestamp_type,
                original_topic=self.original_topic,
                original_partition=self.original_partition,
                original_offset=original,
                raw=self.raw,
                **row,
            )
            for row, offset, original in zip(self._rows(), self.offsets, self.original_offsets, strict=True)
        ]


def from_records(records: Iterable[ConnectRecord]) -> list[Batch]:
    """Return a batch for each run of consecutive records with equal topic, partition, schemas and source partition.

    Sink records of one batch also have the same original topic and partition, and the same `raw` object.
    """
    return [_build_batch(list(run)) for _, run in groupby(records, key=_batch_key)]


def _batch_key(record: ConnectRecord) -> tuple[Any, ...]:
    shared = (type(record), record.topic, record.partition, record.key_schema, record.value_schema)
    if isinstance(record, SinkRecord):
        return (*shared, record.timestamp_type, record.original_topic, record.original_partition, id(record.raw))
    if isinstance(record, SourceRecord):
        return (*shared, repr(record.source_partition))
    return shared


def _build_batch(run: list[Any]) -> Batch:
    first = run[0]
    headers = [record.headers for record in run]
    keys = to_rows(first.key_schema, [record.key for record in run])
    shared: dict[str, Any] = {
        "values": to_rows(first.value_schema, [record.value for record in run]),
        "value_schema": first.value_schema,
        "keys": keys if first.key_schema is not None or any(key is not None for key in keys) else None,
        "key_schema": first.key_schema,
        "partition": first.partition,
        "timestamps": [record.timestamp for record in run],
        "headers": headers if any(headers) else None,
    }
    if isinstance(first, SourceRecord):
        return SourceBatch(
            cast("str", first.topic),
            source_partition=first.source_partition or {},
            source_offset=run[-1].source_offset or {},
            source_offsets=[record.source_offset or {} for record in run],
            **shared,
        )
    if isinstance(first, SinkRecord):
        return SinkBatch(
            cast("str", first.topic),
            offsets=[record.offset for record in run],
            timestamp_type=first.timestamp_type,
            original_topic=first.original_topic,
            original_partition=first.original_partition,
            original_offsets=[record.original_offset for record in run],
            raw=first.raw,
            **shared,
        )
    return Batch(cast("str", first.topic), **shared)
