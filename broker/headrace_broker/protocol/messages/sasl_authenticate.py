"""SaslAuthenticate (36): one step of a SASL exchange.

Version 1 adds the session lifetime, after which the client authenticates again (KIP-368); version 2 is flexible.
"""

from __future__ import annotations

from headrace_broker.protocol.notation import Request, Response, binary, int16, int64, string


class SaslAuthenticateResponse(Response, api_key=36, versions="0-2", flexible="2+"):
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    auth_bytes: bytes = binary()
    session_lifetime_ms: int = int64("1+", ignorable=True)


class SaslAuthenticateRequest(Request[SaslAuthenticateResponse], api_key=36, versions="0-2", flexible="2+"):
    auth_bytes: bytes = binary()
