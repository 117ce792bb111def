"""DeleteRecords (21): advance the log start offset of partitions. The offset -1 stands for the high watermark.

Kafka Streams purges its repartition topics with this request. Version 2 is flexible.
"""

from __future__ import annotations

from headrace_broker.protocol.notation import Message, Request, Response, array, int16, int32, int64, string


class DeleteRecordsPartitionResult(Message):
    partition_index: int = int32()
    low_watermark: int = int64()
    error_code: int = int16()


class DeleteRecordsTopicResult(Message):
    name: str = string()
    partitions: list[DeleteRecordsPartitionResult] = array(DeleteRecordsPartitionResult)


class DeleteRecordsResponse(Response, api_key=21, versions="0-2", flexible="2+"):
    throttle_time_ms: int = int32()
    topics: list[DeleteRecordsTopicResult] = array(DeleteRecordsTopicResult)


class DeleteRecordsPartition(Message):
    partition_index: int = int32()
    offset: int = int64()


class DeleteRecordsTopic(Message):
    name: str = string()
    partitions: list[DeleteRecordsPartition] = array(DeleteRecordsPartition)


class DeleteRecordsRequest(Request[DeleteRecordsResponse], api_key=21, versions="0-2", flexible="2+"):
    topics: list[DeleteRecordsTopic] = array(DeleteRecordsTopic)
    timeout_ms: int = int32()
