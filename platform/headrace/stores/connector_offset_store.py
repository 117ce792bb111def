"""The offsets of a source connector with its own offsets topic, combined with the offset store of the worker (KIP-618).

As in Kafka Connect's ConnectorOffsetBackingStore, reads prefer the connector's topic. Offsets are written to the
connector's topic, and then to the worker's store. An error of this second write is only logged. Tombstones are written
to the worker's store first. Otherwise, a removed offset could still be read from the worker's store.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from headrace.stores.offset_keys import Offset, Partition, canonical
from headrace.stores.offset_store import OffsetStore

log = logging.getLogger(__name__)


class ConnectorOffsetStore:
    """The offsets in the connector's own store and, for partitions that have no offset there, in the worker's store."""

    def __init__(self, own: OffsetStore, worker: OffsetStore) -> None:
        self._own = own
        self._worker = worker

    async def read(self, connector: str, partitions: Sequence[Partition]) -> list[dict[str, Any] | None]:
        """Return the offsets of these source partitions, or None for each partition without an offset.

        Raises ClientError.
        """
        found = await self._own.read(connector, partitions)
        missing = [number for number, offset in enumerate(found) if offset is None]
        if missing:
            others = await self._worker.read(connector, [partitions[number] for number in missing])
            for number, offset in zip(missing, others, strict=True):
                found[number] = offset
        return found

    async def read_all(self, connector: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Return all (partition, offset) pairs of a connector. Raises ClientError."""
        pairs = [*await self._worker.read_all(connector), *await self._own.read_all(connector)]
        return list({canonical(partition): (partition, offset) for partition, offset in pairs}.values())

    async def write(self, connector: str, offsets: Sequence[tuple[Partition, Offset | None]]) -> None:
        """Set offsets (None removes an offset), and wait until they are durable. Raises ClientError."""
        tombstones = [pair for pair in offsets if pair[1] is None]
        if tombstones:
            await self._worker.write(connector, tombstones)
        await self._own.write(connector, offsets)
        try:
            await self._worker.write(connector, [pair for pair in offsets if pair[1] is not None])
        except Exception as error:  # noqa: BLE001 - the offsets are durable in the connector's own store
            log.warning(
                "Connector %s: its offsets were not written to the worker's offsets topic: %s", connector, error
            )
