"""InitProducerId (22): return a new producer id with epoch 0 to an idempotent producer.

From version 3 on, a producer sends its current id and epoch to request an epoch bump after an error. This broker
returns a new id instead.

Transactions are not supported yet: a request with a transactional id fails with INVALID_TXN_STATE, which the clients
that send such a request treat as fatal (see `find_coordinator`). The response has no field for an error message.
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
NO_ID = -1


def handle(
    context: RequestContext, request: InitProducerIdRequest, version: int
) -> InitProducerIdResponse | Awaitable[InitProducerIdResponse]:
    """Return an id from the broker's block of producer ids; if the block is used up, allocate a new block first."""
    if request.transactional_id == "" or (request.producer_id == NO_ID) != (request.producer_epoch == NO_ID):
        return _failed(ErrorCode.INVALID_REQUEST)
    if request.transactional_id is not None:
        return _failed(ErrorCode.INVALID_TXN_STATE)
    producer_id = context.broker.producer_ids.next_id()
    if producer_id is not None:
        return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
    return _fetch_block(context)


async def _fetch_block(context: RequestContext) -> InitProducerIdResponse:
    try:
        producer_id = await context.broker.producer_ids.next_id_from_new_block()
    except NoControllerError:  # Kafka's brokers return this error while they wait for a block; producers retry
        return _failed(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    except ApiError as error:
        return _failed(error.code)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


def _failed(code: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=code, producer_id=NO_ID, producer_epoch=NO_ID)
