"""BrokerHeartbeat (63): a broker is alive, and wants to serve or to stop (KIP-631)."""

from __future__ import annotations

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.listeners import QUORUM

API_KEY = ApiKey.BROKER_HEARTBEAT
VERSIONS = (0, 2)
LISTENERS = QUORUM


async def handle(context: RequestContext, request: BrokerHeartbeatRequest, version: int) -> BrokerHeartbeatResponse:
    """Note the sign of life and answer what the broker is to do; its connection is watched from now on."""
    try:
        response = await context.controller.heartbeat(request)
    except ApiError as error:
        return BrokerHeartbeatResponse(error_code=error.code)
    context.watch_connection(lambda: context.controller.suspect(request.broker_id))
    return response
