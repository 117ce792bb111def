"""Tests of real Kafka clients with a real broker. Each client creates a topic, produces and reads.

Each client produces with every compression codec, and also reads the records of the other clients. The tests compare
keys, values, headers and order of records.
"""

from __future__ import annotations

import asyncio
import gc
import json
import shutil
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.broker import BrokerProcess, running_broker

pytestmark = pytest.mark.wire

CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
Record = tuple[bytes | None, bytes, list[tuple[str, bytes]]]
RECORDS: list[Record] = [
    (f"key-{number}".encode() if number % 3 else None, f"value-{number}".encode() * (number % 5 + 1), headers)
    for number in range(200)
    for headers in ([("trace", str(number).encode()), ("trace", b"again")] if number % 4 == 0 else [],)
]
TIMEOUT_S = 60


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path_factory.mktemp("wire")) as process:
        yield process


# -- confluent-kafka (librdkafka) ---------------------------------------------------------------------------------


def confluent_create(address: str, topic: str) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(TIMEOUT_S)


def confluent_produce(address: str, topic: str, codec: str) -> None:
    from confluent_kafka import Producer

    failures: list[object] = []
    producer = Producer({"bootstrap.servers": address, "compression.type": codec, "enable.idempotence": True})
    for key, value, headers in RECORDS:
        producer.produce(
            topic,
            value,
            key,
            0,
            headers=headers,
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    assert producer.flush(TIMEOUT_S) == 0
    assert failures == []


def confluent_consume(address: str, topic: str) -> list[Record]:
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer({"bootstrap.servers": address, "group.id": "unused", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    found: list[Record] = []
    deadline = time.monotonic() + TIMEOUT_S
    while len(found) < len(RECORDS) and time.monotonic() < deadline:
        for message in consumer.consume(1000, 0.2):
            assert message.error() is None, message.error()
            headers = [(name, bytes(value)) for name, value in message.headers() or []]
            found.append((message.key(), message.value(), headers))
    low, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), TIMEOUT_S)
    consumer.close()
    assert (low, high) == (0, len(RECORDS))
    return found


# -- aiokafka -----------------------------------------------------------------------------------------------------


def aiokafka_create(address: str, topic: str) -> None:
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic

    async def create() -> None:
        admin = AIOKafkaAdminClient(bootstrap_servers=address)
        await admin.start()
        try:
            await admin.create_topics([NewTopic(topic, 1, 1)])
        finally:
            await admin.close()

    asyncio.run(create())


def aiokafka_produce(address: str, topic: str, codec: str) -> None:
    from aiokafka import AIOKafkaProducer

    async def produce() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=address, compression_type=None if codec == "none" else codec, enable_idempotence=True
        )
        await producer.start()
        try:
            sent = [
                await producer.send(topic, value, key=key, partition=0, headers=headers)
                for key, value, headers in RECORDS
            ]
            assert [(await future).offset for future in sent] == list(range(len(RECORDS)))
        finally:
            await producer.stop()

    asyncio.run(produce())


def aiokafka_consume(address: str, topic: str) -> list[Record]:
    from aiokafka import AIOKafkaConsumer, TopicPartition

    async def consume() -> list[Record]:
        consumer = AIOKafkaConsumer(bootstrap_servers=address)
        await consumer.start()
        try:
            partition = TopicPartition(topic, 0)
            consumer.assign([partition])
            await consumer.seek_to_beginning(partition)
            found: list[Record] = []
            while len(found) < len(RECORDS):
                batches = await asyncio.wait_for(consumer.getmany(timeout_ms=5000), TIMEOUT_S)
                assert batches, f"only {len(found)} records received"
                found += [(item.key, item.value, list(item.headers)) for item in batches[partition]]
            return found
        finally:
            await consumer.stop()

    return asyncio.run(consume())


# -- kafka-python -------------------------------------------------------------------------------------------------


