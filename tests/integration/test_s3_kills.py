"""Tests that the S3 sink delivers each record exactly once, although its worker is killed (kill -9).

Two sinks write the records of a topic to objects while the worker is killed. One sink rotates files by the number of
records, the other by timestamps. Afterwards, sinks with the same settings write the same records to other directories.
This time, the worker is not killed. The objects of both runs must be equal.
"""

from __future__ import annotations

import io
import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from support import s3
from support.broker import running_broker
from support.worker import Worker, wait_for

pytestmark = pytest.mark.integration

PARTITIONS, FLUSH_SIZE, HOUR_MS = 3, 50, 3_600_000
PER_HOUR = 70
"""Records of a partition with timestamps in the same hour."""


class Format(NamedTuple):
    """The format of a topic's values and of the objects that the sinks write."""

    encode: Callable[[Mapping[str, Any]], str]
    """Returns the value of a record with the given fields."""
    ids: Callable[[bytes], list[int]]
    """Returns the ids of the records in an object."""
    props: Mapping[str, str]


def with_schema(fields: Mapping[str, Any]) -> str:
    types = {"id": "int32", "text": "string"}
    schema = [{"field": name, "type": type_, "optional": False} for name, type_ in types.items()]
    return json.dumps({"schema": {"type": "struct", "fields": schema, "optional": False}, "payload": fields})


JSON = Format(
    json.dumps,
    lambda data: [json.loads(line)["id"] for line in data.splitlines()],
    {"format.class": "io.confluent.connect.s3.format.json.JsonFormat"},
)
PARQUET = Format(
    with_schema,
    lambda data: pq.read_table(io.BytesIO(data)).column("id").to_pylist(),
    {
        "format.class": "io.confluent.connect.s3.format.parquet.ParquetFormat",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "true",
    },
)


