"""The block of producer ids this broker hands out from; a new one comes from the controller when it is used up."""

from __future__ import annotations

from collections.abc import Callable

from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.allocate_producer_ids import AllocateProducerIdsRequest
from headrace_broker.server.network.controller_channel import ControllerChannel

_TIMEOUT_MS = 5_000  # well within the request.timeout.ms of producers, which are to hear of it


class ProducerIdBlock:
    """Hands out ids; no id twice, even over restarts (what is left of a block is given up)."""

    def __init__(self, channel: ControllerChannel, node_id: int, broker_epoch: Callable[[], int]) -> None:
        self._channel = channel
        self._node_id = node_id
        self._broker_epoch = broker_epoch
        self._left: list[int] = []

    def take(self) -> int | None:
        """The next id, or None when a new block is needed."""
        return self._left.pop() if self._left else None

    async def take_from_new_block(self) -> int:
        """The next id, after a block was recorded.  Raises ApiError."""
        while True:
            request = AllocateProducerIdsRequest(broker_id=self._node_id, broker_epoch=self._broker_epoch())
            response = await self._channel.request(request, _TIMEOUT_MS)
            if response.error_code != ErrorCode.NONE:
                raise ApiError(ErrorCode.of(response.error_code))
            first = response.producer_id_start
            self._left = list(reversed(range(first, first + response.producer_id_len))) + self._left
            taken = self.take()
            if taken is not None:
                return taken
