"""Measures the cost of followers: throughput, CPU time and latency of acks=all with 1, 2 and 4 followers in sync.

The clusters have 2, 3 and 5 nodes, and the replication factor is the number of nodes. For each size, the clusters of
headrace and Apache Kafka are measured alternately. CPU time is the total of all nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from clusters import Nodes, cluster_starters
from fresh_topic import DELETE_DELAY_MS, fresh_topic
from measured import Measurements, alternate
from paced_produce import paced
from process_stats import cpu_s
from produce_load import Load, client_name, produce
from results import Row

FOLLOWERS = (1, 2, 4)
LOAD = Load(1000, 131_072, 400_000, "-1")
WARM_UP = Load(1000, 131_072, 50_000, "-1")
PRODUCE_S = 3.0
PACES_S = (0.0, 0.0005)


class FollowersMeasurements(Measurements):
    """The measurements of one system.

    `nodes` is the system's running cluster. Each number of followers is measured in a new cluster.
    """

    def __init__(self) -> None:
        super().__init__()
        self.nodes: Nodes


def run(rounds: int, scale: float, report: Callable[[str], None]) -> list[Row]:
    """Run all measurements. A `scale` below 1 shrinks the load for a quick run."""
    report(f"load client: {client_name()}")
    starts = cluster_starters()
    systems = [FollowersMeasurements() for _ in starts]
    for followers in FOLLOWERS:
        with ExitStack() as stack:
            for system, start in zip(systems, starts, strict=True):
                settings = {
                    "log_segment_delete_delay_ms": DELETE_DELAY_MS,
                    "min_insync_replicas": str(1 + followers),
                    "offsets_topic_replication_factor": "2",
                }
                system.nodes = stack.enter_context(start(1 + followers, **settings))
            _measure(systems, followers, rounds, scale, report)
    return [_row(name, systems) for name in systems[0].measured]


def _measure(
    systems: Sequence[FollowersMeasurements], followers: int, rounds: int, scale: float, report: Callable[[str], None]
) -> None:
    replicas = 1 + followers
    for system in systems:
        with fresh_topic(system.nodes.bootstrap, 1, replicas) as topic:
            produce(system.nodes.bootstrap, topic, WARM_UP)
    load = Load(LOAD.message_bytes, LOAD.batch_bytes, int(LOAD.count * scale), LOAD.acks)
    for round_number in range(rounds):
        for system in alternate(systems, round_number):
            _load(system, load, replicas, report)
        for system in alternate(systems, round_number):
            _latency(system, replicas, report)


def _load(system: FollowersMeasurements, load: Load, replicas: int, report: Callable[[str], None]) -> None:
    pids = system.nodes.pids()
    with fresh_topic(system.nodes.bootstrap, 1, replicas) as topic:
        before_s = cpu_s(pids)
        work = produce(system.nodes.bootstrap, topic, load)
        cpu_ms = (cpu_s(pids) - before_s) * 1000
    name = _named(replicas)
    system.note(f"{name}: produce {load}", load.megabytes / work.seconds)
    system.note(f"{name}: produce {load}, CPU", cpu_ms / load.megabytes)
    report(
        f"{system.nodes.name}, {name}: {load.megabytes / work.seconds:.0f} MB/s, {cpu_ms / load.megabytes:.2f} ms/MB"
    )


def _latency(system: FollowersMeasurements, replicas: int, report: Callable[[str], None]) -> None:
    name = _named(replicas)
    with fresh_topic(system.nodes.bootstrap, 1, replicas) as topic:
        for pace_s in PACES_S:
            found = paced(system.nodes.bootstrap, topic, PRODUCE_S, pace_s)
            how = "paced" if pace_s else "back to back"
            system.note(f"{name}: {how} p50", found["p50_us"])
            system.note(f"{name}: {how} p99", found["p99_us"])
            report(f"{system.nodes.name}, {name}, {how}: p50 {found['p50_us']:.0f}, p99 {found['p99_us']:.0f} us")


def _named(replicas: int) -> str:
    return f"{replicas - 1} follower{'s' if replicas > 2 else ''}"


def _row(name: str, systems: Sequence[FollowersMeasurements]) -> Row:
    unit = "us" if name.endswith(("p50", "p99")) else "ms/MB" if name.endswith("CPU") else "MB/s"
    values = [system.median(name) for system in systems]
    baseline = values[1] if len(values) > 1 else None
    return Row("followers", name, unit, values[0], baseline, more_is_better=unit == "MB/s")
