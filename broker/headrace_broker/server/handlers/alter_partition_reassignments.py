"""AlterPartitionReassignments (45): start or cancel partition reassignments (KIP-455).

Version 1 adds a flag that forbids changing the replication factor.
"""

from __future__ import annotations

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
)
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.large_requests import RequestSplit
from headrace_broker.server.network.listener_types import BROKER_AND_CONTROLLER

API_KEY = ApiKey.ALTER_PARTITION_REASSIGNMENTS
VERSIONS = (0, 1)
LISTENERS = BROKER_AND_CONTROLLER
IS_FORWARDED = True
REQUEST_SPLITS = (RequestSplit(("topics", "partitions"), ("responses", "partitions")),)


async def handle(
    context: RequestContext, request: AlterPartitionReassignmentsRequest, version: int
) -> AlterPartitionReassignmentsResponse:
    """Start or cancel each reassignment and return one result per partition."""
    return await context.controller.alter_reassignments(request)
