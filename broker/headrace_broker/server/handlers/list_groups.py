"""ListGroups (16): list the groups that this broker coordinates.

Version 4 adds a state filter, and version 5 adds a type filter.
"""

from __future__ import annotations

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages import ListGroupsRequest, ListGroupsResponse
from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.LIST_GROUPS
VERSIONS = (0, 5)


def handle(context: RequestContext, request: ListGroupsRequest, version: int) -> ListGroupsResponse:
    """Return the groups that pass the request's filters."""
    return context.groups.list_groups(request)
