"""Runs producers and a consumer group during cluster failures, and checks every record.

An idempotent producer with default settings (acks=all) sends numbered records continuously, and a consumer group reads
them. `Load.verify` checks that no acknowledged record is missing, no record is duplicated, and each partition is in
order.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise

from confluent_kafka import Consumer, ElectionType, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

_BURST = 10
_SEND_PAUSE_S = 0.02
_READ_TIMEOUT_S = 60


class Load:
    """One producer and one consumer, each in its own thread."""

    def __init__(self, bootstrap_servers: str, topic: str, **producer_settings: object) -> None:
        self._servers = bootstrap_servers
        self.topic = topic
        self.sent = 0
        self.acknowledged: dict[int, tuple[int, int | None]] = {}
        self.acknowledged_at_s: list[float] = []
        self.errors: list[str] = []
        self.group_read: list[int] = []
        self._stop = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "enable.idempotence": True,
                "linger.ms": 0,
                "error_cb": lambda error: None,  # ignore connection errors: the tests stop brokers
                "log_level": 0,
                **producer_settings,
            }
        )
        self._threads = [threading.Thread(target=self._produce), threading.Thread(target=self._consume)]

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def _produce(self) -> None:
        while not self._stop.is_set():
            # Bursts keep several records in flight, and need a fraction of the requests of the same records one by one.
            for _ in range(_BURST):
                self._send()
            self._wait(_SEND_PAUSE_S)
        self._producer.flush(60)

    def _send(self) -> None:
        number = self.sent
        try:
            self._producer.produce(
                self.topic,
                str(number),
                key=str(number),
                on_delivery=lambda e, m, n=number: self._delivered(n, e, m),
            )
        except BufferError:
            self._wait(0.05)
        else:
            self.sent += 1

    def _wait(self, seconds: float) -> None:
        """Wait, and call `_delivered` for each record when it is acknowledged."""
        end_s = time.monotonic() + seconds
        while (remaining_s := end_s - time.monotonic()) > 0:
            self._producer.poll(remaining_s)

    def _delivered(self, number: int, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.errors.append(str(error))
            return
        self.acknowledged[number] = (message.partition(), message.offset())
        self.acknowledged_at_s.append(time.monotonic())

    def _consume(self) -> None:
        consumer = Consumer(
            {
                "bootstrap.servers": self._servers,
                "group.id": f"{self.topic}-readers",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": 6000,
                "log_level": 0,
                "error_cb": lambda error: None,
            }
        )
        consumer.subscribe([self.topic])
        try:
            while not self._stop.is_set():
                messages = consumer.consume(500, 0.1)
                numbers = [int(item.value()) for item in messages if item.error() is None]
                if not numbers:
                    continue
                try:
                    consumer.commit(asynchronous=False)
                except KafkaException as error:
                    if error.args[0].code() in (KafkaError._NO_OFFSET, KafkaError.REBALANCE_IN_PROGRESS):
                        continue
                self.group_read += numbers
        finally:
            consumer.close()

    # -- results -----------------------------------------------------------------------------------------------------

    def await_acknowledged(self, count: int, timeout_s: float = 60) -> None:
        """Wait until `count` more records are acknowledged."""
        wanted = len(self.acknowledged) + count
        deadline = time.monotonic() + timeout_s
        while len(self.acknowledged) < wanted:
            assert time.monotonic() < deadline, f"{len(self.acknowledged)} of {wanted} acknowledged; {self.errors[:3]}"
            time.sleep(0.01)

    def longest_pause_s(self, since_s: float) -> float:
        """Return the longest time between two consecutive acknowledgements after `since_s`."""
        moments = [since_s, *(moment for moment in self.acknowledged_at_s if moment >= since_s), time.monotonic()]
        return max(later - earlier for earlier, later in pairwise(moments))

    def stop(self) -> None:
        """Stop after every sent record is acknowledged or has failed."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def verify(self) -> None:
        """Read all records from the topic and check them. Call `stop` first."""
        read = self._read_back()
        values = [number for numbers in read.values() for _, number in numbers]
        counts = Counter(values)
        lost = sorted(self.acknowledged.keys() - counts.keys())
        assert not lost, f"{len(lost)} acknowledged records are lost, first {lost[:5]}: {self.acknowledged[lost[0]]}"
        twice = sorted(number for number, count in counts.items() if count > 1)
        assert not twice, f"{len(twice)} records are duplicated, first {twice[:5]}"
        for partition, items in read.items():
            numbers = [number for _, number in items]
            assert numbers == sorted(numbers), f"partition {partition} is not in the order of sending"
            for offset, number in items:
                acknowledged, at = self.acknowledged.get(number, (partition, offset))
                # librdkafka reports no offset for a record that was acknowledged by the response for a later batch.
                assert (acknowledged, offset if at is None else at) == (partition, offset), (
                    f"{number} is at {offset}, not {at}"
                )
        unknown = counts.keys() - set(range(self.sent))
        assert not unknown

    def _read_back(self) -> dict[int, list[tuple[int, int]]]:
        consumer = Consumer({"bootstrap.servers": self._servers, "group.id": "verify", "log_level": 0})
        try:
            partitions = consumer.list_topics(self.topic, 30).topics[self.topic].partitions
            ends = {item: _end_of(consumer, TopicPartition(self.topic, item)) for item in partitions}
            consumer.assign([TopicPartition(self.topic, item, 0) for item in partitions])
            read: dict[int, list[tuple[int, int]]] = {item: [] for item in partitions}
            positions = dict.fromkeys(partitions, 0)
            deadline = time.monotonic() + _READ_TIMEOUT_S
            while any(positions[item] < end for item, end in ends.items()):
                assert time.monotonic() < deadline, f"read {positions} of {ends}"
                for message in consumer.consume(10_000, 0.5):
                    assert message.error() is None, message.error()
                    read[message.partition()].append((message.offset(), int(message.value())))
                    positions[message.partition()] = message.offset() + 1
            return read
        finally:
            consumer.close()


