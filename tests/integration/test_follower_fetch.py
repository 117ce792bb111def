"""Tests of consumers that fetch from the follower in their rack (KIP-392): selection, latency and failures."""

from __future__ import annotations

import asyncio
import re
import time
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace_broker.client.config import ClientConfig
from headrace_broker.client.consumer import Consumer as HeadraceConsumer
from headrace_broker.protocol.errors import ErrorCode
from headrace_broker.protocol.messages.fetch import PartitionData
from support import apache
from support.cluster import ClusterProcess, running_cluster
from support.cluster_load import await_in_sync
from support.raw_client import RawClient, fetch_request

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
LEADER, NEAR, OTHER = 1, 3, 2
RACK = f"rack-{NEAR}"
WITH_RACK = 11


@contextmanager
def running_cluster_with_racks(directory: Path, **properties: str) -> Iterator[ClusterProcess]:
    selector = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
    with running_cluster(directory, replica_selector_class=selector, **properties) as cluster:
        cluster.reconfigure({node: {"broker.rack": f"rack-{node}"} for node in (1, 2, 3)})
        yield cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcess]:
    properties = {"headrace_metrics_listeners": "http://127.0.0.1:0", "replica_lag_time_max_ms": "5000"}
    with running_cluster_with_racks(tmp_path_factory.mktemp("racks") / "c", **properties) as cluster:
        yield cluster


def create_led_topic(cluster: ClusterProcess, topic: str, values: int = 0) -> None:
    """Create a topic whose leader is node 1 and whose followers are the other nodes. Write `values` records of 1 KB."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    admin.create_topics([NewTopic(topic, 1, replica_assignment=[[LEADER, OTHER, NEAR]])])[topic].result(30)
    await_in_sync(cluster.bootstrap_servers, topic, 3)
    produce(cluster, topic, values)
    await_in_sync(cluster.bootstrap_servers, topic, 3)
    await_high_watermark(cluster, topic, values)


def produce(cluster: ClusterProcess, topic: str, values: int, first: int = 0, **settings: object) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 0, "log_level": 0, **settings})
    for number in range(first, first + values):
        producer.produce(topic, b"%d " % number + bytes(1000))
    assert not producer.flush(60)


def bytes_out(cluster: ClusterProcess, node: int) -> float:
    address = re.findall(r"Metrics: serving (http://\S+)", cluster.log(node))[-1]
    with urllib.request.urlopen(address, timeout=30) as response:
        [value] = re.findall(r"^kafka_server_brokertopicmetrics_bytesout_total (\S+)$", response.read().decode(), re.M)
    return float(value)


def consumer_at(cluster: ClusterProcess, topic: str, offset: int = 0, **settings: object) -> Consumer:
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.bootstrap_servers,
            "group.id": "unused",
            "enable.auto.commit": False,
            "client.rack": RACK,
            "log_level": 0,
            "error_cb": lambda error: None,
            **settings,
        }
    )
    consumer.assign([TopicPartition(topic, 0, offset)])
    return consumer


def read(consumer: Consumer, count: int, timeout_s: float = 60) -> list[int]:
    """Read the next `count` records. Return the number at the start of each record's value."""
    numbers: list[int] = []
    deadline = time.monotonic() + timeout_s
    while len(numbers) < count:
        assert time.monotonic() < deadline, f"read {len(numbers)} of {count} records"
        for message in consumer.consume(count - len(numbers), 0.2):
            assert message.error() is None, message.error()
            numbers.append(int(message.value().split()[0]))
    return numbers


def check_served_by_follower(cluster: ClusterProcess, consume: Callable[[], None], size_bytes: int) -> None:
    """Run `consume`, and check that the follower in the consumer's rack sent the records: at least `size_bytes`."""
    before = {node: bytes_out(cluster, node) for node in (LEADER, OTHER, NEAR)}
    consume()
    sent = {node: bytes_out(cluster, node) - before[node] for node in before}
    assert sent[NEAR] >= size_bytes, sent
    assert sent[LEADER] < size_bytes / 4, sent


def test_librdkafka_consumer_fetches_from_the_follower_in_its_rack(cluster: ClusterProcess) -> None:
    create_led_topic(cluster, "rdkafka", 500)
    check_served_by_follower(
        cluster, lambda: assert_equal(read_by_librdkafka(cluster, "rdkafka"), list(range(500))), 500_000
    )


def read_by_librdkafka(cluster: ClusterProcess, topic: str) -> list[int]:
    consumer = consumer_at(cluster, topic)
    found = read(consumer, 500)
    consumer.close()
    return found


def assert_equal(actual: object, expected: object) -> None:
    assert actual == expected


def test_headrace_consumer_fetches_from_the_follower_in_its_rack(cluster: ClusterProcess) -> None:
    create_led_topic(cluster, "own", 500)
    check_served_by_follower(cluster, lambda: assert_equal(asyncio.run(read_by_own(cluster, "own", 500)), 500), 500_000)


