"""GetTelemetrySubscriptions (71): request the metrics that the client should push, and the push interval (KIP-714)."""

from __future__ import annotations

from headrace_broker.protocol.notation import Request, Response, array, boolean, int8, int16, int32, string, uuid


class GetTelemetrySubscriptionsResponse(Response, api_key=71, versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    client_instance_id: bytes = uuid()
    subscription_id: int = int32()
    accepted_compression_types: list[int] = array(int8)
    push_interval_ms: int = int32()
    telemetry_max_bytes: int = int32()
    delta_temporality: bool = boolean()
    requested_metrics: list[str] = array(string)


class GetTelemetrySubscriptionsRequest(
    Request[GetTelemetrySubscriptionsResponse], api_key=71, versions="0", flexible="0+"
):
    client_instance_id: bytes = uuid()
