"""Three nodes, replication factor 3, acks=all, min.insync.replicas=2: headrace and, where it can run, Apache Kafka.

Both clusters are up at the same time and take turns; each load goes into a fresh topic, all into its leaders' queues
from one librdkafka client.  CPU and memory are those of all three nodes.
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
from measured import Measured, in_turn
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
class Side(Measured):
    """A running cluster and what was measured on it."""

    name: str
    address: str
    pids: list[int]
    addresses: dict[int, str]


@contextmanager
def sides() -> Iterator[list[Side]]:
    """headrace's cluster, and Apache's where Maven and Java are there."""
    with TemporaryDirectory(prefix="headrace-bench-") as directory:
        ours = ClusterProcess(Path(directory) / "cluster", properties=SETTINGS)
        ours.start()
        try:
            numbers = range(1, REPLICAS + 1)
            mine = Side(
                "headrace",
                ours.bootstrap_servers,
                [ours.pid(number) for number in numbers],
                {number: ours.address(number) for number in numbers},
            )
            if apache.missing():
                yield [mine]
                return
            with apache.cluster(REPLICAS, **SETTINGS) as theirs:
                addresses = {number: node.address for number, node in enumerate(theirs, 1)}
                yield [
                    mine,
                    Side("Apache Kafka", ",".join(addresses.values()), [node.pid for node in theirs], addresses),
                ]
        finally:
            ours.close()


def run(rounds: int, scale: float, say: Callable[[str], None]) -> list[Row]:
    """Measure everything; `scale` shrinks the loads for a quick look."""
    say(f"load client: {client_name()}")
    with sides() as both:
        for side in both:
            side.note("memory idle (anonymous)", memory(side.pids).anonymous_mb)
            with fresh_topic(side.address, 1, REPLICAS) as topic:
                produce(side.address, topic, WARM_UP)
                consume(side.address, topic, WARM_UP.count)
        for round_number in range(rounds):
            for load, partitions in LOADS:
                scaled = Load(load.message_bytes, load.batch_bytes, int(load.count * scale), load.acks)
                for side in in_turn(both, round_number):
                    _throughput(side, scaled, partitions, say)
            for pace_s in (0.0, PACE_S):
                for side in in_turn(both, round_number):
                    _latency(side, pace_s, say)
            say(f"round {round_number + 1} of {rounds} done")
        for side in both:
            side.note("memory after load (anonymous)", memory(side.pids).anonymous_mb)
        return _rows(both)


def _throughput(side: Side, load: Load, partitions: int, say: Callable[[str], None]) -> None:
    name = f"produce {load}, {partitions} partition{'s' if partitions > 1 else ''}"
    with fresh_topic(side.address, partitions, REPLICAS) as topic:
        before = cpu_s(side.pids)
        work = produce(side.address, topic, load)
        cpu = cpu_s(side.pids) - before
    side.note(name, load.megabytes / work.seconds)
    side.note(f"{name}, CPU", cpu * 1000 / load.megabytes)
    say(f"{side.name}: {name}: {load.megabytes / work.seconds:.0f} MB/s, {cpu * 1000 / load.megabytes:.2f} ms/MB")


def _latency(side: Side, pace_s: float, say: Callable[[str], None]) -> None:
    """One request in flight at the partition's leader."""
    name = "paced" if pace_s else "back to back"
    program = str(Path(__file__).with_name("one_in_flight.py"))
    with fresh_topic(side.address, 1, REPLICAS) as topic:
        leader = side.addresses[_leader_of(side.address, topic)]
        command = [sys.executable, program, leader, topic, str(LATENCY_S), str(pace_s), "-", "-1"]
        found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    for percentile in ("p50_us", "p99_us", "p999_us"):
        side.note(f"{name} {percentile}", found[percentile])
    say(f"{side.name}: {name}: p50 {found['p50_us']:.0f}, p99 {found['p99_us']:.0f}, p99.9 {found['p999_us']:.0f} us")


def _leader_of(address: str, topic: str) -> int:
    from confluent_kafka.admin import AdminClient

    leader: int = AdminClient({"bootstrap.servers": address}).list_topics(topic, 10).topics[topic].partitions[0].leader
    return leader


def _rows(both: list[Side]) -> list[Row]:
    rows = []
    for name in both[0].measured:
        unit, goal, more = _goal(name)
        values = [side.median(name) for side in both]
        peer = values[1] if len(both) > 1 else None
        rows.append(Row("cluster", name.replace("_us", ""), unit, values[0], peer, goal, more))
    return rows


def _goal(name: str) -> tuple[str, float | None, bool]:
    """(unit, goal as a ratio of headrace's median to Apache's, whether more is better)."""
    if name.endswith("CPU"):
        return "ms/MB", 0.35, False
    if name.startswith("memory"):
        return "MB", 0.16 if "idle" in name else 0.1, False
    if name.endswith("_us"):
        return "us", 0.6 if name.endswith(("p50_us", "p99_us")) else None, False
    return "MB/s", 2.0, True
