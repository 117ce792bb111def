"""Requests of a size that no client needs: they take their turn and their share of memory, and neighbours go on."""

from __future__ import annotations

import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

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
from support.raw_client import RawClient, batch, create_topic, fetch_request, produce_request

pytestmark = pytest.mark.integration

HOLD_S_MAX = 0.25
"""What the broker works on before it answers somebody else; its loop gives way every 20 ms, the threads beside it do
not have to. Processor time, because on a busy machine a probe waits for others than the broker."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    bounds = {"queued_max_request_bytes": "20000000", "socket_request_max_bytes": "10000000"}
    with running_broker(tmp_path_factory.mktemp("large"), **bounds) as process:
        with RawClient(process.address) as client:
            create_topic(client, "t", partitions=20)
            create_topic(client, "probe")
            client.call(FindCoordinatorRequest(key="g", key_type=0), 3)
        yield process


@contextmanager
def never_held(broker: BrokerProcess) -> Iterator[list[float]]:
    """Ask small things all the while; none of the answers may take long."""
    took_s: list[float] = []
    stop = threading.Event()

    def ask() -> None:
        with RawClient(broker.address) as client:
            request = MetadataRequest(topics=[MetadataRequestTopic(name="probe")])
            while not stop.is_set():
                started_s, worked_s = time.perf_counter(), processor_s(broker.pid)
                client.call(request, 9)
                took_s.append(min(time.perf_counter() - started_s, processor_s(broker.pid) - worked_s))
                stop.wait(0.005)

    prober = threading.Thread(target=ask)
    prober.start()
    try:
        yield took_s
    finally:
        stop.set()
        prober.join()
    assert took_s
    assert max(took_s) < HOLD_S_MAX, f"held for {max(took_s) * 1000:.0f} ms"


def processor_s(pid: int) -> float:
    """Processor time of all threads of a process, to the nanosecond."""
    return sum(int(file.read_text().split()[0]) for file in Path(f"/proc/{pid}/task").glob("*/schedstat")) / 1e9


def fetch_of_many(count: int, topic: str) -> FetchRequest:
    partitions = [FetchPartition(partition=index % 20, partition_max_bytes=1000) for index in range(count)]
    return FetchRequest(
        max_wait_ms=0, min_bytes=0, max_bytes=1000, topics=[FetchTopic(topic=topic, partitions=partitions)]
    )


def test_a_fetch_of_more_partitions_than_there_are_is_refused(broker: BrokerProcess) -> None:
    with RawClient(broker.address) as client, never_held(broker):
        answer = client.call(fetch_of_many(200_000, "t"), 12)
        assert answer.error_code == ErrorCode.INVALID_REQUEST
        assert client.call(fetch_of_many(200, "t"), 12).error_code == 0
        client.send(fetch_of_many(200_000, "t"), 4)  # has no place for an error of the whole
        assert client.is_closed()


def test_a_produce_of_more_partitions_than_there_are_is_refused(broker: BrokerProcess) -> None:
    parts = [PartitionProduceData(index=index, records=None) for index in range(500_000)]
    request = ProduceRequest(acks=1, timeout_ms=1000, topic_data=[TopicProduceData(name="t", partition_data=parts)])
    with RawClient(broker.address) as client:
        data = client.frame(request, 9)
        with never_held(broker):
            client.socket.sendall(data)
            assert client.is_closed()


def commit_of_many() -> OffsetCommitRequest:
    partitions = [
        OffsetCommitRequestPartition(partition_index=index % 20, committed_offset=index) for index in range(50_000)
    ]
    topics = [OffsetCommitRequestTopic(name="t", partitions=partitions)]
    return OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, topics=topics)


def list_of_many() -> ListOffsetsRequest:
    partitions = [ListOffsetsPartition(partition_index=index % 25, timestamp=-1) for index in range(100_000)]
    return ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=partitions)])


def fetch_offsets_of_many() -> OffsetFetchRequest:
    from headrace_broker.protocol.messages.offset_fetch import OffsetFetchRequestTopic

    topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[index % 20 for index in range(100_000)])]
    return OffsetFetchRequest(group_id="g", topics=topics)


def metadata_of_many() -> MetadataRequest:
    topics = [MetadataRequestTopic(name=f"no-{index}") for index in range(100_000)]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=False)


def count_parts(answer: object) -> int:
    return sum(len(topic.partitions) for topic in answer.topics)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("make", "version", "count", "expected"),
    [
        (commit_of_many, 8, count_parts, 50_000),
        (list_of_many, 6, count_parts, 100_000),
        (fetch_offsets_of_many, 6, count_parts, 100_000),
        (metadata_of_many, 9, lambda answer: len(answer.topics), 100_000),
    ],
)
def test_large_requests_are_answered_whole_and_hold_nobody(
    broker: BrokerProcess, make: Callable[[], object], version: int, count: Callable[[object], int], expected: int
) -> None:
    request = make()
    with RawClient(broker.address, timeout_s=60) as client:
        data = client.frame(request, version)  # type: ignore[arg-type]
        with never_held(broker):
            client.socket.sendall(data)
            frame = client.receive_frame()
        answer = client.decode(frame, request, version)  # type: ignore[arg-type]
    assert count(answer) == expected
    if hasattr(answer, "topics") and expected == 100_000 and version == 6:
        assert len(answer.topics) == 1  # one entry per topic, as it was asked


def test_many_topics_in_one_request_hold_nobody(broker: BrokerProcess) -> None:
    topics = [CreatableTopic(name=f"many-{index}", num_partitions=1, replication_factor=1) for index in range(1000)]
    topics.append(CreatableTopic(name="many-7", num_partitions=1, replication_factor=1))
    with RawClient(broker.address, timeout_s=60) as client, never_held(broker):
        answer = client.call(CreateTopicsRequest(topics=topics, timeout_ms=30_000), 5)
        assert len([topic for topic in answer.topics if not topic.error_code]) == 999
        assert {topic.name for topic in answer.topics if topic.error_code} == {"many-7"}
        everything = client.call(MetadataRequest(topics=None), 9)
        assert len(everything.topics) >= 1000


def test_a_topic_of_many_partitions_holds_up_no_other_topic(broker: BrokerProcess) -> None:
    many = CreatableTopic(name="wide", num_partitions=2000, replication_factor=1)
    with RawClient(broker.address, timeout_s=60) as large, RawClient(broker.address, timeout_s=60) as small:
        large.send(CreateTopicsRequest(topics=[many], timeout_ms=30_000), 5)
        asked = MetadataRequest(topics=[MetadataRequestTopic(name="wide")], allow_auto_topic_creation=False)
        while not small.call(asked, 9).topics[0].partitions:
            time.sleep(0.001)
        create_topic(small, "narrow")
        assert not select.select([large.socket], [], [], 0)[0]  # its logs are still being made
        answer = small.call(produce_request("narrow", batch(b"x")), 9).responses[0].partition_responses[0]
        assert answer.error_code == 0
        _, created = large.receive(CreateTopicsRequest, 5, CreateTopicsResponse)
        assert created.topics[0].error_code == 0


def test_half_sent_large_requests_share_a_bound_and_are_cut_off(broker: BrokerProcess) -> None:
    with RawClient(broker.address, timeout_s=60) as polite:
        before = broker.resident_bytes
        held = [socket.create_connection((broker.host, broker.port)) for _ in range(10)]
        size = 9_900_000
        for connection in held:
            connection.setblocking(False)
            left = memoryview(struct.pack(">i", size) + bytes(size - 1))
            deadline_s = time.monotonic() + 0.3
            while left and time.monotonic() < deadline_s:
                try:
                    left = left[connection.send(left) :]
                except BlockingIOError:
                    time.sleep(0.002)  # the broker reads on, or never will
        assert broker.resident_bytes - before < 60_000_000  # the bound, one request, and 256 KB for each
        polite.call(produce_request("probe", batch(bytes(500_000))), 9)
        answer = polite.call(produce_request("probe", batch(bytes(900_000))), 9)
        assert answer.responses[0].partition_responses[0].error_code == 0
        large = batch(bytes(1_000_000))
        for _ in range(3):
            polite.call(produce_request("probe", large), 9)
        found = polite.call(fetch_request("probe", 0), 12).responses[0].partitions[0]
        assert found.error_code == 0
        with RawClient(broker.address, timeout_s=60) as patient:
            partitions = [
                OffsetCommitRequestPartition(partition_index=0, committed_offset=1, committed_metadata="x" * 4000)
                for _ in range(2300)
            ]
            topics = [OffsetCommitRequestTopic(name="t", partitions=partitions)]
            request = OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, topics=topics)
            assert count_parts(patient.call(request, 8)) == 2300
        assert "queued.max.request.bytes" in broker.log
        for connection in held:
            connection.close()
