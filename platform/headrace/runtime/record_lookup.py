"""Reads records with given offsets from their topics again, for the dead letter queue."""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import aclosing
from itertools import groupby
from typing import NamedTuple

from headrace.runtime.sink_offsets import TopicPartition
from headrace_broker.client.config import ClientConfig
from headrace_broker.client.consumer import Consumer
from headrace_broker.records.columns import RecordColumns

LOOKUP_TIMEOUT_MS = 30_000
_GROUP_KEYS = ("group.id", "group.instance.id", "auto.offset.reset")
_SEEK_DISTANCE = 1_000  # over shorter distances, records are skipped, because a seek would drop prefetched ones


class Position(NamedTuple):
    """The position of a record."""

    topic: str
    partition: int
    offset: int


Found = tuple[Position, RecordColumns | None]
"""A position and its record. The record is None if it was deleted."""


async def read_records(properties: Mapping[str, str], positions: Iterable[Position]) -> AsyncGenerator[Found]:
    """Yield the records at these positions, ordered by position. `properties` configure the consumer.

    Raises ClientError, and TimeoutError if no broker returns the next record within `LOOKUP_TIMEOUT_MS`.
    """
    own = {key: value for key, value in properties.items() if key not in _GROUP_KEYS}
    # With `earliest`, the position moves to the first offset of the log if the record was deleted by retention.
    config = ClientConfig.from_properties({**own, "auto.offset.reset": "earliest"}, kind="consumer")
    consumer = await Consumer.open(config)
    try:
        for (topic, partition), group in groupby(sorted(set(positions)), key=lambda position: position[:2]):
            consumer.assign([(topic, partition)])
            offsets = deque(position.offset for position in group)
            async for offset, columns in _read_partition(consumer, (topic, partition), offsets):
                yield Position(topic, partition, offset), columns
    finally:
        await consumer.close()


async def read_record(properties: Mapping[str, str], topic: str, partition: int, offset: int) -> RecordColumns | None:
    """Return one record, or None if it was deleted. See `read_records`."""
    async with aclosing(read_records(properties, [Position(topic, partition, offset)])) as found:
        return (await anext(found))[1]


async def _read_partition(
    consumer: Consumer, partition: TopicPartition, offsets: deque[int]
) -> AsyncIterator[tuple[int, RecordColumns | None]]:
    position = offsets[0]
    consumer.seek(partition, position)
    deadline_ms = consumer.cluster.now_ms() + LOOKUP_TIMEOUT_MS
    while offsets:
        if consumer.cluster.now_ms() >= deadline_ms:
            raise TimeoutError(f"record {partition[0]}-{partition[1]} at offset {offsets[0]} could not be read again")
        for batch in await consumer.poll(1000):
            for found in _select(batch.columns, offsets):
                yield found
                deadline_ms = consumer.cluster.now_ms() + LOOKUP_TIMEOUT_MS
        position = await consumer.position(partition)
        while offsets and offsets[0] < position:
            yield offsets.popleft(), None
        if offsets and offsets[0] > position + _SEEK_DISTANCE:
            consumer.seek(partition, offsets[0])


def _select(columns: RecordColumns, offsets: deque[int]) -> Iterable[tuple[int, RecordColumns | None]]:
    """Yield the records at `offsets` up to the last offset in `columns`, and remove these offsets from `offsets`."""
    found = columns.offsets
    assert found is not None
    while offsets and len(found) and offsets[0] <= found[-1]:
        offset = offsets.popleft()
        index = bisect.bisect_left(found, offset)
        yield offset, columns.slice(index, index + 1) if found[index] == offset else None
