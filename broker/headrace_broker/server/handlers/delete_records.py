"""DeleteRecords (21): advance a partition's log start offset.

Clients can no longer read the records before this offset.
"""

from __future__ import annotations

import logging
from collections import defaultdict

from headrace_broker.log.checkpoints import LOG_START_FILE
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.large_requests import RequestSplit
from headrace_broker.server.replicas.partitions import Partition

logger = logging.getLogger(__name__)

API_KEY = ApiKey.DELETE_RECORDS
VERSIONS = (0, 2)
REQUEST_SPLITS = (RequestSplit(("topics", "partitions"), ("topics", "partitions")),)

_TO_HIGH_WATERMARK = -1
_FAILED = -1


async def handle(context: RequestContext, request: DeleteRecordsRequest, version: int) -> DeleteRecordsResponse:
    """Delete the records before the requested offsets, on this leader and on every live replica.

    The offset -1 stands for the high watermark. If the request contains a partition several times, the last offset
    counts, as in Apache Kafka.
    """
    deleted = [
        (topic, [_delete(context, topic, wanted) for wanted in partitions.values()])
        for topic, partitions in _requested_partitions(request).items()
    ]
    _write_checkpoint(context)
    low_watermarks = {
        partition: result.low_watermark
        for _, results in deleted
        for partition, result in results
        if partition is not None
    }
    await context.broker.replication.wait_until_deleted(low_watermarks, request.timeout_ms)
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=name, partitions=[_final_result(context, name, partition, result) for partition, result in results]
            )
            for name, results in deleted
        ]
    )


def _requested_partitions(request: DeleteRecordsRequest) -> dict[str, dict[int, DeleteRecordsPartition]]:
    requested: defaultdict[str, dict[int, DeleteRecordsPartition]] = defaultdict(dict)
    for topic in request.topics:
        requested[topic.name].update((wanted.partition_index, wanted) for wanted in topic.partitions)
    return requested


def _final_result(
    context: RequestContext, topic: str, partition: Partition | None, result: DeleteRecordsPartitionResult
) -> DeleteRecordsPartitionResult:
    """Return `result`, or an error if the leader changed or a replica did not delete the records in time."""
    if partition is None:
        return result
    try:
        context.partitions.require_leader(topic, partition.index)
        if context.broker.replication.low_watermark(partition) < result.low_watermark:
            raise ApiError(ErrorCode.REQUEST_TIMED_OUT)
    except ApiError as error:
        return _failed(partition.index, error)
    return result


def _write_checkpoint(context: RequestContext) -> None:
    """Checkpoint the log start offsets, so that a crash before the next checkpoint does not restore deleted records."""
    try:
        context.logs.checkpoints.write(LOG_START_FILE, durable=False)
    except OSError as error:
        logger.warning(
            "DeleteRecords: cannot write %s: %s. If the broker crashes before the next checkpoint (in about a minute),"
            " the deleted records may reappear",
            LOG_START_FILE,
            error.strerror or error,
        )


def _delete(
    context: RequestContext, topic: str, wanted: DeleteRecordsPartition
) -> tuple[Partition | None, DeleteRecordsPartitionResult]:
    """Delete the records on this leader. Return (partition, result); after an error, partition is None."""
    try:
        partition = context.partitions.require_leader(topic, wanted.partition_index)
        log = partition.log
        offset = log.high_watermark if wanted.offset == _TO_HIGH_WATERMARK else wanted.offset
        if offset < 0 or offset > log.high_watermark:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if not log.config.cleanup_delete:
            raise ApiError(ErrorCode.POLICY_VIOLATION)
        log.delete_records_before(offset)
    except ApiError as error:
        return None, _failed(wanted.partition_index, error)
    result = DeleteRecordsPartitionResult(partition_index=wanted.partition_index, low_watermark=log.log_start_offset)
    return partition, result


def _failed(index: int, error: ApiError) -> DeleteRecordsPartitionResult:
    return DeleteRecordsPartitionResult(partition_index=index, low_watermark=_FAILED, error_code=error.code)
