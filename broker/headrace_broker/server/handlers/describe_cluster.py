"""DescribeCluster (60): brokers and controller, for admin clients."""

from __future__ import annotations

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from headrace_broker.server.context import RequestContext

API_KEY = ApiKey.DESCRIBE_CLUSTER
VERSIONS = (0, 2)

_BROKERS = 1


def handle(context: RequestContext, request: DescribeClusterRequest, version: int) -> DescribeClusterResponse:
    """Answer the live brokers, and the fenced ones when they are asked for."""
    if request.endpoint_type != _BROKERS:
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE,
            error_message="This listener serves brokers' requests; ask for endpoint type 1.",
            cluster_id=context.node.cluster_id,
        )
    image = context.image
    wanted = list(image.brokers.values()) if request.include_fenced_brokers else image.live_brokers()
    brokers: list[DescribeClusterBroker] = []
    for broker in wanted:
        endpoint = broker.endpoint(context.listener)
        if endpoint is not None:
            brokers.append(
                DescribeClusterBroker(
                    broker_id=broker.broker_id,
                    host=endpoint.host,
                    port=endpoint.port,
                    rack=broker.rack,
                    is_fenced=broker.fenced,
                )
            )
    return DescribeClusterResponse(
        error_message=None,
        cluster_id=context.node.cluster_id,
        controller_id=context.node_id,
        brokers=brokers,
    )
