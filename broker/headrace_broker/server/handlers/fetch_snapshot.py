"""FetchSnapshot (59): fetch a chunk of a metadata snapshot (KIP-595)."""

from __future__ import annotations

from collections.abc import Awaitable

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages.fetch_snapshot import FetchSnapshotRequest
from headrace_broker.protocol.notation import Response
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.listener_types import CONTROLLER_ONLY

API_KEY = ApiKey.FETCH_SNAPSHOT
VERSIONS = (0, 1)
LISTENERS = CONTROLLER_ONLY


def handle(context: RequestContext, request: FetchSnapshotRequest, version: int) -> Awaitable[Response]:
    """Pass the request to the quorum."""
    return context.node.quorum.handle(request)
