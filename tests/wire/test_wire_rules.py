"""Tests of the protocol rules that clients depend on, for connections and for single requests."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterator

import pytest

from headrace_broker.protocol.codec import decode
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from headrace_broker.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from headrace_broker.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace_broker.protocol.messages.describe_cluster import DescribeClusterRequest
from headrace_broker.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from headrace_broker.protocol.messages.describe_quorum import (
    DescribeQuorumRequest,
    DescribeQuorumRequestPartitionData,
    DescribeQuorumRequestTopicData,
)
from headrace_broker.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)
from headrace_broker.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace_broker.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from headrace_broker.protocol.messages.init_producer_id import InitProducerIdRequest
from headrace_broker.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from headrace_broker.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace_broker.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from headrace_broker.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from headrace_broker.records.batch import iter_batches
from headrace_broker.records.reader import read_columns
from support.broker import BrokerProcess, running_broker
from support.raw_client import RawClient, batch, create_topic, fetch_request, produce_request

pytestmark = pytest.mark.wire


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path_factory.mktemp("rules")) as process:
        yield process


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[RawClient]:
    with RawClient(broker.address) as connection:
        yield connection


@pytest.fixture
def topic(client: RawClient, request: pytest.FixtureRequest) -> str:
    name = "".join(letter if letter.isalnum() else "-" for letter in request.node.name)
    create_topic(client, name)
    return name


def produce(
    client: RawClient, topic: str, *batches: bytearray, version: int = 9, **options: int
) -> list[tuple[int, int]]:
    """Send a Produce request. Return (error code, base offset) for each partition."""
    response = client.call(produce_request(topic, *batches, **options), version)
    return [(item.error_code, item.base_offset) for item in response.responses[0].partition_responses]


def fetch(client: RawClient, topic: str, offset: int = 0, *, version: int = 12, **options: int) -> tuple[int, bytes]:
    """Send a Fetch request for one partition. Return the partition's (error code, records)."""
    response = client.call(fetch_request(topic, offset, **options), version)
    partition = response.responses[0].partitions[0]
    return partition.error_code, bytes(partition.records or b"")


def list_offset(client: RawClient, topic: str, timestamp: int, version: int = 9) -> tuple[int, int, int]:
    wanted = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[wanted])])
    found = client.call(request, version).topics[0].partitions[0]
    return found.error_code, found.timestamp, found.offset


# -- the connection -----------------------------------------------------------------------------------------------


def test_api_versions_request_with_an_unsupported_version_receives_a_version_0_response(client: RawClient) -> None:
    client.socket.sendall(struct.pack(">ihhih", 14, 18, 99, 7, 4) + b"test")
    frame = client.receive_frame()
    assert struct.unpack_from(">i", frame) == (7,)
    response = decode(ApiVersionsResponse, 0, frame, 4)
    assert response.error_code == ErrorCode.UNSUPPORTED_VERSION
    ranges = {item.api_key: (item.min_version, item.max_version) for item in response.api_keys}
    assert ranges[18][1] >= 3
    assert ranges[0] == (0, 13)
    again = client.call(ApiVersionsRequest(client_software_name="test", client_software_version="1"), 3)
    assert {item.name: item.max_version_level for item in again.finalized_features} == {"metadata.version": 30}
    assert all(item.min_version > 0 for item in again.supported_features)


@pytest.mark.parametrize(("key", "version"), [(3, 99), (999, 0), (0, 2), (-1, 0)])
def test_request_with_an_unsupported_api_or_version_closes_the_connection(
    broker: BrokerProcess, key: int, version: int
) -> None:
    with RawClient(broker.address) as client:
        client.socket.sendall(struct.pack(">ihhih", 14, key, version, 7, 4) + b"test")
        assert client.is_closed()


