"""BeginQuorumEpoch (53): a new quorum leader announces its epoch to the voters (KIP-595)."""

from __future__ import annotations

from collections.abc import Awaitable

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages.begin_quorum_epoch import BeginQuorumEpochRequest
from headrace_broker.protocol.notation import Response
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.listener_types import CONTROLLER_ONLY

API_KEY = ApiKey.BEGIN_QUORUM_EPOCH
VERSIONS = (0, 1)
LISTENERS = CONTROLLER_ONLY


def handle(context: RequestContext, request: BeginQuorumEpochRequest, version: int) -> Awaitable[Response]:
    """Pass the request to the quorum."""
    return context.node.quorum.handle(request, context.client_host)
