"""OffsetForLeaderEpoch (23): return the end offset of a leader epoch, so that clients detect truncation (KIP-101)."""

from __future__ import annotations

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError
from headrace_broker.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.large_requests import RequestSplit

API_KEY = ApiKey.OFFSET_FOR_LEADER_EPOCH
VERSIONS = (2, 4)
REQUEST_SPLITS = (RequestSplit(("topics", "partitions"), ("topics", "partitions")),)


def handle(context: RequestContext, request: OffsetForLeaderEpochRequest, version: int) -> OffsetForLeaderEpochResponse:
    """Respond with the largest leader epoch that is at most the requested epoch, and with its end offset."""
    topics: list[OffsetForLeaderTopicResult] = []
    for topic in request.topics:
        results = [_look_up(context, topic.topic, wanted) for wanted in topic.partitions]
        topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=results))
    return OffsetForLeaderEpochResponse(topics=topics)


def _look_up(context: RequestContext, topic: str, wanted: OffsetForLeaderPartition) -> EpochEndOffset:
    try:
        partition = context.partitions.require_leader(topic, wanted.partition)
        partition.check_leader_epoch(wanted.current_leader_epoch)
        if wanted.leader_epoch == partition.leader_epoch:
            epoch, end_offset = wanted.leader_epoch, partition.log.log_end_offset
        else:
            epoch, end_offset = partition.log.end_offset_for_epoch(wanted.leader_epoch)
    except ApiError as error:
        return EpochEndOffset(partition=wanted.partition, error_code=error.code)
    return EpochEndOffset(partition=wanted.partition, leader_epoch=epoch, end_offset=end_offset)
