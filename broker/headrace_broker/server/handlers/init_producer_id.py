"""InitProducerId (22): a fresh id, epoch 0, for an idempotent producer.

Version notes: 3+ carries the producer's present id and epoch (a bump after an error): an idempotent producer then
gets a fresh id as well.  A transactional id is refused: there is no transaction coordinator yet.
"""

from __future__ import annotations

from collections.abc import Awaitable

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.controller_channel import NoControllerError

API_KEY = ApiKey.INIT_PRODUCER_ID
VERSIONS = (0, 5)


def handle(
    context: RequestContext, request: InitProducerIdRequest, version: int
) -> InitProducerIdResponse | Awaitable[InitProducerIdResponse]:
    """Take an id from the broker's block, or fetch a block first."""
    if request.transactional_id is not None:
        return InitProducerIdResponse(error_code=ErrorCode.INVALID_REQUEST, producer_id=-1, producer_epoch=-1)
    producer_id = context.broker.producer_ids.take()
    if producer_id is not None:
        return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
    return _fetch_block(context)


async def _fetch_block(context: RequestContext) -> InitProducerIdResponse:
    try:
        producer_id = await context.broker.producer_ids.take_from_new_block()
    except NoControllerError:  # what Kafka's brokers answer while they wait for a block, so producers ask again
        code = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return InitProducerIdResponse(error_code=code, producer_id=-1, producer_epoch=-1)
    except ApiError as error:
        return InitProducerIdResponse(error_code=error.code, producer_id=-1, producer_epoch=-1)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
