"""AlterPartitionReassignments (45): move partitions to other brokers, or call a move off (KIP-455).

Version notes: 1 may forbid to change the replication factor.
"""

from __future__ import annotations

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.large_requests import Parts
from headrace_broker.server.network.listeners import EVERYWHERE

API_KEY = ApiKey.ALTER_PARTITION_REASSIGNMENTS
VERSIONS = (0, 1)
LISTENERS = EVERYWHERE
IS_FORWARDED = True
PARTS = (Parts(("topics", "partitions"), ("responses", "partitions")),)


async def handle(
    context: RequestContext, request: AlterPartitionReassignmentsRequest, version: int
) -> AlterPartitionReassignmentsResponse:
    """Begin or cancel each move; each partition has its own result."""
    return await context.controller.alter_reassignments(request)
