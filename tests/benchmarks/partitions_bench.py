"""Measures the cost of partitions: a topic with 10 to 5,000 partitions and replication factor 3 on three nodes.

Each number of partitions is measured in a new cluster of headrace, and then in a new cluster of Apache Kafka. Only one
cluster runs at a time. If Apache Kafka times out with some number of partitions, larger numbers are measured with
headrace only.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

from clusters import Nodes, cluster_starters, wait_until_in_sync
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from measured import Measurements
from paced_produce import paced
from process_stats import cpu_s, memory
from results import Row

SIZES = (10, 100, 1000, 5000)
REPLICAS = 3
SETTLE_S = 5.0
IDLE_S = 10.0
PRODUCE_S = 5.0
PACE_S = 0.002
TOPIC = "partitions"

Report = Callable[[str], None]


class PartitionsMeasurements(Measurements):
    """The measurements of one system."""


def run(rounds: int, scale: float, report: Report) -> list[Row]:
    """Measure each number of partitions once, regardless of `rounds`.

    A `scale` below 1 leaves out the larger numbers.
    """
    sizes = [size for size in SIZES if size <= SIZES[-1] * scale]
    systems = []
    for start in cluster_starters():
        system = PartitionsMeasurements()
        systems.append(system)
        for size in sizes:
            with start(REPLICAS, min_insync_replicas="2") as nodes:
                try:
                    _measure(nodes, size, system, report)
                except TimeoutError as error:
                    if system is systems[0]:
                        raise
                    report(f"{nodes.name}, {size:,} partitions: {error}")
    return [
        Row(
            "partitions",
            name,
            _unit(name),
            systems[0].median(name),
            systems[1].median(name) if len(systems) > 1 and name in systems[1].measured else None,
            more_is_better=False,
        )
        for name in systems[0].measured
    ]


def _measure(nodes: Nodes, size: int, system: PartitionsMeasurements, report: Report) -> None:
    def note(what: str, value: float) -> None:
        system.note(f"{size:,} partitions: {what}", value)
        report(f"{nodes.name}, {size:,} partitions: {what} {value:.3g} {_unit(what)}")

    before_s = cpu_s(nodes.pids())
    note("create", _timed(lambda: _create(nodes.bootstrap, size)))
    note("first record in each, acks=all", _timed(lambda: _fill(nodes.bootstrap, size)))
    note("create and fill, CPU", cpu_s(nodes.pids()) - before_s)
    note("list", statistics.median(_timed(lambda: _list(nodes.bootstrap)) for _ in range(5)) * 1000)
    note("kafka-topics --describe", _timed(lambda: nodes.describe(TOPIC)))
    time.sleep(SETTLE_S)
    before_s = cpu_s(nodes.pids())
    time.sleep(IDLE_S)
    note("idle CPU of the nodes", (cpu_s(nodes.pids()) - before_s) * 60 / IDLE_S)
    note("memory (anonymous)", memory(nodes.pids()).anonymous_mb)
    found = paced(nodes.bootstrap, TOPIC, PRODUCE_S, PACE_S)
    note("produce p50", found["p50_us"])
    note("produce p99", found["p99_us"])
    note("stop of a node", _timed(lambda: nodes.stop(1)))
    note("start of a node until all are in sync", _timed(lambda: _start_and_wait(nodes, size)))
    note("restart of all until all are in sync", _timed(lambda: _restart_and_wait(nodes, size)))


def _timed(work: Callable[[], None]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _create(bootstrap: str, size: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    for future in admin.create_topics([NewTopic(TOPIC, size, REPLICAS)], request_timeout=120).values():
        future.result(120)
    wait_until_in_sync(bootstrap, TOPIC, size, REPLICAS)


def _fill(bootstrap: str, size: int) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "acks": "all", "linger.ms": 5})
    for partition in range(size):
        producer.produce(TOPIC, b"x", partition=partition)
    if producer.flush(120):
        producer.purge()
        raise TimeoutError("not all partitions acknowledged their record within two minutes")


def _list(bootstrap: str) -> None:
    AdminClient({"bootstrap.servers": bootstrap}).list_topics(timeout=60)


def _start_and_wait(nodes: Nodes, size: int) -> None:
    nodes.start(1)
    wait_until_in_sync(nodes.bootstrap, TOPIC, size, REPLICAS)


def _restart_and_wait(nodes: Nodes, size: int) -> None:
    nodes.restart_all()
    wait_until_in_sync(nodes.bootstrap, TOPIC, size, REPLICAS)


def _unit(name: str) -> str:
    if name.endswith(("p50", "p99")):
        return "us"
    if name.endswith("idle CPU of the nodes"):
        return "s/min"
    if name.endswith("(anonymous)"):
        return "MB"
    return "ms" if name.endswith("list") else "s"
