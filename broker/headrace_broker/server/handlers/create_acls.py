"""CreateAcls (30): this broker has no authorizer, so it refuses to create ACLs.

As in Apache Kafka without `authorizer.class.name`, the response contains SECURITY_DISABLED for each ACL.
"""

from __future__ import annotations

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.create_acls import AclCreationResult, CreateAclsRequest, CreateAclsResponse
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.large_requests import RequestSplit
from headrace_broker.server.network.listener_types import BROKER_AND_CONTROLLER

API_KEY = ApiKey.CREATE_ACLS
VERSIONS = (1, 3)
LISTENERS = BROKER_AND_CONTROLLER
REQUEST_SPLITS = (RequestSplit(("creations",), ("results",)),)


def handle(context: RequestContext, request: CreateAclsRequest, version: int) -> CreateAclsResponse:
    """Return SECURITY_DISABLED for each ACL."""
    return CreateAclsResponse(
        results=[
            AclCreationResult(error_code=ErrorCode.SECURITY_DISABLED, error_message="No Authorizer is configured.")
            for _ in request.creations
        ]
    )
