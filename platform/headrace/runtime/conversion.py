"""Converts between batches and the bytes in topics. Key, value and header conversion are separate stages.

This module does no I/O.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise, repeat
from typing import Any, TypeVar, cast

from headrace.api.converter import (
    Converter,
    FramedValues,
    HeaderConverter,
    RawHeaders,
    SchemaAndValue,
    SchemaRun,
    to_runs,
)
from headrace.api.errors import RecordErrors
from headrace.data.batch import Batch, SinkBatch
from headrace.data.columns import Values, listed
from headrace.data.headers import Headers, map_headers
from headrace.data.records import TimestampType
from headrace.data.schema import Schema
from headrace.data.struct import from_rows
from headrace.runtime.error_policy import Stage
from headrace.runtime.tolerance import RetryWithToleranceOperator, without
from headrace_broker.records.columns import RecordColumns

_T = TypeVar("_T")
_R = TypeVar("_R")


@dataclass(frozen=True, slots=True)
class Converters:
    """The three converters of a task."""

    key: Converter[Any]
    value: Converter[Any]
    header: HeaderConverter[Any]

    def close(self) -> None:
        """Close the three converters."""
        self.key.close()
        self.value.close()
        self.header.close()


class ToBytes:
    """Converts a source task's batch to columns of bytes. If records are skipped, the result has several parts."""

    def __init__(self, converters: Converters, operator: RetryWithToleranceOperator) -> None:
        self._converters = converters
        self._operator = operator

    def convert(self, batch: Batch, now_ms: int) -> list[RecordColumns]:
        """Return columns that can be sent. `now_ms` replaces missing timestamps. Raises ToleranceExceeded.

        Headers are converted first, because the key and value converters may use and change the headers.
        """
        converters, run = self._converters, self._operator.run
        parts: list[Batch] = [batch]
        if batch.headers is not None:
            parts = run(Stage.HEADER_CONVERTER, converters.header.display_class(), self._headers, batch)
        if converters.key.uses_headers:
            parts = [done for part in parts for done in self._keys_with_headers(part)]
        elif batch.keys is not None:
            name = converters.key.display_class()
            parts = [done for part in parts for done in run(Stage.KEY_CONVERTER, name, self._keys, part)]
        if converters.value.uses_headers:
            return [done for part in parts for done in self._values_with_headers(part, now_ms)]
        name = converters.value.display_class()
        values = partial(self._values, now_ms)
        return [done for part in parts for done in run(Stage.VALUE_CONVERTER, name, values, part)]

    def _keys(self, batch: Batch) -> Batch:
        assert batch.keys is not None
        return batch.replace(keys=self._converters.key.from_connect_batch(batch.topic, batch.key_schema, batch.keys))

    def _values(self, now_ms: int, batch: Batch) -> RecordColumns:
        converter, compact = self._converters.value, batch.compact
        values = (
            converter.from_connect_framed(batch.topic, batch.value_schema, batch.values)
            if compact is None
            else converter.from_connect_columnar(batch.topic, batch.value_schema, compact)
        )
        if not isinstance(values, FramedValues):
            return _columns(batch, values, now_ms)
        columns = _columns(batch, cast("list[bytes | None]", values.values), now_ms)
        columns.before, columns.after = values.before, values.after
        return columns

    def _headers(self, batch: Batch) -> Batch:
        convert, topic = self._converters.header.from_connect_header, batch.topic
        assert batch.headers is not None
        return batch.replace(
            headers=_convert_headers(
                lambda headers: [(each.key, convert(topic, each.key, each.schema, each.value)) for each in headers],
                batch.headers,
            )
        )

    def _keys_with_headers(self, batch: Batch) -> list[Batch]:
        keys = [None] * len(batch) if batch.keys is None else batch.keys
        part, data = self._encode_with_headers(Stage.KEY_CONVERTER, self._converters.key, batch, batch.key_schema, keys)
        return [part.replace(keys=data)] if len(part) else []

    def _values_with_headers(self, batch: Batch, now_ms: int) -> list[RecordColumns]:
        part, data = self._encode_with_headers(
            Stage.VALUE_CONVERTER, self._converters.value, batch, batch.value_schema, batch.values
        )
        return [_columns(part, data, now_ms)] if len(part) else []

    def _encode_with_headers(
        self, stage: Stage, converter: Converter[Any], batch: Batch, schema: Schema | None, values: list[Any]
    ) -> tuple[Batch, list[bytes | None]]:
        """Convert each value with its record's headers.

        Return the converted records with their new headers, and the bytes.
        """

        def encode(item: tuple[Any, RawHeaders]) -> tuple[bytes | None, RawHeaders]:
            value, headers = item[0], list(item[1])  # a copy, so that a retry starts with the original headers
            return converter.from_connect_with_headers(batch.topic, headers, schema, value), headers

        raw_headers: Any = repeat(()) if batch.headers is None else batch.headers
        items = zip(from_rows(schema, values), raw_headers, strict=False)
        encoded, skipped = self._operator.run_each(stage, converter.display_class(), encode, items, batch)
        headers: Any = [headers for _, headers in encoded]
        part = without(batch, skipped).replace(headers=headers if any(headers) else None)
        return part, [data for data, _ in encoded]


