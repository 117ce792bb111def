"""AlterPartition (56): the leader of a partition changes who counts as in sync (KIP-497)."""

from __future__ import annotations

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.messages.alter_partition import AlterPartitionRequest, AlterPartitionResponse
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.large_requests import Parts
from headrace_broker.server.network.listeners import QUORUM

API_KEY = ApiKey.ALTER_PARTITION
VERSIONS = (2, 3)
LISTENERS = QUORUM
PARTS = (Parts(("topics", "partitions"), ("topics", "partitions")),)


async def handle(context: RequestContext, request: AlterPartitionRequest, version: int) -> AlterPartitionResponse:
    """Answer each partition's new state once it is committed."""
    try:
        return await context.controller.alter_partitions(request)
    except ApiError as error:
        return AlterPartitionResponse(error_code=error.code)
