from __future__ import annotations

import pytest

from headrace_broker.client.backoff import backoff_ms
from headrace_broker.client.cluster_view import ClusterView, Node
from headrace_broker.client.errors import BrokerError, UnsupportedVersionError
from headrace_broker.client.versions import choose_version
from headrace_broker.protocol.apis import ApiKey
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.fetch import FetchRequest
from headrace_broker.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

TOPIC_ID = b"\1" * 16


def metadata_response(*topics: MetadataResponseTopic) -> MetadataResponse:
    return MetadataResponse(
        cluster_id="c",
        controller_id=1,
        brokers=[MetadataResponseBroker(node_id=1, host="h", port=9)],
        topics=list(topics),
    )


def topic(
    name: str, leader: int = 1, epoch: int = 3, topic_id: bytes = TOPIC_ID, code: int = 0
) -> MetadataResponseTopic:
    partition = MetadataResponsePartition(partition_index=0, leader_id=leader, leader_epoch=epoch)
    return MetadataResponseTopic(error_code=code, name=name, topic_id=topic_id, partitions=[] if code else [partition])


def test_cluster_view_returns_no_leader_for_a_partition_whose_leader_is_not_in_the_broker_list() -> None:
    view = ClusterView().updated(
        metadata_response(topic("a"), topic("b", leader=2), topic("c", leader=-1)), requested=["a", "b", "c"]
    )
    leader = view.leader("a", 0)
    assert leader is not None
    assert leader.leader_epoch == 3
    assert [view.leader(name, 0) for name in ("b", "c", "d")] == [None, None, None]
    assert view.leader("a", 1) is None
    assert view.topics["a"].available == [0]
    assert view.topic_by_id(TOPIC_ID) == "a"


def test_metadata_response_replaces_only_the_metadata_of_the_requested_topics() -> None:
    view = ClusterView().updated(metadata_response(topic("a"), topic("b")), requested=["a", "b"])
    deleted = topic("a", code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    view = view.updated(metadata_response(deleted), requested=["a"])
    assert list(view.topics) == ["b"]
    assert view.errors == {"a": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert list(view.updated(metadata_response(topic("c")), requested=None).topics) == ["c"]


def test_metadata_with_an_older_leader_epoch_is_ignored_unless_the_topic_was_recreated() -> None:
    view = ClusterView().updated(metadata_response(topic("a", epoch=3)), requested=["a"])
    stale = view.updated(metadata_response(topic("a", epoch=2)), requested=["a"])
    assert stale.topics["a"].partitions[0].leader_epoch == 3
    recreated = view.updated(metadata_response(topic("a", epoch=0, topic_id=b"\2" * 16)), requested=["a"])
    assert recreated.topics["a"].partitions[0].leader_epoch == 0


def test_coordinator_that_the_metadata_does_not_list_is_added_to_the_known_nodes() -> None:
    view = ClusterView().with_node(Node(5, "h", 1))
    assert view.nodes[5].port == 1


def test_client_uses_the_newest_request_version_that_client_and_broker_support() -> None:
    key = FetchRequest.__api_key__
    assert choose_version(FetchRequest, {key: (0, 11)}, "broker 1") == 11
    assert choose_version(FetchRequest, {key: (4, 99)}, "broker 1", at_most=12) == 12
    with pytest.raises(UnsupportedVersionError, match=r"broker 1 supports Fetch versions 0-3"):
        choose_version(FetchRequest, {key: (0, 3)}, "broker 1")
    with pytest.raises(UnsupportedVersionError, match=r"broker 1 does not support Fetch"):
        choose_version(FetchRequest, {}, "broker 1")
    with pytest.raises(UnsupportedVersionError, match=r"does not support Metadata: that is a controller's port"):
        choose_version(MetadataRequest, {ApiKey.BROKER_HEARTBEAT: (0, 1)}, "broker h:1")


def test_retry_backoff_grows_exponentially_with_jitter_up_to_its_maximum() -> None:
    assert [backoff_ms(attempt, 100, 1000, 0.5) for attempt in range(5)] == [100, 200, 400, 800, 1000]
    assert backoff_ms(0, 100, 1000, 0.0) == 80
    assert backoff_ms(99, 100, 1000, 1.0) == pytest.approx(1200)


def test_broker_error_names_the_partition_and_the_error_code_and_is_retriable_if_the_code_is_retriable() -> None:
    error = BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "t-3")
    assert str(error).startswith("t-3: NOT_LEADER_OR_FOLLOWER: ")
    assert error.retriable
    assert not BrokerError(ErrorCode.INVALID_RECORD, "t-3", "because").retriable
    assert BrokerError(12345, "x").code is ErrorCode.UNKNOWN_SERVER_ERROR
