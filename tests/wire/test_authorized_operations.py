"""Tests of authorized operations (KIP-430): if requested, a response lists the operations that the client may perform.

The bit fields are the same as those of Apache Kafka 4.3.1 without an authorizer.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages import (
    describe_cluster,
    describe_groups,
    describe_topic_partitions,
    find_coordinator,
    metadata,
)
from support.broker import running_broker
from support.raw_client import RawClient, create_topic

TOPIC, GROUP, CLUSTER = 3576, 3400, 8096
NOT_REQUESTED = -(2**31)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RawClient]:
    with running_broker(tmp_path_factory.mktemp("operations")) as broker, RawClient(broker.address) as connection:
        create_topic(connection, "t")
        yield connection


@pytest.mark.parametrize("all_topics", [False, True])
def test_metadata_returns_authorized_operations_of_topics_and_cluster(client: RawClient, all_topics: bool) -> None:
    request = metadata.MetadataRequest(
        topics=None if all_topics else [metadata.MetadataRequestTopic(name=name) for name in ("t", "missing")],
        allow_auto_topic_creation=False,
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=True,
    )
    response = client.call(request, 10)
    assert response.cluster_authorized_operations == CLUSTER
    assert {topic.topic_authorized_operations for topic in response.topics} == {TOPIC}


def test_metadata_returns_no_authorized_operations_unless_requested(client: RawClient) -> None:
    response = client.call(metadata.MetadataRequest(topics=[metadata.MetadataRequestTopic(name="t")]), 10)
    assert response.cluster_authorized_operations == NOT_REQUESTED
    assert response.topics[0].topic_authorized_operations == NOT_REQUESTED


def test_describe_cluster_returns_authorized_operations_of_the_cluster(client: RawClient) -> None:
    request = describe_cluster.DescribeClusterRequest
    assert client.call(request(include_cluster_authorized_operations=True), 1).cluster_authorized_operations == CLUSTER
    assert client.call(request(), 1).cluster_authorized_operations == NOT_REQUESTED


def test_describe_topic_partitions_returns_authorized_operations_of_topics(client: RawClient) -> None:
    topics = [describe_topic_partitions.TopicRequest(name=name) for name in ("t", "missing")]
    request = describe_topic_partitions.DescribeTopicPartitionsRequest(topics=topics, cursor=None)
    assert [topic.topic_authorized_operations for topic in client.call(request, 0).topics] == [TOPIC, TOPIC]


def test_describe_groups_returns_authorized_operations_of_groups(client: RawClient) -> None:
    await_coordinator(client, "g")
    request = describe_groups.DescribeGroupsRequest(groups=["g"], include_authorized_operations=True)
    assert client.call(request, 5).groups[0].authorized_operations == GROUP


def await_coordinator(client: RawClient, group: str) -> None:
    """Wait until the broker can describe `group`.

    The request FindCoordinator creates the offsets topic. The broker then loads the group coordinator.
    """
    client.call(find_coordinator.FindCoordinatorRequest(coordinator_keys=[group]), 4)
    request = describe_groups.DescribeGroupsRequest(groups=[group])
    deadline = time.monotonic() + 20
    while client.call(request, 5).groups[0].error_code != ErrorCode.NONE:
        assert time.monotonic() < deadline, "the group coordinator is not loaded"
        time.sleep(0.01)