async def read_by_own(cluster: ClusterProcess, topic: str, count: int) -> int:
    properties = {"bootstrap.servers": cluster.bootstrap_servers, "client.rack": RACK}
    client = await HeadraceConsumer.open(ClientConfig.from_properties(properties, "consumer"))
    client.assign([(topic, 0)])
    client.seek((topic, 0), 0)
    found = 0
    while found < count:
        found += sum(len(batch.columns.values) for batch in await client.poll(5000))
    await client.close()
    return found


def test_kafka_python_and_aiokafka_consumers_fetch_from_the_follower_in_their_rack(cluster: ClusterProcess) -> None:
    create_led_topic(cluster, "python", 500)
    check_served_by_follower(cluster, lambda: assert_equal(read_by_kafka_python(cluster, "python"), 500), 500_000)
    check_served_by_follower(
        cluster, lambda: assert_equal(asyncio.run(read_by_aiokafka(cluster, "python")), 500), 500_000
    )


def read_by_kafka_python(cluster: ClusterProcess, topic: str) -> int:
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        import kafka

    settings = {"auto_offset_reset": "earliest", "client_rack": RACK, "consumer_timeout_ms": 3000}
    consumer = kafka.KafkaConsumer(bootstrap_servers=cluster.address(LEADER), **settings)
    consumer.assign([kafka.TopicPartition(topic, 0)])
    found = sum(1 for _, _ in zip(range(500), consumer, strict=False))
    consumer.close()
    return found


async def read_by_aiokafka(cluster: ClusterProcess, topic: str) -> int:
    import aiokafka

    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=cluster.address(LEADER), auto_offset_reset="earliest", client_rack=RACK
    )
    await consumer.start()
    consumer.assign([aiokafka.TopicPartition(topic, 0)])
    found = 0
    while found < 500:
        found += sum(map(len, (await consumer.getmany(timeout_ms=5000)).values()))
    await consumer.stop()
    return found


@pytest.mark.jvm
@pytest.mark.skipif(apache.unavailable_reason() is not None, reason=apache.unavailable_reason() or "")
def test_java_consumer_fetches_from_the_follower_in_its_rack(cluster: ClusterProcess) -> None:
    create_led_topic(cluster, "java", 500)

    def consume() -> None:
        done = apache.run_tool(
            "org.apache.kafka.tools.consumer.ConsoleConsumer",
            *("--bootstrap-server", cluster.address(LEADER), "--topic", "java", "--partition", "0"),
            *("--offset", "earliest", "--max-messages", "500", "--command-property", f"client.rack={RACK}"),
        )
        assert done.stdout.count("\n") == 500, done.stderr

    check_served_by_follower(cluster, consume, 500_000)


def fetch_partition(
    address: str, topic: str, offset: int, version: int = WITH_RACK, **options: object
) -> PartitionData:
    with RawClient(address) as client:
        request = fetch_request(topic, offset, **options)
        found: PartitionData = client.call(request, version).responses[0].partitions[0]
        return found


def records_of(partition: PartitionData) -> bytes:
    records = partition.records
    assert records is None or not isinstance(records, list)
    return bytes(records or b"")


def test_leader_returns_the_preferred_read_replica_and_the_follower_returns_records(cluster: ClusterProcess) -> None:
    create_led_topic(cluster, "sent", 10)
    leader, follower = cluster.address(LEADER), cluster.address(NEAR)
    partition = fetch_partition(
        leader, "sent", 0, rack_id=RACK, max_wait_ms=20_000
    )  # the leader does not delay the response
    assert (partition.preferred_read_replica, partition.high_watermark, records_of(partition)) == (NEAR, 10, b"")
    for other_rack in ("", f"rack-{LEADER}", "rack-9"):
        partition = fetch_partition(leader, "sent", 0, rack_id=other_rack)
        assert partition.preferred_read_replica == -1
        assert partition.records
    assert fetch_partition(leader, "sent", 11, rack_id=RACK).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    partition = fetch_partition(follower, "sent", 0, rack_id=RACK)
    assert (partition.error_code, partition.high_watermark, partition.preferred_read_replica) == (
        ErrorCode.NONE,
        10,
        -1,
    )
    assert len(records_of(partition)) > 10_000
    assert fetch_partition(follower, "sent", 10).error_code == ErrorCode.NONE
    assert fetch_partition(follower, "sent", 11).error_code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert fetch_partition(follower, "sent", 0, version=10).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def await_high_watermark(cluster: ClusterProcess, topic: str, high_watermark: int) -> None:
    """Wait until the follower has received the high watermark."""
    deadline = time.monotonic() + 30
    while fetch_partition(cluster.address(NEAR), topic, 0).high_watermark < high_watermark:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_follower_rejects_a_fetch_with_an_unknown_leader_epoch(cluster: ClusterProcess) -> None:
    create_led_topic(cluster, "epochs", 1)
    for epoch, error in ((0, ErrorCode.NONE), (7, ErrorCode.UNKNOWN_LEADER_EPOCH)):
        with RawClient(cluster.address(NEAR)) as client:
            request = fetch_request("epochs")
            request.topics[0].partitions[0].current_leader_epoch = epoch
            assert client.call(request, WITH_RACK).responses[0].partitions[0].error_code == error