def test_responses_of_a_connection_are_in_request_order_while_a_fetch_waits(client: RawClient, topic: str) -> None:
    started = time.monotonic()
    waiting = client.send(fetch_request(topic, max_wait_ms=400, min_bytes=1_000_000), 12)
    first = client.send(produce_request(topic, batch(b"a")), 9)
    second = client.send(produce_request(topic, batch(b"b")), 9)
    responses = [client.receive(FetchRequest, 12, FetchResponse)]
    assert time.monotonic() - started > 0.3
    responses += [client.receive(ProduceRequest, 9, ProduceResponse) for _ in range(2)]
    assert [correlation_id for correlation_id, _ in responses] == [waiting, first, second]
    assert [item.responses[0].partition_responses[0].base_offset for _, item in responses[1:]] == [0, 1]
    assert len(read_columns(responses[0][1].responses[0].partitions[0].records)) == 2


def test_waiting_fetch_completes_when_min_bytes_are_available(
    broker: BrokerProcess, client: RawClient, topic: str
) -> None:
    sent = client.send(fetch_request(topic, max_wait_ms=120_000, min_bytes=150), 12)
    with RawClient(broker.address) as producer:
        produce(producer, topic, batch(b"x" * 50))
        client.socket.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.socket.recv(1)
        client.socket.settimeout(60)
        produce(producer, topic, batch(b"y" * 50))
    correlation_id, response = client.receive(FetchRequest, 12, FetchResponse)
    assert correlation_id == sent
    assert read_columns(response.responses[0].partitions[0].records).values == [b"x" * 50, b"y" * 50]


def test_waiting_fetch_completes_when_its_topic_is_deleted(
    broker: BrokerProcess, client: RawClient, topic: str
) -> None:
    client.send(fetch_request(topic, max_wait_ms=120_000), 12)
    with RawClient(broker.address) as admin:
        admin.call(DeleteTopicsRequest(topic_names=[topic], timeout_ms=1000), 5)
    client.socket.settimeout(60)
    _, response = client.receive(FetchRequest, 12, FetchResponse)
    assert response.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_produce_request_with_acks_0_receives_no_response(broker: BrokerProcess, client: RawClient, topic: str) -> None:
    """If the request fails, the broker closes the connection."""
    client.send(produce_request(topic, batch(b"silent"), acks=0), 9)
    assert fetch(client, topic)[1].count(b"silent") == 1
    with RawClient(broker.address) as doomed:
        doomed.send(produce_request("no-such-topic", batch(b"x"), acks=0), 9)
        assert doomed.is_closed()


# -- Produce ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3, 13))
@pytest.mark.parametrize("acks", [1, -1])
def test_produce_request_of_every_version_appends_records(
    client: RawClient, topic: str, version: int, acks: int
) -> None:
    assert produce(client, topic, batch(b"a", b"b"), version=version, acks=acks) == [(0, 0)]
    assert produce(client, topic, batch(b"c"), version=version, acks=acks) == [(0, 2)]
    assert read_columns(fetch(client, topic)[1]).values == [b"a", b"b", b"c"]


def test_produce_and_fetch_by_topic_id_succeed_and_an_unknown_topic_id_is_rejected(client: RawClient) -> None:
    topic_id = create_topic(client, "by-id")
    data = [PartitionProduceData(index=0, records=batch(b"x"))]
    request = ProduceRequest(
        acks=1, timeout_ms=1000, topic_data=[TopicProduceData(topic_id=topic_id, partition_data=data)]
    )
    response = client.call(request, 13).responses[0]
    assert (response.topic_id, response.partition_responses[0].error_code) == (topic_id, 0)
    wanted = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)]
    found = client.call(FetchRequest(topics=[FetchTopic(topic_id=topic_id, partitions=wanted)]), 17).responses[0]
    assert read_columns(found.partitions[0].records).values == [b"x"]
    request.topic_data[0].topic_id = bytes(15) + b"\1"
    assert client.call(request, 13).responses[0].partition_responses[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_next_request_of_a_fetch_session_completes_the_waiting_fetch_of_the_session(client: RawClient) -> None:
    topic_id = create_topic(client, "hastened")
    wanted = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)]
    request = FetchRequest(session_epoch=0, min_bytes=1, topics=[FetchTopic(topic_id=topic_id, partitions=wanted)])
    session_id = client.call(request, 17).session_id
    assert session_id > 0
    following = FetchRequest(session_id=session_id, min_bytes=1, max_wait_ms=120_000, topics=[])
    sent = []
    for epoch, max_bytes in ((1, 1000), (2, 0)):
        following.session_epoch, following.max_bytes = epoch, max_bytes
        following.max_wait_ms = 120_000 if max_bytes else 0
        sent.append(client.send(following, 17))
    client.socket.settimeout(60)
    responses = [client.receive(FetchRequest, 17, FetchResponse) for _ in sent]
    assert [correlation_id for correlation_id, _ in responses] == sent
    assert [(response.error_code, response.responses) for _, response in responses] == [(0, []), (0, [])]


