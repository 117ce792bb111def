"""AlterPartition (56): a partition leader changes the ISR (KIP-497)."""

from __future__ import annotations

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.large_requests import RequestSplit
from headrace_broker.server.network.listener_types import CONTROLLER_ONLY

API_KEY = ApiKey.ALTER_PARTITION
VERSIONS = (2, 3)
LISTENERS = CONTROLLER_ONLY
REQUEST_SPLITS = (RequestSplit(("topics", "partitions"), ("topics", "partitions")),)


async def handle(context: RequestContext, request: AlterPartitionRequest, version: int) -> AlterPartitionResponse:
    """Change the ISR of each partition. Respond with the partitions' new states once these are committed."""
    try:
        return await context.controller.alter_partitions(request)
    except ApiError as error:
        return AlterPartitionResponse(error_code=error.code)
