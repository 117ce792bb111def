"""`Controllers`: a `Cluster` that connects to the voters of the metadata quorum.

The leader of the quorum is the controller. An admin client can use `Controllers` while no broker is running (KIP-919).
Controllers do not serve topic metadata.
"""

from __future__ import annotations

from collections.abc import Iterable

from headrace_broker.client.cluster import Cluster, ResponseT
from headrace_broker.client.errors import BrokerError
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from headrace_broker.protocol.messages.metadata import MetadataResponse, MetadataResponseBroker
from headrace_broker.protocol.notation import Request, Response

_CONTROLLERS = 2


class Controllers(Cluster):
    """Sends requests to the controllers of a cluster. `bootstrap.servers` contains the addresses of controllers."""

    endpoint_type = _CONTROLLERS

    def _metadata_request(self, topics: Iterable[str] | None, *, auto_create: bool) -> Request[Response]:
        return DescribeClusterRequest(endpoint_type=_CONTROLLERS)

    def _metadata_response(self, response: Response) -> MetadataResponse:
        assert isinstance(response, DescribeClusterResponse)
        if response.error_code != ErrorCode.NONE:
            raise BrokerError(response.error_code, "cannot list the controllers", response.error_message)
        brokers = [
            MetadataResponseBroker(node_id=item.broker_id, host=item.host, port=item.port) for item in response.brokers
        ]
        return MetadataResponse(brokers=brokers, cluster_id=response.cluster_id, controller_id=response.controller_id)

    def _nodes_by_preference(self) -> list[int]:
        """Return the ids of the controllers. The leader is first, because followers may respond with older state."""
        return sorted(super()._nodes_by_preference(), key=lambda node_id: node_id != self.view.controller_id)

    async def request_controller(self, message: Request[ResponseT], *, timeout_ms: float | None = None) -> ResponseT:
        """Send a request to the leader. If that node is no longer the leader, look up the leader again."""
        response = await super().request_controller(message, timeout_ms=timeout_ms)
        if getattr(response, "error_code", 0) == ErrorCode.NOT_CONTROLLER:
            self.request_refresh()
        return response
