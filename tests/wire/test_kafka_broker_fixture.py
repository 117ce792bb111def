"""Tests of the fixture `kafka_broker`: real clients use the in-process broker and receive the injected faults."""

from __future__ import annotations

import asyncio
import gc
import socket
import statistics
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from headrace.testing import KafkaBroker
from headrace_broker.client.config import ClientConfig
from headrace_broker.client.consumer import Consumer as HeadraceConsumer
from headrace_broker.client.errors import ClientError, OffsetOutOfRangeError
from headrace_broker.client.producer import Producer as HeadraceProducer
from headrace_broker.records.columns import RecordColumns
from support.cpu_time import loop_cpu_s

pytestmark = [pytest.mark.wire, pytest.mark.timeout(300)]

START_LOOPS_MAX = 15
"""The CPU time of a start, in units of `support.cpu_time`: 150 ms on the machine for which the limit was chosen."""
TIMEOUT_S = 60
VALUES = [f"value-{number}".encode() for number in range(20)]

Produce = Callable[[str, str, Sequence[bytes]], None]
Consume = Callable[[str, str, int], list[bytes | None]]


# -- clients: each producer is idempotent and sends each record in a request of its own --------------------------------


def produce_with_confluent(address: str, topic: str, values: Sequence[bytes]) -> None:
    confluent_producer(address, topic, values, {"enable.idempotence": True})


def confluent_producer(address: str, topic: str, values: Sequence[bytes], config: dict[str, Any]) -> None:
    from confluent_kafka import Producer

    errors: list[object] = []

    def on_delivery(error: object, _: object) -> None:
        if error is not None:
            errors.append(error)

    producer = Producer(
        {"bootstrap.servers": address, "linger.ms": 0, "batch.num.messages": 1, "retry.backoff.ms": 20, **config}
    )
    for value in values:
        producer.produce(topic, value, on_delivery=on_delivery)
    assert producer.flush(TIMEOUT_S) == 0
    if errors:
        raise RuntimeError(str(errors[0]))


def produce_with_headrace(address: str, topic: str, values: Sequence[bytes]) -> None:
    async def send() -> None:
        properties = {"bootstrap.servers": address, "enable.idempotence": "true", "linger.ms": "0", "batch.size": "1"}
        producer = await HeadraceProducer.open(ClientConfig.from_properties(properties, "producer"))
        try:
            await asyncio.gather(*(producer.send(topic, 0, RecordColumns([value])) for value in values))
        finally:
            await producer.close()

    asyncio.run(send())


