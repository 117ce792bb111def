"""DeleteAcls (31): this broker has no authorizer, so there are no ACLs to delete.

As in Apache Kafka without `authorizer.class.name`, the response contains SECURITY_DISABLED for each filter.
"""

from __future__ import annotations

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.delete_acls import DeleteAclsFilterResult, DeleteAclsRequest, DeleteAclsResponse
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.large_requests import RequestSplit
from headrace_broker.server.network.listener_types import BROKER_AND_CONTROLLER

API_KEY = ApiKey.DELETE_ACLS
VERSIONS = (1, 3)
LISTENERS = BROKER_AND_CONTROLLER
REQUEST_SPLITS = (RequestSplit(("filters",), ("filter_results",)),)


def handle(context: RequestContext, request: DeleteAclsRequest, version: int) -> DeleteAclsResponse:
    """Return SECURITY_DISABLED for each filter."""
    return DeleteAclsResponse(
        filter_results=[
            DeleteAclsFilterResult(error_code=ErrorCode.SECURITY_DISABLED, error_message="No Authorizer is configured.")
            for _ in request.filters
        ]
    )
