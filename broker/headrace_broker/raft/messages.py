"""Builds and reads the requests and responses of the metadata quorum.

Each message concerns the single partition `__cluster_metadata-0`, wrapped in lists of topics and partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages import begin_quorum_epoch as begin
from headrace_broker.protocol.messages import end_quorum_epoch as end
from headrace_broker.protocol.messages import fetch, fetch_snapshot, vote
from headrace_broker.protocol.topic_names import CLUSTER_METADATA_TOPIC
from headrace_broker.raft.config import RaftConfig
from headrace_broker.raft.log_port import OffsetAndEpoch

METADATA_TOPIC_ID = bytes(15) + b"\x01"
"""The fixed topic id of `__cluster_metadata`."""


def response_topics(response: Any) -> Sequence[Any]:
    """Return the list of topics in any Raft response."""
    if isinstance(response, fetch.FetchResponse):
        return response.responses
    topics: Sequence[Any] = response.topics
    return topics


def leader_and_epoch(partition: Any) -> tuple[int, int]:
    """Return (leader id, leader epoch) from a response's partition."""
    leader = getattr(partition, "current_leader", partition)
    return leader.leader_id, leader.leader_epoch


def sender_and_epoch(partition: Any) -> tuple[int, int]:
    """Return (node id, epoch) of the sender of a request. `partition` is the partition in the request.

    The sender is the candidate in a Vote request, otherwise the leader.
    """
    is_vote = isinstance(partition, vote.VoteRequestPartitionData)
    return (partition.replica_id, partition.replica_epoch) if is_vote else (partition.leader_id, partition.leader_epoch)


def preferred_successors(partition: end.EndQuorumEpochRequestPartitionData) -> list[int]:
    """Return the preferred successors in an EndQuorumEpoch request, most preferred first."""
    return [item.candidate_id for item in partition.preferred_candidates] or list(partition.preferred_successors)


def metadata_partition(topics: Sequence[Any]) -> Any | None:
    """Return the partition `__cluster_metadata-0` if it is the only partition in the message's `topics`, else None."""
    if len(topics) != 1 or len(topics[0].partitions) != 1 or not _is_metadata(topics[0]):
        return None
    partition = topics[0].partitions[0]
    return partition if _index(partition) == 0 else None


def _is_metadata(topic: Any) -> bool:
    if isinstance(topic, fetch.FetchTopic | fetch.FetchableTopicResponse):
        return topic.topic_id == METADATA_TOPIC_ID or topic.topic == CLUSTER_METADATA_TOPIC
    if isinstance(
        topic, fetch_snapshot.FetchSnapshotRequestTopicSnapshot | fetch_snapshot.FetchSnapshotResponseTopicSnapshot
    ):
        return topic.name == CLUSTER_METADATA_TOPIC
    return bool(topic.topic_name == CLUSTER_METADATA_TOPIC)


def _index(partition: Any) -> int:
    if isinstance(partition, fetch.FetchPartition | fetch_snapshot.FetchSnapshotRequestPartitionSnapshot):
        return partition.partition
    if isinstance(partition, fetch_snapshot.FetchSnapshotResponsePartitionSnapshot):
        return partition.index
    return int(partition.partition_index)


# -- votes ---------------------------------------------------------------------------------------------------------


def vote_request(
    config: RaftConfig, voter: int, epoch: int, last: OffsetAndEpoch, *, pre_vote: bool
) -> vote.VoteRequest:
    """Build a request for `voter`'s vote or pre-vote in `epoch`. `last` is the end of the candidate's log."""
    partition = vote.VoteRequestPartitionData(
        partition_index=0,
        replica_epoch=epoch,
        replica_id=config.node_id,
        last_offset=last[0],
        last_offset_epoch=last[1],
        pre_vote=pre_vote,
    )
    topic = vote.VoteRequestTopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=[partition])
    return vote.VoteRequest(cluster_id=config.cluster_id, voter_id=voter, topics=[topic])


