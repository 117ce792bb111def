"""FetchSnapshot (59): read a chunk of a snapshot of the metadata log (KIP-630).

Version 1 adds directory ids and the nodes' listeners (KIP-853).
"""

from __future__ import annotations

from headrace_broker.protocol.notation import (
    Message,
    Records,
    Request,
    Response,
    array,
    int16,
    int32,
    int64,
    record_batches,
    string,
    struct,
    uint16,
    uuid,
)


class SnapshotId(Message):
    end_offset: int = int64()
    epoch: int = int32()


class LeaderIdAndEpoch(Message):
    leader_id: int = int32()
    leader_epoch: int = int32()


class FetchSnapshotResponsePartitionSnapshot(Message):
    index: int = int32()
    error_code: int = int16()
    snapshot_id: SnapshotId = struct(SnapshotId)
    current_leader: LeaderIdAndEpoch = struct(LeaderIdAndEpoch, tag=0)
    size: int = int64()
    position: int = int64()
    unaligned_records: Records | None = record_batches()


class FetchSnapshotResponseTopicSnapshot(Message):
    name: str = string()
    partitions: list[FetchSnapshotResponsePartitionSnapshot] = array(FetchSnapshotResponsePartitionSnapshot)


class NodeEndpoint(Message):
    node_id: int = int32()
    host: str = string()
    port: int = uint16()


class FetchSnapshotResponse(Response, api_key=59, versions="0-1", flexible="0+"):
    throttle_time_ms: int = int32(ignorable=True)
    error_code: int = int16()
    topics: list[FetchSnapshotResponseTopicSnapshot] = array(FetchSnapshotResponseTopicSnapshot)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, "1+", tag=0)


class FetchSnapshotRequestPartitionSnapshot(Message):
    partition: int = int32()
    current_leader_epoch: int = int32()
    snapshot_id: SnapshotId = struct(SnapshotId)
    position: int = int64()
    replica_directory_id: bytes = uuid("1+", ignorable=True, tag=0)


class FetchSnapshotRequestTopicSnapshot(Message):
    name: str = string()
    partitions: list[FetchSnapshotRequestPartitionSnapshot] = array(FetchSnapshotRequestPartitionSnapshot)


class FetchSnapshotRequest(Request[FetchSnapshotResponse], api_key=59, versions="0-1", flexible="0+"):
    cluster_id: str | None = string(nullable="0+", default=None, tag=0)
    replica_id: int = int32(default=-1)
    max_bytes: int = int32(default=2147483647)
    topics: list[FetchSnapshotRequestTopicSnapshot] = array(FetchSnapshotRequestTopicSnapshot)
