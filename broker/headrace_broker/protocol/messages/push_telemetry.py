"""PushTelemetry (72): a client pushes its metrics (KIP-714)."""

from __future__ import annotations

from headrace_broker.protocol.notation import Request, Response, binary, boolean, int8, int16, int32, uuid


class PushTelemetryResponse(Response, api_key=72, versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()


class PushTelemetryRequest(Request[PushTelemetryResponse], api_key=72, versions="0", flexible="0+"):
    client_instance_id: bytes = uuid()
    subscription_id: int = int32()
    terminating: bool = boolean()
    compression_type: int = int8()
    metrics: bytes = binary()
