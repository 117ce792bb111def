"""Measures three-node clusters of headrace and, if available, Apache Kafka: throughput, CPU, latency and memory.

Topics have replication factor 3 and min.insync.replicas=2, and producers use acks=all. Both clusters run all the time,
but only one of them is measured at a time. One librdkafka client writes each load to a new topic. CPU and memory are
the totals of all three nodes.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from fresh_topic import DELETE_DELAY_MS, fresh_topic
from measured import Measurements, alternate
from process_stats import cpu_s, memory
from produce_load import Load, client_name, consume, produce
from results import Row

from support import apache
from support.cluster import ClusterProcess

LOADS = (
    (Load(100, 16_384, 2_000_000, "-1"), 1),
    (Load(100, 131_072, 4_000_000, "-1"), 1),
    (Load(1000, 16_384, 300_000, "-1"), 1),
    (Load(1000, 131_072, 800_000, "-1"), 1),
    (Load(100, 16_384, 2_000_000, "-1"), 50),
    (Load(1000, 131_072, 800_000, "-1"), 50),
)
WARM_UP = Load(100, 16_384, 200_000, "-1")
LATENCY_S = 3.0
PACE_S = 0.0005
REPLICAS = 3
SETTINGS = {
    "log.segment.delete.delay.ms": DELETE_DELAY_MS,
    "min.insync.replicas": "2",
    "default.replication.factor": "3",
}


@dataclass(slots=True)
class ClusterUnderTest(Measurements):
    """A running cluster and its measurements."""

    name: str
    address: str
    pids: list[int]
    addresses: dict[int, str]


@contextmanager
def systems_under_test() -> Iterator[list[ClusterUnderTest]]:
    """Run a cluster of headrace and, if Maven and Java are available, a cluster of Apache Kafka."""
    with TemporaryDirectory(prefix="headrace-bench-") as directory:
        ours = ClusterProcess(Path(directory) / "cluster", properties=SETTINGS)
        ours.start()
        try:
            numbers = range(1, REPLICAS + 1)
            our_system = ClusterUnderTest(
                "headrace",
                ours.bootstrap_servers,
                [ours.pid(number) for number in numbers],
                {number: ours.address(number) for number in numbers},
            )
            if apache.unavailable_reason():
                yield [our_system]
                return
            with apache.cluster(REPLICAS, **SETTINGS) as theirs:
                addresses = {number: node.address for number, node in enumerate(theirs, 1)}
                yield [
                    our_system,
                    ClusterUnderTest(
                        "Apache Kafka", ",".join(addresses.values()), [node.pid for node in theirs], addresses
                    ),
                ]
        finally:
            ours.close()


def run(rounds: int, scale: float, report: Callable[[str], None]) -> list[Row]:
    """Run all measurements. A `scale` below 1 shrinks the loads for a quick run."""
    report(f"load client: {client_name()}")
    with systems_under_test() as systems:
        for system in systems:
            system.note("memory idle (anonymous)", memory(system.pids).anonymous_mb)
            with fresh_topic(system.address, 1, REPLICAS) as topic:
                produce(system.address, topic, WARM_UP)
                consume(system.address, topic, WARM_UP.count)
        for round_number in range(rounds):
            for load, partitions in LOADS:
                scaled = Load(load.message_bytes, load.batch_bytes, int(load.count * scale), load.acks)
                for system in alternate(systems, round_number):
                    _throughput(system, scaled, partitions, report)
            for pace_s in (0.0, PACE_S):
                for system in alternate(systems, round_number):
                    _latency(system, pace_s, report)
            report(f"round {round_number + 1} of {rounds} done")
        for system in systems:
            system.note("memory after load (anonymous)", memory(system.pids).anonymous_mb)
        return _rows(systems)


def _throughput(system: ClusterUnderTest, load: Load, partitions: int, report: Callable[[str], None]) -> None:
    name = f"produce {load}, {partitions} partition{'s' if partitions > 1 else ''}"
    with fresh_topic(system.address, partitions, REPLICAS) as topic:
        before = cpu_s(system.pids)
        work = produce(system.address, topic, load)
        cpu = cpu_s(system.pids) - before
    system.note(name, load.megabytes / work.seconds)
    system.note(f"{name}, CPU", cpu * 1000 / load.megabytes)
    report(f"{system.name}: {name}: {load.megabytes / work.seconds:.0f} MB/s, {cpu * 1000 / load.megabytes:.2f} ms/MB")


def _latency(system: ClusterUnderTest, pace_s: float, report: Callable[[str], None]) -> None:
    """Measure the latency of requests to the partition's leader, with one request in flight.

    Each request is sent `pace_s` after the previous response.
    """
    name = "paced" if pace_s else "back to back"
    program = str(Path(__file__).with_name("one_in_flight.py"))
    with fresh_topic(system.address, 1, REPLICAS) as topic:
        leader = system.addresses[_leader_of(system.address, topic)]
        command = [sys.executable, program, leader, topic, str(LATENCY_S), str(pace_s), "-", "-1"]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    for percentile in ("p50_us", "p99_us", "p999_us"):
        system.note(f"{name} {percentile}", found[percentile])
    report(
        f"{system.name}: {name}: p50 {found['p50_us']:.0f}, p99 {found['p99_us']:.0f}, p99.9 {found['p999_us']:.0f} us"
    )


def _leader_of(address: str, topic: str) -> int:
    from confluent_kafka.admin import AdminClient

    leader: int = AdminClient({"bootstrap.servers": address}).list_topics(topic, 10).topics[topic].partitions[0].leader
    return leader


def _rows(systems: list[ClusterUnderTest]) -> list[Row]:
    rows = []
    for name in systems[0].measured:
        unit, goal, more = _unit_and_goal(name)
        values = [system.median(name) for system in systems]
        baseline = values[1] if len(systems) > 1 else None
        rows.append(Row("cluster", name.replace("_us", ""), unit, values[0], baseline, goal, more))
    return rows


def _unit_and_goal(name: str) -> tuple[str, float | None, bool]:
    """Return (unit, goal, whether larger values are better) for the measurement `name`.

    The goal is a target for the ratio of two medians. The ratio is headrace's median divided by Kafka's median.
    """
    if name.endswith("CPU"):
        return "ms/MB", 0.35, False
    if name.startswith("memory"):
        return "MB", 0.16 if "idle" in name else 0.1, False
    if name.endswith("_us"):
        return "us", 0.6 if name.endswith(("p50_us", "p99_us")) else None, False
    return "MB/s", 2.0, True
