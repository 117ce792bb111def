"""EndTxn (26): commit or abort a transaction.

From version 5 on the response contains the producer id and epoch of the next transaction (KIP-890).
"""

from __future__ import annotations

from headrace_broker.protocol.notation import Request, Response, boolean, int16, int32, int64, string


class EndTxnResponse(Response, api_key=26, versions="0-5", flexible="3+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    producer_id: int = int64("5+", default=-1, ignorable=True)
    producer_epoch: int = int16("5+", default=-1, ignorable=True)


class EndTxnRequest(Request[EndTxnResponse], api_key=26, versions="0-5", flexible="3+"):
    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    committed: bool = boolean()
