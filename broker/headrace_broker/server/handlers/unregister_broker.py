"""UnregisterBroker (64): forget a broker that will not come back; its replicas stay to be moved away.

One that runs stays out, until it is restarted.
"""

from __future__ import annotations

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.listeners import EVERYWHERE

API_KEY = ApiKey.UNREGISTER_BROKER
VERSIONS = (0, 0)
LISTENERS = EVERYWHERE
IS_FORWARDED = True


async def handle(context: RequestContext, request: UnregisterBrokerRequest, version: int) -> UnregisterBrokerResponse:
    """Remove the registration."""
    await context.controller.unregister(request.broker_id)
    return UnregisterBrokerResponse(error_message=None)
