"""CreatePartitions (37): add partitions to topics; the number of partitions never decreases (KIP-195)."""

from __future__ import annotations

from headrace_broker.metadata.topics import create_partitions
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.large_requests import RequestSplit
from headrace_broker.server.network.listener_types import BROKER_AND_CONTROLLER

API_KEY = ApiKey.CREATE_PARTITIONS
VERSIONS = (0, 3)
LISTENERS = BROKER_AND_CONTROLLER
IS_FORWARDED = True
REQUEST_SPLITS = (RequestSplit(("topics",), ("results",), keep_duplicates_together=True, items_max=100),)


async def handle(context: RequestContext, request: CreatePartitionsRequest, version: int) -> CreatePartitionsResponse:
    """Add partitions and return one result per topic."""
    return await context.controller.submit(lambda image: create_partitions(image, request))
