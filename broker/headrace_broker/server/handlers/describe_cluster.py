"""DescribeCluster (60): brokers and controller, for admin clients (KIP-700, KIP-919).

Version notes: 1+ may ask a controller for the controllers; 2 also for the fenced brokers.
"""

from __future__ import annotations

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.listeners import EVERYWHERE

API_KEY = ApiKey.DESCRIBE_CLUSTER
VERSIONS = (0, 2)

LISTENERS = EVERYWHERE

_BROKERS = 1
_CONTROLLERS = 2


def handle(context: RequestContext, request: DescribeClusterRequest, version: int) -> DescribeClusterResponse:
    """Answer the live brokers, and the fenced ones when they are asked for; on a controller's listener the voters."""
    is_for_controllers = context.is_for_controllers
    if request.endpoint_type not in (_BROKERS, _CONTROLLERS):
        return _refused(context, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"no endpoint type {request.endpoint_type}")
    if request.endpoint_type != (_CONTROLLERS if is_for_controllers else _BROKERS):
        return _refused(context, ErrorCode.MISMATCHED_ENDPOINT_TYPE, _elsewhere(context))
    return _controllers(context) if is_for_controllers else _brokers(context, request)


def _refused(context: RequestContext, code: ErrorCode, message: str) -> DescribeClusterResponse:
    return DescribeClusterResponse(error_code=code, error_message=message, cluster_id=context.node.cluster_id)


def _elsewhere(context: RequestContext) -> str:
    """Where somebody is answered who has asked on the wrong kind of port."""
    if context.is_for_controllers:
        listener = context.config.inter_broker_listener
        endpoints = [broker.endpoint(listener) for broker in context.image.live_brokers()]
        addresses = ", ".join(f"{item.host}:{item.port}" for item in endpoints if item is not None)
        return f"this port is a controller's; brokers are asked at {addresses or 'their listeners, none serves now'}"
    addresses = ", ".join(f"{host}:{port}" for _, (host, port) in sorted(context.config.voters.items()))
    return f"this port is a broker's; controllers are asked at {addresses}"


def _controllers(context: RequestContext) -> DescribeClusterResponse:
    return DescribeClusterResponse(
        error_message=None,
        endpoint_type=_CONTROLLERS,
        cluster_id=context.node.cluster_id,
        controller_id=context.node.quorum.raft.leader_id,
        brokers=[
            DescribeClusterBroker(broker_id=node_id, host=host, port=port)
            for node_id, (host, port) in sorted(context.config.voters.items())
        ],
    )


def _brokers(context: RequestContext, request: DescribeClusterRequest) -> DescribeClusterResponse:
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
