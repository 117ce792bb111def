"""CreateDelegationToken (38): create a delegation token, for the requester or another owner (KIP-48, KIP-373)."""

from __future__ import annotations

from headrace_broker.protocol.notation import Message, Request, Response, array, binary, int16, int32, int64, string


class CreateDelegationTokenResponse(Response, api_key=38, versions="1-3", flexible="2+"):
    error_code: int = int16()
    principal_type: str = string()
    principal_name: str = string()
    token_requester_principal_type: str = string("3+")
    token_requester_principal_name: str = string("3+")
    issue_timestamp_ms: int = int64()
    expiry_timestamp_ms: int = int64()
    max_timestamp_ms: int = int64()
    token_id: str = string()
    hmac: bytes = binary()
    throttle_time_ms: int = int32()


class CreatableRenewers(Message):
    principal_type: str = string()
    principal_name: str = string()


class CreateDelegationTokenRequest(Request[CreateDelegationTokenResponse], api_key=38, versions="1-3", flexible="2+"):
    owner_principal_type: str | None = string("3+", nullable="3+")
    owner_principal_name: str | None = string("3+", nullable="3+")
    renewers: list[CreatableRenewers] = array(CreatableRenewers)
    max_lifetime_ms: int = int64()
