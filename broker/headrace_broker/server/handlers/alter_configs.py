"""AlterConfigs (33): replace the whole set of dynamic configs of a topic or a broker.

Old clients use this API instead of IncrementalAlterConfigs.
"""

from __future__ import annotations

from headrace_broker.metadata.configs import Replacement
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)
from headrace_broker.server.config_changes import alter, reject_other_brokers
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.large_requests import RequestSplit
from headrace_broker.server.network.listener_types import BROKER_AND_CONTROLLER

API_KEY = ApiKey.ALTER_CONFIGS
VERSIONS = (0, 2)
LISTENERS = BROKER_AND_CONTROLLER
IS_FORWARDED = True
REQUEST_SPLITS = (RequestSplit(("resources",), ("responses",), keep_duplicates_together=True, items_max=100),)


def reject_items(context: RequestContext, request: AlterConfigsRequest) -> list[AlterConfigsResourceResponse]:
    """Remove the configs of other brokers from the request, and return an error for each of them."""
    return reject_other_brokers(context, request, AlterConfigsResourceResponse)


async def handle(context: RequestContext, request: AlterConfigsRequest, version: int) -> AlterConfigsResponse:
    """Replace the configs of each resource."""
    changes = [Replacement([(config.name, config.value) for config in item.configs]) for item in request.resources]
    return AlterConfigsResponse(
        responses=await alter(context, request.resources, changes, AlterConfigsResourceResponse, request.validate_only)
    )
