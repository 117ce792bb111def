"""Reads offset ranges into Arrow batches. Spark's Python workers use one `RangeReader` per Spark task."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, TopicPartition

from headrace_connectors.lakehouse.consumers import create_consumer
from headrace_connectors.lakehouse.envelope import PayloadColumns, PayloadReader
from headrace_connectors.lakehouse.ranges import Range
from headrace_connectors.lakehouse.spec import SourceError, SourceSpec

ARROW_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("payload", pa.string()),
        ("schema_id", pa.int64()),
        ("schema", pa.string()),
        ("error", pa.string()),
    ]
)
Message = Any  # confluent_kafka declares every field of a message as optional
_CONNECTION_ERRORS = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT)
_CHUNK_ROWS = 10_000
_CHUNK_BYTES = 8 << 20
_POLL_S = 0.25
_SAMPLE_ROWS = 200
_SAMPLE_TIMEOUT_S = 2.0


class RangeReader:
    """Reads offset ranges with one consumer. Records of different partitions may arrive in any order."""

    def __init__(self, consumer: Consumer, spec: SourceSpec, ranges: list[Range]) -> None:
        self._consumer = consumer
        self._spec = spec
        self._readers: dict[str, PayloadReader] = {}
        # A consumer has one position per partition, so a second range of a partition is read after the first.
        self._pending = list(ranges)
        self._open: dict[tuple[str, int], _RangeBuffer] = {}

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the records as Arrow batches. Raises SourceError if records cannot be read."""
        self._open_pending()
        progress_at = time.monotonic()
        while self._open:
            messages: list[Message] = self._consumer.consume(_CHUNK_ROWS, timeout=_POLL_S)
            if messages:
                progress_at = time.monotonic()
            elif time.monotonic() - progress_at > self._spec.stall_timeout_s:
                raise SourceError(
                    f"no records received for {self._spec.stall_timeout_s:.0f} s while reading"
                    f" {self._unfinished_ranges()}"
                )
            self._add_messages(messages)
            for key, buffer in list(self._open.items()):
                done = buffer.position >= buffer.range.end
                if len(buffer) and (done or len(buffer) >= _CHUNK_ROWS or buffer.size_bytes >= _CHUNK_BYTES):
                    yield buffer.build_batch()
                if done:
                    self._close(key)

    def _open_pending(self) -> None:
        """For each partition of which no range is being read, start to read the next pending range."""
        added = []
        for range_ in list(self._pending):
            key = (range_.topic, range_.partition)
            if key not in self._open:
                self._pending.remove(range_)
                reader = self._readers.setdefault(range_.topic, self._spec.payload_reader())
                self._open[key] = _RangeBuffer(range_, reader)
                added.append(TopicPartition(range_.topic, range_.partition, range_.start))
        if added:
            self._consumer.incremental_assign(added)

    def _close(self, key: tuple[str, int]) -> None:
        del self._open[key]
        self._consumer.incremental_unassign([TopicPartition(*key)])
        if self._pending:
            self._open_pending()

    def _add_messages(self, messages: list[Message]) -> None:
        """Add each partition's records to the buffer of this partition, and handle messages that contain an error."""
        by_partition: dict[tuple[str, int], list[Message]] = {}
        for message in messages:
            if message.error() is None:
                by_partition.setdefault((message.topic(), message.partition()), []).append(message)
        for key, partition_messages in by_partition.items():
            buffer = self._open.get(key)
            if buffer is not None:
                buffer.add(partition_messages)
        for message in messages:
            if message.error() is not None:
                self._handle_error(message, message.error())

    def _handle_error(self, message: Message, error: KafkaError) -> None:
        buffer = self._open.get((message.topic(), message.partition()))
        if error.code() == KafkaError._PARTITION_EOF:
            if buffer is not None and message.offset() > buffer.position:
                # The remaining offsets have no records: they were compacted away or are transaction markers.
                buffer.position = message.offset()
            return
        where = f"topic {message.topic()}, partition {message.partition()}"
        if buffer is not None:
            where += f", offset {buffer.position}"
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise SourceError(f"{where}: the log no longer contains this offset ({error.str()})")
        # librdkafka reconnects automatically. If that does not help, reading fails after the stall timeout.
        if error.code() not in _CONNECTION_ERRORS and (error.fatal() or not error.retriable()):
            raise SourceError(f"{where}: {error.str()}")

    def _unfinished_ranges(self) -> str:
        return ", ".join(f"{buffer.range} at {buffer.position}" for buffer in self._open.values())


