"""SaslHandshake (17): choose a SASL mechanism. This broker has no SASL listeners.

As on a PLAINTEXT listener of Apache Kafka, the response contains ILLEGAL_SASL_STATE and no mechanisms.
"""

from __future__ import annotations

import logging

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.listener_types import BROKER_AND_CONTROLLER

logger = logging.getLogger(__name__)

API_KEY = ApiKey.SASL_HANDSHAKE
VERSIONS = (0, 1)
LISTENERS = BROKER_AND_CONTROLLER


def handle(context: RequestContext, request: SaslHandshakeRequest, version: int) -> SaslHandshakeResponse:
    """Return ILLEGAL_SASL_STATE, and log that the client's security.protocol is wrong."""
    reason = context.node.router.foreign_protocols.explain_sasl(request.mechanism, context.listener)
    if reason:
        logger.warning("Connection from %s: %s", context.peer, reason)
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)
