"""Tests of Produce requests whose batches a thread checks: order, acks=0, deleted topics, and other clients."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator

import cramjam
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from headrace_broker.protocol.messages.produce import ProduceRequest, ProduceResponse
from headrace_broker.records.compression import Compression, compress
from headrace_broker.records.reader import read_columns
from headrace_broker.records.varint import encode_varint
from headrace_broker.server.record_validator import BUFFER_BYTES, INLINE_BYTES
from support.broken_batches import batch_of_payload, compressed_batch, records
from support.broker import BrokerProcess, running_broker
from support.raw_client import RawClient, batch, create_topic, fetch_request, produce_request

pytestmark = pytest.mark.wire

CODECS = [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD]


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path_factory.mktemp("validation"), message_max_bytes="10000000") as running:
        yield running


@pytest.fixture
def client(broker: BrokerProcess) -> Iterator[RawClient]:
    with RawClient(broker.address) as connected:
        yield connected


def large_batch(tag: int, codec: Compression = Compression.LZ4) -> bytearray:
    """Build a batch of one record that a thread checks."""
    value = b"%06d" % tag + bytes(INLINE_BYTES)
    return compressed_batch(records(1, value), 1, codec)


def slow_batch() -> bytearray:
    """Build a batch of four records with 1 GiB of zeros each. Its check takes seconds."""
    size_bytes = 1 << 30
    zeros = cramjam.zstd.Compressor()
    for _ in range(1024):
        zeros.compress(bytes(1 << 20))
    frame_of_zeros = bytes(zeros.finish())
    payload = b""
    for index in range(4):
        start = b"\0\0" + encode_varint(index) + b"\1" + encode_varint(size_bytes)
        start = encode_varint(len(start) + size_bytes + 1) + start
        payload += compress(Compression.ZSTD, start) + frame_of_zeros + compress(Compression.ZSTD, b"\0")
    return batch_of_payload(payload, 4, Compression.ZSTD)


def tags_in(client: RawClient, topic: str, count: int) -> list[int]:
    """Wait until the topic has `count` records, and return the first six bytes of each as a number."""
    tags: list[int] = []
    deadline_s = time.monotonic() + 30
    while len(tags) < count and time.monotonic() < deadline_s:
        request = fetch_request(topic, len(tags), max_wait_ms=500)
        found = read_columns(bytes(client.call(request, 12).responses[0].partitions[0].records or b""), len(tags))
        tags += [int((value or b"")[:6]) for value in found.values]
    return tags


@pytest.mark.parametrize("acks", [1, -1])
def test_responses_and_offsets_are_in_the_order_of_pipelined_requests(client: RawClient, acks: int) -> None:
    topic = f"order-{acks}"
    create_topic(client, topic)
    sent = []
    for number in range(30):
        records = batch(b"%06d" % number, timestamp=int(time.time() * 1000)) if number % 3 else large_batch(number)
        sent.append(client.send(produce_request(topic, records, acks=acks), 9))
    for number, expected in enumerate(sent):
        correlation_id, response = client.receive(ProduceRequest, 9, ProduceResponse)
        partition = response.responses[0].partition_responses[0]
        assert (correlation_id, partition.error_code, partition.base_offset) == (expected, 0, number)
    assert tags_in(client, topic, 30) == list(range(30))


def test_requests_with_acks_0_are_appended_in_order_after_the_producer_has_disconnected(broker: BrokerProcess) -> None:
    with RawClient(broker.address) as client:
        create_topic(client, "acks-0")
        with RawClient(broker.address) as producer:
            for number in range(20):
                producer.send(produce_request("acks-0", large_batch(number), acks=0), 9)
        assert tags_in(client, "acks-0", 20) == list(range(20))


def test_broken_batch_with_acks_0_closes_the_connection(broker: BrokerProcess, client: RawClient) -> None:
    create_topic(client, "acks-0-broken")
    broken = batch_of_payload(compress(Compression.GZIP, os.urandom(INLINE_BYTES))[:-3], 1, Compression.GZIP)
    client.send(produce_request("acks-0-broken", broken, acks=0), 9)
    assert client.is_closed()


def test_broken_batch_does_not_affect_other_partitions_of_the_request(client: RawClient) -> None:
    create_topic(client, "partitions", partitions=4)
    broken = batch_of_payload(b"garbage" * INLINE_BYTES, 1, Compression.ZSTD)
    small, uncompressed = compressed_batch(records(1), 1, Compression.SNAPPY), batch(b"x")
    response = client.call(produce_request("partitions", large_batch(1), broken, small, uncompressed), 9)
    codes = [item.error_code for item in response.responses[0].partition_responses]
    assert codes == [ErrorCode.NONE, ErrorCode.INVALID_RECORD, ErrorCode.NONE, ErrorCode.NONE]


def test_other_clients_are_served_during_a_check_and_the_topic_can_be_deleted(
    broker: BrokerProcess, client: RawClient
) -> None:
    create_topic(client, "deleted")
    create_topic(client, "other")
    with RawClient(broker.address, timeout_s=60) as producer:
        producer.send(produce_request("deleted", slow_batch()), 9)
        for number in range(20):
            response = client.call(produce_request("other", large_batch(number)), 9)
            assert response.responses[0].partition_responses[0].base_offset == number
        assert client.call(DeleteTopicsRequest(topics=[DeleteTopicState(name="deleted")], timeout_ms=9000), 6)
        assert not select.select([producer.socket], [], [], 0)[0], "the check has ended too early for this test"
        _, response = producer.receive(ProduceRequest, 9, ProduceResponse)
    partition = response.responses[0].partition_responses[0]
    assert partition.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("size_bytes", [INLINE_BYTES, BUFFER_BYTES])
def test_idempotent_producer_with_five_requests_in_flight_writes_each_record_once_and_in_order(
    broker: BrokerProcess, codec: Compression, size_bytes: int
) -> None:
    topic = f"idempotent-{codec.name}-{size_bytes}"
    producer = Producer(
        {
            "bootstrap.servers": broker.address,
            "enable.idempotence": True,
            "max.in.flight.requests.per.connection": 5,
            "compression.type": codec.name.lower(),
            "message.max.bytes": 9_000_000,
            "linger.ms": 2,
        }
    )
    with RawClient(broker.address) as client:
        create_topic(client, topic)
    count = 30
    for number in range(count):
        value = b"%06d" % number + (bytes(size_bytes) if number % 3 else b"")
        producer.produce(topic, value)
        producer.poll(0)
        if not number % 4:
            producer.flush(0.01)  # send a batch
    assert producer.flush(60) == 0
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "g", "message.max.bytes": 100_000_000})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[int] = []
    deadline_s = time.monotonic() + 30
    while len(found) < count and time.monotonic() < deadline_s:
        found += [int((message.value() or b"")[:6]) for message in consumer.consume(count, 1.0)]
    consumer.close()
    assert found == list(range(count))
