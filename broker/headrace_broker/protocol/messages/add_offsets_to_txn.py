"""AddOffsetsToTxn (25): notify the transaction coordinator that a transaction will commit a group's offsets.

Producers that use transaction.version 2 (KIP-890) do not send this request.
"""

from __future__ import annotations

from headrace_broker.protocol.notation import Request, Response, int16, int32, int64, string


class AddOffsetsToTxnResponse(Response, api_key=25, versions="0-4", flexible="3+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()


class AddOffsetsToTxnRequest(Request[AddOffsetsToTxnResponse], api_key=25, versions="0-4", flexible="3+"):
    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    group_id: str = string()
