"""DescribeUserScramCredentials (50): this broker has no SCRAM credentials (KIP-554).

A request for all users returns an empty list. If a request names users, the response contains RESOURCE_NOT_FOUND for
each of these users.
"""

from __future__ import annotations

from collections import Counter

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.describe_user_scram_credentials import (
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS
VERSIONS = (0, 0)


def handle(
    context: RequestContext, request: DescribeUserScramCredentialsRequest, version: int
) -> DescribeUserScramCredentialsResponse:
    """Return an error for each user that the request names."""
    named = Counter(user.name for user in request.users or ())
    return DescribeUserScramCredentialsResponse(results=[_result(user, count) for user, count in named.items()])


def _result(user: str, count: int) -> DescribeUserScramCredentialsResult:
    if count > 1:
        code = ErrorCode.DUPLICATE_RESOURCE
        message = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
    else:
        code = ErrorCode.RESOURCE_NOT_FOUND
        message = f"Attempt to describe a user credential that does not exist: {user}"
    return DescribeUserScramCredentialsResult(user=user, error_code=code, error_message=message)
