"""UpdateFeatures (57): finalize, raise or lower feature levels (KIP-584).

Version 1 adds upgrade types and validate-only requests, and version 2 removes the per-feature errors.
"""

from __future__ import annotations

from headrace_broker.protocol.notation import Message, Request, Response, array, boolean, int8, int16, int32, string


class UpdatableFeatureResult(Message):
    feature: str = string()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")


class UpdateFeaturesResponse(Response, api_key=57, versions="0-2", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")
    results: list[UpdatableFeatureResult] = array(UpdatableFeatureResult, "0-1", ignorable=True)


class FeatureUpdateKey(Message):
    feature: str = string()
    max_version_level: int = int16()
    allow_downgrade: bool = boolean("0")
    upgrade_type: int = int8("1+", default=1)


class UpdateFeaturesRequest(Request[UpdateFeaturesResponse], api_key=57, versions="0-2", flexible="0+"):
    timeout_ms: int = int32(default=60000)
    feature_updates: list[FeatureUpdateKey] = array(FeatureUpdateKey)
    validate_only: bool = boolean("1+")