def test_fetch_session_can_start_with_more_than_1000_partitions(client: RawClient) -> None:
    topic_id = create_topic(client, "one-of-many")
    wanted = [FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1000) for index in range(1001)]
    request = FetchRequest(session_epoch=0, topics=[FetchTopic(topic_id=topic_id, partitions=wanted)])
    assert len(client.frame(request, 17)) > 32 * 1024
    opened = client.call(request, 17)
    assert opened.session_id > 0
    errors = [item.error_code for item in opened.responses[0].partitions]
    assert errors == [ErrorCode.NONE] + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 1000
    with_records = FetchRequest(session_id=opened.session_id, session_epoch=1, topics=[])
    with_records.forgotten_topics_data = [ForgottenTopic(topic_id=topic_id, partitions=list(range(1, 1001)))]
    produce(client, "one-of-many", batch(b"x"))
    (found,) = client.call(with_records, 17).responses[0].partitions
    assert read_columns(found.records).values == [b"x"]


def corrupt(position: int, value: int) -> bytearray:
    data = batch(b"hello")
    data[position] = value
    return data


@pytest.mark.parametrize(
    ("records", "code"),
    [
        (corrupt(65, 0xEE), ErrorCode.CORRUPT_MESSAGE),
        (corrupt(16, 1), ErrorCode.INVALID_RECORD),
        (batch(b"x", base_offset=5), ErrorCode.INVALID_RECORD),
        (batch(b"x") + batch(b"y"), ErrorCode.INVALID_RECORD),
        (batch(b"x")[:-1], ErrorCode.CORRUPT_MESSAGE),
        (bytearray(b"short"), ErrorCode.CORRUPT_MESSAGE),
        (bytearray(), ErrorCode.CORRUPT_MESSAGE),
        (batch(bytes(1_100_000)), ErrorCode.MESSAGE_TOO_LARGE),
        (batch(b"x", timestamp=2**62), ErrorCode.INVALID_TIMESTAMP),
    ],
)
def test_invalid_batch_is_rejected_without_affecting_other_partitions_of_the_produce_request(
    client: RawClient, records: bytearray, code: ErrorCode
) -> None:
    name = f"bad-{time.monotonic_ns()}"
    create_topic(client, name, partitions=2)
    assert produce(client, name, records, batch(b"good")) == [(code, -1), (0, 0)]
    assert fetch(client, name) == (0, b"")
    assert read_columns(fetch(client, name, partition=1)[1]).values == [b"good"]


def test_produce_request_for_an_unknown_partition_or_with_invalid_acks_or_in_a_transaction_is_rejected(
    client: RawClient, topic: str
) -> None:
    assert produce(client, topic, batch(b"x"), partition=7) == [(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, -1)]
    assert produce(client, topic, batch(b"x"), acks=2) == [(ErrorCode.INVALID_REQUIRED_ACKS, -1)]
    assert produce(client, topic, batch(b"x", compression=4), version=6) == [
        (ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, -1)
    ]
    transactional = batch(b"x", is_transactional=True, producer_id=9, producer_epoch=0, base_sequence=0)
    assert produce(client, topic, transactional) == [(ErrorCode.INVALID_TXN_STATE, -1)]
    rejected = client.call(InitProducerIdRequest(transactional_id="t", transaction_timeout_ms=1000), 4)
    assert rejected.error_code == ErrorCode.INVALID_TXN_STATE


def test_produce_of_keyless_records_to_a_compacted_topic_returns_an_error_for_each_record(client: RawClient) -> None:
    create_topic(client, "compacted", cleanup_policy="compact")
    response = client.call(produce_request("compacted", batch(b"a", b"b")), 9).responses[0].partition_responses[0]
    assert response.error_code == ErrorCode.INVALID_RECORD
    assert [item.batch_index for item in response.record_errors] == [0, 1]


