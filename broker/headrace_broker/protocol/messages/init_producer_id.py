"""InitProducerId (22): get a producer id and epoch for an idempotent or a transactional producer.

From version 3 on the client may send its current producer id and epoch, to bump the epoch after an
error (KIP-360). Version 6 (two-phase commit, KIP-939) is not stable, so brokers do not advertise it.
"""

from __future__ import annotations

from headrace_broker.protocol.notation import Request, Response, boolean, int16, int32, int64, string


class InitProducerIdResponse(Response, api_key=22, versions="0-6", flexible="2+"):
    throttle_time_ms: int = int32(ignorable=True)
    error_code: int = int16()
    producer_id: int = int64(default=-1)
    producer_epoch: int = int16()
    ongoing_txn_producer_id: int = int64("6+", default=-1)
    ongoing_txn_producer_epoch: int = int16("6+", default=-1)


class InitProducerIdRequest(Request[InitProducerIdResponse], api_key=22, versions="0-6", flexible="2+"):
    transactional_id: str | None = string(nullable="0+")
    transaction_timeout_ms: int = int32()
    producer_id: int = int64("3+", default=-1)
    producer_epoch: int = int16("3+", default=-1)
    enable2_pc: bool = boolean("6+")
    keep_prepared_txn: bool = boolean("6+")
