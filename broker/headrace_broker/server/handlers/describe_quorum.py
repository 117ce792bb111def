"""DescribeQuorum (55): return the metadata quorum's leader and the progress of its replicas (KIP-595, KIP-836).

Only the leader tracks the progress of voters and observers; other nodes forward the request to the leader. Version 1
adds fetch times, and version 2 adds the voters' endpoints.
"""

from __future__ import annotations

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumResponsePartitionData,
    DescribeQuorumResponseTopicData,
    Listener,
    Node,
    ReplicaState,
)
from headrace_broker.protocol.topic_names import CLUSTER_METADATA_TOPIC
from headrace_broker.raft.leader import Leader, Progress
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.listener_types import BROKER_AND_CONTROLLER

API_KEY = ApiKey.DESCRIBE_QUORUM
VERSIONS = (0, 2)
LISTENERS = BROKER_AND_CONTROLLER
IS_FORWARDED = True
FORWARD_TIMEOUT_MS = 3_000
_FIRST_VERSION_WITH_NODES = 2
NO_CONTROLLER_ERROR = ErrorCode.BROKER_NOT_AVAILABLE
"""The error while the quorum has no leader. Clients do not retry this error, so an operator sees it immediately."""


def handle(context: RequestContext, request: DescribeQuorumRequest, version: int) -> DescribeQuorumResponse:
    """Respond with the leader's view of the quorum. Raises ApiError NOT_CONTROLLER if this node is not the leader."""
    raft = context.node.quorum.raft
    if not isinstance(raft.role, Leader):
        raise ApiError(ErrorCode.NOT_CONTROLLER)
    leader = raft.role
    wall_clock_offset_ms = context.now_ms() - context.node.monotonic_ms()
    own = ReplicaState(
        replica_id=raft.config.node_id,
        log_end_offset=raft.log.log_end_offset,
        last_fetch_timestamp=context.now_ms(),
        last_caught_up_timestamp=context.now_ms(),
    )
    voters = [own, *(_state(node_id, seen, wall_clock_offset_ms) for node_id, seen in leader.progress.items())]
    partition = DescribeQuorumResponsePartitionData(
        partition_index=0,
        error_message=None,
        leader_id=raft.leader_id,
        leader_epoch=raft.epoch,
        high_watermark=raft.high_watermark if leader.is_established else -1,
        current_voters=sorted(voters, key=lambda state: state.replica_id),
        observers=[_state(node_id, seen, wall_clock_offset_ms) for node_id, seen in sorted(leader.observers.items())],
    )
    topics = [DescribeQuorumResponseTopicData(topic_name=wanted.topic_name, partitions=[]) for wanted in request.topics]
    for topic, wanted in zip(topics, request.topics, strict=True):
        for requested in wanted.partitions:
            is_known = wanted.topic_name == CLUSTER_METADATA_TOPIC and requested.partition_index == 0
            topic.partitions.append(partition if is_known else _unknown(requested.partition_index))
    nodes = _nodes(context) if version >= _FIRST_VERSION_WITH_NODES else []
    return DescribeQuorumResponse(error_message=None, topics=topics, nodes=nodes)


def _unknown(index: int) -> DescribeQuorumResponsePartitionData:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return DescribeQuorumResponsePartitionData(partition_index=index, error_code=code, error_message=code.message)


def _state(node_id: int, seen: Progress, ahead_ms: int) -> ReplicaState:
    """Convert `seen`, the progress of a replica, to a `ReplicaState`.

    `seen` contains monotonic times. Each monotonic time plus `ahead_ms` is a wall-clock time.
    """
    return ReplicaState(
        replica_id=node_id,
        log_end_offset=seen.end_offset,
        last_fetch_timestamp=seen.last_fetch_ms + ahead_ms if seen.last_fetch_ms >= 0 else -1,
        last_caught_up_timestamp=seen.last_caught_up_ms + ahead_ms if seen.last_caught_up_ms >= 0 else -1,
    )


def _nodes(context: RequestContext) -> list[Node]:
    name = context.config.controller_listener_names[0] if context.config.controller_listener_names else "CONTROLLER"
    return [
        Node(node_id=node_id, listeners=[Listener(name=name, host=host, port=port)])
        for node_id, (host, port) in sorted(context.config.voters.items())
        if port
    ]
