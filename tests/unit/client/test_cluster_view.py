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


def answer(*topics: MetadataResponseTopic) -> MetadataResponse:
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


def test_leaders_are_those_that_are_known_brokers() -> None:
    view = ClusterView().updated(answer(topic("a"), topic("b", leader=2), topic("c", leader=-1)), asked=["a", "b", "c"])
    leader = view.leader("a", 0)
    assert leader is not None
    assert leader.leader_epoch == 3
    assert [view.leader(name, 0) for name in ("b", "c", "d")] == [None, None, None]
    assert view.leader("a", 1) is None
    assert view.topics["a"].available == [0]
    assert view.topic_by_id(TOPIC_ID) == "a"


def test_an_answer_replaces_what_was_asked_and_nothing_else() -> None:
    view = ClusterView().updated(answer(topic("a"), topic("b")), asked=["a", "b"])
    gone = topic("a", code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    view = view.updated(answer(gone), asked=["a"])
    assert list(view.topics) == ["b"]
    assert view.errors == {"a": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
    assert list(view.updated(answer(topic("c")), asked=None).topics) == ["c"]


def test_an_older_leader_epoch_is_not_believed_unless_the_topic_is_another_one() -> None:
    view = ClusterView().updated(answer(topic("a", epoch=3)), asked=["a"])
    stale = view.updated(answer(topic("a", epoch=2)), asked=["a"])
    assert stale.topics["a"].partitions[0].leader_epoch == 3
    recreated = view.updated(answer(topic("a", epoch=0, topic_id=b"\2" * 16)), asked=["a"])
    assert recreated.topics["a"].partitions[0].leader_epoch == 0


def test_a_coordinator_may_be_a_node_that_metadata_did_not_tell() -> None:
    view = ClusterView().with_node(Node(5, "h", 1))
    assert view.nodes[5].port == 1


def test_versions_meet_in_the_middle() -> None:
    key = FetchRequest.__api_key__
    assert choose_version(FetchRequest, {key: (0, 11)}, "broker 1") == 11
    assert choose_version(FetchRequest, {key: (4, 99)}, "broker 1", at_most=12) == 12
    with pytest.raises(UnsupportedVersionError, match=r"broker 1 offers Fetch in versions 0-3"):
        choose_version(FetchRequest, {key: (0, 3)}, "broker 1")
    with pytest.raises(UnsupportedVersionError, match=r"broker 1 does not offer Fetch"):
        choose_version(FetchRequest, {}, "broker 1")
    with pytest.raises(UnsupportedVersionError, match=r"does not offer Metadata: that is a controller's port"):
        choose_version(MetadataRequest, {ApiKey.BROKER_HEARTBEAT: (0, 1)}, "broker h:1")


def test_back_off_grows_with_jitter_up_to_its_bound() -> None:
    assert [backoff_ms(attempt, 100, 1000, 0.5) for attempt in range(5)] == [100, 200, 400, 800, 1000]
    assert backoff_ms(0, 100, 1000, 0.0) == 80
    assert backoff_ms(99, 100, 1000, 1.0) == pytest.approx(1200)


def test_broker_errors_say_what_where_and_whether_to_retry() -> None:
    error = BrokerError(ErrorCode.NOT_LEADER_OR_FOLLOWER, "t-3")
    assert str(error).startswith("t-3: NOT_LEADER_OR_FOLLOWER: ")
    assert error.retriable
    assert not BrokerError(ErrorCode.INVALID_RECORD, "t-3", "because").retriable
    assert BrokerError(12345, "x").code is ErrorCode.UNKNOWN_SERVER_ERROR
