"""AlterShareGroupOffsets (91): change the start offsets of an empty share group (KIP-932)."""

from __future__ import annotations

from headrace_broker.protocol.notation import Message, Request, Response, array, int16, int32, int64, string, uuid


class AlterShareGroupOffsetsResponsePartition(Message):
    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)


class AlterShareGroupOffsetsResponseTopic(Message):
    topic_name: str = string()
    topic_id: bytes = uuid()
    partitions: list[AlterShareGroupOffsetsResponsePartition] = array(AlterShareGroupOffsetsResponsePartition)


class AlterShareGroupOffsetsResponse(Response, api_key=91, versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    responses: list[AlterShareGroupOffsetsResponseTopic] = array(AlterShareGroupOffsetsResponseTopic)


class AlterShareGroupOffsetsRequestPartition(Message):
    partition_index: int = int32()
    start_offset: int = int64()


class AlterShareGroupOffsetsRequestTopic(Message):
    topic_name: str = string()
    partitions: list[AlterShareGroupOffsetsRequestPartition] = array(AlterShareGroupOffsetsRequestPartition)


class AlterShareGroupOffsetsRequest(Request[AlterShareGroupOffsetsResponse], api_key=91, versions="0", flexible="0+"):
    group_id: str = string()
    topics: list[AlterShareGroupOffsetsRequestTopic] = array(AlterShareGroupOffsetsRequestTopic)
