"""Decisions about topics: what is created, what is refused, and in which words."""

from __future__ import annotations

from itertools import count

import pytest

from headrace_broker.metadata.delta import replayed
from headrace_broker.metadata.image import BrokerImage, MetadataImage
from headrace_broker.metadata.outcome import Outcome
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


def create(image: MetadataImage, *topics: CreatableTopic, validate_only: bool = False) -> Outcome[CreateTopicsResponse]:
    request = CreateTopicsRequest(topics=list(topics), validate_only=validate_only)
    return create_topics(image, request, defaults=TopicDefaults(3, 1), broker_properties={}, new_id=new_id)


def topic(name: str, partitions: int = -1, replication: int = -1, **configs: str) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication,
        configs=[CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()],
    )


def applied(image: MetadataImage, outcome: Outcome[object]) -> MetadataImage:
    return replayed(image, outcome.records, image.offset + len(outcome.records), 1)


def test_defaults_fill_in_for_minus_one() -> None:
    outcome = create(cluster(1), topic("t"))
    image = applied(cluster(1), outcome)
    assert [partition.leader for partition in image.topics["t"].partitions] == [1, 1, 1]
    assert image.topics["t"].partitions[0].directories == (b"d" * 16,)
    result = outcome.response.topics[0]
    assert (result.error_code, result.num_partitions, result.replication_factor) == (0, 3, 1)
    assert result.topic_id == image.topics["t"].topic_id


def test_leaders_are_spread_over_brokers() -> None:
    image = applied(cluster(1, 2, 3), create(cluster(1, 2, 3), topic("t", 6, 2)))
    assert [partition.leader for partition in image.topics["t"].partitions] == [1, 2, 3, 1, 2, 3]
    assert image.topics["t"].partitions[2].replicas == (3, 1)


def test_configs_become_records_and_are_reported() -> None:
    outcome = create(cluster(1), topic("t", retention_ms="1000"))
    image = applied(cluster(1), outcome)
    assert image.topic_configs("t") == {"retention.ms": "1000"}
    configs = {config.name: (config.value, config.config_source) for config in outcome.response.topics[0].configs}
    assert configs["retention.ms"] == ("1000", 1)
    assert configs["cleanup.policy"] == ("delete", 5)


@pytest.mark.parametrize(
    ("wanted", "code", "words"),
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
def test_what_is_wrong_is_named_and_creates_nothing(wanted: CreatableTopic, code: ErrorCode, words: str) -> None:
    before = applied(cluster(1), create(cluster(1), topic("a.b")))
    outcome = create(before, wanted, topic("good"))
    bad, good = outcome.response.topics
    assert bad.error_code == code
    assert words in (bad.error_message or "")
    assert good.error_code == 0
    assert set(applied(before, outcome).topics) == {"a.b", "good"}


def test_what_is_too_much_is_refused_before_it_is_worked_out() -> None:
    """A request of a few hundred bytes would keep the controller busy until it loses its leadership."""
    made: list[bytes] = []

    def counted() -> bytes:
        made.append(new_id())
        return made[-1]

    wanted = [topic("a", 9000), topic("b", 9000), topic("c", 900, retention_ms="1" * (1 << 20)), topic("d", 2)]
    request = CreateTopicsRequest(topics=wanted)
    outcome = create_topics(cluster(1), request, defaults=TopicDefaults(3, 1), broker_properties={}, new_id=counted)
    assert [result.error_code for result in outcome.response.topics[:2]] == [0, ErrorCode.POLICY_VIOLATION]
    assert len(made) == 2
    image = applied(cluster(1), create(cluster(1), topic("a"), topic("b")))
    growing = [CreatePartitionsTopic(name=name, count=8000, assignments=None) for name in "ab"]
    grown = create_partitions(image, CreatePartitionsRequest(topics=growing))
    assert [result.error_code for result in grown.response.results] == [0, ErrorCode.POLICY_VIOLATION]


def test_the_same_name_twice_in_a_request_is_refused() -> None:
    outcome = create(cluster(1), topic("t"), topic("t"))
    assert [result.error_code for result in outcome.response.topics] == [ErrorCode.INVALID_REQUEST] * 2
    assert outcome.records == []


def test_validate_only_decides_and_records_nothing() -> None:
    outcome = create(cluster(1), topic("t"), validate_only=True)
    assert outcome.response.topics[0].error_code == 0
    assert outcome.records == []


@pytest.mark.parametrize(
    ("assignment", "words"),
    [
        ({0: [1], 2: [1]}, "consecutive"),
        ({0: [1, 1]}, "different brokers"),
        ({0: [1], 1: [1, 2]}, "others have 1"),
        ({0: [9]}, "broker 9"),
    ],
)
def test_manual_assignments_are_checked(assignment: dict[int, list[int]], words: str) -> None:
    wanted = topic("t")
    wanted.assignments = [
        CreatableReplicaAssignment(partition_index=index, broker_ids=brokers) for index, brokers in assignment.items()
    ]
    result = create(cluster(1, 2), wanted).response.topics[0]
    assert result.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert words in (result.error_message or "")


def test_a_manual_assignment_is_followed() -> None:
    wanted = topic("t")
    wanted.assignments = [
        CreatableReplicaAssignment(partition_index=1, broker_ids=[1]),
        CreatableReplicaAssignment(partition_index=0, broker_ids=[2]),
    ]
    image = applied(cluster(1, 2), create(cluster(1, 2), wanted))
    assert [partition.replicas for partition in image.topics["t"].partitions] == [(2,), (1,)]


def test_a_topic_made_again_has_another_id_and_none_of_the_old_configs() -> None:
    first = applied(cluster(1), create(cluster(1), topic("t", retention_ms="1000")))
    gone = applied(first, delete_topics(first, [("t", ZERO)]))
    assert gone.topics == {}
    assert gone.topic_names == {}
    again = applied(gone, create(gone, topic("t")))
    assert again.topics["t"].topic_id != first.topics["t"].topic_id
    assert again.topic_configs("t") == {}
    by_old_id = delete_topics(again, [(None, first.topics["t"].topic_id)])
    assert by_old_id.response.responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_deletion_by_id_by_name_and_of_nothing() -> None:
    image = applied(cluster(1), create(cluster(1), topic("a"), topic("b")))
    outcome = delete_topics(image, [(None, image.topics["a"].topic_id), ("b", ZERO), ("c", ZERO)])
    assert [result.error_code for result in outcome.response.responses] == [0, 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    assert outcome.response.responses[0].name == "a"
    assert applied(image, outcome).topics == {}


def test_partitions_only_grow() -> None:
    image = applied(cluster(1), create(cluster(1), topic("t", 2)))

    def grow(count: int) -> tuple[int, str | None, int]:
        request = CreatePartitionsRequest(topics=[CreatePartitionsTopic(name="t", count=count, assignments=None)])
        outcome = create_partitions(image, request)
        result = outcome.response.results[0]
        return result.error_code, result.error_message, len(applied(image, outcome).topics["t"].partitions)

    assert grow(5) == (0, None, 5)
    assert grow(2) == (ErrorCode.INVALID_PARTITIONS, "Topic 't' already has 2 partition(s).", 2)
    assert grow(1)[0] == ErrorCode.INVALID_PARTITIONS
