"""Tests of DescribeTopicPartitions: pages and cursors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace_broker.metadata.image import PartitionImage, TopicImage
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    TopicRequest,
)
from headrace_broker.server.handlers import describe_topic_partitions

PARTITIONS = {"a": 1, "b": 5, "c": 2}


def page(limit: int, cursor: Cursor | None, topics: tuple[str, ...] = ()) -> DescribeTopicPartitionsResponse:
    image = PartitionImage(replicas=(1,), isr=(1,), leader=1, leader_epoch=0)
    described = {name: TopicImage(name, bytes(16), (image,) * count) for name, count in PARTITIONS.items()}
    context: Any = SimpleNamespace(
        image=SimpleNamespace(topics=described, live_brokers=lambda: [SimpleNamespace(broker_id=1)]),
        config=SimpleNamespace(max_request_partition_size_limit=2000),
    )
    request = DescribeTopicPartitionsRequest(
        topics=[TopicRequest(name=name) for name in topics], response_partition_limit=limit, cursor=cursor
    )
    return describe_topic_partitions.handle(context, request, 0)


@pytest.mark.parametrize("limit", [1, 2, 3, 100])
def test_pages_of_describe_topic_partitions_contain_every_partition_once(limit: int) -> None:
    found, cursor = [], None
    for _ in range(sum(PARTITIONS.values())):
        response = page(limit, cursor)
        found += [(topic.name, part.partition_index) for topic in response.topics for part in topic.partitions]
        cursor = response.next_cursor
        if cursor is None:
            break
    assert cursor is None
    assert found == [(name, index) for name, count in PARTITIONS.items() for index in range(count)]


@pytest.mark.parametrize("topics", [(), ("b", "c")])
def test_describe_topic_partitions_rejects_a_cursor_before_the_first_partition(topics: tuple[str, ...]) -> None:
    """If a negative cursor index were accepted, every page would contain the same partitions."""
    response = page(3, Cursor(topic_name="b", partition_index=-2), topics)
    assert [(topic.name, topic.error_code) for topic in response.topics] == [
        (name, ErrorCode.INVALID_REQUEST) for name in topics
    ]
    assert response.next_cursor is None
