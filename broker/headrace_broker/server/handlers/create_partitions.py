"""CreatePartitions (37): a topic can grow, never shrink (KIP-195)."""

from __future__ import annotations

from headrace_broker.metadata.topics import create_partitions
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.large_requests import Parts
from headrace_broker.server.network.listeners import EVERYWHERE

API_KEY = ApiKey.CREATE_PARTITIONS
VERSIONS = (0, 3)
LISTENERS = EVERYWHERE
IS_FORWARDED = True
PARTS = (Parts(("topics",), ("results",), together=True, count_max=100),)


async def handle(context: RequestContext, request: CreatePartitionsRequest, version: int) -> CreatePartitionsResponse:
    """Add partitions; each topic has its own result."""
    return await context.controller.submit(lambda image: create_partitions(image, request))
