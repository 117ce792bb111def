"""BrokerRegistration (62): a broker that starts makes itself known to the controller (KIP-631)."""

from __future__ import annotations

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.listeners import QUORUM

API_KEY = ApiKey.BROKER_REGISTRATION
VERSIONS = (0, 4)
LISTENERS = QUORUM


async def handle(
    context: RequestContext, request: BrokerRegistrationRequest, version: int
) -> BrokerRegistrationResponse:
    """Answer the broker's epoch once it is committed."""
    try:
        return await context.controller.register(request, is_from_here=context.is_from_here)
    except ApiError as error:
        return BrokerRegistrationResponse(error_code=error.code)