@contextmanager
def leaking_sockets() -> Iterator[None]:
    """Ignore kafka-python's unclosed sockets.

    Otherwise, the garbage collector's warning would make a later test fail.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        # kafka-python's schema loader causes this warning.
        warnings.filterwarnings("ignore", ".*is deprecated. Use files", DeprecationWarning)
        yield
        gc.collect()


@leaking_sockets()
def kafka_python_create(address: str, topic: str) -> None:
    from kafka.admin import KafkaAdminClient, NewTopic

    admin = KafkaAdminClient(bootstrap_servers=address)
    admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)])
    admin.close()


@leaking_sockets()
def kafka_python_produce(address: str, topic: str, codec: str) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(bootstrap_servers=address, compression_type=None if codec == "none" else codec)
    sent = [producer.send(topic, value, key=key, headers=headers, partition=0) for key, value, headers in RECORDS]
    producer.flush(TIMEOUT_S)
    assert [future.get(TIMEOUT_S).offset for future in sent] == list(range(len(RECORDS)))
    producer.close()


@leaking_sockets()
def kafka_python_consume(address: str, topic: str) -> list[Record]:
    from kafka import KafkaConsumer, TopicPartition

    consumer = KafkaConsumer(bootstrap_servers=address, group_id=None, consumer_timeout_ms=TIMEOUT_S * 1000)
    consumer.assign([TopicPartition(topic, 0)])
    consumer.seek_to_beginning()
    found: list[Record] = []
    for message in consumer:
        found.append((message.key, message.value, [(name, bytes(value)) for name, value in message.headers]))
        if len(found) == len(RECORDS):
            break
    consumer.close()
    return found


# -- kcat (an old librdkafka) -------------------------------------------------------------------------------------


def kcat_create(address: str, topic: str) -> None:
    """Create a topic with a metadata request (auto.create.topics.enable), because kcat has no command for this."""
    subprocess.run(["kcat", "-b", address, "-L", "-t", topic], check=True, capture_output=True, timeout=TIMEOUT_S)


def kcat_produce(address: str, topic: str, codec: str) -> None:
    """Produce RECORDS with the compression codec `codec`.

    kcat runs once for each sequence of records with equal headers, because one call accepts one set of headers.
    """
    command = ["kcat", "-b", address, "-P", "-t", topic, "-p", "0", "-z", codec, "-Z", "-K", "\t"]
    start = 0
    while start < len(RECORDS):
        headers = RECORDS[start][2]
        stop = start + 1
        while stop < len(RECORDS) and RECORDS[stop][2] == headers:
            stop += 1
        options = [part for name, value in headers for part in ("-H", f"{name}={value.decode()}")]
        lines = b"".join((key or b"") + b"\t" + value + b"\n" for key, value, _ in RECORDS[start:stop])
        subprocess.run([*command, *options], input=lines, check=True, capture_output=True, timeout=TIMEOUT_S)
        start = stop


def kcat_consume(address: str, topic: str) -> list[Record]:
    command = ["kcat", "-b", address, "-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-q", "-J"]
    done = subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT_S)
    found: list[Record] = []
    for line in done.stdout.splitlines():
        item = json.loads(line)
        names = item.get("headers") or []
        headers = [(name, value.encode()) for name, value in zip(names[::2], names[1::2], strict=True)]
        key = item["key"]
        found.append((key.encode() if key is not None else None, item["payload"].encode(), headers))
    return found


Create = Callable[[str, str], None]
Produce = Callable[[str, str, str], None]
Consume = Callable[[str, str], list[Record]]
CLIENTS: dict[str, tuple[Create, Produce, Consume]] = {
    "confluent-kafka": (confluent_create, confluent_produce, confluent_consume),
    "aiokafka": (aiokafka_create, aiokafka_produce, aiokafka_consume),
    "kafka-python": (kafka_python_create, kafka_python_produce, kafka_python_consume),
    "kcat": (kcat_create, kcat_produce, kcat_consume),
}


KAFKA_PYTHON_CODECS = {"snappy": "snappy", "lz4": "lz4.frame", "zstd": "zstandard"}


def skip_if_missing(client: str, codec: str = "none") -> None:
    if client == "kcat" and shutil.which("kcat") is None:
        pytest.skip("kcat is not installed (Debian: apt-get install kcat)")
    if client == "kafka-python" and codec in KAFKA_PYTHON_CODECS:
        pytest.importorskip(KAFKA_PYTHON_CODECS[codec], reason=f"kafka-python has no library for {codec} here")


def batches_on_disk(broker: BrokerProcess, topic: str) -> set[int]:
    from headrace_broker.records.batch import iter_batches

    path = broker.data_dir / f"{topic}-0" / "00000000000000000000.log"
    return {header.compression for _, header in iter_batches(path.read_bytes())}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("client", CLIENTS)
def test_kafka_client_reads_the_records_that_it_wrote(broker: BrokerProcess, client: str, codec: str) -> None:
    skip_if_missing(client, codec)
    create, produce, consume = CLIENTS[client]
    topic = f"{client}-{codec}"
    create(broker.address, topic)
    produce(broker.address, topic, codec)
    assert consume(broker.address, topic) == RECORDS
    assert CODECS.index(codec) in batches_on_disk(broker, topic), "the client did not use its configured compression"


@pytest.mark.parametrize("consumer", CLIENTS)
def test_kafka_client_reads_records_of_other_clients(broker: BrokerProcess, consumer: str) -> None:
    skip_if_missing(consumer)
    for producer, (create, produce, _) in CLIENTS.items():
        if producer == "kcat" and shutil.which("kcat") is None:
            continue
        topic = f"from-{producer}-to-{consumer}"
        create(broker.address, topic)
        produce(broker.address, topic, "gzip")
        assert CLIENTS[consumer][2](broker.address, topic) == RECORDS


def test_records_survive_a_clean_restart_and_a_kill_of_the_broker(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker:
        confluent_create(broker.address, "kept")
        confluent_produce(broker.address, "kept", "lz4")
        broker.restart()
        assert confluent_consume(broker.address, "kept") == RECORDS
        broker.kill()
        broker.start()
        assert confluent_consume(broker.address, "kept") == RECORDS
        confluent_create(broker.address, "later")
