"""ListOffsets (2): find the offset for a timestamp, or one of the special offsets.

Negative timestamps are special: -1 latest, -2 earliest, -3 maximum timestamp (from version 7 on), -4 earliest local
(from version 8 on), -5 latest tiered (from version 9 on), -6 earliest pending upload (from version 11 on). A consumer
must set the replica id to -1, because the field's default is 0. Version 4 adds leader epochs, version 6 is flexible,
and version 10 adds a timeout.
"""

from __future__ import annotations

from headrace_broker.protocol.notation import Message, Request, Response, array, int8, int16, int32, int64, string


class ListOffsetsPartitionResponse(Message):
    partition_index: int = int32()
    error_code: int = int16()
    timestamp: int = int64(default=-1)
    offset: int = int64(default=-1)
    leader_epoch: int = int32("4+", default=-1)


class ListOffsetsTopicResponse(Message):
    name: str = string()
    partitions: list[ListOffsetsPartitionResponse] = array(ListOffsetsPartitionResponse)


class ListOffsetsResponse(Response, api_key=2, versions="1-11", flexible="6+"):
    throttle_time_ms: int = int32("2+", ignorable=True)
    topics: list[ListOffsetsTopicResponse] = array(ListOffsetsTopicResponse)


class ListOffsetsPartition(Message):
    partition_index: int = int32()
    current_leader_epoch: int = int32("4+", default=-1, ignorable=True)
    timestamp: int = int64()


class ListOffsetsTopic(Message):
    name: str = string()
    partitions: list[ListOffsetsPartition] = array(ListOffsetsPartition)


class ListOffsetsRequest(Request[ListOffsetsResponse], api_key=2, versions="1-11", flexible="6+"):
    replica_id: int = int32()
    isolation_level: int = int8("2+")
    topics: list[ListOffsetsTopic] = array(ListOffsetsTopic)
    timeout_ms: int = int32("10+", ignorable=True)
