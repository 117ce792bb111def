"""ElectLeaders (43): elect the preferred leader of partitions, or any that is alive (KIP-460).

Version notes: 0 knows the preferred kind only and has no error of its own.
"""

from __future__ import annotations

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.large_requests import Parts
from headrace_broker.server.network.listeners import EVERYWHERE

API_KEY = ApiKey.ELECT_LEADERS
VERSIONS = (0, 2)
LISTENERS = EVERYWHERE
IS_FORWARDED = True
PARTS = (Parts(("topic_partitions", "partitions"), ("replica_election_results", "partition_result")),)


async def handle(context: RequestContext, request: ElectLeadersRequest, version: int) -> ElectLeadersResponse:
    """Hold the elections; each partition has its own result."""
    return await context.controller.elect_leaders(request)
