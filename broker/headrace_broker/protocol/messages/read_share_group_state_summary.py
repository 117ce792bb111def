"""ReadShareGroupStateSummary (87): read the start offsets of share partitions, without the records' state (KIP-932)."""

from __future__ import annotations

from headrace_broker.protocol.notation import Message, Request, Response, array, int16, int32, int64, string, uuid


class PartitionResult(Message):
    partition: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    state_epoch: int = int32()
    leader_epoch: int = int32()
    start_offset: int = int64()
    delivery_complete_count: int = int32("1+", default=-1, ignorable=True)


class ReadStateSummaryResult(Message):
    topic_id: bytes = uuid()
    partitions: list[PartitionResult] = array(PartitionResult)


class ReadShareGroupStateSummaryResponse(Response, api_key=87, versions="0-1", flexible="0+"):
    results: list[ReadStateSummaryResult] = array(ReadStateSummaryResult)


class PartitionData(Message):
    partition: int = int32()
    leader_epoch: int = int32()


class ReadStateSummaryData(Message):
    topic_id: bytes = uuid()
    partitions: list[PartitionData] = array(PartitionData)


class ReadShareGroupStateSummaryRequest(
    Request[ReadShareGroupStateSummaryResponse], api_key=87, versions="0-1", flexible="0+"
):
    group_id: str = string()
    topics: list[ReadStateSummaryData] = array(ReadStateSummaryData)
