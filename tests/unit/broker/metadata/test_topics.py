"""Tests of CreateTopics, DeleteTopics and CreatePartitions in the controller."""

from __future__ import annotations

from itertools import count

import pytest

from headrace_broker.metadata.controller_result import ControllerResult
from headrace_broker.metadata.delta import apply_records
from headrace_broker.metadata.image import BrokerImage, MetadataImage
from headrace_broker.metadata.topics import TopicDefaults, create_partitions, create_topics, delete_topics
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from headrace_broker.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from headrace_broker.protocol.metadata_records import TopicRecord

ZERO = bytes(16)
ids = count(1)


def new_id() -> bytes:
    return next(ids).to_bytes(16, "big")


def cluster(*brokers: int) -> MetadataImage:
    return MetadataImage(
        brokers={
            broker: BrokerImage(broker, bytes(16), 0, (), fenced=False, log_dirs=(b"d" * 16,)) for broker in brokers
        }
    )


def create(
    image: MetadataImage, *topics: CreatableTopic, validate_only: bool = False
) -> ControllerResult[CreateTopicsResponse]:
    request = CreateTopicsRequest(topics=list(topics), validate_only=validate_only)
    return create_topics(image, request, defaults=TopicDefaults(3, 1), broker_properties={}, new_id=new_id)


def topic(name: str, partitions: int = -1, replication: int = -1, **configs: str) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication,
        configs=[CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()],
    )


def apply_result(image: MetadataImage, result: ControllerResult[object]) -> MetadataImage:
    return apply_records(image, result.records, image.offset + len(result.records), 1)


def test_create_topic_with_counts_of_minus_one_uses_default_partition_count_and_replication_factor() -> None:
    result = create(cluster(1), topic("t"))
    image = apply_result(cluster(1), result)
    assert [partition.leader for partition in image.topics["t"].partitions] == [1, 1, 1]
    assert image.topics["t"].partitions[0].directories == (b"d" * 16,)
    topic_result = result.response.topics[0]
    assert (topic_result.error_code, topic_result.num_partitions, topic_result.replication_factor) == (0, 3, 1)
    assert topic_result.topic_id == image.topics["t"].topic_id


def test_create_topic_spreads_leaders_over_brokers() -> None:
    image = apply_result(cluster(1, 2, 3), create(cluster(1, 2, 3), topic("t", 6, 2)))
    assert [partition.leader for partition in image.topics["t"].partitions] == [1, 2, 3, 1, 2, 3]
    assert image.topics["t"].partitions[2].replicas == (3, 1)


def test_create_topic_stores_the_topic_configs_and_returns_them_with_their_source() -> None:
    result = create(cluster(1), topic("t", retention_ms="1000"))
    image = apply_result(cluster(1), result)
    assert image.topic_configs("t") == {"retention.ms": "1000"}
    configs = {config.name: (config.value, config.config_source) for config in result.response.topics[0].configs}
    assert configs["retention.ms"] == ("1000", 1)
    assert configs["cleanup.policy"] == ("delete", 5)


@pytest.mark.parametrize(
    ("requested", "code", "words"),
    [
        (topic(""), ErrorCode.INVALID_TOPIC_EXCEPTION, "empty string"),
        (topic(".."), ErrorCode.INVALID_TOPIC_EXCEPTION, "'..'"),
        (topic("a b"), ErrorCode.INVALID_TOPIC_EXCEPTION, "a b"),
        (topic("x" * 250), ErrorCode.INVALID_TOPIC_EXCEPTION, "longer than the max allowed length 249"),
        (topic("a_b"), ErrorCode.INVALID_TOPIC_EXCEPTION, "collides with existing topic: a.b"),
        (topic("a.b"), ErrorCode.TOPIC_ALREADY_EXISTS, "'a.b' already exists"),
        (topic("t", 0), ErrorCode.INVALID_PARTITIONS, "'t'"),
        (topic("t", 1_000_000), ErrorCode.POLICY_VIOLATION, "at most 10000"),
        (topic("t", 1, 0), ErrorCode.INVALID_REPLICATION_FACTOR, "larger than 0"),
        (topic("t", 1, 2), ErrorCode.INVALID_REPLICATION_FACTOR, "only 1 broker(s)"),
        (topic("t", retention_mss="1"), ErrorCode.INVALID_CONFIG, "retention.mss"),
        (topic("t", retention_ms="soon"), ErrorCode.INVALID_CONFIG, "retention.ms"),
    ],
)
def test_invalid_topic_in_a_request_is_rejected_and_other_topics_are_created(
    requested: CreatableTopic, code: ErrorCode, words: str
) -> None:
    before = apply_result(cluster(1), create(cluster(1), topic("a.b")))
    result = create(before, requested, topic("good"))
    bad, good = result.response.topics
    assert bad.error_code == code
    assert words in (bad.error_message or "")
    assert good.error_code == 0
    assert set(apply_result(before, result).topics) == {"a.b", "good"}


