"""BeginQuorumEpoch (53): a new leader makes itself known (KIP-595)."""

from __future__ import annotations

from collections.abc import Awaitable

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages.begin_quorum_epoch import BeginQuorumEpochRequest
from headrace_broker.protocol.notation import Response
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.listeners import QUORUM

API_KEY = ApiKey.BEGIN_QUORUM_EPOCH
VERSIONS = (0, 1)
LISTENERS = QUORUM


def handle(context: RequestContext, request: BeginQuorumEpochRequest, version: int) -> Awaitable[Response]:
    """The quorum's core answers."""
    return context.node.quorum.handle(request, context.client_host)