@contextmanager
def kafka_python_warnings_ignored() -> Iterator[None]:
    """Ignore kafka-python's warnings about unclosed sockets and about a deprecated loader."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        warnings.filterwarnings("ignore", ".*is deprecated. Use files", DeprecationWarning)
        yield
        gc.collect()


@kafka_python_warnings_ignored()
def produce_with_kafka_python(address: str, topic: str, values: Sequence[bytes]) -> None:
    from kafka import KafkaProducer

    producer = KafkaProducer(
        bootstrap_servers=address, enable_idempotence=True, linger_ms=0, batch_size=1, retry_backoff_ms=20
    )
    try:
        futures = [producer.send(topic, value) for value in values]
        producer.flush(TIMEOUT_S)
        for future in futures:
            future.get(TIMEOUT_S)
    finally:
        producer.close()


def consume_with_confluent(address: str, topic: str, count: int) -> list[bytes | None]:
    from confluent_kafka import Consumer

    consumer = Consumer(
        {"bootstrap.servers": address, "group.id": "confluent", "auto.offset.reset": "earliest",
         "retry.backoff.ms": 20, "enable.auto.commit": False}
    )  # fmt: skip
    try:
        consumer.subscribe([topic])
        values: list[bytes | None] = []
        deadline = time.monotonic() + TIMEOUT_S
        while len(values) < count and time.monotonic() < deadline:
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                values.append(message.value())
        consumer.commit(asynchronous=False)
        return values
    finally:
        consumer.close()


def consume_with_headrace(address: str, topic: str, count: int) -> list[bytes | None]:
    async def read() -> list[bytes | None]:
        properties = {"bootstrap.servers": address, "group.id": "headrace", "auto.offset.reset": "earliest"}
        consumer = await HeadraceConsumer.open(ClientConfig.from_properties(properties, "consumer"))
        try:
            await consumer.subscribe([topic])
            values: list[bytes | None] = []
            deadline = time.monotonic() + TIMEOUT_S
            while len(values) < count and time.monotonic() < deadline:
                for batch in await consumer.poll(100):
                    values += batch.columns.values
            await consumer.commit()
            return values
        finally:
            await consumer.close()

    return asyncio.run(read())


@kafka_python_warnings_ignored()
def consume_with_kafka_python(address: str, topic: str, count: int) -> list[bytes | None]:
    from kafka import KafkaConsumer

    consumer = KafkaConsumer(
        topic, bootstrap_servers=address, group_id="kafka-python", auto_offset_reset="earliest",
        retry_backoff_ms=20, enable_auto_commit=False, session_timeout_ms=1000, heartbeat_interval_ms=300
    )  # fmt: skip
    try:
        values: list[bytes | None] = []
        deadline = time.monotonic() + TIMEOUT_S
        while len(values) < count and time.monotonic() < deadline:
            # If a poll times out while kafka-python joins its group, the consumer may never receive records again.
            for records in consumer.poll(timeout_ms=5000).values():
                values += [record.value for record in records]
        consumer.commit()
        return values
    finally:
        consumer.close()


producers = pytest.mark.parametrize(
    "produce", [produce_with_confluent, produce_with_headrace, produce_with_kafka_python]
)
consumers = pytest.mark.parametrize(
    "consume", [consume_with_confluent, consume_with_headrace, consume_with_kafka_python]
)


@pytest.fixture
def kafka_broker_config() -> dict[str, str]:
    return {"group.min.session.timeout.ms": "1000"}  # a member whose first JoinGroup response is lost expires soon


def values_in(broker: KafkaBroker, topic: str, count: int = 0) -> list[bytes | None]:
    return [record.value for record in broker.consume(topic, count)]


# -- life cycle --------------------------------------------------------------------------------------------------------


def test_broker_starts_with_little_cpu_time() -> None:
    """The test measures the first start in a process, and later starts. The measured time excludes imports."""
    program = """
import time
from headrace.testing.broker import KafkaBroker
for _ in range(3):
    start = time.process_time()
    with KafkaBroker() as broker:
        print(time.process_time() - start)
