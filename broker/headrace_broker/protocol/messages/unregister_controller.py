"""UnregisterController (94): remove the registration of a controller that is permanently down."""

from __future__ import annotations

from headrace_broker.protocol.notation import Request, Response, int16, int32, string


class UnregisterControllerResponse(Response, api_key=94, versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")


class UnregisterControllerRequest(Request[UnregisterControllerResponse], api_key=94, versions="0", flexible="0+"):
    controller_id: int = int32()
