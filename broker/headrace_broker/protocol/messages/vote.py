"""Vote (52): a candidate of the metadata quorum requests a vote (KIP-595).

Version 1 adds the directory ids of replicas (KIP-853), and version 2 adds the pre-vote (KIP-996).
"""

from __future__ import annotations

from headrace_broker.protocol.notation import (
    Message,
    Request,
    Response,
    array,
    boolean,
    int16,
    int32,
    int64,
    string,
    uint16,
    uuid,
)


class VoteResponsePartitionData(Message):
    partition_index: int = int32()
    error_code: int = int16()
    leader_id: int = int32()
    leader_epoch: int = int32()
    vote_granted: bool = boolean()


class VoteResponseTopicData(Message):
    topic_name: str = string()
    partitions: list[VoteResponsePartitionData] = array(VoteResponsePartitionData)


class NodeEndpoint(Message):
    node_id: int = int32()
    host: str = string()
    port: int = uint16()


class VoteResponse(Response, api_key=52, versions="0-2", flexible="0+"):
    error_code: int = int16()
    topics: list[VoteResponseTopicData] = array(VoteResponseTopicData)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, "1+", tag=0)


class VoteRequestPartitionData(Message):
    partition_index: int = int32()
    replica_epoch: int = int32()
    replica_id: int = int32()
    replica_directory_id: bytes = uuid("1+", ignorable=True)
    voter_directory_id: bytes = uuid("1+", ignorable=True)
    last_offset_epoch: int = int32()
    last_offset: int = int64()
    pre_vote: bool = boolean("2+")


class VoteRequestTopicData(Message):
    topic_name: str = string()
    partitions: list[VoteRequestPartitionData] = array(VoteRequestPartitionData)


class VoteRequest(Request[VoteResponse], api_key=52, versions="0-2", flexible="0+"):
    cluster_id: str | None = string(nullable="0+", default=None)
    voter_id: int = int32("1+", default=-1, ignorable=True)
    topics: list[VoteRequestTopicData] = array(VoteRequestTopicData)
