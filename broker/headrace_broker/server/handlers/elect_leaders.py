"""ElectLeaders (43): elect the preferred leaders of partitions, or hold unclean elections (KIP-460).

Version 0 supports only preferred elections and has no top-level error.
"""

from __future__ import annotations

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.large_requests import RequestSplit
from headrace_broker.server.network.listener_types import BROKER_AND_CONTROLLER

API_KEY = ApiKey.ELECT_LEADERS
VERSIONS = (0, 2)
LISTENERS = BROKER_AND_CONTROLLER
IS_FORWARDED = True
REQUEST_SPLITS = (RequestSplit(("topic_partitions", "partitions"), ("replica_election_results", "partition_result")),)


async def handle(context: RequestContext, request: ElectLeadersRequest, version: int) -> ElectLeadersResponse:
    """Elect the leaders and return one result per partition."""
    return await context.controller.elect_leaders(request)
