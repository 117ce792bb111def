"""UnregisterBroker (64): remove the registration of a broker that is permanently down.

The broker's replicas stay assigned to it until an operator reassigns them. If the broker is still running, it stays
unregistered until it is restarted.
"""

from __future__ import annotations

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.listener_types import BROKER_AND_CONTROLLER

API_KEY = ApiKey.UNREGISTER_BROKER
VERSIONS = (0, 0)
LISTENERS = BROKER_AND_CONTROLLER
IS_FORWARDED = True


async def handle(context: RequestContext, request: UnregisterBrokerRequest, version: int) -> UnregisterBrokerResponse:
    """Remove the registration of the broker that the request names."""
    await context.controller.unregister(request.broker_id)
    return UnregisterBrokerResponse(error_message=None)
