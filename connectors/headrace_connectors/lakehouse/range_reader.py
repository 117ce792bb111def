"""Reading offset ranges into Arrow: what runs in Spark's Python workers, once per Spark task."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, TopicPartition

from headrace_connectors.lakehouse.envelope import PayloadReader, Payloads
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
Message = Any  # confluent_kafka types every part of a message as optional
_CONNECTION_ERRORS = (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT)
_CHUNK_ROWS = 10_000
_CHUNK_BYTES = 8 << 20
_POLL_S = 0.25
_SAMPLE_ROWS = 200
_SAMPLE_TIMEOUT_S = 2.0


class RangesReader:
    """Reads some ranges through one consumer, whatever order the broker answers in."""

    def __init__(self, consumer: Consumer, spec: SourceSpec, ranges: list[Range]) -> None:
        self._consumer = consumer
        self._spec = spec
        self._readers: dict[str, PayloadReader] = {}
        # One partition can be read by one consumer at one place only, so a second range of it waits for the first.
        self._waiting = list(ranges)
        self._open: dict[tuple[str, int], _Buffer] = {}

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the records as Arrow batches; raises SourceError when they cannot be had."""
        self._open_next()
        progress_at = time.monotonic()
        while self._open:
            messages: list[Message] = self._consumer.consume(_CHUNK_ROWS, timeout=_POLL_S)
            if messages:
                progress_at = time.monotonic()
            elif time.monotonic() - progress_at > self._spec.stall_timeout_s:
                raise SourceError(f"no records for {self._spec.stall_timeout_s:.0f} s while reading {self._rest()}")
            self._take(messages)
            for key, buffer in list(self._open.items()):
                done = buffer.position >= buffer.range.end
                if len(buffer) and (done or len(buffer) >= _CHUNK_ROWS or buffer.size_bytes >= _CHUNK_BYTES):
                    yield buffer.take_batch()
                if done:
                    self._close(key)

    def _open_next(self) -> None:
        added = []
        for range_ in list(self._waiting):
            key = (range_.topic, range_.partition)
            if key not in self._open:
                self._waiting.remove(range_)
                reader = self._readers.setdefault(range_.topic, self._spec.payload_reader())
                self._open[key] = _Buffer(range_, reader)
                added.append(TopicPartition(range_.topic, range_.partition, range_.start))
        if added:
            self._consumer.incremental_assign(added)

    def _close(self, key: tuple[str, int]) -> None:
        del self._open[key]
        self._consumer.incremental_unassign([TopicPartition(*key)])
        if self._waiting:
            self._open_next()

    def _take(self, messages: list[Message]) -> None:
        """Hand the records to their ranges, in runs: librdkafka delivers a fetched partition as a whole."""
        runs: dict[tuple[str, int], list[Message]] = {}
        for message in messages:
            if message.error() is None:
                runs.setdefault((message.topic(), message.partition()), []).append(message)
        for key, run in runs.items():
            buffer = self._open.get(key)
            if buffer is not None:
                buffer.add(run)
        for message in messages:
            if message.error() is not None:
                self._take_error(message, message.error())

    def _take_error(self, message: Message, error: KafkaError) -> None:
        buffer = self._open.get((message.topic(), message.partition()))
        if error.code() == KafkaError._PARTITION_EOF:
            if buffer is not None and message.offset() > buffer.position:
                # Nothing but compacted records and transaction markers lies before the end.
                buffer.position = message.offset()
            return
        where = f"topic {message.topic()}, partition {message.partition()}"
        if buffer is not None:
            where += f", offset {buffer.position}"
        if error.code() == KafkaError._AUTO_OFFSET_RESET:
            raise SourceError(f"{where}: the log no longer has it ({error.str()})")
        # librdkafka reconnects by itself; the stall time-out ends it when that does not help.
        if error.code() not in _CONNECTION_ERRORS and (error.fatal() or not error.retriable()):
            raise SourceError(f"{where}: {error.str()}")

    def _rest(self) -> str:
        return ", ".join(f"{buffer.range} at {buffer.position}" for buffer in self._open.values())


class _Buffer:
    """The rows of one open range that are not yet in an Arrow batch."""

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
        """The payload bytes of the rows."""
        return self._payloads.size_bytes

    def _clear(self) -> None:
        self._offsets: list[int] = []
        self._timestamps: list[int | None] = []
        self._payloads = Payloads()

    def add(self, messages: list[Message]) -> None:
        """Take records of the range's partition, in offset order; those past its end only move the position."""
        offsets = [message.offset() for message in messages]
        self.position = offsets[-1] + 1
        if offsets[0] < self.range.start or offsets[-1] >= self.range.end:
            messages = [m for m in messages if self.range.start <= m.offset() < self.range.end]
            offsets = [message.offset() for message in messages]
        self._offsets += offsets
        self._timestamps += [
            timestamp_ms if kind else None for kind, timestamp_ms in [message.timestamp() for message in messages]
        ]
        self._reader.read_run([message.value() for message in messages], self._payloads)

    def take_batch(self) -> pa.RecordBatch:
        """Return the rows as one Arrow batch and start anew."""
        rows = len(self._offsets)
        payloads = self._payloads
        texts = _payload_array(payloads)  # before the errors: it may add some
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


def _payload_array(payloads: Payloads) -> pa.Array:
    """Return the payloads as strings; one that is no UTF-8 becomes null and gets an error."""
    try:
        return text_array(payloads.texts)
    except pa.ArrowInvalid:
        for row, payload in enumerate(payloads.texts):
            try:
                (payload or b"").decode()
            except UnicodeDecodeError as error:
                payloads.texts[row] = None
                payloads.errors[row] = f"the value is not UTF-8: {error}"
        return text_array(payloads.texts)


# pa.array() imports pandas when it first gets a list, which takes half a second of each worker's start.


def integer_array(values: Sequence[int | None], type_: pa.DataType) -> pa.Array:
    """Return integers, or what is stored as such, as an Arrow array of the same width."""
    dense = values if None not in values else [0 if value is None else value for value in values]
    data = np.array(dense, np.int32 if type_.bit_width == 32 else np.int64)
    return pa.Array.from_buffers(type_, len(values), [_validity(values), pa.py_buffer(data)])


def text_array(values: Sequence[bytes | None]) -> pa.Array:
    """Return UTF-8 texts as an Arrow array of strings. Raises ArrowInvalid when one is no UTF-8."""
    offsets = np.zeros(len(values) + 1, np.int32)
    np.cumsum([0 if value is None else len(value) for value in values], out=offsets[1:])
    data = b"".join(filter(None, values))
    buffers = [_validity(values), pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers).cast(pa.string())


def _validity(values: Sequence[object]) -> pa.Buffer | None:
    if None not in values:
        return None
    return pa.py_buffer(np.packbits([value is not None for value in values], bitorder="little"))


class Sampler:
    """Learns how large the payloads of a topic are, so that a batch keeps within its bytes."""

    def __init__(self, spec: SourceSpec) -> None:
        self._spec = spec
        self._consumer = spec.consumer(**{"queued.min.messages": "100", "max.partition.fetch.bytes": str(1 << 20)})

    def row_bytes(self, positions: dict[tuple[str, int], int]) -> dict[str, float]:
        """Return the mean payload bytes of the records next in line, by topic, as far as they come in time."""
        one_each = {topic: (partition, offset) for (topic, partition), offset in positions.items()}
        self._consumer.assign([TopicPartition(topic, *at) for topic, at in one_each.items()])
        sizes: dict[str, list[int]] = {topic: [] for topic in one_each}
        readers = {topic: self._spec.payload_reader() for topic in one_each}
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
