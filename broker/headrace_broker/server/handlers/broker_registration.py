"""BrokerRegistration (62): a starting broker registers with the controller (KIP-631)."""

from __future__ import annotations

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.messages.broker_registration import BrokerRegistrationRequest, BrokerRegistrationResponse
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.listener_types import CONTROLLER_ONLY

API_KEY = ApiKey.BROKER_REGISTRATION
VERSIONS = (0, 4)
LISTENERS = CONTROLLER_ONLY


async def handle(
    context: RequestContext, request: BrokerRegistrationRequest, version: int
) -> BrokerRegistrationResponse:
    """Register the broker; respond with its epoch once the registration is committed."""
    try:
        return await context.controller.register(request, is_local=context.is_local)
    except ApiError as error:
        return BrokerRegistrationResponse(error_code=error.code)
