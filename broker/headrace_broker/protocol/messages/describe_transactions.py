"""DescribeTransactions (65): describe the state of transactional ids (KIP-664)."""

from __future__ import annotations

from headrace_broker.protocol.notation import Message, Request, Response, array, int16, int32, int64, string


class TopicData(Message):
    topic: str = string()
    partitions: list[int] = array(int32)


class TransactionState(Message):
    error_code: int = int16()
    transactional_id: str = string()
    transaction_state: str = string()
    transaction_timeout_ms: int = int32()
    transaction_start_time_ms: int = int64()
    producer_id: int = int64()
    producer_epoch: int = int16()
    topics: list[TopicData] = array(TopicData)


class DescribeTransactionsResponse(Response, api_key=65, versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    transaction_states: list[TransactionState] = array(TransactionState)


class DescribeTransactionsRequest(Request[DescribeTransactionsResponse], api_key=65, versions="0", flexible="0+"):
    transactional_ids: list[str] = array(string)