def test_topics_that_exceed_the_limits_of_a_request_are_rejected_before_partitions_are_placed() -> None:
    """A request of a few hundred bytes must not block the controller for so long that it loses its leadership."""
    allocated_ids: list[bytes] = []

    def counted_new_id() -> bytes:
        allocated_ids.append(new_id())
        return allocated_ids[-1]

    requested = [topic("a", 9000), topic("b", 9000), topic("c", 900, retention_ms="1" * (1 << 20)), topic("d", 2)]
    request = CreateTopicsRequest(topics=requested)
    result = create_topics(
        cluster(1), request, defaults=TopicDefaults(3, 1), broker_properties={}, new_id=counted_new_id
    )
    assert [result.error_code for result in result.response.topics[:2]] == [0, ErrorCode.POLICY_VIOLATION]
    assert len(allocated_ids) == 2
    image = apply_result(cluster(1), create(cluster(1), topic("a"), topic("b")))
    growing = [CreatePartitionsTopic(name=name, count=8000, assignments=None) for name in "ab"]
    grown = create_partitions(image, CreatePartitionsRequest(topics=growing))
    assert [result.error_code for result in grown.response.results] == [0, ErrorCode.POLICY_VIOLATION]


def test_duplicate_topic_in_request_is_rejected() -> None:
    result = create(cluster(1), topic("t"), topic("u"), topic("t"))
    assert [(item.name, item.error_code) for item in result.response.topics] == [
        ("t", ErrorCode.INVALID_REQUEST),
        ("u", ErrorCode.NONE),
    ]
    assert [record.name for record in result.records if isinstance(record, TopicRecord)] == ["u"]


def test_create_topics_request_with_validate_only_writes_no_records() -> None:
    result = create(cluster(1), topic("t"), validate_only=True)
    assert result.response.topics[0].error_code == 0
    assert result.records == []


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ({0: [1], 2: [1]}, "consecutive"),
        ({0: [1, 1]}, "distinct broker ids"),
        ({0: [1], 1: [1, 2]}, "the other partitions have 1"),
        ({0: [9]}, "broker 9"),
    ],
)
def test_invalid_manual_assignment_is_rejected(assignment: dict[int, list[int]], words: str) -> None:
    requested = topic("t")
    requested.assignments = [
        CreatableReplicaAssignment(partition_index=index, broker_ids=brokers) for index, brokers in assignment.items()
    ]
    result = create(cluster(1, 2), requested).response.topics[0]
    assert result.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert words in (result.error_message or "")


def test_topic_with_a_manual_assignment_has_the_assigned_replicas() -> None:
    requested = topic("t")
    requested.assignments = [
        CreatableReplicaAssignment(partition_index=1, broker_ids=[1]),
        CreatableReplicaAssignment(partition_index=0, broker_ids=[2]),
    ]
    image = apply_result(cluster(1, 2), create(cluster(1, 2), requested))
    assert [partition.replicas for partition in image.topics["t"].partitions] == [(2,), (1,)]


def test_recreated_topic_has_a_new_id_and_no_configs_of_the_deleted_topic() -> None:
    first = apply_result(cluster(1), create(cluster(1), topic("t", retention_ms="1000")))
    deleted = apply_result(first, delete_topics(first, [("t", ZERO)]))
    assert deleted.topics == {}
    assert deleted.topic_names == {}
    recreated = apply_result(deleted, create(deleted, topic("t")))
    assert recreated.topics["t"].topic_id != first.topics["t"].topic_id
    assert recreated.topic_configs("t") == {}
    by_old_id = delete_topics(recreated, [(None, first.topics["t"].topic_id)])
    assert by_old_id.response.responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_topics_are_deleted_by_id_or_name_and_unknown_topics_are_reported() -> None:
    image = apply_result(cluster(1), create(cluster(1), topic("a"), topic("b")))
    result = delete_topics(image, [(None, image.topics["a"].topic_id), ("b", ZERO), ("c", ZERO)])
    assert [result.error_code for result in result.response.responses] == [0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert result.response.responses[0].name == "a"
    assert apply_result(image, result).topics == {}


def test_topics_that_the_request_contains_twice_are_not_deleted() -> None:
    image = apply_result(cluster(1), create(cluster(1), topic("a"), topic("b"), topic("c"), topic("d")))
    id_of = {name: found.topic_id for name, found in image.topics.items()}
    result = delete_topics(
        image,
        [
            ("a", ZERO),
            ("a", ZERO),
            (None, id_of["b"]),
            (None, id_of["b"]),
            ("c", ZERO),
            (None, id_of["c"]),
            ("d", ZERO),
        ],
    )
    assert {(item.name, item.topic_id): item.error_code for item in result.response.responses} == {
        ("a", ZERO): ErrorCode.INVALID_REQUEST,
        (None, id_of["b"]): ErrorCode.INVALID_REQUEST,
        ("c", id_of["c"]): ErrorCode.INVALID_REQUEST,
        ("d", id_of["d"]): ErrorCode.NONE,
    }
    assert sorted(apply_result(image, result).topics) == ["a", "b", "c"]


def test_create_partitions_request_can_only_increase_the_partition_count() -> None:
    image = apply_result(cluster(1), create(cluster(1), topic("t", 2)))

    def grow(count: int) -> tuple[int, str | None, int]:
        request = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="t", count=count, assignments=None)])
        result = create_partitions(image, request)
        topic_result = result.response.results[0]
        return (
            topic_result.error_code,
            topic_result.error_message,
            len(apply_result(image, result).topics["t"].partitions),
        )

    assert grow(5) == (0, None, 5)
    assert grow(2) == (ErrorCode.INVALID_PARTITIONS, "Topic 't' already has 2 partition(s).", 2)
    assert grow(1)[0] == ErrorCode.INVALID_PARTITIONS
