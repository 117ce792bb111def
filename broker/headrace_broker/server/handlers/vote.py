"""Vote (52): a candidate asks for this voter's vote (KIP-595)."""

from __future__ import annotations

from collections.abc import Awaitable

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages.vote import VoteRequest
from headrace_broker.protocol.notation import Response
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.listeners import QUORUM

API_KEY = ApiKey.VOTE
VERSIONS = (0, 2)
LISTENERS = QUORUM


def handle(context: RequestContext, request: VoteRequest, version: int) -> Awaitable[Response]:
    """The quorum's core answers."""
    return context.node.quorum.handle(request, context.client_host)
