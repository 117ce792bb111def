"""TxnOffsetCommit (28): commit a group's offsets in a transaction.

Version 3 adds the group member and generation, so that the coordinator can reject former members (KIP-447). Version 5
is for transaction.version 2 (KIP-890), and version 6 identifies topics by id.
"""

from __future__ import annotations

from headrace_broker.protocol.notation import Message, Request, Response, array, int16, int32, int64, string, uuid


class TxnOffsetCommitResponsePartition(Message):
    partition_index: int = int32()
    error_code: int = int16()


class TxnOffsetCommitResponseTopic(Message):
    name: str = string("0-5", ignorable=True)
    topic_id: bytes = uuid("6+", ignorable=True)
    partitions: list[TxnOffsetCommitResponsePartition] = array(TxnOffsetCommitResponsePartition)


class TxnOffsetCommitResponse(Response, api_key=28, versions="0-6", flexible="3+"):
    throttle_time_ms: int = int32()
    topics: list[TxnOffsetCommitResponseTopic] = array(TxnOffsetCommitResponseTopic)


class TxnOffsetCommitRequestPartition(Message):
    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32("2+", default=-1, ignorable=True)
    committed_metadata: str | None = string(nullable="0+")


class TxnOffsetCommitRequestTopic(Message):
    name: str = string("0-5", ignorable=True)
    topic_id: bytes = uuid("6+", ignorable=True)
    partitions: list[TxnOffsetCommitRequestPartition] = array(TxnOffsetCommitRequestPartition)


class TxnOffsetCommitRequest(Request[TxnOffsetCommitResponse], api_key=28, versions="0-6", flexible="3+"):
    transactional_id: str = string()
    group_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    generation_id_or_member_epoch: int = int32("3+", default=-1)
    member_id: str = string("3+")
    group_instance_id: str | None = string("3+", nullable="3+", default=None)
    topics: list[TxnOffsetCommitRequestTopic] = array(TxnOffsetCommitRequestTopic)