def vote_response(error: ErrorCode, leader_id: int, epoch: int, *, granted: bool = False) -> vote.VoteResponse:
    """Build the response to a Vote request."""
    partition = vote.VoteResponsePartitionData(
        partition_index=0, error_code=error, leader_id=leader_id, leader_epoch=epoch, vote_granted=granted
    )
    topic = vote.VoteResponseTopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=[partition])
    return vote.VoteResponse(error_code=ErrorCode.NONE, topics=[topic])


# -- begin and end quorum epoch ------------------------------------------------------------------------------------


def begin_quorum_epoch_request(config: RaftConfig, voter: int, epoch: int) -> begin.BeginQuorumEpochRequest:
    """Build the request that notifies `voter` of this node's leadership of `epoch`."""
    partition = begin.BeginQuorumEpochRequestPartitionData(
        partition_index=0, leader_id=config.node_id, leader_epoch=epoch
    )
    topic = begin.BeginQuorumEpochRequestTopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=[partition])
    return begin.BeginQuorumEpochRequest(cluster_id=config.cluster_id, voter_id=voter, topics=[topic])


def begin_quorum_epoch_response(error: ErrorCode, leader_id: int, epoch: int) -> begin.BeginQuorumEpochResponse:
    """Build the response to a BeginQuorumEpoch request."""
    partition = begin.BeginQuorumEpochResponsePartitionData(
        partition_index=0, error_code=error, leader_id=leader_id, leader_epoch=epoch
    )
    topic = begin.BeginQuorumEpochResponseTopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=[partition])
    return begin.BeginQuorumEpochResponse(error_code=ErrorCode.NONE, topics=[topic])


def end_quorum_epoch_request(config: RaftConfig, epoch: int, successors: Iterable[int]) -> end.EndQuorumEpochRequest:
    """Build the request that notifies a voter of this node's resignation and its preferred successors."""
    preferred = list(successors)
    partition = end.EndQuorumEpochRequestPartitionData(
        partition_index=0,
        leader_id=config.node_id,
        leader_epoch=epoch,
        preferred_successors=preferred,
        preferred_candidates=[end.ReplicaInfo(candidate_id=node) for node in preferred],
    )
    topic = end.EndQuorumEpochRequestTopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=[partition])
    return end.EndQuorumEpochRequest(cluster_id=config.cluster_id, topics=[topic])


def end_quorum_epoch_response(error: ErrorCode, leader_id: int, epoch: int) -> end.EndQuorumEpochResponse:
    """Build the response to an EndQuorumEpoch request."""
    partition = end.EndQuorumEpochResponsePartitionData(
        partition_index=0, error_code=error, leader_id=leader_id, leader_epoch=epoch
    )
    topic = end.EndQuorumEpochResponseTopicData(topic_name=CLUSTER_METADATA_TOPIC, partitions=[partition])
    return end.EndQuorumEpochResponse(error_code=ErrorCode.NONE, topics=[topic])


# -- fetches -------------------------------------------------------------------------------------------------------


def fetch_replica_id(request: fetch.FetchRequest) -> int:
    """Return the fetching replica's id: from ReplicaState in newer request versions, else from ReplicaId."""
    return request.replica_state.replica_id if request.replica_state.replica_id >= 0 else request.replica_id


def fetch_request(config: RaftConfig, epoch: int, last: OffsetAndEpoch, high_watermark: int) -> fetch.FetchRequest:
    """Build a request to the leader of `epoch` for the records after `last`, the end of the local log."""
    partition = fetch.FetchPartition(
        partition=0,
        current_leader_epoch=epoch,
        fetch_offset=last[0],
        last_fetched_epoch=last[1],
        log_start_offset=-1,
        partition_max_bytes=0,
        high_watermark=high_watermark,
    )
    return fetch.FetchRequest(
        cluster_id=config.cluster_id,
        replica_state=fetch.ReplicaState(replica_id=config.node_id),
        max_wait_ms=config.fetch_max_wait_ms,
        min_bytes=0,
        max_bytes=config.fetch_max_bytes,
        topics=[fetch.FetchTopic(topic=CLUSTER_METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[partition])],
    )