"""
    runs = [
        [float(line) for line in subprocess.check_output([sys.executable, "-c", program], text=True).split()]
        for _ in range(3)
    ]
    loop_s = loop_cpu_s()
    first = statistics.median(run[0] for run in runs) / loop_s
    later = statistics.median(each for run in runs for each in run[1:]) / loop_s
    print(f"\nkafka_broker uses the CPU time of {first:.1f} loops for its first start, of {later:.1f} for later starts")
    assert first < 2 * START_LOOPS_MAX
    assert later < START_LOOPS_MAX


def test_closed_test_broker_leaves_no_thread_connection_or_directory_behind() -> None:
    before = set(threading.enumerate())
    for _ in range(2):
        with KafkaBroker() as broker:
            produce_with_headrace(broker.bootstrap_servers, "topic", VALUES)
            assert consume_with_headrace(broker.bootstrap_servers, "topic", len(VALUES)) == VALUES
            data_dir = broker._data_dir
            client = socket.create_connection(("127.0.0.1", broker.port))
        with client:
            client.settimeout(TIMEOUT_S)
            assert client.recv(1) == b""
    assert data_dir is not None
    assert not data_dir.exists()
    assert set(threading.enumerate()) <= before, "a thread of the broker is still running"


def test_two_test_brokers_in_one_process_share_no_records_and_no_injected_faults() -> None:
    with KafkaBroker() as first, KafkaBroker() as second:
        first.produce("topic", ["first"])
        second.produce("topic", ["second"])
        with first.fail("Fetch", error="UNKNOWN_SERVER_ERROR"):
            assert consume_with_confluent(second.bootstrap_servers, "topic", 1) == [b"second"]
        assert values_in(first, "topic") == [b"first"]


@producers
def test_restarted_test_broker_keeps_its_port_and_data(kafka_broker: KafkaBroker, produce: Produce) -> None:
    address = kafka_broker.bootstrap_servers
    kafka_broker.create_topic("topic", config={"retention.ms": "-1"})
    produce(address, "topic", VALUES)
    kafka_broker.restart()
    assert kafka_broker.bootstrap_servers == address
    produce(address, "topic", VALUES)
    assert values_in(kafka_broker, "topic") == VALUES + VALUES


def test_producer_sends_its_buffered_record_after_the_test_broker_has_restarted(kafka_broker: KafkaBroker) -> None:
    from confluent_kafka import Producer

    producer = Producer({"bootstrap.servers": kafka_broker.bootstrap_servers, "reconnect.backoff.ms": 20})
    producer.produce("topic", b"before")
    assert producer.flush(TIMEOUT_S) == 0
    kafka_broker.stop()
    producer.produce("topic", b"during")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", kafka_broker.port))
    with pytest.raises(RuntimeError, match="the broker is stopped"):
        kafka_broker.consume("topic")
    kafka_broker.start()
    assert producer.flush(TIMEOUT_S) == 0
    assert values_in(kafka_broker, "topic") == [b"before", b"during"]


def test_invalid_configuration_of_the_test_broker_raises_an_error_and_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    with pytest.raises(Exception, match=r"num\.partitions"), KafkaBroker({"num.partitions": "many"}):
        pass
    assert set(threading.enumerate()) <= before, "a thread of the broker is still running"


# -- methods of the broker ---------------------------------------------------------------------------------------------


def test_methods_of_the_test_broker_produce_and_consume_keys_values_and_headers(kafka_broker: KafkaBroker) -> None:
    kafka_broker.create_topic("topic", partitions=2)
    kafka_broker.produce("topic", ["a", b"b", ("key", None), ("key", "c", {"h": "x", "n": None})], partition=1)
    records = kafka_broker.consume("topic", 4)
    assert [(record.partition, record.offset) for record in records] == [(1, 0), (1, 1), (1, 2), (1, 3)]
    assert [(record.key, record.value, record.headers) for record in records] == [
        (None, b"a", ()),
        (None, b"b", ()),
        (b"key", None, ()),
        (b"key", b"c", (("h", b"x"), ("n", None))),
    ]
    assert abs(records[0].timestamp - time.time() * 1000) < 60_000


def test_consume_waits_for_records_and_its_timeout_error_names_the_missing_topic_or_records(
    kafka_broker: KafkaBroker,
) -> None:
    with pytest.raises(TimeoutError, match=r"topic topic does not exist after 0.1 s"):
        kafka_broker.consume("topic", timeout=0.1)
    timer = threading.Timer(0.2, kafka_broker.produce, ("topic", ["a"]))
    timer.start()
    assert values_in(kafka_broker, "topic", 1) == [b"a"]
    timer.join()
    with pytest.raises(TimeoutError, match=r"topic topic has only 1 of 2 expected records after 0.1 s"):
        kafka_broker.consume("topic", 2, timeout=0.1)


def test_produce_method_of_the_test_broker_raises_an_error_that_names_a_missing_topic() -> None:
    with (
        KafkaBroker({"auto.create.topics.enable": "false"}) as broker,
        pytest.raises(ClientError, match="topic missing"),
    ):
        broker.produce("missing", ["a"])


def test_injected_faults_do_not_affect_methods_of_the_test_broker(kafka_broker: KafkaBroker) -> None:
    kafka_broker.disconnect("Produce")
    kafka_broker.fail("Metadata", error="UNKNOWN_TOPIC_OR_PARTITION")
    kafka_broker.delay("Fetch", seconds=60)
    kafka_broker.produce("topic", ["a"])
    assert values_in(kafka_broker, "topic") == [b"a"]


# -- faults ------------------------------------------------------------------------------------------------------------


@producers
def test_lost_acknowledgement_causes_no_duplicate_if_the_producer_is_idempotent(
    kafka_broker: KafkaBroker, produce: Produce
) -> None:
    fault = kafka_broker.disconnect("Produce", times=2)
    produce(kafka_broker.bootstrap_servers, "topic", VALUES)
    assert values_in(kafka_broker, "topic") == VALUES
    assert fault.applied == 2


def test_lost_acknowledgement_causes_a_duplicate_if_the_producer_is_not_idempotent(kafka_broker: KafkaBroker) -> None:
    kafka_broker.disconnect("Produce", times=1)
    confluent_producer(kafka_broker.bootstrap_servers, "topic", [b"a"], {"enable.idempotence": False})
    assert values_in(kafka_broker, "topic") == [b"a", b"a"]


@producers
def test_disconnect_before_the_broker_processes_a_produce_request_loses_no_record(
    kafka_broker: KafkaBroker, produce: Produce
) -> None:
    fault = kafka_broker.disconnect("Produce", before_request=True, times=2)
    produce(kafka_broker.bootstrap_servers, "topic", VALUES)
    assert values_in(kafka_broker, "topic") == VALUES
    assert fault.applied == 2


@producers
@pytest.mark.parametrize("error", ["NOT_LEADER_OR_FOLLOWER", "NOT_ENOUGH_REPLICAS"])
def test_idempotent_producer_keeps_the_order_of_records_that_it_retries_after_a_retriable_error(
    kafka_broker: KafkaBroker, produce: Produce, error: str
) -> None:
    kafka_broker.create_topic("topic")
    fault = kafka_broker.fail("Produce", error=error, times=2)
    produce(kafka_broker.bootstrap_servers, "topic", VALUES)
    assert values_in(kafka_broker, "topic") == VALUES
    assert fault.applied == 2


@producers
def test_producer_reports_an_error_that_is_not_retriable(kafka_broker: KafkaBroker, produce: Produce) -> None:
    kafka_broker.create_topic("topic")
    with (
        kafka_broker.fail("Produce", error="TOPIC_AUTHORIZATION_FAILED"),
        pytest.raises(Exception, match=r"(?i)authoriz|TOPIC_AUTHORIZATION_FAILED"),
    ):
        produce(kafka_broker.bootstrap_servers, "topic", [b"a"])
    produce(kafka_broker.bootstrap_servers, "topic", [b"b"])
    assert values_in(kafka_broker, "topic") == [b"b"]


def test_injected_delay_postpones_the_response_but_not_the_processing_of_a_request(kafka_broker: KafkaBroker) -> None:
    kafka_broker.create_topic("topic")
    start = time.monotonic()
    fault = kafka_broker.delay("Produce", seconds=0.5, times=1)
    thread = threading.Thread(target=produce_with_confluent, args=(kafka_broker.bootstrap_servers, "topic", [b"a"]))
    thread.start()
    assert values_in(kafka_broker, "topic", 1) == [b"a"]
    assert fault.applied == 0
    fault.wait()
    thread.join()
    assert time.monotonic() - start >= 0.5


@pytest.mark.parametrize("acks", [0, 1])
@pytest.mark.parametrize("before_request", [False, True])
def test_injected_disconnect_applies_to_produce_requests_with_every_acks_setting(
    kafka_broker: KafkaBroker, acks: int, before_request: bool
) -> None:
    kafka_broker.create_topic("topic")
    fault = kafka_broker.disconnect("Produce", before_request=before_request, times=1)
    confluent_producer(kafka_broker.bootstrap_servers, "topic", [b"a"], {"acks": acks, "retries": 0} if not acks else
                       {"acks": acks})  # fmt: skip
    fault.wait()
    records = 0 if acks == 0 and before_request else 2 if acks == 1 and not before_request else 1
    assert values_in(kafka_broker, "topic", records) == [b"a"] * records


@consumers
@pytest.mark.parametrize(
    ("api", "error"),
    [
        ("Fetch", "NOT_LEADER_OR_FOLLOWER"),
        ("Fetch", "UNKNOWN_LEADER_EPOCH"),
        ("ListOffsets", "NOT_LEADER_OR_FOLLOWER"),
        ("Metadata", "LEADER_NOT_AVAILABLE"),
        ("FindCoordinator", "COORDINATOR_NOT_AVAILABLE"),
        ("JoinGroup", "COORDINATOR_LOAD_IN_PROGRESS"),
        ("SyncGroup", "REBALANCE_IN_PROGRESS"),
        ("OffsetFetch", "COORDINATOR_LOAD_IN_PROGRESS"),
        ("OffsetCommit", "COORDINATOR_LOAD_IN_PROGRESS"),
    ],
)
def test_consumer_reads_all_records_after_an_injected_retriable_error(
    kafka_broker: KafkaBroker, consume: Consume, api: str, error: str
) -> None:
    kafka_broker.produce("topic", VALUES)
    fault = kafka_broker.fail(api, error=error, times=1)
    assert consume(kafka_broker.bootstrap_servers, "topic", len(VALUES)) == VALUES
    assert fault.applied == 1


@consumers
@pytest.mark.parametrize("api", ["Fetch", "JoinGroup", "FindCoordinator", "OffsetFetch", "Metadata"])
@pytest.mark.parametrize("before_request", [False, True])
def test_consumer_reads_all_records_after_an_injected_disconnect(
    kafka_broker: KafkaBroker, consume: Consume, api: str, before_request: bool
) -> None:
    kafka_broker.produce("topic", VALUES)
    fault = kafka_broker.disconnect(api, before_request=before_request, times=1)
    assert consume(kafka_broker.bootstrap_servers, "topic", len(VALUES)) == VALUES
    assert fault.applied == 1


def test_injected_fetch_error_reaches_a_consumer_that_uses_a_fetch_session(kafka_broker: KafkaBroker) -> None:
    kafka_broker.produce("topic", VALUES)
    errors: list[OffsetOutOfRangeError] = []

    async def read() -> None:
        properties = {"bootstrap.servers": kafka_broker.bootstrap_servers, "auto.offset.reset": "none"}
        consumer = await HeadraceConsumer.open(ClientConfig.from_properties(properties, "consumer"))
        try:
            consumer.assign([("topic", 0)])
            consumer.seek(("topic", 0), 0)
            while sum(map(len, await consumer.poll(100))) < len(VALUES):
                pass
            fault = kafka_broker.fail("Fetch", error="OFFSET_OUT_OF_RANGE", times=1)
            while not errors:
                try:
                    await consumer.poll(100)
                except OffsetOutOfRangeError as error:
                    errors.append(error)
            assert fault.applied == 1
        finally:
            await consumer.close()

    asyncio.run(asyncio.wait_for(read(), TIMEOUT_S))
    assert len(errors) == 1


@producers
def test_producer_retries_a_failed_init_producer_id_request(kafka_broker: KafkaBroker, produce: Produce) -> None:
    fault = kafka_broker.fail("InitProducerId", error="COORDINATOR_LOAD_IN_PROGRESS", times=1)
    produce(kafka_broker.bootstrap_servers, "topic", [b"a"])
    assert values_in(kafka_broker, "topic") == [b"a"]
    assert fault.applied == 1


def test_create_topics_fails_with_the_injected_error_and_succeeds_afterwards(kafka_broker: KafkaBroker) -> None:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": kafka_broker.bootstrap_servers})
    with kafka_broker.fail("CreateTopics", error="POLICY_VIOLATION"), pytest.raises(KafkaException) as failure:
        admin.create_topics([NewTopic("topic", 1, 1)])["topic"].result(TIMEOUT_S)
    assert failure.value.args[0].name() == "POLICY_VIOLATION"
    admin.create_topics([NewTopic("topic", 1, 1)])["topic"].result(TIMEOUT_S)
