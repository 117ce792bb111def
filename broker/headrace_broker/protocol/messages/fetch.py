"""Fetch (1): read record batches; used by consumers, followers and the metadata quorum.

Changes by version:

* 7 adds fetch sessions (KIP-227).
* 10 allows zstd.
* 11 adds the consumer's rack (KIP-392).
* 12 is flexible, and adds the last fetched epoch, from which the leader detects divergence (KIP-595).
* 13 identifies topics by id.
* 15: a follower sends its id and broker epoch in a tagged field (KIP-903).
* 16: the response contains the endpoint of a new leader (KIP-951). In earlier versions, `node_endpoints` must be empty.
* 17 adds the directory id of a replica of the metadata quorum.
* 18 adds the high watermark of a replica of the metadata quorum.

`records` may end with an incomplete batch, which consumers ignore.
"""

from __future__ import annotations

from headrace_broker.protocol.notation import (
    Message,
    Records,
    Request,
    Response,
    array,
    int8,
    int16,
    int32,
    int64,
    record_batches,
    string,
    struct,
    uuid,
)


class EpochEndOffset(Message):
    epoch: int = int32(default=-1)
    end_offset: int = int64(default=-1)


class LeaderIdAndEpoch(Message):
    leader_id: int = int32(default=-1)
    leader_epoch: int = int32(default=-1)


class SnapshotId(Message):
    end_offset: int = int64(default=-1)
    epoch: int = int32(default=-1)


class AbortedTransaction(Message):
    producer_id: int = int64()
    first_offset: int = int64()


class PartitionData(Message):
    partition_index: int = int32()
    error_code: int = int16()
    high_watermark: int = int64()
    last_stable_offset: int = int64(default=-1, ignorable=True)
    log_start_offset: int = int64("5+", default=-1, ignorable=True)
    diverging_epoch: EpochEndOffset = struct(EpochEndOffset, "12+", tag=0)
    current_leader: LeaderIdAndEpoch = struct(LeaderIdAndEpoch, "12+", tag=1)
    snapshot_id: SnapshotId = struct(SnapshotId, "12+", tag=2)
    aborted_transactions: list[AbortedTransaction] | None = array(AbortedTransaction, nullable="0+", ignorable=True)
    preferred_read_replica: int = int32("11+", default=-1)
    records: Records | None = record_batches(nullable="0+")


class FetchableTopicResponse(Message):
    topic: str = string("0-12", ignorable=True)
    topic_id: bytes = uuid("13+", ignorable=True)
    partitions: list[PartitionData] = array(PartitionData)


class NodeEndpoint(Message):
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(nullable="0+", default=None)


class FetchResponse(Response, api_key=1, versions="4-18", flexible="12+"):
    throttle_time_ms: int = int32(ignorable=True)
    error_code: int = int16("7+", ignorable=True)
    session_id: int = int32("7+")
    responses: list[FetchableTopicResponse] = array(FetchableTopicResponse)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, "16+", tag=0)


class ReplicaState(Message):
    replica_id: int = int32(default=-1)
    replica_epoch: int = int64(default=-1)


class FetchPartition(Message):
    partition: int = int32()
    current_leader_epoch: int = int32("9+", default=-1, ignorable=True)
    fetch_offset: int = int64()
    last_fetched_epoch: int = int32("12+", default=-1)
    log_start_offset: int = int64("5+", default=-1, ignorable=True)
    partition_max_bytes: int = int32()
    replica_directory_id: bytes = uuid("17+", ignorable=True, tag=0)
    high_watermark: int = int64("18+", default=9223372036854775807, ignorable=True, tag=1)


class FetchTopic(Message):
    topic: str = string("0-12", ignorable=True)
    topic_id: bytes = uuid("13+", ignorable=True)
    partitions: list[FetchPartition] = array(FetchPartition)


class ForgottenTopic(Message):
    topic: str = string("7-12", ignorable=True)
    topic_id: bytes = uuid("13+", ignorable=True)
    partitions: list[int] = array(int32)


class FetchRequest(Request[FetchResponse], api_key=1, versions="4-18", flexible="12+"):
    cluster_id: str | None = string("12+", nullable="12+", default=None, ignorable=True, tag=0)
    replica_id: int = int32("0-14", default=-1)
    replica_state: ReplicaState = struct(ReplicaState, "15+", tag=1)
    max_wait_ms: int = int32()
    min_bytes: int = int32()
    max_bytes: int = int32(default=2147483647, ignorable=True)
    isolation_level: int = int8(ignorable=True)
    session_id: int = int32("7+", ignorable=True)
    session_epoch: int = int32("7+", default=-1, ignorable=True)
    topics: list[FetchTopic] = array(FetchTopic)
    forgotten_topics_data: list[ForgottenTopic] = array(ForgottenTopic, "7+")
    rack_id: str = string("11+", ignorable=True)
