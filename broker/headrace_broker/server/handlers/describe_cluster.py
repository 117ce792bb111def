"""DescribeCluster (60): return the brokers and the controller to admin clients (KIP-700, KIP-919).

From version 1 on, a client of a controller listener can request the list of controllers. In version 2, a client of a
broker listener can request that the list of brokers includes the fenced brokers.
"""

from __future__ import annotations

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)
from headrace_broker.server.authorized_operations import CLUSTER_OPERATIONS
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.listener_types import BROKER_AND_CONTROLLER

API_KEY = ApiKey.DESCRIBE_CLUSTER
VERSIONS = (0, 2)

LISTENERS = BROKER_AND_CONTROLLER

_BROKERS = 1
_CONTROLLERS = 2


def handle(context: RequestContext, request: DescribeClusterRequest, version: int) -> DescribeClusterResponse:
    """Return the live brokers, and on request the fenced brokers too. On a controller listener, return the voters."""
    is_controller_listener = context.is_controller_listener
    if request.endpoint_type not in (_BROKERS, _CONTROLLERS):
        return _error_response(
            context, ErrorCode.UNSUPPORTED_ENDPOINT_TYPE, f"Unsupported endpoint type {request.endpoint_type}"
        )
    if request.endpoint_type != (_CONTROLLERS if is_controller_listener else _BROKERS):
        return _error_response(context, ErrorCode.MISMATCHED_ENDPOINT_TYPE, _mismatch_message(context))
    response = _controllers(context) if is_controller_listener else _brokers(context, request)
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = CLUSTER_OPERATIONS
    return response


def _error_response(context: RequestContext, code: ErrorCode, message: str) -> DescribeClusterResponse:
    return DescribeClusterResponse(error_code=code, error_message=message, cluster_id=context.node.cluster_id)


def _mismatch_message(context: RequestContext) -> str:
    """Return the error message for a client on the wrong type of listener, with the addresses to use instead."""
    if context.is_controller_listener:
        listener = context.config.inter_broker_listener
        endpoints = [broker.endpoint(listener) for broker in context.image.live_brokers()]
        addresses = ", ".join(f"{item.host}:{item.port}" for item in endpoints if item is not None)
        hint = f"the brokers listen on {addresses}" if addresses else "no broker is live"
        return f"this is a controller listener; {hint}"
    addresses = ", ".join(f"{host}:{port}" for _, (host, port) in sorted(context.config.voters.items()))
    return f"this is a broker listener; the controllers listen on {addresses}"


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