def test_batches_that_an_idempotent_producer_sends_again_are_not_appended_again(client: RawClient, topic: str) -> None:
    producer = client.call(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), 4)
    assert producer.error_code == 0
    other = client.call(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1000), 4)
    assert other.producer_id != producer.producer_id

    def send(sequence: int, *values: bytes) -> tuple[int, int]:
        records = batch(
            *values, producer_id=producer.producer_id, producer_epoch=producer.producer_epoch, base_sequence=sequence
        )
        return produce(client, topic, records)[0]

    assert [send(0, b"a"), send(1, b"b", b"c"), send(3, b"d")] == [(0, 0), (0, 1), (0, 3)]
    assert [send(1, b"b", b"c"), send(3, b"d")] == [(0, 1), (0, 3)]
    assert send(9, b"gap") == (ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, -1)
    assert read_columns(fetch(client, topic)[1]).values == [b"a", b"b", b"c", b"d"]


# -- Fetch --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(4, 13))
def test_fetch_request_of_every_version_returns_records(client: RawClient, topic: str, version: int) -> None:
    produce(client, topic, batch(b"a"))
    error, records = fetch(client, topic, version=version)
    assert (error, read_columns(records).values) == (0, [b"a"])


def test_fetch_returns_the_complete_batch_at_the_fetch_offset_even_if_the_batch_exceeds_max_bytes(
    client: RawClient, topic: str
) -> None:
    produce(client, topic, batch(b"a" * 1000, b"b" * 1000, b"c" * 1000))
    produce(client, topic, batch(b"d" * 1000))
    error, records = fetch(client, topic, 1, max_bytes=10, partition_max_bytes=10)
    assert error == 0
    assert [(header.base_offset, header.last_offset) for _, header in iter_batches(records)] == [(0, 2)]
    assert read_columns(records, 1).values == [b"b" * 1000, b"c" * 1000]


def test_fetch_max_bytes_limits_the_total_response_size_of_all_partitions(client: RawClient) -> None:
    create_topic(client, "wide", partitions=3)
    produce(client, "wide", *[batch(b"x" * 1000) for _ in range(3)])
    wanted = [FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=5000) for index in range(3)]
    request = FetchRequest(max_bytes=1500, topics=[FetchTopic(topic="wide", partitions=wanted)])
    sizes = [len(item.records) for item in client.call(request, 12).responses[0].partitions]
    assert sizes[0] > 1000
    assert sum(sizes) <= 1500 + sizes[0]


def test_offset_out_of_range_response_contains_the_high_watermark(client: RawClient, topic: str) -> None:
    produce(client, topic, batch(b"a"))
    partition = client.call(fetch_request(topic, 2), 12).responses[0].partitions[0]
    assert (partition.error_code, partition.high_watermark) == (ErrorCode.OFFSET_OUT_OF_RANGE, 1)
    assert fetch(client, topic, 1) == (0, b"")


def test_fetch_request_with_unknown_leader_epoch_fails_and_offset_for_leader_epoch_request_returns_end_offset(
    client: RawClient, topic: str
) -> None:
    produce(client, topic, batch(b"a"))
    request = fetch_request(topic)
    request.topics[0].partitions[0].current_leader_epoch = 5
    response = client.call(request, 12).responses[0].partitions[0]
    assert response.error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
    requested = OffsetForLeaderPartition(partition=0, current_leader_epoch=-1, leader_epoch=0)
    epochs = client.call(
        OffsetForLeaderEpochRequest(replica_id=-1, topics=[OffsetForLeaderTopic(topic=topic, partitions=[requested])]),
        4,
    )
    found = epochs.topics[0].partitions[0]
    assert (found.error_code, found.leader_epoch, found.end_offset) == (0, 0, 1)


