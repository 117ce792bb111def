"""BrokerHeartbeat (63): a broker reports that it is alive, and requests to be unfenced or to shut down (KIP-631)."""

from __future__ import annotations

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.messages.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.listener_types import CONTROLLER_ONLY

API_KEY = ApiKey.BROKER_HEARTBEAT
VERSIONS = (0, 2)
LISTENERS = CONTROLLER_ONLY


async def handle(context: RequestContext, request: BrokerHeartbeatRequest, version: int) -> BrokerHeartbeatResponse:
    """Process the heartbeat and return the broker's state.

    If the broker's connection closes later, the controller checks whether the broker's process is alive.
    """
    try:
        response = await context.controller.heartbeat(request)
    except ApiError as error:
        return BrokerHeartbeatResponse(error_code=error.code)
    context.watch_connection(lambda: context.controller.suspect(request.broker_id))
    return response
