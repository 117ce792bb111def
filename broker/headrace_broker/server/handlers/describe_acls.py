"""DescribeAcls (29): this broker has no authorizer, so there are no ACLs to describe.

As in Apache Kafka without `authorizer.class.name`, the response contains SECURITY_DISABLED. Admin clients raise a
SecurityDisabledException for this error, and MirrorMaker 2 does not synchronize ACLs.
"""

from __future__ import annotations

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.describe_acls import DescribeAclsRequest, DescribeAclsResponse
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.listener_types import BROKER_AND_CONTROLLER

API_KEY = ApiKey.DESCRIBE_ACLS
VERSIONS = (1, 3)
LISTENERS = BROKER_AND_CONTROLLER


def handle(context: RequestContext, request: DescribeAclsRequest, version: int) -> DescribeAclsResponse:
    """Return SECURITY_DISABLED for every filter."""
    return DescribeAclsResponse(
        error_code=ErrorCode.SECURITY_DISABLED, error_message="No Authorizer is configured on the broker"
    )
