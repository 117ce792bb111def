"""Tests that the Elasticsearch sink stores each record once, although workers of a group are killed (kill -9)."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from support import search_server
from support.broker import running_broker
from support.distributed import DistributedWorker, is_running, owners, worker_group
from support.search_server import SearchServer
from support.topics import read_topic
from support.worker import wait_for

pytestmark = [
    pytest.mark.integration,
    pytest.mark.jvm,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(search_server.unavailable_reason() is not None, reason=str(search_server.unavailable_reason())),
]

PARTITIONS, KEYS, TASKS = 4, 500, 2
"""KEYS is the number of record keys in each partition."""
NAMES = {"positions": "items", "keys": "by-key"}
"""The index of each connector."""


def test_elasticsearch_sink_stores_each_record_once_when_workers_of_a_group_are_killed(tmp_path: Path) -> None:
    """In one index, the document ids are the positions of the records. In the other index, they are the record keys.

    First, one worker is killed, and the other worker runs all tasks. Then the killed worker is started again and runs
    half of the tasks, and the other worker is killed. Records are written and stored during all these steps.
    """
    with (
        running_broker(tmp_path, group_min_session_timeout_ms="1000") as broker,
        search_server.running(flags=search_server.SHORT_RUN_FLAGS) as server,
        worker_group(tmp_path / "workers", broker.address, 2, {"session.timeout.ms": "3000"}) as workers,
    ):
        first, second = workers
        admin = AdminClient({"bootstrap.servers": broker.address})
        admin.create_topics([NewTopic("items", PARTITIONS, 1)])["items"].result(30)
        for number, (name, index) in enumerate(NAMES.items()):
            workers[number].create(name, sink_props(server, name, index))
        wait_for_tasks_on_both_workers(first, workers)
        with producing(broker.address):
            wait_for_more_documents(server)
            second.kill_group()
            wait_for_tasks_on(first)
            wait_for_more_documents(server)
            second.start()
            wait_for_tasks_on_both_workers(second, workers)
            wait_for_more_documents(server)
            first.kill_group()
            wait_for_tasks_on(second)
            wait_for_more_documents(server)
        for index, expected in expected_documents(broker.address).items():
            wait_for(
                lambda index=index, expected=expected: server.documents(index) == expected,
                f"all records are in {index}",
                60,
                lambda index=index, expected=expected: different_ids(server.documents(index), expected),
            )
        wait_for_tasks_on(second)


def sink_props(server: SearchServer, name: str, index: str) -> dict[str, str]:
    return {
        "connector.class": "io.confluent.connect.elasticsearch.ElasticsearchSinkConnector",
        "tasks.max": str(TASKS),
        "topics": "items",
        "connection.url": server.url,
        "read.timeout.ms": "60000",
        "schema.ignore": "true",
        "key.ignore": "true" if name == "positions" else "false",
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "batch.size": "50",
        "linger.ms": "200",  # so that kills hit records that are not stored
        "transforms": "rename",
        "transforms.rename.type": "org.apache.kafka.connect.transforms.RegexRouter",
        "transforms.rename.regex": ".*",
        "transforms.rename.replacement": index,
        "consumer.override.session.timeout.ms": "3000",
        "consumer.override.heartbeat.interval.ms": "500",
    }


@contextmanager
def producing(address: str) -> Iterator[None]:
    """Write records to all partitions until the block ends. Each partition has its own keys, and repeats them."""
    producer = Producer({"bootstrap.servers": address})
    stopping = threading.Event()

    def run() -> None:
        number = 0
        while not stopping.wait(0.02):
            for partition in range(PARTITIONS):
                key = f"{partition}-{number % KEYS}"
                producer.produce("items", json.dumps({"key": key, "number": number}), key, partition)
            number += 1
            producer.poll(0)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()
        assert producer.flush(60) == 0


def wait_for_tasks_on(worker: DistributedWorker) -> None:
    """Wait until the worker runs both connectors and all their tasks."""

    def reached() -> bool:
        found = [owners(worker, name) for name in NAMES]
        return all(is_running(worker, name, TASKS) for name in NAMES) and {
            owner for each in found for _, owner in each.values()
        } == {worker.worker_id}

    wait_for(reached, f"{worker.worker_id} runs all tasks", 60, lambda: [owners(worker, name) for name in NAMES])


def wait_for_tasks_on_both_workers(observer: DistributedWorker, workers: list[DistributedWorker]) -> None:
    """Wait until each worker runs half of the tasks."""

    def reached() -> bool:
        if not all(is_running(observer, name, TASKS) for name in NAMES):
            return False
        found = [owner for name in NAMES for task, (_, owner) in owners(observer, name).items() if task is not None]
        return [found.count(worker.worker_id) for worker in workers] == [TASKS, TASKS]

    wait_for(reached, "each worker runs half of the tasks", 60, lambda: [owners(observer, name) for name in NAMES])


def count(server: SearchServer, index: str) -> int:
    if index not in server.indexes():
        return 0
    return int(server.request("GET", f"/{index}/_stats/indexing")["_all"]["primaries"]["indexing"]["index_total"])


def wait_for_more_documents(server: SearchServer) -> None:
    """Wait until the server has received at least 100 more documents for each index."""
    before = {index: count(server, index) for index in NAMES.values()}
    for index, number in before.items():
        wait_for(lambda i=index, n=number: count(server, i) >= n + 100, f"more documents in {index}", 60)


def different_ids(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    """Return the ids of at most 10 documents that are missing, not expected, or not equal to the expected document."""
    return [each for each in sorted(found | expected) if found.get(each) != expected.get(each)][:10]


def expected_documents(address: str) -> dict[str, dict[str, Any]]:
    """Return the documents of each index by id. The document of a key is that of the last record with this key."""
    positions, keys = {}, {}
    for partition in range(PARTITIONS):
        for message in read_topic(address, "items", partition):
            document = json.loads(message.value() or b"")
            positions[f"items+{partition}+{message.offset()}"] = document
            keys[document["key"]] = document
    return {NAMES["positions"]: positions, NAMES["keys"]: keys}
