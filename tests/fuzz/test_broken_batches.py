"""Tests of produced batches that no consumer can read: the broker rejects them, and consumers can read all others."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.records.compression import Compression, CompressionError, compress, decompress
from headrace_broker.records.varint import decode_varint, encode_varint
from headrace_broker.server.record_validator import BUFFER_BYTES, INLINE_BYTES
from support.broken_batches import batch_of_payload, broken_compressed_batches, compressed_batch, record, records
from support.broker import BrokerProcess, running_broker
from support.raw_client import RawClient, create_topic, produce_request

pytestmark = pytest.mark.integration

CODECS = [Compression.GZIP, Compression.SNAPPY, Compression.LZ4, Compression.ZSTD]
MUTATIONS = 400


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path_factory.mktemp("broken-batches"), message_max_bytes="10000000") as running:
        yield running


def produce(client: RawClient, topic: str, batch: bytearray) -> int:
    """Produce one batch and return the error code."""
    code: int = client.call(produce_request(topic, batch), 9).responses[0].partition_responses[0].error_code
    return code


def read_values(broker: BrokerProcess, topic: str, count: int) -> list[bytes]:
    """Read `count` records from the start of the topic's only partition, with librdkafka."""
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "reader", "check.crcs": True})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes] = []
    deadline_s = time.monotonic() + 30
    while len(values) < count and time.monotonic() < deadline_s:
        for message in consumer.consume(1000, 1.0):
            assert message.error() is None, message.error()
            values.append(message.value() or b"")
    _, end_offset = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=20)
    consumer.close()
    assert (len(values), end_offset) == (count, count)
    return values


@pytest.mark.parametrize("size_bytes", [20, INLINE_BYTES, BUFFER_BYTES], ids=["small", "large", "huge"])
@pytest.mark.parametrize("codec", CODECS)
def test_broken_batches_are_rejected_and_later_batches_are_readable(
    broker: BrokerProcess, codec: Compression, size_bytes: int
) -> None:
    topic = f"broken-{codec.name}-{size_bytes}"
    with RawClient(broker.address) as client:
        create_topic(client, topic)
        value = os.urandom(16) * (size_bytes // 16 + 1)
        for defect, batch in broken_compressed_batches(codec, value):
            assert produce(client, topic, batch) == ErrorCode.INVALID_RECORD, defect
        assert produce(client, topic, compressed_batch(records(3, value), 3, codec)) == ErrorCode.NONE
    assert read_values(broker, topic, 3) == [value] * 3
    assert "Traceback" not in broker.log


def mutated(rng: random.Random, data: bytes) -> bytes:
    """Change, remove or insert a few bytes of `data`."""
    changed = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        position = rng.randrange(len(changed))
        match rng.randrange(4):
            case 0:
                changed[position] ^= 1 << rng.randrange(8)
            case 1:
                changed[position] = rng.choice((0, 1, 2, 0x7F, 0x80, 0xFF))
            case 2:
                del changed[position : position + rng.randint(1, 4)]
            case 3:
                changed[position:position] = rng.randbytes(rng.randint(1, 4))
        if not changed:
            return b"\0"
    return bytes(changed)


def random_batch(rng: random.Random, codec: Compression) -> tuple[bytearray, int]:
    """Return a batch that is broken in most cases, and the number of records that it declares."""
    count = rng.randint(1, 8)
    headers = rng.choice((b"\0", b"\x02\x02h" + encode_varint(5) + b"value", b"\x02\x02h\x01"))
    data = b"".join(
        record(index, rng.randbytes(rng.choice((0, 5, 70))), key=rng.choice((None, b"", b"key")), headers=headers)
        for index in range(count)
    )
    if rng.random() < 0.5:
        return batch_of_payload(mutated(rng, bytes(compress(codec, data))), count, codec), count
    declared = count if rng.random() < 0.8 else rng.randint(1, 9)
    return compressed_batch(mutated(rng, data), declared, codec), declared


def has_negative_length(batch: bytearray) -> bool:
    """Return whether a key, value or header value has a length below -1.

    Kafka and headrace accept such a length as null, and Java's consumer does too, but librdkafka's consumer does not.
    """
    try:
        data = decompress(batch[22] & 7, batch[61:], 1 << 20)
        position = 0
        while position < len(data):
            fields = []
            _, position = decode_varint(data, position)
            _, position = decode_varint(data, position + 1)  # the timestamp delta follows the attributes
            _, position = decode_varint(data, position)
            for _ in range(2):
                length, position = decode_varint(data, position)
                fields.append(length)
                position += max(length, 0)
            headers_count, position = decode_varint(data, position)
            for _ in range(headers_count):
                length, position = decode_varint(data, position)
                length, position = decode_varint(data, position + max(length, 0))
                fields.append(length)
                position += max(length, 0)
            if min(fields) < -1:
                return True
    except (CompressionError, ValueError):
        return False
    return False


@pytest.mark.parametrize("codec", CODECS)
def test_consumer_reads_everything_that_the_broker_accepts(broker: BrokerProcess, codec: Compression) -> None:
    rng = random.Random(int(codec))
    topic = f"mutated-{codec.name}"
    accepted = 0
    rejected = 0
    with RawClient(broker.address) as client:
        create_topic(client, topic)
        for _ in range(MUTATIONS):
            batch, count = random_batch(rng, codec)
            if has_negative_length(batch):
                continue
            code = produce(client, topic, batch)
            assert code in (ErrorCode.NONE, ErrorCode.INVALID_RECORD)
            if code == ErrorCode.NONE:
                accepted += count
            else:
                rejected += 1
    assert accepted > 0
    assert rejected > MUTATIONS // 3
    read_values(broker, topic, accepted)
    assert "Traceback" not in broker.log


def test_broker_accepts_batches_with_any_payload_if_it_checks_only_headers(tmp_path: Path) -> None:
    with (
        running_broker(tmp_path, headrace_records_validation="headers") as running,
        RawClient(running.address) as client,
    ):
        create_topic(client, "unchecked")
        assert produce(client, "unchecked", batch_of_payload(b"garbage", 3, Compression.LZ4)) == ErrorCode.NONE
