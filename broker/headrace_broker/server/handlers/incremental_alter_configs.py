"""IncrementalAlterConfigs (44): set, delete, append to or subtract from configs of topics (KIP-339)."""

from __future__ import annotations

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from headrace_broker.server.config_changes import alter
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.large_requests import Parts
from headrace_broker.server.network.listeners import EVERYWHERE

API_KEY = ApiKey.INCREMENTAL_ALTER_CONFIGS
VERSIONS = (0, 1)
LISTENERS = EVERYWHERE
IS_FORWARDED = True
PARTS = (Parts(("resources",), ("responses",), together=True, count_max=100),)


async def handle(
    context: RequestContext, request: IncrementalAlterConfigsRequest, version: int
) -> IncrementalAlterConfigsResponse:
    """Alter each resource; all changes of one resource happen or none."""
    changes = [
        [(config.name, config.config_operation, config.value) for config in resource.configs]
        for resource in request.resources
    ]
    return IncrementalAlterConfigsResponse(
        responses=await alter(context, request.resources, changes, AlterConfigsResourceResponse, request.validate_only)
    )