def test_broker_without_a_replica_rejects_a_fetch_with_an_error_that_makes_clients_refresh_metadata(
    cluster: ClusterProcess,
) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    topic = f"away-{uuid4().hex}"  # a new topic if CI repeats the test
    admin.create_topics([NewTopic(topic, 1, replica_assignment=[[LEADER, OTHER]])])[topic].result(30)
    await_in_sync(cluster.bootstrap_servers, topic, 2)
    assert fetch_partition(cluster.address(NEAR), topic, 0).error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert fetch_partition(cluster.address(NEAR), "nowhere", 0).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_consumer_that_reads_from_a_follower_receives_new_records_before_waiting_fetches_time_out(
    tmp_path: Path,
) -> None:
    """The leader sends a new high watermark to the follower immediately, and the follower responds to the consumer.

    Otherwise, the waiting fetch of the follower or of the consumer would delay the record by up to 25 s.
    """
    with running_cluster_with_racks(tmp_path / "c", replica_fetch_wait_max_ms="25000") as cluster:
        create_led_topic(cluster, "soon", 1)
        consumer = consumer_at(cluster, "soon", **{"fetch.wait.max.ms": 25_000})
        read(consumer, 1)
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "linger.ms": 0, "log_level": 0})
        for number in range(1, 6):
            producer.produce("soon", b"%d" % number)
            assert not producer.flush(60)
            message = consumer.poll(15)
            assert message is not None
            assert message.value() == b"%d" % number
        consumer.close()


def test_follower_returns_only_committed_records(cluster: ClusterProcess) -> None:
    create_led_topic(cluster, "uncommitted", 5)
    follower = cluster.address(NEAR)
    cluster.pause(OTHER)  # the paused node is in the ISR, so the high watermark cannot advance
    try:
        produce(cluster, "uncommitted", 1, first=5, acks=1)
        deadline = time.monotonic() + 30
        while fetch_partition(follower, "uncommitted", 6).error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
            assert time.monotonic() < deadline  # wait until the follower has fetched the record
        partition = fetch_partition(follower, "uncommitted", 5, max_wait_ms=100)
        assert (partition.error_code, partition.high_watermark, records_of(partition)) == (ErrorCode.NONE, 5, b"")
    finally:
        cluster.resume(OTHER)
    await_high_watermark(cluster, "uncommitted", 6)
    assert records_of(fetch_partition(follower, "uncommitted", 5))


def test_out_of_sync_follower_is_not_selected_as_preferred_read_replica(cluster: ClusterProcess) -> None:
    create_led_topic(cluster, "behind", 5)
    cluster.pause(NEAR)
    try:
        produce(cluster, "behind", 5)  # the broker acknowledges the records once NEAR has left the ISR
        partition = fetch_partition(cluster.address(LEADER), "behind", 0, rack_id=RACK)
        assert partition.preferred_read_replica == -1
        assert partition.records
    finally:
        cluster.resume(NEAR)
    await_in_sync(cluster.bootstrap_servers, "behind", 3)
    deadline = time.monotonic() + 20
    while fetch_partition(cluster.address(LEADER), "behind", 0, rack_id=RACK).preferred_read_replica != NEAR:
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("kind", ["librdkafka", "own"])
def test_consumer_continues_when_the_follower_that_it_fetches_from_is_killed(
    cluster: ClusterProcess, kind: str
) -> None:
    topic = f"killed-{kind}"
    create_led_topic(cluster, topic, 300)
    if kind == "own":
        asyncio.run(own_consumer_survives(cluster, topic))
    else:
        consumer = consumer_at(cluster, topic)
        assert read(consumer, 300) == list(range(300))
        cluster.kill(NEAR)
        produce(cluster, topic, 300, first=300)
        assert read(consumer, 300) == list(range(300, 600))
        consumer.close()
    cluster.start_node(NEAR)
    await_in_sync(cluster.bootstrap_servers, topic, 3)


async def own_consumer_survives(cluster: ClusterProcess, topic: str) -> None:
    properties = {"bootstrap.servers": cluster.bootstrap_servers, "client.rack": RACK}
    client = await HeadraceConsumer.open(ClientConfig.from_properties(properties, "consumer"))
    client.assign([(topic, 0)])
    client.seek((topic, 0), 0)
    numbers: list[int] = []

    async def read_up_to(count: int) -> None:
        async with asyncio.timeout(30):
            while len(numbers) < count:
                for batch in await client.poll(1000):
                    numbers.extend(int(bytes(value or b"").split()[0]) for value in batch.columns.values)

    await read_up_to(300)
    cluster.kill(NEAR)
    await asyncio.to_thread(produce, cluster, topic, 300, 300)
    await read_up_to(600)
    assert numbers == list(range(600))
    await client.close()
