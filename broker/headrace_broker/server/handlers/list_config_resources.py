"""ListConfigResources (74): list the resources whose configs can be described.

Version 0 lists only client metrics subscriptions (KIP-714). Version 1 lists the resources of the types that the request
names, or the resources of all types if it names none (KIP-1142). This broker has no client metrics subscriptions and no
group configs.
"""

from __future__ import annotations

from headrace_broker.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.list_config_resources import (
    ConfigResource,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.resource_configs import BROKER_LOGGER_RESOURCE, CLIENT_METRICS_RESOURCE, GROUP_RESOURCE

API_KEY = ApiKey.LIST_CONFIG_RESOURCES
VERSIONS = (0, 1)

_SUPPORTED_TYPES = {
    0: (CLIENT_METRICS_RESOURCE,),
    1: (GROUP_RESOURCE, CLIENT_METRICS_RESOURCE, BROKER_LOGGER_RESOURCE, BROKER_RESOURCE, TOPIC_RESOURCE),
}


def handle(context: RequestContext, request: ListConfigResourcesRequest, version: int) -> ListConfigResourcesResponse:
    """List the resources by type, in Apache Kafka's order."""
    supported = _SUPPORTED_TYPES[version]
    if not set(request.resource_types) <= set(supported):
        return ListConfigResourcesResponse(error_code=ErrorCode.UNSUPPORTED_VERSION)
    wanted = request.resource_types or supported
    return ListConfigResourcesResponse(
        config_resources=[
            ConfigResource(resource_name=name, resource_type=resource_type)
            for resource_type in supported
            if resource_type in wanted
            for name in _names(context, resource_type)
        ]
    )


def _names(context: RequestContext, resource_type: int) -> list[str]:
    if resource_type == TOPIC_RESOURCE:
        return list(context.image.topics)
    if resource_type in (BROKER_RESOURCE, BROKER_LOGGER_RESOURCE):
        return [str(broker.broker_id) for broker in context.image.live_brokers()]
    return []
