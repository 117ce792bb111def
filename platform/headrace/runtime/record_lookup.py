"""Reads single records again from their topics, for the dead letter queue."""

from __future__ import annotations

from collections.abc import Mapping

from headrace_broker.client.config import ClientConfig
from headrace_broker.client.consumer import Consumer
from headrace_broker.records.columns import RecordColumns

LOOKUP_TIMEOUT_MS = 30_000
_GROUP_KEYS = ("group.id", "group.instance.id", "auto.offset.reset")


async def read_record(properties: Mapping[str, str], topic: str, partition: int, offset: int) -> RecordColumns | None:
    """Return the record with that offset, None if it was deleted. `properties` are those of the task's consumer.

    Raises ClientError, and TimeoutError if no broker returns the record within `LOOKUP_TIMEOUT_MS`.
    """
    own = {key: value for key, value in properties.items() if key not in _GROUP_KEYS}
    # With `earliest`, the position moves to the first offset of the log if the record was deleted by retention.
    config = ClientConfig.from_properties({**own, "auto.offset.reset": "earliest"}, kind="consumer")
    consumer = await Consumer.open(config)
    try:
        consumer.assign([(topic, partition)])
        consumer.seek((topic, partition), offset)
        deadline_ms = consumer.cluster.now_ms() + LOOKUP_TIMEOUT_MS
        while consumer.cluster.now_ms() < deadline_ms:
            for batch in await consumer.poll(1000):
                columns = batch.columns
                assert columns.offsets is not None
                for index, found in enumerate(columns.offsets):
                    if found >= offset:
                        return columns.slice(index, index + 1) if found == offset else None
            if await consumer.position((topic, partition)) > offset:
                return None
        raise TimeoutError(f"record {topic}-{partition} at offset {offset} could not be read again")
    finally:
        await consumer.close()
