"""DescribeQuorum (55): describe the leader, leader epoch, voters and observers of the metadata quorum (KIP-595).

Version 1 adds the times of the last fetches (KIP-836), and version 2 adds directory ids and the nodes' listeners
(KIP-853).
"""

from __future__ import annotations

from headrace_broker.protocol.notation import (
    Message,
    Request,
    Response,
    array,
    int16,
    int32,
    int64,
    string,
    uint16,
    uuid,
)


class ReplicaState(Message):
    replica_id: int = int32()
    replica_directory_id: bytes = uuid("2+")
    log_end_offset: int = int64()
    last_fetch_timestamp: int = int64("1+", default=-1, ignorable=True)
    last_caught_up_timestamp: int = int64("1+", default=-1, ignorable=True)


class DescribeQuorumResponsePartitionData(Message):
    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string("2+", nullable="2+", ignorable=True)
    leader_id: int = int32()
    leader_epoch: int = int32()
    high_watermark: int = int64()
    current_voters: list[ReplicaState] = array(ReplicaState)
    observers: list[ReplicaState] = array(ReplicaState)


class DescribeQuorumResponseTopicData(Message):
    topic_name: str = string()
    partitions: list[DescribeQuorumResponsePartitionData] = array(DescribeQuorumResponsePartitionData)


class Listener(Message):
    name: str = string()
    host: str = string()
    port: int = uint16()


class Node(Message):
    node_id: int = int32()
    listeners: list[Listener] = array(Listener)


class DescribeQuorumResponse(Response, api_key=55, versions="0-2", flexible="0+"):
    error_code: int = int16()
    error_message: str | None = string("2+", nullable="2+", ignorable=True)
    topics: list[DescribeQuorumResponseTopicData] = array(DescribeQuorumResponseTopicData)
    nodes: list[Node] = array(Node, "2+")


class DescribeQuorumRequestPartitionData(Message):
    partition_index: int = int32()


class DescribeQuorumRequestTopicData(Message):
    topic_name: str = string()
    partitions: list[DescribeQuorumRequestPartitionData] = array(DescribeQuorumRequestPartitionData)


class DescribeQuorumRequest(Request[DescribeQuorumResponse], api_key=55, versions="0-2", flexible="0+"):
    topics: list[DescribeQuorumRequestTopicData] = array(DescribeQuorumRequestTopicData)
