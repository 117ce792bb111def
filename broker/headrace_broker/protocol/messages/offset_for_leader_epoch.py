"""OffsetForLeaderEpoch (23): request the end offset of a leader epoch.

A follower truncates its log to this offset. A consumer detects log truncation if its position is after this offset
(KIP-320). Version 3 adds the id of the requesting replica (-1 for a consumer), and version 4 is flexible. librdkafka
sends version 2.
"""

from __future__ import annotations

from headrace_broker.protocol.notation import Message, Request, Response, array, int16, int32, int64, string


class EpochEndOffset(Message):
    error_code: int = int16()
    partition: int = int32()
    leader_epoch: int = int32(default=-1, ignorable=True)
    end_offset: int = int64(default=-1)


class OffsetForLeaderTopicResult(Message):
    topic: str = string()
    partitions: list[EpochEndOffset] = array(EpochEndOffset)


class OffsetForLeaderEpochResponse(Response, api_key=23, versions="2-4", flexible="4+"):
    throttle_time_ms: int = int32(ignorable=True)
    topics: list[OffsetForLeaderTopicResult] = array(OffsetForLeaderTopicResult)


class OffsetForLeaderPartition(Message):
    partition: int = int32()
    current_leader_epoch: int = int32(default=-1, ignorable=True)
    leader_epoch: int = int32()


class OffsetForLeaderTopic(Message):
    topic: str = string()
    partitions: list[OffsetForLeaderPartition] = array(OffsetForLeaderPartition)


class OffsetForLeaderEpochRequest(Request[OffsetForLeaderEpochResponse], api_key=23, versions="2-4", flexible="4+"):
    replica_id: int = int32("3+", default=-2, ignorable=True)
    topics: list[OffsetForLeaderTopic] = array(OffsetForLeaderTopic)
