"""DescribeTopicPartitions (75): return topics in pages, so that admin clients can describe large topics (KIP-966)."""

from __future__ import annotations

from headrace_broker.metadata.image import MetadataImage, TopicImage
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from headrace_broker.protocol.topic_names import INTERNAL_TOPICS, topic_name_error
from headrace_broker.server.authorized_operations import TOPIC_OPERATIONS
from headrace_broker.server.network.context import RequestContext

API_KEY = ApiKey.DESCRIBE_TOPIC_PARTITIONS
VERSIONS = (0, 0)


def handle(
    context: RequestContext, request: DescribeTopicPartitionsRequest, version: int
) -> DescribeTopicPartitionsResponse:
    """Describe topics in the order of their names, up to the partition limit.

    The cursor in the response marks the start of the next page.
    """
    image = context.image
    first_partition = 0
    names = sorted({topic.name for topic in request.topics}) if request.topics else sorted(image.topics)
    if request.cursor is not None:
        if request.cursor.partition_index < 0:  # with a negative index, every page would contain the same partitions
            return _error_response(request, ErrorCode.INVALID_REQUEST)
        start = request.cursor.topic_name
        names = [name for name in names if name >= start]
        first_partition = request.cursor.partition_index if names and names[0] == start else 0
    left = max(1, min(request.response_partition_limit, context.config.max_request_partition_size_limit))
    response = DescribeTopicPartitionsResponse(next_cursor=None)
    for name in names:
        if left == 0:
            response.next_cursor = Cursor(topic_name=name, partition_index=first_partition)
            break
        topic = image.topics.get(name)
        if topic is None:
            response.topics.append(_missing(name))
            left -= 1
            continue
        described = _describe(image, topic, first_partition, left)
        response.topics.append(described)
        left -= len(described.partitions)
        stop = first_partition + len(described.partitions)
        first_partition = 0
        if stop < len(topic.partitions):
            response.next_cursor = Cursor(topic_name=name, partition_index=stop)
            break
    return response


def _error_response(request: DescribeTopicPartitionsRequest, code: ErrorCode) -> DescribeTopicPartitionsResponse:
    topics = [DescribeTopicPartitionsResponseTopic(error_code=code, name=topic.name) for topic in request.topics]
    return DescribeTopicPartitionsResponse(topics=topics, next_cursor=None)


def _missing(name: str) -> DescribeTopicPartitionsResponseTopic:
    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if topic_name_error(name) is not None:
        code = ErrorCode.INVALID_TOPIC_EXCEPTION
    return DescribeTopicPartitionsResponseTopic(
        error_code=code, name=name, topic_authorized_operations=TOPIC_OPERATIONS
    )


def _describe(image: MetadataImage, topic: TopicImage, first: int, limit: int) -> DescribeTopicPartitionsResponseTopic:
    live = {broker.broker_id for broker in image.live_brokers()}
    partitions = [
        DescribeTopicPartitionsResponsePartition(
            error_code=ErrorCode.NONE if partition.leader in live else ErrorCode.LEADER_NOT_AVAILABLE,
            partition_index=index,
            leader_id=partition.leader if partition.leader in live else -1,
            leader_epoch=partition.leader_epoch,
            replica_nodes=list(partition.replicas),
            isr_nodes=list(partition.isr),
            eligible_leader_replicas=list(partition.eligible_leader_replicas),
            last_known_elr=list(partition.last_known_elr),
            offline_replicas=[replica for replica in partition.replicas if replica not in live],
        )
        for index, partition in enumerate(topic.partitions[first : first + limit], first)
    ]
    return DescribeTopicPartitionsResponseTopic(
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=topic.name in INTERNAL_TOPICS,
        partitions=partitions,
        topic_authorized_operations=TOPIC_OPERATIONS,
    )