def test_full_fetch_without_a_session_returns_records_and_a_fetch_with_an_unknown_session_id_fails(
    client: RawClient, topic: str
) -> None:
    produce(client, topic, batch(b"a"))
    opened = client.call(fetch_request(topic, session_epoch=0), 12)
    assert (opened.error_code, opened.session_id) == (0, 0)
    assert len(read_columns(opened.responses[0].partitions[0].records)) == 1
    unknown = client.call(fetch_request(topic, session_id=42, session_epoch=3), 12)
    assert unknown.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


# -- offsets and records ------------------------------------------------------------------------------------------


def test_list_offsets_returns_offsets_for_special_timestamps_and_for_record_timestamps(
    client: RawClient, topic: str
) -> None:
    base = 1_700_000_000_000
    for number in range(5):
        produce(client, topic, batch(b"x", timestamp=base + 10 * number))
    assert list_offset(client, topic, -1) == (0, -1, 5)
    assert list_offset(client, topic, -2) == (0, -1, 0)
    assert list_offset(client, topic, -3) == (0, base + 40, 4)
    assert list_offset(client, topic, base + 15) == (0, base + 20, 2)
    assert list_offset(client, topic, base + 99) == (0, -1, -1)
    assert list_offset(client, topic, -3, version=6)[0] == ErrorCode.UNSUPPORTED_VERSION


def test_delete_records_advances_the_log_start_offset(client: RawClient, topic: str) -> None:
    for _ in range(3):
        produce(client, topic, batch(b"x"))

    def delete(offset: int) -> tuple[int, int]:
        wanted = DeleteRecordsTopic(name=topic, partitions=[DeleteRecordsPartition(partition_index=0, offset=offset)])
        found = client.call(DeleteRecordsRequest(topics=[wanted], timeout_ms=1000), 2).topics[0].partitions[0]
        return found.error_code, found.low_watermark

    assert delete(2) == (0, 2)
    assert list_offset(client, topic, -2) == (0, -1, 2)
    assert fetch(client, topic, 0)[0] == ErrorCode.OFFSET_OUT_OF_RANGE
    assert delete(9)[0] == ErrorCode.OFFSET_OUT_OF_RANGE
    assert delete(-1) == (0, 3)


# -- topics -------------------------------------------------------------------------------------------------------


def metadata(client: RawClient, *names: str, create: bool = False, version: int = 12) -> list[tuple[str, int, int]]:
    """Send a Metadata request. Return (name, error code, number of partitions) for each topic.

    `create` allows the broker to create missing topics.
    """
    topics = [MetadataRequestTopic(name=name) for name in names]
    response = client.call(MetadataRequest(topics=topics, allow_auto_topic_creation=create), version)
    return [(item.name, item.error_code, len(item.partitions)) for item in response.topics]


def test_metadata_request_creates_topics_only_with_allow_auto_topic_creation(client: RawClient) -> None:
    assert metadata(client, "auto") == [("auto", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, 0)]
    assert metadata(client, "auto", "bad name", create=True) == [
        ("auto", 0, 1),
        ("bad name", ErrorCode.INVALID_TOPIC_EXCEPTION, 0),
    ]


def test_metadata_request_may_ask_for_all_topics_or_for_no_topics_or_for_topic_ids(
    client: RawClient, broker: BrokerProcess
) -> None:
    topic_id = create_topic(client, "known")
    everything = client.call(MetadataRequest(topics=None), 12)
    assert "known" in {item.name for item in everything.topics}
    assert client.call(MetadataRequest(topics=[]), 12).topics == []
    assert "known" in {item.name for item in client.call(MetadataRequest(topics=[]), 0).topics}
    for name in (None, ""):  # Java clients send an empty name with a topic id
        by_id = client.call(MetadataRequest(topics=[MetadataRequestTopic(name=name, topic_id=topic_id)]), 12)
        assert (by_id.topics[0].name, by_id.topics[0].topic_id) == ("known", topic_id)
    for wanted in (MetadataRequestTopic(name="known", topic_id=bytes(16 * [7])), MetadataRequestTopic(name="known")):
        # In version 11, the broker ignores the topic id of a topic that has a name.
        assert client.call(MetadataRequest(topics=[wanted]), 11).topics[0].error_code == 0
    nameless = client.call(MetadataRequest(topics=[MetadataRequestTopic(name=None, topic_id=bytes(16 * [7]))]), 11)
    assert nameless.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert [(item.node_id, item.host, item.port) for item in everything.brokers] == [(1, broker.host, broker.port)]
    assert everything.controller_id == 1
    assert client.call(DescribeClusterRequest(), 1).cluster_id == everything.cluster_id