@contextmanager
def running_load(
    bootstrap_servers: str,
    topic: str,
    partitions: int = 6,
    replica_assignment: Sequence[Sequence[int]] | None = None,
    **settings: object,
) -> Iterator[Load]:
    """Run a load on a new topic. At the end of the block, the load is stopped and its records are verified.

    `replica_assignment` lists the brokers of each partition's replicas. It replaces `partitions`.
    """
    if replica_assignment is None:
        create_topic(bootstrap_servers, topic, partitions)
    else:
        _create(bootstrap_servers, NewTopic(topic, len(replica_assignment), replica_assignment=replica_assignment))
    load = Load(bootstrap_servers, topic, **settings)
    load.start()
    try:
        load.await_acknowledged(50)
        yield load
    finally:
        load.stop()
    load.verify()


def create_topic(bootstrap_servers: str, topic: str, partitions: int, replication: int = 3) -> None:
    """Create a topic and wait until it exists."""
    _create(bootstrap_servers, NewTopic(topic, partitions, replication))


def _create(bootstrap_servers: str, topic: NewTopic) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    admin.create_topics([topic])[topic.topic].result(30)


def leader_of(bootstrap_servers: str, topic: str, partition: int = 0) -> int:
    """Return the leader of a partition, or -1 if the partition has no leader."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    leader: int = admin.list_topics(topic, 10).topics[topic].partitions[partition].leader
    return leader


def _end_of(consumer: Consumer, partition: TopicPartition) -> int:
    """Return a partition's high watermark. Retry, because librdkafka fails if the leader has just changed."""
    deadline = time.monotonic() + 30
    while True:
        try:
            return int(consumer.get_watermark_offsets(partition, 30)[1])
        except KafkaException as error:
            if error.args[0].code() != KafkaError.NOT_LEADER_FOR_PARTITION or time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def elect_preferred(bootstrap_servers: str, topic: str, partition: int = 0) -> None:
    """Elect the preferred leader of a partition, and wait until the metadata that clients receive names this leader."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    admin.elect_leaders(ElectionType.PREFERRED, [TopicPartition(topic, partition)]).result(30)
    preferred = admin.list_topics(topic, 10).topics[topic].partitions[partition].replicas[0]
    deadline = time.monotonic() + 30
    while leader_of(bootstrap_servers, topic, partition) != preferred:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def await_in_sync(bootstrap_servers: str, topic: str, replicas: int, timeout_s: float = 60) -> None:
    """Wait until every partition of the topic has `replicas` in-sync replicas."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers, "log_level": 0})
    deadline = time.monotonic() + timeout_s
    while True:
        found = [len(item.isrs) for item in admin.list_topics(topic, 10).topics[topic].partitions.values()]
        if found and min(found) >= replicas:
            return
        assert time.monotonic() < deadline, f"in-sync replicas of {topic}: {found}"
        time.sleep(0.02)
