"""SaslHandshake (17): choose a SASL mechanism.

Version 0 is followed by raw SASL tokens, each with a size prefix; version 1 by SaslAuthenticate requests (KIP-152).
"""

from __future__ import annotations

from headrace_broker.protocol.notation import Request, Response, array, int16, string


class SaslHandshakeResponse(Response, api_key=17, versions="0-1"):
    error_code: int = int16()
    mechanisms: list[str] = array(string)


class SaslHandshakeRequest(Request[SaslHandshakeResponse], api_key=17, versions="0-1"):
    mechanism: str = string()