def test_recreated_topic_has_a_new_id_and_no_old_records(client: RawClient) -> None:
    """Rule R12 in docs/broker.md: a fetch with the old topic id fails with UNKNOWN_TOPIC_ID."""
    old_id = create_topic(client, "phoenix")
    produce(client, "phoenix", batch(b"old"))
    removed = client.call(DeleteTopicsRequest(topics=[DeleteTopicState(name=None, topic_id=old_id)], timeout_ms=1), 6)
    assert (removed.responses[0].error_code, removed.responses[0].name) == (0, "phoenix")
    new_id = create_topic(client, "phoenix")
    assert new_id != old_id
    assert fetch(client, "phoenix") == (0, b"")
    wanted = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1000)]
    by_old_id = client.call(FetchRequest(topics=[FetchTopic(topic_id=old_id, partitions=wanted)]), 13)
    assert by_old_id.responses[0].partitions[0].error_code == ErrorCode.UNKNOWN_TOPIC_ID


def test_altered_topic_configs_are_described_and_take_effect(client: RawClient, topic: str) -> None:
    def alter(name: str, value: str | None, operation: int = 0) -> tuple[int, str | None]:
        config = AlterableConfig(name=name, config_operation=operation, value=value)
        resource = AlterConfigsResource(resource_type=2, resource_name=topic, configs=[config])
        response = client.call(IncrementalAlterConfigsRequest(resources=[resource], validate_only=False), 1).responses[
            0
        ]
        return response.error_code, response.error_message

    def describe(name: str) -> tuple[str, int]:
        resource = DescribeConfigsResource(resource_type=2, resource_name=topic, configuration_keys=[name])
        config = (
            client.call(DescribeConfigsRequest(resources=[resource], include_synonyms=True), 4).results[0].configs[0]
        )
        return config.value, config.config_source

    assert describe("max.message.bytes") == ("1048588", 5)
    assert alter("max.message.bytes", "100") == (0, None)
    assert describe("max.message.bytes") == ("100", 1)
    assert produce(client, topic, batch(b"x" * 200)) == [(ErrorCode.MESSAGE_TOO_LARGE, -1)]
    assert alter("max.message.bytes", None, 1) == (0, None)
    assert produce(client, topic, batch(b"x" * 200)) == [(0, 0)]
    assert alter("cleanup.policy", "compact", 2) == (0, None)
    assert describe("cleanup.policy") == ("delete,compact", 1)
    code, message = alter("max.message.byte", "1")
    assert code == ErrorCode.INVALID_CONFIG
    assert "max.message.bytes" in (message or "")


@pytest.mark.parametrize("version", [0, 1, 2])
def test_describe_quorum_supports_every_version(client: RawClient, version: int) -> None:
    """Clients before Kafka 3.9 support only versions 0 and 1."""
    requested = DescribeQuorumRequestPartitionData(partition_index=0)
    topic = DescribeQuorumRequestTopicData(topic_name="__cluster_metadata", partitions=[requested])
    response = client.call(DescribeQuorumRequest(topics=[topic]), version)
    assert len(response.topics[0].partitions[0].current_voters) == 1


def test_find_coordinator_finds_coordinators_of_groups_but_not_of_transactions(
    client: RawClient, broker: BrokerProcess
) -> None:
    one = client.call(FindCoordinatorRequest(key="group", key_type=0), 2)
    assert (one.error_code, one.node_id, one.port) == (0, 1, broker.port)
    many = client.call(FindCoordinatorRequest(coordinator_keys=["a", "b"], key_type=0), 4).coordinators
    assert [(item.key, item.error_code, item.node_id) for item in many] == [("a", 0, 1), ("b", 0, 1)]
    transaction = client.call(FindCoordinatorRequest(key="t", key_type=1), 3)
    assert transaction.error_code == ErrorCode.INVALID_TXN_STATE
    assert "ransaction" in (transaction.error_message or "")