def fetch_response(
    error: ErrorCode,
    leader_id: int,
    epoch: int,
    *,
    high_watermark: int = -1,
    log_start_offset: int = -1,
    records: bytes = b"",
    diverging: OffsetAndEpoch | None = None,
    snapshot: OffsetAndEpoch | None = None,
) -> fetch.FetchResponse:
    """Build the response to a replica's Fetch request for the metadata log.

    `diverging` contains the diverging epoch and its end offset. `snapshot` is the snapshot that the replica must fetch.
    """
    partition = fetch.PartitionData(
        partition_index=0,
        error_code=error,
        high_watermark=high_watermark,
        log_start_offset=log_start_offset,
        current_leader=fetch.LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=epoch),
        aborted_transactions=None,
        records=records,
    )
    if diverging is not None:
        partition.diverging_epoch = fetch.EpochEndOffset(end_offset=diverging[0], epoch=diverging[1])
    if snapshot is not None:
        partition.snapshot_id = fetch.SnapshotId(end_offset=snapshot[0], epoch=snapshot[1])
    topic = fetch.FetchableTopicResponse(
        topic=CLUSTER_METADATA_TOPIC, topic_id=METADATA_TOPIC_ID, partitions=[partition]
    )
    return fetch.FetchResponse(error_code=ErrorCode.NONE, responses=[topic])


def fetch_snapshot_request(
    config: RaftConfig, epoch: int, snapshot: OffsetAndEpoch, position: int
) -> fetch_snapshot.FetchSnapshotRequest:
    """Build a request to the leader of `epoch` for the bytes of a snapshot from `position` on."""
    partition = fetch_snapshot.FetchSnapshotRequestPartitionSnapshot(
        partition=0,
        current_leader_epoch=epoch,
        snapshot_id=fetch_snapshot.SnapshotId(end_offset=snapshot[0], epoch=snapshot[1]),
        position=position,
    )
    topic = fetch_snapshot.FetchSnapshotRequestTopicSnapshot(name=CLUSTER_METADATA_TOPIC, partitions=[partition])
    return fetch_snapshot.FetchSnapshotRequest(
        cluster_id=config.cluster_id, replica_id=config.node_id, max_bytes=config.fetch_max_bytes, topics=[topic]
    )


def fetch_snapshot_response(
    error: ErrorCode,
    leader_id: int,
    epoch: int,
    *,
    snapshot: OffsetAndEpoch = (-1, -1),
    size: int = 0,
    position: int = 0,
    data: bytes = b"",
) -> fetch_snapshot.FetchSnapshotResponse:
    """Build the response to a FetchSnapshot request. `data` is one chunk of the snapshot."""
    partition = fetch_snapshot.FetchSnapshotResponsePartitionSnapshot(
        index=0,
        error_code=error,
        snapshot_id=fetch_snapshot.SnapshotId(end_offset=snapshot[0], epoch=snapshot[1]),
        current_leader=fetch_snapshot.LeaderIdAndEpoch(leader_id=leader_id, leader_epoch=epoch),
        size=size,
        position=position,
        unaligned_records=data,
    )
    topic = fetch_snapshot.FetchSnapshotResponseTopicSnapshot(name=CLUSTER_METADATA_TOPIC, partitions=[partition])
    return fetch_snapshot.FetchSnapshotResponse(error_code=ErrorCode.NONE, topics=[topic])


def concatenate(records: Any) -> bytes:
    """Return `records`, which is one buffer or a list of buffers, as one byte string."""
    return b"".join(records) if isinstance(records, list | tuple) else bytes(records)
