"""The offset store of a distributed worker: the offsets topic of the worker group, in the format of Kafka Connect.

A record's key contains the connector and the source partition. Two keys with different bytes may be equal as JSON. In
this case, the key that was read or written last is current, and later writes use its bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from headrace.stores.offset_keys import Offset, Partition, canonical, decode_key, decode_value, encode_key, encode_value
from headrace.stores.topic_log import TopicLogs, TopicRecord

log = logging.getLogger(__name__)


class KafkaOffsetStore:
    """The offsets of source connectors. `logs` must be started before the first call."""

    def __init__(self, logs: TopicLogs, topic: str) -> None:
        self._log = logs.add(topic, self._on_record)
        self._offsets: dict[str, dict[str, tuple[bytes, dict[str, Any], dict[str, Any]]]] = {}

    async def read(self, connector: str, partitions: Sequence[Partition]) -> list[dict[str, Any] | None]:
        """Read to the end of the topic, and return the offsets of these source partitions.

        The offset of a partition without an offset is None. Raises ClientError.
        """
        await self._log.read_to_end()
        known = self._offsets.get(connector, {})
        found = [known.get(canonical(partition)) for partition in partitions]
        return [None if entry is None else entry[2] for entry in found]

    async def read_all(self, connector: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Read to the end of the topic, and return all (partition, offset) pairs of a connector. Raises ClientError."""
        await self._log.read_to_end()
        return [(partition, offset) for _, partition, offset in self._offsets.get(connector, {}).values()]

    async def write(self, connector: str, offsets: Sequence[tuple[Partition, Offset | None]]) -> None:
        """Set offsets (None removes an offset), and wait until the records are acknowledged. Raises ClientError."""
        known = self._offsets.get(connector, {})
        records = []
        for partition, offset in offsets:
            entry = known.get(canonical(partition))
            key = encode_key(connector, partition) if entry is None else entry[0]
            records.append((key, encode_value(offset)))
        await self._log.append(records)

    def _on_record(self, record: TopicRecord) -> None:
        try:
            connector, partition = decode_key(record.key or b"null")
            offset = decode_value(record.value)
        except ValueError as error:
            log.error("Offsets topic: skipping the record at offset %d: %s", record.offset, error)
            return
        known = self._offsets.setdefault(connector, {})
        if offset is None:
            known.pop(canonical(partition), None)
        else:
            known[canonical(partition)] = record.key or b"", partition, offset
