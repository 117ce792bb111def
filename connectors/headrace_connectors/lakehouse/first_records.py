"""Reads the first records of a new topic, to determine the topic's `RecordLayout`.

The task's process reads these records with a Kafka consumer, without Spark.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from confluent_kafka import KafkaError, TopicPartition

from headrace.api.errors import ConnectError
from headrace_connectors.lakehouse.consumers import create_consumer
from headrace_connectors.lakehouse.envelope import EnvelopeReader
from headrace_connectors.lakehouse.layouts import RecordPosition
from headrace_connectors.lakehouse.ranges import Range
from headrace_connectors.lakehouse.spec import SourceSpec

_POLL_S = 0.2
_STALL_TIMEOUT_S = 60.0
_RECORDS_PER_POLL = 500


def first_payloads(spec: SourceSpec, ranges: Sequence[Range]) -> Iterator[tuple[RecordPosition, str, str | None]]:
    """Yield (record position, schema JSON, payload) for the first record with a schema in each topic's ranges.

    Skips tombstones and bad records, because they have no schema. Yields nothing for a topic that has
    only tombstones and bad records. Raises ConnectError if the records cannot be read.
    """
    consumer = create_consumer(spec, **{"queued.min.messages": "1000", "max.partition.fetch.bytes": str(1 << 20)})
    try:
        open_ranges = {(range_.topic, range_.partition): range_ for range_ in ranges}
        consumer.assign([TopicPartition(range_.topic, range_.partition, range_.start) for range_ in ranges])
        progress_at = time.monotonic()
        while open_ranges:
            messages = consumer.consume(_RECORDS_PER_POLL, timeout=_POLL_S)
            if messages:
                progress_at = time.monotonic()
            elif time.monotonic() - progress_at > _STALL_TIMEOUT_S:
                raise ConnectError(
                    f"no records received for {_STALL_TIMEOUT_S:.0f} s while reading the first records of partitions"
                    f" {', '.join(f'{topic}-{partition}' for topic, partition in open_ranges)}"
                )
            for message in messages:
                key = (str(message.topic()), int(message.partition() or 0))
                range_ = open_ranges.get(key)
                if range_ is None:
                    continue
                offset = int(message.offset() or 0)
                error = message.error()
                if error is not None:
                    _check(error, key)
                elif offset < range_.end:
                    found = EnvelopeReader().read(message.value())
                    if found.schema is not None:
                        text = found.text.decode(errors="replace") if found.text is not None else None
                        yield RecordPosition(*key, offset), found.schema, text
                        _close(open_ranges, key[0])
                        continue
                if offset + (error is None) >= range_.end:
                    del open_ranges[key]
    finally:
        consumer.close()


def _close(open_ranges: dict[tuple[str, int], Range], topic: str) -> None:
    for key in [key for key in open_ranges if key[0] == topic]:
        del open_ranges[key]


def _check(error: KafkaError, key: tuple[str, int]) -> None:
    harmless = (KafkaError._PARTITION_EOF, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._TIMED_OUT)
    if error.code() not in harmless and not error.retriable():
        raise ConnectError(f"topic {key[0]}, partition {key[1]}: {error.str()}")
