"""SaslAuthenticate (36): one step of a SASL exchange. This broker has no SASL listeners.

As on a PLAINTEXT listener of Apache Kafka, the response contains ILLEGAL_SASL_STATE.
"""

from __future__ import annotations

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.listener_types import BROKER_AND_CONTROLLER

API_KEY = ApiKey.SASL_AUTHENTICATE
VERSIONS = (0, 2)
LISTENERS = BROKER_AND_CONTROLLER


def handle(context: RequestContext, request: SaslAuthenticateRequest, version: int) -> SaslAuthenticateResponse:
    """Return ILLEGAL_SASL_STATE."""
    return SaslAuthenticateResponse(
        error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=f"Listener {context.listener} does not use SASL."
    )
