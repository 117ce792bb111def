"""The offset store: the protocol for offsets of source connectors, and its implementation in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from headrace.stores.offset_keys import Offset, Partition, canonical


class OffsetStore(Protocol):
    """The committed offsets of source partitions."""

    async def read(self, connector: str, partitions: Sequence[Partition]) -> list[dict[str, Any] | None]:
        """Return the offsets of these source partitions, or None for each partition without an offset."""

    async def read_all(self, connector: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Return all (partition, offset) pairs of a connector."""

    async def write(self, connector: str, offsets: Sequence[tuple[Partition, Offset | None]]) -> None:
        """Set offsets (None removes an offset), and wait until they are durable."""


class MemoryOffsetStore:
    """Offsets that exist only as long as their process, for embedding and tests."""

    def __init__(self) -> None:
        self._offsets: dict[str, dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]]] = {}

    async def read(self, connector: str, partitions: Sequence[Partition]) -> list[dict[str, Any] | None]:
        """Return the offsets of these source partitions, or None for each partition without an offset."""
        known = self._offsets.get(connector, {})
        found = [known.get(canonical(partition)) for partition in partitions]
        return [None if pair is None else dict(pair[1]) for pair in found]

    async def read_all(self, connector: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Return all (partition, offset) pairs of a connector."""
        return [(dict(partition), dict(offset)) for partition, offset in self._offsets.get(connector, {}).values()]

    async def write(self, connector: str, offsets: Sequence[tuple[Partition, Offset | None]]) -> None:
        """Set offsets. None removes an offset."""
        known = self._offsets.setdefault(connector, {})
        for partition, offset in offsets:
            if offset is None:
                known.pop(canonical(partition), None)
            else:
                known[canonical(partition)] = partition, offset