@pytest.mark.parametrize("format", [pytest.param(JSON, id="json"), pytest.param(PARQUET, id="parquet")])
@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(3, marks=[pytest.mark.slow, pytest.mark.timeout(300)]),
        pytest.param(20, marks=[pytest.mark.prove, pytest.mark.timeout(1800)]),
    ],
)
def test_s3_sink_writes_the_same_objects_with_and_without_kills_of_the_worker(
    tmp_path: Path, kills: int, format: Format
) -> None:
    """Two of three kills happen after the sinks have written more objects. The third may happen before."""
    seed = int(os.environ.get("HEADRACE_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
    print(f"replay with HEADRACE_SEED={seed}")
    moments = random.Random(seed)
    with running_broker(tmp_path, group_min_session_timeout_ms="1000") as broker, s3.running() as store:
        admin = AdminClient({"bootstrap.servers": broker.address})
        admin.create_topics([NewTopic("items", PARTITIONS, 1)])["items"].result(30)
        producing = Producing(broker.address, format)
        producing.start()
        try:
            for number in range(kills):
                before = count_objects(store, "killed")
                with_kills = worker(tmp_path / f"killed-{number}", broker.address, store, "killed", format)
                with_kills.launch()
                if number % 3 < 2:
                    await_objects(store, "killed", before + 1)
                time.sleep(moments.uniform(0, 3.0))  # the random moment of the kill is the subject of the test
                with_kills.kill_group()
        finally:
            per_partition = producing.finish()
        expected = expected_objects(per_partition)
        with worker(tmp_path / "last", broker.address, store, "killed", format):
            await_objects(store, "killed", expected)
        with worker(tmp_path / "reference", broker.address, store, "reference", format):
            await_objects(store, "reference", expected)
        objects = store.objects()
        killed, reference = (
            {key.partition("/")[2]: data for key, data in objects.items() if key.startswith(f"{run}/")}
            for run in ("killed", "reference")
        )
        assert killed == reference
        assert_every_record_once(reference, per_partition, format)


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(3, marks=[pytest.mark.slow, pytest.mark.timeout(300)]),
        pytest.param(20, marks=[pytest.mark.prove, pytest.mark.timeout(1800)]),
    ],
)
def test_s3_sink_with_a_rotation_schedule_stores_each_record_once_despite_kills_of_the_worker(
    tmp_path: Path, kills: int
) -> None:
    """The sink uploads objects several times per second. It is killed before it commits offsets."""
    seed = int(os.environ.get("HEADRACE_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
    print(f"replay with HEADRACE_SEED={seed}")
    moments = random.Random(seed)
    by_schedule = {
        "by-schedule": {
            "flush.size": "1000000", "rotate.schedule.interval.ms": "200", "timezone": "UTC",
            "topics.dir": "killed/by-schedule",
        }
    }  # fmt: skip
    commits = {"offset_flush_interval_ms": "60000"}
    existing = 0
    with running_broker(tmp_path, group_min_session_timeout_ms="1000") as broker, s3.running() as store:
        admin = AdminClient({"bootstrap.servers": broker.address})
        admin.create_topics([NewTopic("items", PARTITIONS, 1)])["items"].result(30)
        producing = Producing(broker.address, JSON)
        producing.start()
        try:
            for number in range(kills):
                before = count_objects(store, "killed")
                with_kills = worker_with(
                    tmp_path / f"killed-{number}", broker.address, store, "killed", JSON, by_schedule, **commits
                )
                with_kills.launch()
                await_objects(store, "killed", before + 1)
                time.sleep(moments.uniform(0, 3.0))  # the random moment of the kill is the subject of the test
                with_kills.kill_group()
                existing += with_kills.log().count(" exists in ")
        finally:
            per_partition = producing.finish()

        def stored() -> Counter[tuple[str, int]]:
            return Counter(
                (key.split("/")[3], number) for key, data in store.objects().items() for number in JSON.ids(data)
            )

        expected = Counter(
            (f"partition={partition}", n) for partition in range(PARTITIONS) for n in range(per_partition)
        )
        with worker_with(tmp_path / "last", broker.address, store, "killed", JSON, by_schedule):
            wait_for(lambda: stored() >= expected, "all records are stored", 120)
        assert stored() == expected
    assert existing >= kills - 1, "not every worker found an object that an earlier worker had stored"


def worker(directory: Path, address: str, store: s3.S3Server, run: str, format: Format) -> Worker:
    """Return a worker with two sinks. Workers with the same `run` use the same consumer groups and directories."""
    by_count = {"flush.size": str(FLUSH_SIZE), "topics.dir": f"{run}/by-count"}
    by_time = {
        "flush.size": "1000000", "rotate.interval.ms": str(HOUR_MS), "timestamp.extractor": "Record",
        "partitioner.class": "io.confluent.connect.storage.partitioner.HourlyPartitioner", "timezone": "UTC",
        "s3.compression.type": "gzip", "store.kafka.keys": "true", "topics.dir": f"{run}/by-time",
        "keys.format.class": "io.confluent.connect.s3.format.json.JsonFormat",
    }  # fmt: skip
    return worker_with(directory, address, store, run, format, {"by-count": by_count, "by-time": by_time})


def worker_with(
    directory: Path,
    address: str,
    store: s3.S3Server,
    run: str,
    format: Format,
    sinks: Mapping[str, Mapping[str, str]],
    **settings: str,
) -> Worker:
    """Return a worker with these sinks and additional settings."""
    directory.mkdir()
    common = store.props() | {
        "connector.class": "io.confluent.connect.s3.S3SinkConnector",
        "topics": "items",
        "consumer.override.session.timeout.ms": "3000",
        "consumer.override.heartbeat.interval.ms": "500",
        "consumer.override.max.poll.records": "37",
        **format.props,
    }
    files = []
    for name, more in sinks.items():
        props = {"name": f"{run}-{name}", **common, **more}
        files.append(directory / f"{name}.properties")
        files[-1].write_text("".join(f"{key}={value}\n" for key, value in props.items()))
    settings = {key.replace("_", "."): value for key, value in settings.items()}
    settings |= {"bootstrap.servers": address, "offset.storage.file.filename": str(directory / "offsets")}
    return Worker(directory, settings, files)


class Producing(threading.Thread):
    """Writes records to all partitions until `finish` is called."""

    def __init__(self, address: str, format: Format) -> None:
        super().__init__()
        self._format = format
        self._producer = Producer({"bootstrap.servers": address})
        self._stopping = threading.Event()
        self._next = 0

    def run(self) -> None:
        while not self._stopping.wait(0.05):
            self._write(10)

    def _write(self, count: int) -> None:
        for number in range(self._next, self._next + count):
            for partition in range(PARTITIONS):
                value = self._format.encode({"id": number, "text": f"{partition} " * (number % 30)})
                self._producer.produce(
                    "items", value, json.dumps(number), partition, timestamp=(number // PER_HOUR + 1) * HOUR_MS
                )
        self._next += count
        assert self._producer.flush(60) == 0

    def finish(self) -> int:
        """Stop the thread, and write records until the number of records per partition is a multiple of FLUSH_SIZE.

        The sink that rotates files by the number of records then completes the last file of each partition. Return the
        number of records per partition. It is the same for all partitions.
        """
        self._stopping.set()
        self.join()
        self._write(-self._next % FLUSH_SIZE)
        return self._next


def expected_objects(per_partition: int) -> int:
    """Return the number of complete objects of both sinks if each partition has `per_partition` records.

    One sink writes an object for each FLUSH_SIZE records of a partition. For each hour except the last, the other sink
    writes an object with values and an object with keys.
    """
    hours = (per_partition - 1) // PER_HOUR
    return PARTITIONS * (per_partition // FLUSH_SIZE + 2 * hours)


def count_objects(store: s3.S3Server, run: str) -> int:
    pages = store.client().get_paginator("list_objects_v2").paginate(Bucket=s3.BUCKET, Prefix=f"{run}/")
    return sum(page["KeyCount"] for page in pages)


def await_objects(store: s3.S3Server, run: str, expected: int) -> None:
    def count() -> int:
        return count_objects(store, run)

    wait_for(lambda: count() >= expected, f"{run} has {expected} objects", 120, count)


def assert_every_record_once(objects: dict[str, bytes], per_partition: int, format: Format) -> None:
    """Check the objects of the sink that rotates files by the number of records.

    They must contain every record of each partition exactly once, in order.
    """
    found: dict[int, list[int]] = {}
    for key in sorted(objects):
        if key.startswith("by-count/"):
            partition = int(key.split("partition=")[1].split("/")[0])
            found.setdefault(partition, []).extend(format.ids(objects[key]))
    assert found == {partition: list(range(per_partition)) for partition in range(PARTITIONS)}
