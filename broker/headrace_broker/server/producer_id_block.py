"""The block of producer ids that this broker assigns; when it is used up, the controller allocates a new block."""

from __future__ import annotations

from collections.abc import Callable

from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from headrace_broker.server.network.controller_channel import ControllerChannel

_TIMEOUT_MS = 5_000  # much less than the request.timeout.ms of producers, so that producers receive the error


class ProducerIdBlock:
    """Assigns producer ids. No id is assigned twice, even after a restart: the unused ids of a block are discarded."""

    def __init__(self, channel: ControllerChannel, node_id: int, broker_epoch: Callable[[], int]) -> None:
        self._channel = channel
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._unused: list[int] = []

    def next_id(self) -> int | None:
        """Return the next id, or None if a new block is needed."""
        return self._unused.pop() if self._unused else None

    async def next_id_from_new_block(self) -> int:
        """Allocate a new block and return its first id. Raises ApiError."""
        while True:
            request = AllocateProducerIdsRequest(broker_id=self._node_id, broker_epoch=self._broker_epoch())
            response = await self._channel.request(request, _TIMEOUT_MS)
            if response.error_code != ErrorCode.NONE:
                raise ApiError(ErrorCode.from_code(response.error_code))
            first = response.producer_id_start
            self._unused = list(reversed(range(first, first + response.producer_id_len))) + self._unused
            producer_id = self.next_id()
            if producer_id is not None:
                return producer_id
