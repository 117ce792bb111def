"""Tests of requests that contain an item several times, or an item without a name. The results are Apache Kafka's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages import (
    create_partitions,
    create_topics,
    delete_groups,
    delete_records,
    delete_topics,
    describe_log_dirs,
    elect_leaders,
    find_coordinator,
    list_offsets,
    metadata,
    offset_commit,
    offset_delete,
    sync_group,
    update_features,
)
from support.broker import BrokerProcess, running_broker
from support.raw_client import RawClient, batch, create_topic, produce_request

pytestmark = pytest.mark.wire

INVALID, UNKNOWN = ErrorCode.INVALID_REQUEST, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path_factory.mktemp("duplicates")) as process:
        yield process


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[RawClient]:
    with RawClient(broker.address) as connection:
        yield connection


@pytest.fixture
def topic(client: RawClient, request: pytest.FixtureRequest) -> str:
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    create_topic(client, name, partitions=2)
    return name


def new_topic(name: str, **configs: str) -> create_topics.CreatableTopic:
    values = [create_topics.CreatableTopicConfig(name=key, value=value) for key, value in configs.items()]
    return create_topics.CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=values)


def exists(client: RawClient, name: str) -> bool:
    wanted = metadata.MetadataRequest(
        topics=[metadata.MetadataRequestTopic(name=name)], allow_auto_topic_creation=False
    )
    return bool(client.call(wanted, 12).topics[0].error_code == ErrorCode.NONE)


@pytest.mark.parametrize("version", [2, 4, 5, 7])
def test_create_topics_returns_one_error_for_a_duplicate_name_and_null_error_messages_on_success(
    client: RawClient, version: int
) -> None:
    names = ["twice", f"once-{version}", "twice", "twice"]
    request = create_topics.CreateTopicsRequest(topics=[new_topic(name) for name in names])
    results = {item.name: (item.error_code, item.error_message) for item in client.call(request, version).topics}
    assert results == {
        "twice": (INVALID, "Topic 'twice' appears more than once in the request."),
        f"once-{version}": (ErrorCode.NONE, None),
    }
    assert not exists(client, "twice")


def test_create_topics_with_a_duplicate_config_uses_the_last_value(client: RawClient) -> None:
    configs = [create_topics.CreatableTopicConfig(name="retention.ms", value=value) for value in ("1", "2")]
    topic = new_topic("duplicate-config")
    topic.configs = configs
    (result,) = client.call(create_topics.CreateTopicsRequest(topics=[topic]), 7).topics
    assert result.error_code == ErrorCode.NONE
    assert [item.value for item in result.configs if item.name == "retention.ms"] == ["2"]


def test_creation_of_the_cluster_metadata_topic_is_an_invalid_request(client: RawClient) -> None:
    (result,) = client.call(create_topics.CreateTopicsRequest(topics=[new_topic("__cluster_metadata")]), 7).topics
    assert result.error_code == INVALID


def deletion(client: RawClient, *topics: tuple[str | None, bytes]) -> list[tuple[str | None, bytes, int]]:
    states = [delete_topics.DeleteTopicState(name=name, topic_id=topic_id) for name, topic_id in topics]
    request = delete_topics.DeleteTopicsRequest(topics=states, timeout_ms=5000)
    return [(item.name, item.topic_id, item.error_code) for item in client.call(request, 6).responses]


def test_delete_topics_with_a_duplicate_name_keeps_the_topic_and_returns_one_error(
    client: RawClient, topic: str
) -> None:
    for version in (1, 3, 5):
        request = delete_topics.DeleteTopicsRequest(topic_names=[topic, topic], timeout_ms=5000)
        (result,) = client.call(request, version).responses
        assert (result.name, result.error_code) == (topic, INVALID)
    assert deletion(client, (topic, bytes(16)), (topic, bytes(16))) == [(topic, bytes(16), INVALID)]
    assert deletion(client, ("missing", bytes(16)), ("missing", bytes(16))) == [("missing", bytes(16), INVALID)]
    assert exists(client, topic)


def test_delete_topics_with_a_duplicate_id_or_with_the_name_and_the_id_of_a_topic_keeps_the_topic(
    client: RawClient,
) -> None:
    topic_id = create_topic(client, "by-id")
    assert deletion(client, (None, topic_id), (None, topic_id)) == [(None, topic_id, INVALID)]
    assert deletion(client, (None, topic_id), ("by-id", bytes(16))) == [("by-id", topic_id, INVALID)]
    assert deletion(client, ("by-id", topic_id)) == [("by-id", topic_id, INVALID)]
    assert exists(client, "by-id")
    assert deletion(client, (None, topic_id)) == [("by-id", topic_id, ErrorCode.NONE)]


def test_delete_topics_with_neither_name_nor_id_is_an_invalid_request(client: RawClient) -> None:
    assert deletion(client, (None, bytes(16))) == [(None, bytes(16), INVALID)]


def test_create_partitions_returns_one_error_for_a_duplicate_name(client: RawClient, topic: str) -> None:
    item = create_partitions.CreatePartitionsTopic(name=topic, count=3, assignments=None)
    response = client.call(create_partitions.CreatePartitionsRequest(topics=[item] * 3, timeout_ms=5000), 3)
    assert [(result.name, result.error_code) for result in response.results] == [(topic, INVALID)]
    response = client.call(create_partitions.CreatePartitionsRequest(topics=[item], timeout_ms=5000), 3)
    assert [(result.error_code, result.error_message) for result in response.results] == [(ErrorCode.NONE, None)]


def test_delete_records_uses_the_last_offset_of_a_duplicate_partition(client: RawClient, topic: str) -> None:
    client.call(produce_request(topic, batch(b"0", b"1", b"2")), 9)
    wanted = [
        delete_records.DeleteRecordsTopic(
            name=topic,
            partitions=[
                delete_records.DeleteRecordsPartition(partition_index=index, offset=offset) for index, offset in items
            ],
        )
        for items in ([(0, 1), (0, 3)], [(1, 0), (0, 2)])
    ]
    response = client.call(delete_records.DeleteRecordsRequest(topics=wanted, timeout_ms=5000), 2)
    (result,) = response.topics
    assert {(item.partition_index, item.low_watermark, item.error_code) for item in result.partitions} == {
        (0, 2, 0),
        (1, 0, 0),
    }


def test_list_offsets_returns_one_error_for_a_duplicate_partition(client: RawClient, topic: str) -> None:
    def wanted(*indexes: int) -> Any:
        partitions = [list_offsets.ListOffsetsPartition(partition_index=index, timestamp=-1) for index in indexes]
        return list_offsets.ListOffsetsTopic(name=topic, partitions=partitions)

    for topics in ([wanted(0, 0, 1)], [wanted(0), wanted(0, 1)]):
        (result,) = client.call(list_offsets.ListOffsetsRequest(replica_id=-1, topics=topics), 7).topics
        assert [(item.partition_index, item.error_code, item.offset) for item in result.partitions] == [
            (0, INVALID, -1),
            (1, ErrorCode.NONE, 0),
        ]


def commit(client: RawClient, group: str, *topics: tuple[str, list[int]]) -> Any:
    client.call(find_coordinator.FindCoordinatorRequest(coordinator_keys=[group], key_type=0), 4)
    wanted = [
        offset_commit.OffsetCommitRequestTopic(
            name=name,
            partitions=[
                offset_commit.OffsetCommitRequestPartition(partition_index=index, committed_offset=1)
                for index in indexes
            ],
        )
        for name, indexes in topics
    ]
    request = offset_commit.OffsetCommitRequest(
        group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=wanted
    )
    return client.call(request, 8).topics


def test_offset_commit_returns_a_result_for_each_partition_of_a_duplicate_topic(client: RawClient, topic: str) -> None:
    (result,) = commit(client, "duplicate-topic", (topic, [0, 0]), (topic, [1, 9]))
    assert [(item.partition_index, item.error_code) for item in result.partitions] == [
        (0, ErrorCode.NONE),
        (0, ErrorCode.NONE),
        (1, ErrorCode.NONE),
        (9, UNKNOWN),
    ]


def test_delete_groups_returns_one_result_for_a_duplicate_group(client: RawClient, topic: str) -> None:
    commit(client, "deleted", (topic, [0]))
    response = client.call(delete_groups.DeleteGroupsRequest(groups_names=["deleted", "none", "deleted", "none"]), 2)
    assert [(item.group_id, item.error_code) for item in response.results] == [
        ("deleted", ErrorCode.NONE),
        ("none", ErrorCode.GROUP_ID_NOT_FOUND),
    ]


def test_offset_delete_without_a_group_id_returns_invalid_group_id(client: RawClient, topic: str) -> None:
    commit(client, "", (topic, [0]))
    partition = offset_delete.OffsetDeleteRequestPartition(partition_index=0)
    wanted = offset_delete.OffsetDeleteRequestTopic(name=topic, partitions=[partition])
    response = client.call(offset_delete.OffsetDeleteRequest(group_id="", topics=[wanted]), 0)
    assert (response.error_code, response.topics) == (ErrorCode.INVALID_GROUP_ID, [])


def test_offset_delete_returns_one_entry_for_a_duplicate_topic_and_none_for_a_topic_without_partitions(
    client: RawClient, topic: str
) -> None:
    commit(client, "with-offsets", (topic, [0, 1]))
    wanted = [
        offset_delete.OffsetDeleteRequestTopic(
            name=name,
            partitions=[offset_delete.OffsetDeleteRequestPartition(partition_index=index) for index in indexes],
        )
        for name, indexes in ((topic, [0, 0, 9]), ("none", []), (topic, [1]))
    ]
    response = client.call(offset_delete.OffsetDeleteRequest(group_id="with-offsets", topics=wanted), 0)
    (result,) = response.topics
    assert sorted((item.partition_index, item.error_code) for item in result.partitions) == [
        (0, ErrorCode.NONE),
        (0, ErrorCode.NONE),
        (1, ErrorCode.NONE),
        (9, UNKNOWN),
    ]


def test_sync_group_without_a_protocol_type_or_name_returns_inconsistent_group_protocol(client: RawClient) -> None:
    for fields in ({"protocol_type": None, "protocol_name": "range"}, {"protocol_type": "consumer"}):
        request = sync_group.SyncGroupRequest(group_id="g", generation_id=1, member_id="m", **fields)
        assert client.call(request, 5).error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL


def test_elect_leaders_returns_a_result_for_each_duplicate_partition(client: RawClient, topic: str) -> None:
    wanted = [elect_leaders.TopicPartitions(topic=topic, partitions=indexes) for indexes in ([0, 0], [0, 1])]
    response = client.call(elect_leaders.ElectLeadersRequest(election_type=0, topic_partitions=wanted), 2)
    assert [
        (item.topic, [(result.partition_id, result.error_code) for result in item.partition_result])
        for item in response.replica_election_results
    ] == [(topic, [(0, 84), (0, 84)]), (topic, [(0, 84), (1, 84)])]


def test_describe_log_dirs_returns_the_partitions_of_all_entries_of_a_duplicate_topic(
    client: RawClient, topic: str
) -> None:
    wanted = [describe_log_dirs.DescribableLogDirTopic(topic=topic, partitions=indexes) for indexes in ([0, 0], [1])]
    (directory,) = client.call(describe_log_dirs.DescribeLogDirsRequest(topics=wanted), 4).results
    assert [sorted(item.partition_index for item in found.partitions) for found in directory.topics] == [[0, 1]]


def test_find_coordinator_returns_a_result_without_a_null_error_message_for_each_duplicate_group(
    client: RawClient,
) -> None:
    request = find_coordinator.FindCoordinatorRequest(coordinator_keys=["g", "g"], key_type=0)
    found = client.call(request, 4).coordinators
    assert [(item.key, item.error_code, item.error_message) for item in found] == [("g", ErrorCode.NONE, "")] * 2
    assert client.call(find_coordinator.FindCoordinatorRequest(key="g", key_type=0), 3).error_message == "NONE"


@pytest.mark.parametrize("version", [0, 1, 2])
def test_update_of_an_unknown_feature_returns_a_top_level_error(client: RawClient, version: int) -> None:
    update = update_features.FeatureUpdateKey(feature="x.version", max_version_level=1)
    response = client.call(update_features.UpdateFeaturesRequest(feature_updates=[update]), version)
    assert (response.error_code, response.results) == (ErrorCode.INVALID_UPDATE_VERSION, [])
