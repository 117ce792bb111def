"""CreatePartitions (37): increase the number of partitions of topics.

`count` is the new number of partitions, which must be larger than the current number. If `assignments` is null, the
controller places the replicas. A sender must set null explicitly, because the field's default is an empty list. Version
2 is flexible. The response of version 3 may contain THROTTLING_QUOTA_EXCEEDED.
"""

from __future__ import annotations

from headrace_broker.protocol.notation import Message, Request, Response, array, boolean, int16, int32, string


class CreatePartitionsTopicResult(Message):
    name: str = string()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+", default=None)


class CreatePartitionsResponse(Response, api_key=37, versions="0-3", flexible="2+"):
    throttle_time_ms: int = int32()
    results: list[CreatePartitionsTopicResult] = array(CreatePartitionsTopicResult)


class CreatePartitionsAssignment(Message):
    broker_ids: list[int] = array(int32)


class CreatePartitionsTopic(Message):
    name: str = string()
    count: int = int32()
    assignments: list[CreatePartitionsAssignment] | None = array(CreatePartitionsAssignment, nullable="0+")


class CreatePartitionsRequest(Request[CreatePartitionsResponse], api_key=37, versions="0-3", flexible="2+"):
    topics: list[CreatePartitionsTopic] = array(CreatePartitionsTopic)
    timeout_ms: int = int32()
    validate_only: bool = boolean()