def _convert_headers(convert: Callable[[_T], _R], headers: Sequence[_T]) -> list[_R]:
    """Convert the headers of each record. Raises RecordErrors with an error for each record that fails."""
    try:
        return map_headers(convert, headers)
    except Exception:  # noqa: BLE001 - a plug-in's; the loop below finds the records that it concerns
        converted: list[_R] = []
    errors: dict[int, Exception] = {}
    for index, each in enumerate(headers):
        try:
            converted.append(convert(each))
        except Exception as error:  # noqa: BLE001 - it concerns this record alone
            errors[index] = error
    if errors:
        raise RecordErrors(errors)
    return converted


class RawPart:
    """Consumed records of one topic partition before their conversion. This class is a `Part`, on which stages run."""

    __slots__ = ("columns", "partition", "topic")

    def __init__(self, topic: str, partition: int, columns: RecordColumns) -> None:
        self.topic = topic
        self.partition = partition
        self.columns = columns

    def __len__(self) -> int:
        return len(self.columns)

    def take(self, indexes: Sequence[int]) -> RawPart:
        """Return the records at these indexes."""
        return RawPart(self.topic, self.partition, take_columns(self.columns, indexes))


class _Converted:
    """A raw part, and its data that has been converted so far. This class is also a `Part`."""

    __slots__ = ("headers", "keys", "raw")

    def __init__(self, raw: RawPart, keys: list[SchemaRun] | None, headers: list[Headers] | None) -> None:
        self.raw = raw
        self.keys = keys
        self.headers = headers

    def __len__(self) -> int:
        return len(self.raw)

    def take(self, indexes: Sequence[int]) -> _Converted:
        keys = None if self.keys is None else _take_runs(self.keys, indexes)
        headers = None if self.headers is None else [self.headers[index] for index in indexes]
        return _Converted(self.raw.take(indexes), keys, headers)


class FromBytes:
    """Converts columns of bytes to a sink task's batches. A new batch begins at each record whose schema differs."""

    def __init__(self, converters: Converters, operator: RetryWithToleranceOperator) -> None:
        self._converters = converters
        self._operator = operator
        self._values_to_connect = converters.value.to_connect_batch

    def keep_json_texts(self) -> None:
        """From now on, keep schemaless JSON objects as text if the converter supports this."""
        self._values_to_connect = self._converters.value.to_connect_texts

    def convert(self, raw: RawPart) -> list[SinkBatch]:
        """Return the batches, in order. Raises ToleranceExceeded."""
        run, converters = self._operator.run, self._converters
        parts = [_Converted(raw, None, None)]
        if converters.key.uses_headers:
            parts = self._keys_with_headers(parts[0])
        elif raw.columns.keys is not None:
            parts = run(Stage.KEY_CONVERTER, converters.key.display_class(), self._keys, parts[0])
        if raw.columns.headers is not None:
            name = converters.header.display_class()
            parts = [done for part in parts for done in run(Stage.HEADER_CONVERTER, name, self._headers, part)]
        if converters.value.uses_headers:
            return [batch for part in parts for batch in self._values_with_headers(part)]
        name = converters.value.display_class()
        return [
            batch
            for part in parts
            for batches in run(Stage.VALUE_CONVERTER, name, self._values, part)
            for batch in batches
        ]

    def _keys(self, part: _Converted) -> _Converted:
        keys = part.raw.columns.keys
        assert keys is not None
        return _Converted(part.raw, self._converters.key.to_connect_batch(part.raw.topic, keys), part.headers)

    def _headers(self, part: _Converted) -> _Converted:
        convert, topic = self._converters.header.to_connect_header, part.raw.topic

        def decode(headers: RawHeaders) -> Headers:
            connect = Headers()
            for key, data in headers:
                schema, value = convert(topic, key, data)
                connect.add(key, value, schema)
            return connect

        return _Converted(part.raw, part.keys, _convert_headers(decode, part.raw.columns.headers or ()))

    def _values(self, part: _Converted) -> list[SinkBatch]:
        columns = part.raw.columns
        return _sink_batches(part, self._values_to_connect(part.raw.topic, columns.values))

    def _keys_with_headers(self, part: _Converted) -> list[_Converted]:
        columns = part.raw.columns
        keys = [None] * len(part) if columns.keys is None else columns.keys
        good, runs = self._decode_with_headers(Stage.KEY_CONVERTER, self._converters.key, part, keys)
        return [_Converted(good.raw, runs, good.headers)] if len(good) else []

    def _values_with_headers(self, part: _Converted) -> list[SinkBatch]:
        values = part.raw.columns.values
        good, runs = self._decode_with_headers(Stage.VALUE_CONVERTER, self._converters.value, part, values)
        return _sink_batches(good, runs) if len(good) else []

    def _decode_with_headers(
        self, stage: Stage, converter: Converter[Any], part: _Converted, data: Sequence[bytes | None]
    ) -> tuple[_Converted, list[SchemaRun]]:
        """Convert the bytes of each record with its headers.

        Return the records that could be converted, and their data.
        """
        topic, columns = part.raw.topic, part.raw.columns

        def decode(item: tuple[bytes | None, RawHeaders]) -> SchemaAndValue:
            return SchemaAndValue(*converter.to_connect_with_headers(topic, list(item[1]), item[0]))

        raw_headers: Any = repeat(()) if columns.headers is None else columns.headers
        items = zip(data, raw_headers, strict=False)
        decoded, skipped = self._operator.run_each(stage, converter.display_class(), decode, items, part)
        return without(part, skipped), to_runs(decoded)


