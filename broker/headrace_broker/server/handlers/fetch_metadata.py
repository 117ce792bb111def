"""Fetch (1) on a controller's listener: replicas of the metadata log ask its leader for what is new (KIP-595)."""

from __future__ import annotations

from collections.abc import Awaitable

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages.fetch import FetchRequest
from headrace_broker.protocol.notation import Response
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.listeners import QUORUM

API_KEY = ApiKey.FETCH
VERSIONS = (12, 18)
LISTENERS = QUORUM


def handle(context: RequestContext, request: FetchRequest, version: int) -> Awaitable[Response]:
    """The quorum's core answers, perhaps when there is something new."""
    return context.node.quorum.handle(request)