class _RangeBuffer:
    """Collects the received records of one offset range, until `build_batch` returns the records as an Arrow batch."""

    __slots__ = ("_offsets", "_payloads", "_reader", "_timestamps", "position", "range")

    def __init__(self, range_: Range, reader: PayloadReader) -> None:
        self.range = range_
        self.position = range_.start
        self._reader = reader
        self._clear()

    def __len__(self) -> int:
        return len(self._offsets)

    @property
    def size_bytes(self) -> int:
        """The size of the buffered payloads in bytes."""
        return self._payloads.size_bytes

    def _clear(self) -> None:
        self._offsets: list[int] = []
        self._timestamps: list[int | None] = []
        self._payloads = PayloadColumns()

    def add(self, messages: list[Message]) -> None:
        """Add records of the range's partition in offset order. Records outside the range only advance the position."""
        offsets = [message.offset() for message in messages]
        self.position = offsets[-1] + 1
        if offsets[0] < self.range.start or offsets[-1] >= self.range.end:
            messages = [m for m in messages if self.range.start <= m.offset() < self.range.end]
            offsets = [message.offset() for message in messages]
        self._offsets += offsets
        self._timestamps += [
            timestamp_ms if kind else None for kind, timestamp_ms in [message.timestamp() for message in messages]
        ]
        self._reader.read_many([message.value() for message in messages], self._payloads)

    def build_batch(self) -> pa.RecordBatch:
        """Return the buffered rows as an Arrow batch and clear the buffer."""
        rows = len(self._offsets)
        payloads = self._payloads
        texts = _payload_array(payloads)  # this call may add to payloads.errors, which is read below
        arrays = [
            text_array([self.range.topic.encode()] * rows),
            integer_array([self.range.partition] * rows, pa.int32()),
            integer_array(self._offsets, pa.int64()),
            integer_array(self._timestamps, pa.timestamp("ms", tz="UTC")).cast(pa.timestamp("us", tz="UTC")),
            texts,
            integer_array(payloads.schema_ids, pa.int64()),
            text_array([None if text is None else text.encode() for text in payloads.schemas]),
            text_array([None if text is None else text.encode() for text in payloads.errors]),
        ]
        self._clear()
        return pa.RecordBatch.from_arrays(arrays, schema=ARROW_SCHEMA)


def _payload_array(payloads: PayloadColumns) -> pa.Array:
    """Return the payloads as strings. A payload that is not valid UTF-8 becomes null, with an error."""
    try:
        return text_array(payloads.texts)
    except pa.ArrowInvalid:
        for row, payload in enumerate(payloads.texts):
            try:
                (payload or b"").decode()
            except UnicodeDecodeError as error:
                payloads.texts[row] = None
                payloads.errors[row] = f"the value is not valid UTF-8: {error}"
        return text_array(payloads.texts)


# The functions below replace pa.array(): its first call with a list imports pandas, which delays each worker by 0.5 s.


def integer_array(values: Sequence[int | None], type_: pa.DataType) -> pa.Array:
    """Return an Arrow array of integers, or of a type such as a timestamp that Arrow stores as integers."""
    dense = values if None not in values else [0 if value is None else value for value in values]
    data = np.array(dense, np.int32 if type_.bit_width == 32 else np.int64)
    return pa.Array.from_buffers(type_, len(values), [_validity(values), pa.py_buffer(data)])


def text_array(values: Sequence[bytes | None]) -> pa.Array:
    """Return an Arrow array of strings. Raises ArrowInvalid if a value is not valid UTF-8."""
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum([0 if value is None else len(value) for value in values], out=offsets[1:])
    data = b"".join(filter(None, values))
    buffers = [_validity(values), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers).cast(pa.string())


def _validity(values: Sequence[object]) -> pa.Buffer | None:
    if None not in values:
        return None
    return pa.py_buffer(np.packbits([value is not None for value in values], bitorder="little"))


class RecordSizeSampler:
    """Estimates the size of a topic's payloads from samples, to limit the bytes in a micro-batch."""

    def __init__(self, spec: SourceSpec) -> None:
        self._spec = spec
        self._consumer = create_consumer(
            spec, **{"queued.min.messages": "100", "max.partition.fetch.bytes": str(1 << 20)}
        )

    def row_bytes(self, positions: dict[tuple[str, int], int]) -> dict[str, float]:
        """Return the mean payload size of each topic's next records, which start at the offsets in `positions`.

        Reads one partition of each topic. Omits a topic if no record of the topic arrives before the timeout.
        """
        one_partition_each = {topic: (partition, offset) for (topic, partition), offset in positions.items()}
        self._consumer.assign([TopicPartition(topic, *at) for topic, at in one_partition_each.items()])
        sizes: dict[str, list[int]] = {topic: [] for topic in one_partition_each}
        readers = {topic: self._spec.payload_reader() for topic in one_partition_each}
        deadline = time.monotonic() + _SAMPLE_TIMEOUT_S
        while time.monotonic() < deadline and not all(sizes.values()):
            messages: list[Message] = self._consumer.consume(_SAMPLE_ROWS, timeout=_POLL_S)
            for message in messages:
                if message.error() is None and message.topic() in sizes:
                    text = readers[message.topic()].read(message.value()).text
                    sizes[message.topic()].append(len(text or b""))
        self._consumer.unassign()
        return {topic: sum(found) / len(found) for topic, found in sizes.items() if found}

    def close(self) -> None:
        self._consumer.close()
