"""What a node that runs is to its cluster, as it says itself: a process that serves may still be of no use."""

from __future__ import annotations

import asyncio

_TIMEOUT_MS = 2_000
SERVING = "serving"
FENCED = "fenced: the controller hears nothing of it, so it leads nothing"
UNREGISTERED = "not registered: stop it, or restart it to have it registered again"
WITHOUT_QUORUM = "without quorum: it reaches no active controller"
SILENT = "not answering"
ANSWERS = (SERVING, FENCED, UNREGISTERED, WITHOUT_QUORUM)


async def health(node_id: int, address: str) -> str:
    """Ask the node at HOST:PORT, for a few seconds at most."""
    from headrace_broker.client.admin_replicas import quorum_request
    from headrace_broker.client.connection import Connection
    from headrace_broker.client.errors import ClientError
    from headrace_broker.protocol.messages.describe_cluster import DescribeClusterRequest

    host, _, port = address.rpartition(":")
    try:
        connection = await Connection.open(host, int(port), setup_timeout_ms=_TIMEOUT_MS)
    except ClientError:
        return SILENT
    try:
        async with asyncio.timeout(_TIMEOUT_MS / 1000):
            quorum = await connection.request(quorum_request())
            if quorum.error_code:
                return WITHOUT_QUORUM
            cluster = await connection.request(DescribeClusterRequest(include_fenced_brokers=True))
    except TimeoutError:
        return WITHOUT_QUORUM
    except ClientError:
        return SILENT
    finally:
        connection.close()
    fenced = {broker.broker_id: broker.is_fenced for broker in cluster.brokers}
    if node_id not in fenced:
        return UNREGISTERED
    return FENCED if fenced[node_id] else SERVING
