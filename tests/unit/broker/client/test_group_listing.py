"""Tests of listing groups while a broker is removed from the cluster."""

from __future__ import annotations

import asyncio
from typing import Any

from headrace_broker.client.admin_groups import GroupAdmin
from headrace_broker.client.cluster import Cluster
from headrace_broker.client.cluster_view import ClusterView, Node
from headrace_broker.client.config import ClientConfig
from headrace_broker.client.errors import ConnectionLostError
from headrace_broker.protocol.messages.list_groups import ListedGroup, ListGroupsResponse

CONFIG = {"bootstrap.servers": "127.0.0.1:1", "retry.backoff.ms": "1"}


class FakeBrokerConnection:
    """A fake connection to the broker that coordinates the groups in `groups`."""

    def __init__(self, groups: list[str]) -> None:
        self.groups = groups

    def version_for(self, request: type[Any]) -> int:
        return 5

    async def request(self, message: Any, *, timeout_ms: float | None = None) -> ListGroupsResponse:
        return ListGroupsResponse(groups=[ListedGroup(group_id=name) for name in self.groups])


class ShrinkingCluster(Cluster):
    """A cluster whose metadata still lists broker 3, which was removed.

    After a metadata refresh, broker 1 coordinates the group that broker 3 coordinated.
    """

    async def connection(self, node_id: int, purpose: str = "") -> Any:
        if node_id == 3:
            self.view = ClusterView(nodes={1: Node(1, "127.0.0.1", 1)})
            raise ConnectionLostError("broker 3 is not in the cluster metadata")
        return FakeBrokerConnection(["g"] if 3 in self.view.nodes else ["g", "of 3"])


def test_list_groups_succeeds_after_a_broker_is_removed() -> None:
    async def list_groups_after_removal() -> list[str]:
        cluster = ShrinkingCluster(ClientConfig.from_properties(CONFIG, "admin"))
        cluster.view = ClusterView(nodes={node: Node(node, "127.0.0.1", node) for node in (1, 3)})
        return [group.group_id for group in await GroupAdmin(cluster, timeout_ms=1000).list_groups()]

    assert asyncio.run(list_groups_after_removal()) == ["g", "of 3"]
