"""Tests the S3 sink and the S3 source in a group of two workers, one of which is killed while a connector runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from support import s3
from support.broker import running_broker
from support.connect_bounce import compare
from support.distributed import DistributedWorker, is_running, owners, worker_group
from support.topics import read_topic
from support.worker import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

PARTITIONS, FLUSH_SIZE = 4, 50
FIRST_ROWS, SECOND_ROWS, ROWS = 8 * FLUSH_SIZE + 7, 16 * FLUSH_SIZE, 20 * FLUSH_SIZE
"""Number of records of each partition before the first kill, before the second kill, and at the end."""


def test_s3_sink_and_s3_source_lose_no_record_when_a_worker_of_a_group_is_killed(tmp_path: Path) -> None:
    with (
        running_broker(tmp_path, group_min_session_timeout_ms="1000") as broker,
        s3.running() as store,
        worker_group(tmp_path / "workers", broker.address, 2) as workers,
    ):
        admin = AdminClient({"bootstrap.servers": broker.address})
        for created in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in ("items", "restored")]).values():
            created.result(30)

        workers[0].create("sink", sink_props(store))
        wait_for_tasks_on_both_workers(workers, "sink")
        write(broker.address, range(FIRST_ROWS))
        wait_for(lambda: len(store.objects()) >= PARTITIONS, "the sink has written objects", 60, workers[0].log)
        workers[1].kill_group()
        write(broker.address, range(FIRST_ROWS, SECOND_ROWS))
        assert_every_record_once(store, SECOND_ROWS)

        workers[1].start()
        workers[0].create("source", source_props(store))
        wait_for_tasks_on_both_workers(workers, "source")
        for partition in range(PARTITIONS):
            wait_for_row(broker.address, partition, 0)
        workers[1].kill_group()
        write(broker.address, range(SECOND_ROWS, ROWS))
        for partition in range(PARTITIONS):
            wait_for_row(broker.address, partition, ROWS - 1)
            found = compare(restored_rows(broker.address, partition), ROWS)
            assert (found.missing, found.rewinds) in ((0, 0), (0, 1))
        assert is_running(workers[0], "source", 2)
        assert_every_record_once(store, ROWS)


def sink_props(store: s3.S3Server) -> dict[str, str]:
    return store.props() | {
        "connector.class": "io.confluent.connect.s3.S3SinkConnector",
        "tasks.max": "2",
        "topics": "items",
        "format.class": "io.confluent.connect.s3.format.json.JsonFormat",
        "flush.size": str(FLUSH_SIZE),
        "consumer.override.session.timeout.ms": "3000",
        "consumer.override.heartbeat.interval.ms": "500",
    }


def source_props(store: s3.S3Server) -> dict[str, str]:
    return store.props() | {
        "connector.class": "io.confluent.connect.s3.source.S3SourceConnector",
        "tasks.max": "2",
        "format.class": "io.confluent.connect.s3.format.json.JsonFormat",
        "record.batch.max.size": "10",
        "s3.poll.interval.ms": "500",
        "transforms": "rename",
        "transforms.rename.type": "org.apache.kafka.connect.transforms.RegexRouter",
        "transforms.rename.regex": "items",
        "transforms.rename.replacement": "restored",
    }


def wait_for_tasks_on_both_workers(workers: list[DistributedWorker], name: str) -> None:
    def reached() -> bool:
        if not is_running(workers[0], name, 2):
            return False
        found = owners(workers[0], name)
        return {found[0][1], found[1][1]} == {worker.worker_id for worker in workers}

    wait_for(reached, f"each worker runs a task of {name}", 60, lambda: owners(workers[0], name))


def write(address: str, numbers: range) -> None:
    """Write a record with each number to each partition."""
    producer = Producer({"bootstrap.servers": address})
    for number in numbers:
        for partition in range(PARTITIONS):
            producer.produce("items", json.dumps({"id": number}), partition=partition)
    assert producer.flush(60) == 0


def assert_every_record_once(store: s3.S3Server, rows: int) -> None:
    """Wait until the sink has written all objects. They must contain each record of each partition once, in order."""
    expected = PARTITIONS * rows // FLUSH_SIZE
    wait_for(lambda: len(store.objects()) >= expected, f"the sink has written {expected} objects", 90)
    found: dict[str, list[int]] = {}
    objects = store.objects()
    for key in sorted(objects):
        found.setdefault(key.split("/")[2], []).extend(json.loads(line)["id"] for line in objects[key].splitlines())
    assert found == {f"partition={partition}": list(range(rows)) for partition in range(PARTITIONS)}


def restored_rows(address: str, partition: int) -> list[int]:
    return [json.loads(message.value() or b"")["id"] for message in read_topic(address, "restored", partition)]


def wait_for_row(address: str, partition: int, row: int) -> None:
    wait_for(lambda: row in restored_rows(address, partition), f"row {row} of partition {partition} is restored", 90)
