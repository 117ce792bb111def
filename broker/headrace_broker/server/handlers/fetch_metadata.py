"""Fetch (1) on a controller listener: voters and observers fetch the metadata log from the quorum leader (KIP-595)."""

from __future__ import annotations

from collections.abc import Awaitable

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages.fetch import FetchRequest
from headrace_broker.protocol.notation import Response
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.listener_types import CONTROLLER_ONLY

API_KEY = ApiKey.FETCH
VERSIONS = (12, 18)
LISTENERS = CONTROLLER_ONLY


def handle(context: RequestContext, request: FetchRequest, version: int) -> Awaitable[Response]:
    """Pass the request to the quorum. The quorum may wait for new records before it responds."""
    return context.node.quorum.handle(request)
