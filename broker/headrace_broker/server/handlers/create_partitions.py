"""CreatePartitions (37): a topic can grow, never shrink (KIP-195)."""

from __future__ import annotations

from headrace_broker.metadata.topics import create_partitions
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from headrace_broker.server.context import RequestContext

API_KEY = ApiKey.CREATE_PARTITIONS
VERSIONS = (0, 3)


async def handle(context: RequestContext, request: CreatePartitionsRequest, version: int) -> CreatePartitionsResponse:
    """Add partitions; each topic has its own result."""
    response = await context.metadata.submit(lambda image: create_partitions(image, request))
    await context.broker.logs_are_made()
    return response
