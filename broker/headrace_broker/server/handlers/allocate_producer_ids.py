"""AllocateProducerIds (67): a block of producer ids for a broker (KIP-730)."""

from __future__ import annotations

from headrace_broker.metadata.brokers import checked_broker
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.outcome import Outcome
from headrace_broker.metadata.producer_ids import allocate_producer_ids
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.listeners import QUORUM

API_KEY = ApiKey.ALLOCATE_PRODUCER_IDS
VERSIONS = (0, 0)
LISTENERS = QUORUM


async def handle(
    context: RequestContext, request: AllocateProducerIdsRequest, version: int
) -> AllocateProducerIdsResponse:
    """Record the block, then give it away."""

    def decide(image: MetadataImage) -> Outcome[range]:
        checked_broker(image, request.broker_id, request.broker_epoch)
        return allocate_producer_ids(image, request.broker_id)

    try:
        block = await context.controller.submit(decide)
    except ApiError as error:
        return AllocateProducerIdsResponse(error_code=error.code)
    return AllocateProducerIdsResponse(producer_id_start=block.start, producer_id_len=len(block))
