"""Tests that an S3 source loses no record when its worker is killed, and repeats only records after committed offsets.

The source has two tasks and restores the objects of an S3 sink to a topic, while the worker is killed repeatedly.
"""

from __future__ import annotations

import json
import os
import random
import time
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from support import s3
from support.broker import running_broker
from support.connect_bounce import compare
from support.topics import end_offset, read_topic
from support.worker import Worker, wait_for

pytestmark = pytest.mark.integration

PARTITIONS, OBJECTS, ROWS = 3, 240, 100
"""The number of partitions, of objects of each partition, and of records of each object."""


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(3, marks=[pytest.mark.slow, pytest.mark.timeout(300)]),
        pytest.param(20, marks=[pytest.mark.prove, pytest.mark.timeout(1800)]),
    ],
)
def test_s3_source_loses_no_record_when_its_worker_is_killed(tmp_path: Path, kills: int) -> None:
    seed = int(os.environ.get("HEADRACE_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
    print(f"replay with HEADRACE_SEED={seed}")
    moments = random.Random(seed)
    with running_broker(tmp_path) as broker, s3.running() as store:
        admin = AdminClient({"bootstrap.servers": broker.address})
        admin.create_topics([NewTopic("restored", PARTITIONS, 1)])["restored"].result(30)
        written = 0
        for number in range(kills):
            written = write_objects(store, written, OBJECTS * (number + 1) // (kills + 1))
            killed = worker(tmp_path, f"killed-{number}", broker.address, store)
            killed.launch()
            time.sleep(moments.uniform(0.7, 2.0))  # the random moment of the kill is the subject of the test
            killed.kill_group()
        write_objects(store, written, OBJECTS)
        with worker(tmp_path, "last", broker.address, store) as last:
            wait_for(lambda: has_last_records(broker.address), "the last records are restored", 120, last.log)
        for partition in range(PARTITIONS):
            numbers = [
                json.loads(message.value() or b"")["n"] for message in read_topic(broker.address, "restored", partition)
            ]
            found = compare(numbers, OBJECTS * ROWS)
            print(f"partition {partition}: {found}")
            assert found.missing == 0
            assert found.rewinds <= kills


def write_objects(store: s3.S3Server, first: int, end: int) -> int:
    """Write the objects `first` to `end` - 1 of each partition, named like the objects of an S3 sink. Return `end`."""
    client = store.client()
    for number in range(first, end):
        offset = number * ROWS
        lines = b"".join(b'{"n":%d}\n' % each for each in range(offset, offset + ROWS))
        for partition in range(PARTITIONS):
            key = f"topics/items/partition={partition}/items+{partition}+{offset:010}.json"
            client.put_object(Bucket=s3.BUCKET, Key=key, Body=lines)
    return end


def worker(directory: Path, name: str, address: str, store: s3.S3Server) -> Worker:
    """Return a worker with the source. All workers with the same `directory` use the same offsets file."""
    (directory / name).mkdir()
    props = store.props() | {
        "name": "restore",
        "connector.class": "io.confluent.connect.s3.source.S3SourceConnector",
        "tasks.max": "2",
        "format.class": "JsonFormat",
        "s3.poll.interval.ms": "100",
        "record.batch.max.size": "5",
        "transforms": "topic",
        "transforms.topic.type": "org.apache.kafka.connect.transforms.RegexRouter",
        "transforms.topic.regex": "items",
        "transforms.topic.replacement": "restored",
    }
    del props["storage.class"]
    file = directory / "restore.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in props.items()))
    settings = {
        "bootstrap.servers": address,
        "offset.storage.file.filename": str(directory / "offsets"),
        "offset.flush.interval.ms": "100",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
    }
    return Worker(directory / name, settings, [file])


def has_last_records(address: str) -> bool:
    """Return whether each partition of the topic ends with the last record of that partition in S3."""
    for partition in range(PARTITIONS):
        if end_offset(address, "restored", partition) < OBJECTS * ROWS:
            return False
        last = read_topic(address, "restored", partition)[-1]
        if json.loads(last.value() or b"")["n"] != OBJECTS * ROWS - 1:
            return False
    return True
