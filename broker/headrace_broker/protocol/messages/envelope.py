"""Envelope (58): a broker forwards a request of a client to the controller, with the client's principal (KIP-590)."""

from __future__ import annotations

from headrace_broker.protocol.notation import Request, Response, binary, int16


class EnvelopeResponse(Response, api_key=58, versions="0", flexible="0+"):
    response_data: bytes | None = binary(nullable="0+", default=None)
    error_code: int = int16()


class EnvelopeRequest(Request[EnvelopeResponse], api_key=58, versions="0", flexible="0+"):
    request_data: bytes = binary()
    request_principal: bytes | None = binary(nullable="0+")
    client_host_address: bytes = binary()
