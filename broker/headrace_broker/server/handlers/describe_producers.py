"""DescribeProducers (61): return the active producers of partitions, from the leader's producer state (KIP-664)."""

from __future__ import annotations

from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ApiError, ErrorCode
from headrace_broker.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from headrace_broker.protocol.topic_names import topic_name_error
from headrace_broker.server.network.context import RequestContext
from headrace_broker.server.network.large_requests import RequestSplit

API_KEY = ApiKey.DESCRIBE_PRODUCERS
VERSIONS = (0, 0)
REQUEST_SPLITS = (RequestSplit(("topics", "partition_indexes"), ("topics", "partitions")),)


def handle(context: RequestContext, request: DescribeProducersRequest, version: int) -> DescribeProducersResponse:
    """Describe each partition; an error in one partition does not affect the others."""
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=topic.name,
                partitions=[_partition(context, topic.name, index) for index in topic.partition_indexes],
            )
            for topic in request.topics
        ]
    )


def _partition(context: RequestContext, topic: str, index: int) -> PartitionResponse:
    try:
        return PartitionResponse(partition_index=index, active_producers=_producers(context, topic, index))
    except ApiError as error:
        return PartitionResponse(partition_index=index, error_code=error.code, error_message=error.message)


def _producers(context: RequestContext, topic: str, index: int) -> list[ProducerState]:
    """Return the partition's active producers.

    Raises ApiError if the topic name is invalid, the partition is unknown, or another broker leads it.
    """
    error_message = topic_name_error(topic)
    if error_message is not None:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION, error_message)
    log = context.partitions.require_leader(topic, index).log
    return [
        ProducerState(
            producer_id=producer_id,
            producer_epoch=entry.epoch,
            last_sequence=entry.last_sequence,
            last_timestamp=entry.timestamp,
            coordinator_epoch=entry.coordinator_epoch,
            current_txn_start_offset=entry.transaction_first_offset,
        )
        for producer_id, entry in log.producers.producers.items()
    ]