def _sink_batches(part: _Converted, values: list[SchemaRun]) -> list[SinkBatch]:
    columns = part.raw.columns
    if len(values) == 1 and (part.keys is None or len(part.keys) == 1):
        keys = part.keys[0] if part.keys else None
        return [_sink_batch(part, columns, keys, values[0], part.headers)]
    return [
        _sink_batch(part, columns.slice(start, stop), keys, run, part.headers and part.headers[start:stop])
        for start, stop, keys, run in _overlaps(part.keys, values)
    ]


def _sink_batch(
    part: _Converted, columns: RecordColumns, keys: SchemaRun | None, values: SchemaRun, headers: list[Headers] | None
) -> SinkBatch:
    timestamps: Any = columns.timestamps
    offsets = columns.offsets
    assert offsets is not None
    return SinkBatch(
        part.raw.topic,
        values.values,
        value_schema=values.schema,
        keys=None if keys is None else listed(keys.values),
        key_schema=None if keys is None else keys.schema,
        partition=part.raw.partition,
        offsets=offsets,
        timestamps=timestamps,
        timestamp_type=TimestampType(columns.timestamp_type),
        headers=headers,
        raw=columns,
    )


def _overlaps(
    keys: list[SchemaRun] | None, values: list[SchemaRun]
) -> Iterator[tuple[int, int, SchemaRun | None, SchemaRun]]:
    """Yield (start, stop, key run, value run) of each range of consecutive records with equal schemas."""
    key_ends, value_ends = _ends(keys or ()), _ends(values)
    for start, stop in pairwise(sorted({0, *key_ends, *value_ends})):
        key_run = None if keys is None else _cut(keys, key_ends, start, stop)
        yield start, stop, key_run, _cut(values, value_ends, start, stop)


def _ends(runs: Sequence[SchemaRun]) -> list[int]:
    """Return the index after the last value of each run."""
    return list(accumulate(len(run.values) for run in runs))


def _cut(runs: Sequence[SchemaRun], ends: Sequence[int], start: int, stop: int) -> SchemaRun:
    """Return the values from `start` to `stop`, which all belong to one run."""
    at = bisect_right(ends, start)
    run = runs[at]
    begin = ends[at] - len(run.values)
    return SchemaRun(run.schema, _slice(run.values, start - begin, stop - begin))


def _slice(values: Values, start: int, stop: int) -> Values:
    if start == 0 and stop == len(values):
        return values
    return values[start:stop] if isinstance(values, list) else values.take(range(start, stop))


def _take_runs(runs: Sequence[SchemaRun], indexes: Sequence[int]) -> list[SchemaRun]:
    flat = [(run.schema, value) for run in runs for value in listed(run.values)]
    taken: list[tuple[Schema | None, list[Any]]] = []
    for index in indexes:
        schema, value = flat[index]
        if taken and taken[-1][0] is schema:
            taken[-1][1].append(value)
        else:
            taken.append((schema, [value]))
    return [SchemaRun(schema, values) for schema, values in taken]


def original_position(part: Any) -> tuple[str, int, int]:
    """Return topic, partition and offset of a stage's input, which is a `SinkBatch` or raw part with one record.

    They are those from before the transforms.
    """
    if hasattr(part, "original_offsets"):
        return part.original_topic, part.original_partition, part.original_offsets[0]
    raw: RawPart = part if isinstance(part, RawPart) else part.raw
    assert raw.columns.offsets is not None
    return raw.topic, raw.partition, raw.columns.offsets[0]


def take_columns(columns: RecordColumns, indexes: Sequence[int]) -> RecordColumns:
    """Return the records at these indexes."""
    timestamps, offsets = columns.timestamps, columns.offsets
    return RecordColumns(
        values=[columns.values[index] for index in indexes],
        keys=None if columns.keys is None else [columns.keys[index] for index in indexes],
        headers=None if columns.headers is None else [columns.headers[index] for index in indexes],
        timestamps=[timestamps[index] for index in indexes] if isinstance(timestamps, list) else timestamps,
        offsets=None if offsets is None else [offsets[index] for index in indexes],
        timestamp_type=columns.timestamp_type,
    )


def _columns(batch: Batch, values: list[bytes | None], now_ms: int) -> RecordColumns:
    timestamps: Any = batch.timestamps
    if timestamps is None:
        timestamps = now_ms
    elif isinstance(timestamps, list) and None in timestamps:
        timestamps = [now_ms if timestamp is None else timestamp for timestamp in timestamps]
    headers: Any = batch.headers
    return RecordColumns(values=values, keys=batch.keys, headers=headers, timestamps=timestamps)
