"""EndQuorumEpoch (54): the quorum leader resigns (KIP-595)."""

from __future__ import annotations

from collections.abc import Awaitable

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages.end_quorum_epoch import EndQuorumEpochRequest
from headrace_broker.protocol.notation import Response
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.listener_types import CONTROLLER_ONLY

API_KEY = ApiKey.END_QUORUM_EPOCH
VERSIONS = (0, 1)
LISTENERS = CONTROLLER_ONLY


def handle(context: RequestContext, request: EndQuorumEpochRequest, version: int) -> Awaitable[Response]:
    """Pass the request to the quorum."""
    return context.node.quorum.handle(request, context.client_host)
