"""UnregisterBroker (64): remove the registration of a broker that is permanently down."""

from __future__ import annotations

from headrace_broker.protocol.notation import Request, Response, int16, int32, string


class UnregisterBrokerResponse(Response, api_key=64, versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")


class UnregisterBrokerRequest(Request[UnregisterBrokerResponse], api_key=64, versions="0", flexible="0+"):
    broker_id: int = int32()
