"""Queries the state of a running node, for example "fenced". A node that serves requests may still be fenced."""

from __future__ import annotations

import asyncio

_TIMEOUT_MS = 2_000
SERVING = "serving"
FENCED = "fenced: the controller receives no heartbeats from it, so it leads no partitions"
UNREGISTERED = "not registered: stop it, or restart it to register it again"
WITHOUT_QUORUM = "without quorum: it cannot reach an active controller"
NOT_RESPONDING = "not responding"
RESPONDING_STATES = (SERVING, FENCED, UNREGISTERED, WITHOUT_QUORUM)


async def health(node_id: int, address: str) -> str:
    """Query the node `node_id` at `address` (HOST:PORT), and return its state. This takes at most a few seconds."""
    from headrace_broker.client.admin_replicas import build_quorum_request
    from headrace_broker.client.connection import BrokerConnection
    from headrace_broker.client.errors import ClientError
    from headrace_broker.protocol.messages.describe_cluster import DescribeClusterRequest

    host, _, port = address.rpartition(":")
    try:
        connection = await BrokerConnection.open(host, int(port), setup_timeout_ms=_TIMEOUT_MS)
    except ClientError:
        return NOT_RESPONDING
    try:
        async with asyncio.timeout(_TIMEOUT_MS / 1000):
            quorum = await connection.request(build_quorum_request())
            if quorum.error_code:
                return WITHOUT_QUORUM
            cluster = await connection.request(DescribeClusterRequest(include_fenced_brokers=True))
    except TimeoutError:
        return WITHOUT_QUORUM
    except ClientError:
        return NOT_RESPONDING
    finally:
        connection.close()
    fenced = {broker.broker_id: broker.is_fenced for broker in cluster.brokers}
    if node_id not in fenced:
        return UNREGISTERED
    return FENCED if fenced[node_id] else SERVING
