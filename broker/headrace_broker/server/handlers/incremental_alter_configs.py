"""IncrementalAlterConfigs (44): change individual configs of topics and brokers (KIP-339)."""

from __future__ import annotations

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages.incremental_alter_configs import (
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from headrace_broker.server.config_changes import alter, reject_other_brokers
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.large_requests import RequestSplit
from headrace_broker.server.network.listener_types import BROKER_AND_CONTROLLER

API_KEY = ApiKey.INCREMENTAL_ALTER_CONFIGS
VERSIONS = (0, 1)
LISTENERS = BROKER_AND_CONTROLLER
IS_FORWARDED = True
REQUEST_SPLITS = (RequestSplit(("resources",), ("responses",), keep_duplicates_together=True, items_max=100),)


def reject_items(
    context: RequestContext, request: IncrementalAlterConfigsRequest
) -> list[AlterConfigsResourceResponse]:
    """Remove the configs of other brokers from the request, and return an error for each of them."""
    return reject_other_brokers(context, request, AlterConfigsResourceResponse)


async def handle(
    context: RequestContext, request: IncrementalAlterConfigsRequest, version: int
) -> IncrementalAlterConfigsResponse:
    """Alter the configs of each resource; either all changes of a resource are applied or none."""
    changes = [
        [(config.name, config.config_operation, config.value) for config in resource.configs]
        for resource in request.resources
    ]
    return IncrementalAlterConfigsResponse(
        responses=await alter(context, request.resources, changes, AlterConfigsResourceResponse, request.validate_only)
    )
