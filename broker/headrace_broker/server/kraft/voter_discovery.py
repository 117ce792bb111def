"""Finds the voters of the quorum for a broker that has only `controller.quorum.bootstrap.servers`.

The broker asks the controllers in this list for the controllers of the cluster (DescribeCluster, KIP-919). The quorum
is static, so the broker needs the response of only one controller, and only when it starts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import replace

from headrace_broker.client.connection import BrokerConnection
from headrace_broker.client.errors import ClientError
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.describe_cluster import DescribeClusterRequest
from headrace_broker.server.config import BrokerConfig
from headrace_broker.server.data_dirs import StartError
from headrace_broker.server.log_throttle import LogThrottle

logger = logging.getLogger(__name__)

_KEY = "controller.quorum.bootstrap.servers"
_CONTROLLERS = 2
_VERSION_WITH_CONTROLLERS = 1
_RETRY_S = 0.1


async def with_voters(config: BrokerConfig) -> BrokerConfig:
    """Return the config with the voters of the quorum. Ask the controllers if it has no voters. Raises StartError."""
    if config.voters:
        return config
    voters = await _discover_voters(
        config.bootstrap_servers,
        timeout_ms=config.initial_broker_registration_timeout_ms,
        request_timeout_ms=config.controller_quorum_request_timeout_ms,
    )
    if config.node_id in voters:
        host, port = voters[config.node_id]
        raise StartError(
            f"node.id={config.node_id} is the id of the controller {host}:{port}: give each node a unique node.id"
        )
    return replace(config, voters=voters)


async def _discover_voters(
    servers: Sequence[tuple[str, int]], *, timeout_ms: int, request_timeout_ms: int
) -> dict[int, tuple[str, int]]:
    """Return {node id: (host, port)} of the voters. Retry until a controller responds. Raises StartError."""
    loop = asyncio.get_running_loop()
    deadline_s, throttle = loop.time() + timeout_ms / 1000, LogThrottle()
    while True:
        problems = []
        for host, port in servers:
            try:
                return await _voters_from(host, port, request_timeout_ms)
            except (ClientError, _NoVotersError) as error:
                problems.append(f"{host}:{port}: {error}")
        if loop.time() >= deadline_s:
            raise StartError(
                f"{_KEY}: no controller has responded within {timeout_ms} ms "
                f"(initial.broker.registration.timeout.ms): {'; '.join(problems)}"
            )
        if throttle.should_log(loop.time()):
            logger.info("Metadata quorum: cannot find the voters in %s, retrying: %s", _KEY, "; ".join(problems))
        await asyncio.sleep(_RETRY_S)


class _NoVotersError(Exception):
    """The node is not a controller, or does not know the voters."""


async def _voters_from(host: str, port: int, request_timeout_ms: int) -> dict[int, tuple[str, int]]:
    connection = await BrokerConnection.open(
        host,
        port,
        client_id="headrace-quorum",
        request_timeout_ms=request_timeout_ms,
        setup_timeout_ms=request_timeout_ms,
    )
    try:
        if connection.version_for(DescribeClusterRequest) < _VERSION_WITH_CONTROLLERS:
            raise _NoVotersError("the node runs a version older than Kafka 3.7")
        response = await connection.request(DescribeClusterRequest(endpoint_type=_CONTROLLERS))
    finally:
        connection.close()
    if response.error_code:
        code = ErrorCode.from_code(response.error_code)
        raise _NoVotersError(response.error_message or code.message)
    voters = {item.broker_id: (item.host, item.port) for item in response.brokers if item.port}
    if not voters:
        raise _NoVotersError("the controller does not know the addresses of the voters")
    return voters
