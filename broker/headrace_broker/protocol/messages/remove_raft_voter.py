"""RemoveRaftVoter (81): remove a voter from the metadata quorum (KIP-853)."""

from __future__ import annotations

from headrace_broker.protocol.notation import Request, Response, int16, int32, string, uuid


class RemoveRaftVoterResponse(Response, api_key=81, versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", ignorable=True)


class RemoveRaftVoterRequest(Request[RemoveRaftVoterResponse], api_key=81, versions="0", flexible="0+"):
    cluster_id: str | None = string(nullable="0+")
    voter_id: int = int32()
    voter_directory_id: bytes = uuid()
