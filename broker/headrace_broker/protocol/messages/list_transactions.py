"""ListTransactions (66): list the transactional ids that this broker coordinates (KIP-664).

The request can filter by state and producer id. Version 1 adds a filter by duration (KIP-994), and version 2 adds a
filter by a pattern of the transactional id (KIP-1152).
"""

from __future__ import annotations

from headrace_broker.protocol.notation import Message, Request, Response, array, int16, int32, int64, string


class TransactionState(Message):
    transactional_id: str = string()
    producer_id: int = int64()
    transaction_state: str = string()


class ListTransactionsResponse(Response, api_key=66, versions="0-2", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    unknown_state_filters: list[str] = array(string)
    transaction_states: list[TransactionState] = array(TransactionState)


class ListTransactionsRequest(Request[ListTransactionsResponse], api_key=66, versions="0-2", flexible="0+"):
    state_filters: list[str] = array(string)
    producer_id_filters: list[int] = array(int64)
    duration_filter: int = int64("1+", default=-1)
    transactional_id_pattern: str | None = string("2+", nullable="2+", default=None)
