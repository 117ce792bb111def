"""OffsetCommit (8): commit a group's offsets.

Version 7 adds static members, version 8 is flexible, version 9 accepts the member epoch of the consumer protocol in
`generation_id_or_member_epoch` (KIP-848), and version 10 identifies topics by id. The retention time in versions 2-4
overrides the broker's offsets.retention.minutes.
"""

from __future__ import annotations

from headrace_broker.protocol.notation import Message, Request, Response, array, int16, int32, int64, string, uuid


class OffsetCommitResponsePartition(Message):
    partition_index: int = int32()
    error_code: int = int16()


class OffsetCommitResponseTopic(Message):
    name: str = string("0-9", ignorable=True)
    topic_id: bytes = uuid("10+", ignorable=True)
    partitions: list[OffsetCommitResponsePartition] = array(OffsetCommitResponsePartition)


class OffsetCommitResponse(Response, api_key=8, versions="2-10", flexible="8+"):
    throttle_time_ms: int = int32("3+", ignorable=True)
    topics: list[OffsetCommitResponseTopic] = array(OffsetCommitResponseTopic)


class OffsetCommitRequestPartition(Message):
    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32("6+", default=-1, ignorable=True)
    committed_metadata: str | None = string(nullable="0+")


class OffsetCommitRequestTopic(Message):
    name: str = string("0-9", ignorable=True)
    topic_id: bytes = uuid("10+", ignorable=True)
    partitions: list[OffsetCommitRequestPartition] = array(OffsetCommitRequestPartition)


class OffsetCommitRequest(Request[OffsetCommitResponse], api_key=8, versions="2-10", flexible="8+"):
    group_id: str = string()
    generation_id_or_member_epoch: int = int32(default=-1, ignorable=True)
    member_id: str = string(ignorable=True)
    group_instance_id: str | None = string("7+", nullable="7+", default=None)
    retention_time_ms: int = int64("2-4", default=-1, ignorable=True)
    topics: list[OffsetCommitRequestTopic] = array(OffsetCommitRequestTopic)
