"""FetchSnapshot (59): a part of a snapshot of the metadata (KIP-595)."""

from __future__ import annotations

from collections.abc import Awaitable

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages.fetch_snapshot import FetchSnapshotRequest
from headrace_broker.protocol.notation import Response
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.listeners import QUORUM

API_KEY = ApiKey.FETCH_SNAPSHOT
VERSIONS = (0, 1)
LISTENERS = QUORUM


def handle(context: RequestContext, request: FetchSnapshotRequest, version: int) -> Awaitable[Response]:
    """The quorum's core answers."""
    return context.node.quorum.handle(request)
