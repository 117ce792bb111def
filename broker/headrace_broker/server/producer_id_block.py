"""The block of producer ids this broker hands out from; a new one comes from the controller when it is used up."""

from __future__ import annotations

from headrace_broker.metadata.producer_ids import allocate_producer_ids
from headrace_broker.server.metadata_service import MetadataService


class ProducerIdBlock:
    """Hands out ids; no id twice, even over restarts (what is left of a block is given up)."""

    def __init__(self, metadata: MetadataService, node_id: int) -> None:
        self._metadata = metadata
        self._node_id = node_id
        self._left: list[int] = []

    def take(self) -> int | None:
        """The next id, or None when a new block is needed."""
        return self._left.pop() if self._left else None

    async def take_from_new_block(self) -> int:
        """The next id, after a block was recorded."""
        while True:
            block = await self._metadata.submit(lambda image: allocate_producer_ids(image, self._node_id))
            self._left = list(reversed(block)) + self._left
            taken = self.take()
            if taken is not None:
                return taken
