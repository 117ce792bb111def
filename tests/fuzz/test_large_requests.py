"""Tests that extremely large requests use a limited amount of memory and do not block other clients."""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages import OffsetCommitRequest, OffsetFetchRequest
from headrace_broker.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from headrace_broker.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from headrace_broker.protocol.messages.find_coordinator import FindCoordinatorRequest
from headrace_broker.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from headrace_broker.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from headrace_broker.protocol.messages.offset_commit import OffsetCommitRequestPartition, OffsetCommitRequestTopic
from headrace_broker.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from support.broker import BrokerProcess, running_broker
from support.cpu_time import measured_blocking, not_blocked
from support.raw_client import RawClient, batch, create_topic, fetch_request, produce_request

pytestmark = [pytest.mark.integration, pytest.mark.timed]

ATTEMPTS = 5
BLOCKED_BY_SPLIT_REQUEST_LOOPS_MAX = 6
BLOCKED_LOOPS_MAX = 50
"""The CPU times that the broker may use before it responds to another client, in units of `support.cpu_time`.

The event loop switches between clients after the time of about two loops, but worker threads may run longer.
"""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    bounds = {"queued_max_request_bytes": "20000000", "socket_request_max_bytes": "10000000"}
    with running_broker(tmp_path_factory.mktemp("large"), **bounds) as process:
        with RawClient(process.address) as client:
            create_topic(client, "t", partitions=20)
            create_topic(client, "probe")
            client.call(FindCoordinatorRequest(key="g", key_type=0), 3)
        yield process


def other_clients_not_blocked(broker: BrokerProcess) -> AbstractContextManager[None]:
    return not_blocked(broker.address, broker.pid, request_metadata, BLOCKED_LOOPS_MAX)


def request_metadata(client: RawClient) -> None:
    client.call(MetadataRequest(topics=[MetadataRequestTopic(name="probe")]), 9)


def fetch_of_many(count: int, topic: str) -> FetchRequest:
    partitions = [FetchPartition(partition=index % 20, partition_max_bytes=1000) for index in range(count)]
    return FetchRequest(
        max_wait_ms=0, min_bytes=0, max_bytes=1000, topics=[FetchTopic(topic=topic, partitions=partitions)]
    )


def test_fetch_request_with_more_partitions_than_exist_is_rejected_without_blocking_other_clients(
    broker: BrokerProcess,
) -> None:
    with RawClient(broker.address) as client, other_clients_not_blocked(broker):
        response = client.call(fetch_of_many(200_000, "t"), 12)
        assert response.error_code == ErrorCode.INVALID_REQUEST
        assert client.call(fetch_of_many(200, "t"), 12).error_code == 0
        client.send(fetch_of_many(200_000, "t"), 4)  # responses of version 4 have no top-level error code
        assert client.is_closed()


def test_produce_request_with_more_partitions_than_exist_is_rejected_without_blocking_other_clients(
    broker: BrokerProcess,
) -> None:
    parts = [PartitionProduceData(index=index, records=None) for index in range(500_000)]
    request = ProduceRequest(acks=1, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=parts)])
    with RawClient(broker.address) as client:
        data = client.frame(request, 9)
        with other_clients_not_blocked(broker):
            client.socket.sendall(data)
            assert client.is_closed()


def commit_of_many() -> OffsetCommitRequest:
    partitions = [
        OffsetCommitRequestPartition(partition_index=index % 20, committed_offset=index) for index in range(50_000)
    ]
    topics = [OffsetCommitRequestTopic(name="t", partitions=partitions)]
    return OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, topics=topics)


def list_of_many() -> ListOffsetsRequest:
    partitions = [ListOffsetsPartition(partition_index=index, timestamp=-1) for index in range(100_000)]
    return ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=partitions)])


def fetch_offsets_of_many() -> OffsetFetchRequest:
    from headrace_broker.protocol.messages.offset_fetch import OffsetFetchRequestTopic

    topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[index % 20 for index in range(100_000)])]
    return OffsetFetchRequest(group_id="g", topics=topics)


def metadata_of_many() -> MetadataRequest:
    topics = [MetadataRequestTopic(name=f"no-{index}") for index in range(100_000)]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=False)


def count_partitions(response: object) -> int:
    return sum(len(topic.partitions) for topic in response.topics)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("make", "version", "count", "expected"),
    [
        (commit_of_many, 8, count_partitions, 50_000),
        (list_of_many, 6, count_partitions, 100_000),
        (fetch_offsets_of_many, 6, count_partitions, 100_000),
        (metadata_of_many, 9, lambda response: len(response.topics), 100_000),
    ],
)
def test_large_request_receives_a_complete_response_and_does_not_block_other_clients(
    broker: BrokerProcess, make: Callable[[], object], version: int, count: Callable[[object], int], expected: int
) -> None:
    """A request that is not split would block other clients for the time of eight to fifteen loops in each attempt."""
    request = make()
    for _ in range(ATTEMPTS):
        with RawClient(broker.address, timeout_s=60) as client:
            data = client.frame(request, version)  # type: ignore[arg-type]
            with measured_blocking(broker.address, broker.pid, request_metadata) as blocking:
                client.socket.sendall(data)
                frame = client.receive_frame()
            response = client.decode(frame, request, version)  # type: ignore[arg-type]
        if blocking.loops < BLOCKED_BY_SPLIT_REQUEST_LOOPS_MAX:
            break
    assert blocking.loops < BLOCKED_BY_SPLIT_REQUEST_LOOPS_MAX
    assert count(response) == expected
    if hasattr(response, "topics") and expected == 100_000 and version == 6:
        assert len(response.topics) == 1  # one entry per topic, as in the request


