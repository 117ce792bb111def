"""ListOffsets (2): look up offsets by timestamp.

A timestamp of 0 or more selects the first record with that timestamp or a later timestamp. Negative timestamps are
special: -1 latest (the high watermark), -2 earliest, -3 maximum timestamp (version 7), -4 earliest local (version 8),
-5 latest tiered (version 9), -6 earliest pending upload (version 11).
"""

from __future__ import annotations

from collections import Counter

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.large_requests import RequestSplit
from headrace_broker.server.replicas.partitions import Partition

API_KEY = ApiKey.LIST_OFFSETS
VERSIONS = (1, 11)
REQUEST_SPLITS = (RequestSplit(("topics", "partitions"), ("topics", "partitions")),)

LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
_FIRST_VERSION = {MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11}
_FIRST_VERSION_WITH_NOT_AVAILABLE = 5
_UNKNOWN = (-1, -1, -1)


def handle(context: RequestContext, request: ListOffsetsRequest, version: int) -> ListOffsetsResponse:
    """Look up an offset of each partition; an error in one partition does not affect the others.

    If the request contains a partition several times, the partition has one result, with INVALID_REQUEST.
    """
    times = Counter((topic.name, wanted.partition_index) for topic in request.topics for wanted in topic.partitions)
    topics: dict[str, ListOffsetsTopicResponse] = {}
    for topic in request.topics:
        results = topics.setdefault(topic.name, ListOffsetsTopicResponse(name=topic.name)).partitions
        for wanted in topic.partitions:
            index = wanted.partition_index
            requested = times.pop((topic.name, index), 0)
            if requested == 1:
                results.append(_look_up(context, topic.name, wanted, version, is_replica=request.replica_id >= 0))
            elif requested > 1:
                results.append(
                    ListOffsetsPartitionResponse(partition_index=index, error_code=ErrorCode.INVALID_REQUEST)
                )
    return ListOffsetsResponse(topics=list(topics.values()))


def _look_up(
    context: RequestContext, topic: str, wanted: ListOffsetsPartition, version: int, *, is_replica: bool
) -> ListOffsetsPartitionResponse:
    try:
        partition = context.partitions.require_leader(topic, wanted.partition_index)
        partition.check_leader_epoch(wanted.current_leader_epoch)
        timestamp, offset, epoch = _find(partition, wanted.timestamp, version, is_replica=is_replica)
    except ApiError as error:
        return ListOffsetsPartitionResponse(partition_index=wanted.partition_index, error_code=error.code)
    return ListOffsetsPartitionResponse(
        partition_index=wanted.partition_index,
        timestamp=timestamp,
        offset=offset,
        leader_epoch=epoch if version >= 4 else -1,
    )


def _find(partition: Partition, target: int, version: int, *, is_replica: bool) -> tuple[int, int, int]:
    """Return (timestamp, offset, leader epoch) of the record that `target` selects.

    `is_replica` is true if a follower sent the request. All three values are -1 if there is no such record.
    """
    if version < _FIRST_VERSION.get(target, 0):
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    log = partition.log
    if target == LATEST:
        return -1, log.log_end_offset if is_replica else _end_for_consumers(partition, version), partition.leader_epoch
    if target in (EARLIEST, EARLIEST_LOCAL):
        return -1, log.log_start_offset, partition.leader_epoch
    if target in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return _UNKNOWN
    if target == MAX_TIMESTAMP:
        found = log.max_timestamp_offset()
    elif target >= 0:
        found = log.offset_for_timestamp(target)
    else:
        raise ApiError(ErrorCode.UNSUPPORTED_VERSION)
    if found is not None and found[1] >= log.high_watermark:
        _end_for_consumers(partition, version)  # raises ApiError while the high watermark may be too low
        return _UNKNOWN
    return found or _UNKNOWN


def _end_for_consumers(partition: Partition, version: int) -> int:
    """Return the high watermark.

    Raises ApiError OFFSET_NOT_AVAILABLE, or LEADER_NOT_AVAILABLE in old versions, while a new leader's high watermark
    may be below offsets that consumers have already read.
    """
    replicas = partition.replicas
    if replicas is not None and partition.log.high_watermark < replicas.epoch_start_offset:
        has_code = version >= _FIRST_VERSION_WITH_NOT_AVAILABLE
        raise ApiError(ErrorCode.OFFSET_NOT_AVAILABLE if has_code else ErrorCode.LEADER_NOT_AVAILABLE)
    return partition.log.high_watermark
