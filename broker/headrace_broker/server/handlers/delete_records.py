"""DeleteRecords (21): move a partition's log start offset; the records before it are gone for every client."""

from __future__ import annotations

import logging

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from headrace_broker.server.context import RequestContext
from headrace_broker.server.large_requests import Parts

logger = logging.getLogger(__name__)

API_KEY = ApiKey.DELETE_RECORDS
VERSIONS = (0, 2)
PARTS = (Parts(("topics", "partitions"), ("topics", "partitions")),)

_TO_HIGH_WATERMARK = -1
_FAILED = -1


def handle(context: RequestContext, request: DeleteRecordsRequest, version: int) -> DeleteRecordsResponse:
    """Delete up to the asked offsets; -1 stands for the high watermark."""
    topics: list[DeleteRecordsTopicResult] = []
    for topic in request.topics:
        results = [_delete(context, topic.name, wanted) for wanted in topic.partitions]
        topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=results))
    _remember(context)
    return DeleteRecordsResponse(topics=topics)


def _remember(context: RequestContext) -> None:
    """What was deleted must not come back when this process is killed (the next checkpoint is a minute away)."""
    try:
        context.logs.checkpoint_log_starts(durable=False)
    except OSError as error:
        logger.warning("a crash within the next minute may bring deleted records back: %s", error.strerror or error)


def _delete(context: RequestContext, topic: str, wanted: DeleteRecordsPartition) -> DeleteRecordsPartitionResult:
    try:
        partition = context.partitions.require(topic, wanted.partition_index)
        log = partition.log
        offset = log.high_watermark if wanted.offset == _TO_HIGH_WATERMARK else wanted.offset
        if offset < 0 or offset > log.high_watermark:
            raise ApiError(ErrorCode.OFFSET_OUT_OF_RANGE)
        if not log.config.cleanup_delete:
            raise ApiError(ErrorCode.POLICY_VIOLATION)
        log.delete_records_before(offset)
    except ApiError as error:
        return DeleteRecordsPartitionResult(
            partition_index=wanted.partition_index, low_watermark=_FAILED, error_code=error.code
        )
    return DeleteRecordsPartitionResult(partition_index=wanted.partition_index, low_watermark=log.log_start_offset)
