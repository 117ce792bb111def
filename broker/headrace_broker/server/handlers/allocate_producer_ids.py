"""AllocateProducerIds (67): allocate a block of producer ids to a broker (KIP-730)."""

from __future__ import annotations

from headrace_broker.metadata.brokers import validate_broker_epoch
from headrace_broker.metadata.controller_result import ControllerResult
from headrace_broker.metadata.image import MetadataImage
from headrace_broker.metadata.producer_ids import allocate_producer_ids
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.messages.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.listener_types import CONTROLLER_ONLY

API_KEY = ApiKey.ALLOCATE_PRODUCER_IDS
VERSIONS = (0, 0)
LISTENERS = CONTROLLER_ONLY


async def handle(
    context: RequestContext, request: AllocateProducerIdsRequest, version: int
) -> AllocateProducerIdsResponse:
    """Allocate a block of producer ids. Respond once the allocation is committed."""

    def decide(image: MetadataImage) -> ControllerResult[range]:
        validate_broker_epoch(image, request.broker_id, request.broker_epoch)
        return allocate_producer_ids(image, request.broker_id)

    try:
        block = await context.controller.submit(decide)
    except ApiError as error:
        return AllocateProducerIdsResponse(error_code=error.code)
    return AllocateProducerIdsResponse(producer_id_start=block.start, producer_id_len=len(block))
