"""DeleteGroups (42): delete groups without members, and their offsets. Version 3 adds an error message per group."""

from __future__ import annotations

from collections.abc import Awaitable

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages import DeleteGroupsRequest, DeleteGroupsResponse
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.large_requests import RequestSplit

API_KEY = ApiKey.DELETE_GROUPS
VERSIONS = (0, 3)
REQUEST_SPLITS = (RequestSplit(("groups_names",), ("results",)),)


def handle(context: RequestContext, request: DeleteGroupsRequest, version: int) -> Awaitable[DeleteGroupsResponse]:
    """Delete the groups; respond once the tombstones are committed. The response has one result for each group."""
    request.groups_names = list(dict.fromkeys(request.groups_names))
    return context.groups.delete_groups(request)
