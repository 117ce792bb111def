"""InitializeShareGroupState (83): initialize the state of share partitions at a start offset (KIP-932)."""

from __future__ import annotations

from headrace_broker.protocol.notation import Message, Request, Response, array, int16, int32, int64, string, uuid


class PartitionResult(Message):
    partition: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)


class InitializeStateResult(Message):
    topic_id: bytes = uuid()
    partitions: list[PartitionResult] = array(PartitionResult)


class InitializeShareGroupStateResponse(Response, api_key=83, versions="0", flexible="0+"):
    results: list[InitializeStateResult] = array(InitializeStateResult)


class PartitionData(Message):
    partition: int = int32()
    state_epoch: int = int32()
    start_offset: int = int64()


class InitializeStateData(Message):
    topic_id: bytes = uuid()
    partitions: list[PartitionData] = array(PartitionData)


class InitializeShareGroupStateRequest(
    Request[InitializeShareGroupStateResponse], api_key=83, versions="0", flexible="0+"
):
    group_id: str = string()
    topics: list[InitializeStateData] = array(InitializeStateData)