def test_creation_of_a_thousand_topics_does_not_block_other_clients(broker: BrokerProcess) -> None:
    prefix = f"many-{time.monotonic_ns()}"  # the test may be repeated with the same broker
    topics = [CreatableTopic(name=f"{prefix}-{index}", num_partitions=1, replication_factor=1) for index in range(1000)]
    topics.append(CreatableTopic(name=f"{prefix}-7", num_partitions=1, replication_factor=1))
    with RawClient(broker.address, timeout_s=60) as client, other_clients_not_blocked(broker):
        response = client.call(CreateTopicsRequest(topics=topics, timeout_ms=30_000), 5)
        assert len([topic for topic in response.topics if not topic.error_code]) == 999
        assert {topic.name for topic in response.topics if topic.error_code} == {f"{prefix}-7"}
        everything = client.call(MetadataRequest(topics=None), 9)
        assert len(everything.topics) >= 1000


def test_creation_of_a_topic_with_600_partitions_does_not_delay_creation_of_another_topic(
    broker: BrokerProcess,
) -> None:
    """The small topic is complete before the large one, unless the small request is sent too late: then try again."""
    with RawClient(broker.address, timeout_s=60) as large, RawClient(broker.address, timeout_s=60) as small:
        assert any(small_topic_is_complete_first(large, small, attempt) for attempt in range(ATTEMPTS))


def small_topic_is_complete_first(large: RawClient, small: RawClient, attempt: int) -> bool:
    """Create a large topic and then a small one. Return whether the broker responds to the second request first."""
    name = f"{attempt}-{time.monotonic_ns()}"  # the test may be repeated with the same broker
    many = CreatableTopic(name=f"wide-{name}", num_partitions=600, replication_factor=1)
    large.send(CreateTopicsRequest(topics=[many], timeout_ms=30_000), 5)
    request = MetadataRequest(topics=[MetadataRequestTopic(name=many.name)], allow_auto_topic_creation=False)
    while not small.call(request, 9).topics[0].partitions:
        time.sleep(0.001)
    create_topic(small, f"narrow-{name}")
    is_first = not select.select([large.socket], [], [], 0)[0]  # the logs of the large topic are still being created
    response = small.call(produce_request(f"narrow-{name}", batch(b"x")), 9).responses[0].partition_responses[0]
    assert response.error_code == 0
    _, created = large.receive(CreateTopicsRequest, 5, CreateTopicsResponse)
    assert created.topics[0].error_code == 0
    return is_first


def send_some(connection: socket.socket, data: memoryview) -> memoryview:
    """Send as much as the connection accepts without waiting. Return the rest."""
    try:
        while data:
            data = data[connection.send(data) :]
    except BlockingIOError:
        pass  # the send buffer is full
    return data


@pytest.mark.slow
def test_broker_limits_the_memory_of_incomplete_requests_and_disconnects_stalled_clients(
    broker: BrokerProcess,
) -> None:
    """Ten clients do not finish sending a large request. Requests of other clients succeed."""
    with RawClient(broker.address, timeout_s=60) as normal:
        before = broker.resident_bytes
        stalled = [socket.create_connection((broker.host, broker.port)) for _ in range(10)]
        size = 9_900_000
        unsent = [memoryview(struct.pack(">i", size) + bytes(size - 1)) for _ in stalled]
        for connection in stalled:
            connection.setblocking(False)
        rounds_without_progress = 0
        while rounds_without_progress < 50:  # the broker no longer reads from any of the connections
            rest = [send_some(connection, data) for connection, data in zip(stalled, unsent, strict=True)]
            rounds_without_progress = 0 if rest != unsent else rounds_without_progress + 1
            unsent = rest
            time.sleep(0.02)
        assert broker.resident_bytes - before < 60_000_000  # memory limit, one request, and 256 KB for each connection
        normal.call(produce_request("probe", batch(bytes(500_000))), 9)
        response = normal.call(produce_request("probe", batch(bytes(900_000))), 9)
        assert response.responses[0].partition_responses[0].error_code == 0
        large = batch(bytes(1_000_000))
        for _ in range(3):
            normal.call(produce_request("probe", large), 9)
        found = normal.call(fetch_request("probe", 0), 12).responses[0].partitions[0]
        assert found.error_code == 0
        with RawClient(broker.address, timeout_s=60) as waiting:
            partitions = [
                OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="x" * 4000)
                for _ in range(2300)
            ]
            topics = [OffsetCommitRequestTopic(name="t", partitions=partitions)]
            request = OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, topics=topics)
            assert count_partitions(waiting.call(request, 8)) == 2300
        assert "queued.max.request.bytes" in broker.log
        for connection in stalled:
            connection.close()
