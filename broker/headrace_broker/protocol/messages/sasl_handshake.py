"""SaslHandshake (17): choose a SASL mechanism.

After a version 0 request, the client sends raw SASL tokens, each with a size prefix. After a version 1 request, the
client sends SaslAuthenticate requests (KIP-152).
"""

from __future__ import annotations

from headrace_broker.protocol.notation import Request, Response, array, int16, string


class SaslHandshakeResponse(Response, api_key=17, versions="0-1"):
    error_code: int = int16()
    mechanisms: list[str] = array(string)


class SaslHandshakeRequest(Request[SaslHandshakeResponse], api_key=17, versions="0-1"):
    mechanism: str = string()
