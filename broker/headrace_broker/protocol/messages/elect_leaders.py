"""ElectLeaders (43): elect preferred leaders (type 0), or hold unclean elections (type 1).

An unclean election may lose committed records. If the list of topics and partitions is null, the request is for all
partitions. Version 1 adds the unclean election type (KIP-460), and version 2 is flexible.
"""

from __future__ import annotations

from headrace_broker.protocol.notation import Message, Request, Response, array, int8, int16, int32, string


class PartitionResult(Message):
    partition_id: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable="0+")


class ReplicaElectionResult(Message):
    topic: str = string()
    partition_result: list[PartitionResult] = array(PartitionResult)


class ElectLeadersResponse(Response, api_key=43, versions="0-2", flexible="2+"):
    throttle_time_ms: int = int32()
    error_code: int = int16("1+")
    replica_election_results: list[ReplicaElectionResult] = array(ReplicaElectionResult)


class TopicPartitions(Message):
    topic: str = string()
    partitions: list[int] = array(int32)


class ElectLeadersRequest(Request[ElectLeadersResponse], api_key=43, versions="0-2", flexible="2+"):
    election_type: int = int8("1+")
    topic_partitions: list[TopicPartitions] | None = array(TopicPartitions, nullable="0+")
    timeout_ms: int = int32(default=60000)
