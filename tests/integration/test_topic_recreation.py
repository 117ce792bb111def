"""Tests of topic recreation: a topic is deleted and recreated repeatedly while clients use it and nodes are killed.

No record that was acknowledged in one incarnation of the topic is read in a later incarnation. At the end, all replicas
of the last incarnation are in sync, and no disk contains files of earlier incarnations.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from support.cluster import ClusterProcess, running_cluster
from support.cluster_load import await_in_sync
from support.topics import read_topic

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

TOPIC = "again"
PARTITIONS = 3
CYCLES = 12
_EARLIEST_S = 1.0
_CREATION_S = 60.0


class Clients:
    """Producers and a consumer of the topic. `acknowledged` lists the acknowledged values by incarnation."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._settings = {"bootstrap.servers": bootstrap_servers, "log_level": 0, "error_cb": lambda error: None}
        self.acknowledged: dict[int, set[bytes]] = {}
        self.incarnation = 0
        """The incarnation that exists now; 0 while the topic may not exist or may be recreated."""
        self._stop = threading.Event()
        self._threads = [
            threading.Thread(target=self._produce, args=(number, idempotent))
            for number, idempotent in enumerate((True, True, False))
        ]
        self._threads.append(threading.Thread(target=self._consume))

    def _produce(self, producer_number: int, idempotent: bool) -> None:
        settings = {**self._settings, "enable.idempotence": idempotent, "linger.ms": 2, "message.timeout.ms": 3000}
        settings |= {"queue.buffering.max.messages": 500}
        producer, number = Producer(settings), 0
        while not self._stop.is_set():
            value = f"{producer_number} {number}".encode()
            number += 1
            try:
                producer.produce(TOPIC, value, key=value, on_delivery=self._delivered)
                producer.poll(0.003)
            except (BufferError, KafkaException):
                # librdkafka ignores a recreated topic's leader while its leader epoch is below the old topic's.
                # Records lost with a deleted topic are a fatal error for an idempotent producer.
                producer = Producer(settings)
        producer.flush(10)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        incarnation = self.incarnation
        if error is None and incarnation:
            self.acknowledged.setdefault(incarnation, set()).add(message.value() or b"")

    def _consume(self) -> None:
        settings = {"group.id": "readers", "auto.offset.reset": "earliest", "session.timeout.ms": 6000}
        consumer = Consumer({**self._settings, **settings, "topic.metadata.refresh.interval.ms": 500})
        consumer.subscribe([TOPIC])
        while not self._stop.is_set():
            consumer.consume(500, 0.1)
        consumer.close()

    def await_acknowledged(self, count: int) -> None:
        deadline = time.monotonic() + _CREATION_S
        while len(self.acknowledged.get(self.incarnation, ())) < count:
            assert time.monotonic() < deadline, f"incarnation {self.incarnation} acknowledges no records"
            time.sleep(0.01)

    @contextmanager
    def running(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join()


def create(admin: AdminClient) -> None:
    """Create the topic. Retry until this succeeds."""
    topic = NewTopic(TOPIC, PARTITIONS, 3)
    _retry(lambda: admin.create_topics([topic])[TOPIC].result(30), KafkaError.TOPIC_ALREADY_EXISTS)


def delete(admin: AdminClient) -> None:
    """Delete the topic. Retry until this succeeds."""
    _retry(lambda: admin.delete_topics([TOPIC])[TOPIC].result(30), KafkaError.UNKNOWN_TOPIC_OR_PART)


def _retry(attempt: Callable[[], object], done_error: int) -> None:
    """Retry `attempt` until it succeeds, or until it fails with `done_error` because an earlier attempt took effect."""
    deadline = time.monotonic() + _CREATION_S
    while True:
        try:
            attempt()
            return
        except KafkaException as error:
            if error.args[0].code() == done_error:
                return
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def await_leaders(admin: AdminClient) -> None:
    """Wait until every partition has a leader after a node was killed."""
    deadline = time.monotonic() + _CREATION_S
    while any(item.leader < 0 for item in admin.list_topics(TOPIC, 10).topics[TOPIC].partitions.values()):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def values(bootstrap_servers: str) -> set[bytes]:
    """Return the values of all committed records of the topic."""
    deadline = time.monotonic() + _CREATION_S
    while True:
        try:
            messages = [message for item in range(PARTITIONS) for message in read_topic(bootstrap_servers, TOPIC, item)]
            return {message.value() or b"" for message in messages}
        except KafkaException:  # a new leader rejects requests until its high watermark is valid
            if time.monotonic() > deadline:
                raise


def leftover_directories(cluster: ClusterProcess) -> list[Path]:
    found = cluster.directory.glob(f"node-*/data/{TOPIC}-*")
    return [path for path in found if path.name.endswith(("-delete", "-stray"))]


def churn(cluster: ClusterProcess, cycles: int) -> None:
    servers = cluster.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    clients = Clients(servers)
    create(admin)
    dead, restart = 0, threading.Thread()
    with clients.running():
        for incarnation in range(1, cycles + 1):
            clients.incarnation = incarnation
            clients.await_acknowledged(30)
            if incarnation % 3 == 1:
                if restart.ident is not None:
                    restart.join()
                dead = incarnation // 3 % 3 + 1
                cluster.kill(dead)
            if incarnation % 3 == 2:
                restart = threading.Thread(target=cluster.start_node, args=(dead,))
                restart.start()
            time.sleep(_EARLIEST_S)
            await_leaders(admin)
            clients.incarnation = 0
            earlier = set().union(*(found for number, found in clients.acknowledged.items() if number < incarnation))
            old = earlier & values(servers)
            assert not old, f"incarnation {incarnation} has {len(old)} records of earlier ones"
            delete(admin)
            create(admin)
        restart.join()
        if cycles % 3 == 1:
            cluster.start_node(dead)
        await_in_sync(servers, TOPIC, 3)
    acknowledged = set().union(*clients.acknowledged.values())
    assert not acknowledged & values(servers)
    deadline = time.monotonic() + 30
    while leftover_directories(cluster):
        assert time.monotonic() < deadline, leftover_directories(cluster)
        time.sleep(0.1)
    for node in range(1, 4):
        assert "Traceback" not in cluster.log(node), cluster.log(node)[-5000:]


def test_repeatedly_recreated_topic_contains_no_old_records_although_nodes_are_killed(tmp_path: Path) -> None:
    """Rule R12 in docs/broker.md: a recreated topic has a new topic id and contains no old records."""
    with running_cluster(
        tmp_path / "c", log_segment_delete_delay_ms="1000", auto_create_topics_enable="false"
    ) as cluster:
        churn(cluster, CYCLES)
