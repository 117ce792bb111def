"""A cluster seen from its controllers (KIP-919): the nodes are the quorum's voters, the controller is its leader.

For what an operator asks while no broker is up; controllers have no topics to tell of.
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
    """The voters of a quorum; `bootstrap.servers` are controllers' addresses."""

    endpoint_type = _CONTROLLERS

    def _question(self, topics: Iterable[str] | None, *, auto_create: bool) -> Request[Response]:
        return DescribeClusterRequest(endpoint_type=_CONTROLLERS)

    def _understood(self, response: Response) -> MetadataResponse:
        assert isinstance(response, DescribeClusterResponse)
        if response.error_code != ErrorCode.NONE:
            raise BrokerError(response.error_code, "the controllers", response.error_message)
        brokers = [
            MetadataResponseBroker(node_id=item.broker_id, host=item.host, port=item.port) for item in response.brokers
        ]
        return MetadataResponse(brokers=brokers, cluster_id=response.cluster_id, controller_id=response.controller_id)

    def _nodes_by_preference(self) -> list[int]:
        """The leader first: what is asked of any controller is best answered by the one that knows."""
        return sorted(super()._nodes_by_preference(), key=lambda node_id: node_id != self.view.controller_id)

    async def request_controller(self, message: Request[ResponseT], *, timeout_ms: float | None = None) -> ResponseT:
        """Send a request to the leader; one that is it no longer has the leader looked up again."""
        response = await super().request_controller(message, timeout_ms=timeout_ms)
        if getattr(response, "error_code", 0) == ErrorCode.NOT_CONTROLLER:
            self.request_refresh()
        return response
