"""DeleteShareGroupOffsets (92): delete the offsets of topics of an empty share group (KIP-932)."""

from __future__ import annotations

from headrace_broker.protocol.notation import Message, Request, Response, array, int16, int32, string, uuid


class DeleteShareGroupOffsetsResponseTopic(Message):
    topic_name: str = string()
    topic_id: bytes = uuid()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)


class DeleteShareGroupOffsetsResponse(Response, api_key=92, versions="0", flexible="0+"):
    throttle_time_ms: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)
    responses: list[DeleteShareGroupOffsetsResponseTopic] = array(DeleteShareGroupOffsetsResponseTopic)


class DeleteShareGroupOffsetsRequestTopic(Message):
    topic_name: str = string()


class DeleteShareGroupOffsetsRequest(Request[DeleteShareGroupOffsetsResponse], api_key=92, versions="0", flexible="0+"):
    group_id: str = string()
    topics: list[DeleteShareGroupOffsetsRequestTopic] = array(DeleteShareGroupOffsetsRequestTopic)
