"""AlterConfigs (33): replace a topic's whole set of configs; what old clients send instead of the incremental API."""

from __future__ import annotations

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from headrace_broker.server.config_changes import alter
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.large_requests import Parts
from headrace_broker.server.network.listeners import EVERYWHERE

API_KEY = ApiKey.ALTER_CONFIGS
VERSIONS = (0, 2)
LISTENERS = EVERYWHERE
IS_FORWARDED = True
PARTS = (Parts(("resources",), ("responses",), together=True, count_max=100),)


async def handle(context: RequestContext, request: AlterConfigsRequest, version: int) -> AlterConfigsResponse:
    """Replace the configs of each resource."""
    changes = [{config.name: config.value for config in resource.configs} for resource in request.resources]
    return AlterConfigsResponse(
        responses=await alter(context, request.resources, changes, AlterConfigsResourceResponse, request.validate_only)
    )
