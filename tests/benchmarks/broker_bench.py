"""Compares one broker of headrace with one of Apache Kafka: throughput, CPU time per MB, latency and memory.

The benchmark includes Apache Kafka only if it is available. The two brokers alternate (A B, then B A, ...), so noise on
the machine affects both. Ratios compare medians. Both brokers write to the same file system and receive the same
warm-up.

Each load uses a new topic. After the load, the topic is deleted, and one second later the broker deletes its files.
Dirty pages are synced before the next load, so no load slows down the next one. Latencies are measured in several short
runs, because they depend on which processors the kernel assigns to client and broker.
"""

from __future__ import annotations

import json
import os
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
from support.broker import BrokerProcess, running_broker

FULL = (
    Load(100, 16_384, 6_000_000),
    Load(100, 131_072, 10_000_000),
    Load(1000, 16_384, 1_000_000),
    Load(1000, 131_072, 2_000_000),
    Load(1000, 1_000_000, 2_000_000),
)
CONSUMED = Load(1000, 131_072, 2_000_000)
WARM_UP = Load(100, 16_384, 500_000)
CLIENT_LIMIT_RATIO = 0.85
LATENCY_S = 2.0
LATENCY_REPEATS = 4
SATURATED = 0.9
PACE_S = 0.0005


@dataclass(slots=True)
class BrokerUnderTest(Measurements):
    """A running broker and its measurements."""

    name: str
    address: str
    pid: int


@contextmanager
def systems_under_test() -> Iterator[list[BrokerUnderTest]]:
    """Run a broker of headrace and, if Maven and Java are available, a broker of Apache Kafka."""
    settings = {"log.segment.delete.delay.ms": DELETE_DELAY_MS}
    with TemporaryDirectory(prefix="headrace-bench-") as directory, running_broker(Path(directory), **settings) as ours:
        our_system = BrokerUnderTest("headrace", ours.address, ours.pid)
        if apache.unavailable_reason():
            yield [our_system]
            return
        with apache.broker(**settings) as theirs:
            yield [our_system, BrokerUnderTest("Apache Kafka", theirs.address, theirs.pid)]


def run(rounds: int, scale: float, report: Callable[[str], None]) -> list[Row]:
    """Run all measurements. A `scale` below 1 shrinks the loads for a quick run."""
    report(f"load client: {client_name()}")
    loads = [Load(load.message_bytes, load.batch_bytes, int(load.count * scale)) for load in FULL]
    with systems_under_test() as systems:
        for system in systems:
            system.note("memory idle", memory([system.pid]).rss_mb)
        for system in systems:
            _warm_up(system)
        for round_number in range(rounds):
            for load in loads:
                for system in alternate(systems, round_number):
                    _throughput(system, load, report)
            for system in alternate(systems, round_number):
                _consumption(system, scale, report)
            for pinned in (False, True):
                for pace_s in (0.0, PACE_S):
                    for turn in range(LATENCY_REPEATS):
                        for system in alternate(systems, turn):
                            _latency(system, pace_s, pinned, report)
            report(f"round {round_number + 1} of {rounds} done")
        for system in systems:
            system.note("memory after load", memory([system.pid]).rss_mb)
        _measure_client_limit(systems[0], loads, report)
        return _rows(systems)


def _measure_client_limit(our_system: BrokerUnderTest, loads: list[Load], report: Callable[[str], None]) -> None:
    """Measure the client's maximum throughput with a broker that discards all records.

    The results are added to the measurements of `our_system`.
    """
    program = [str(Path(__file__).with_name("null_broker.py"))]
    with TemporaryDirectory(prefix="headrace-bench-") as directory:
        broker = BrokerProcess(Path(directory), {}, program)
        broker.start()
        try:
            null_broker = BrokerUnderTest("a broker that discards records", broker.address, broker.pid)
            with fresh_topic(null_broker.address) as topic:
                produce(null_broker.address, topic, WARM_UP)
            for load in loads:
                with fresh_topic(null_broker.address) as topic:
                    rate = load.megabytes / produce(null_broker.address, topic, load).seconds
                our_system.note(f"produce {load}, client alone", rate)
                report(f"{null_broker.name}: produce {load}: {rate:.0f} MB/s")
        finally:
            broker.close()


def _warm_up(system: BrokerUnderTest) -> None:
    with fresh_topic(system.address) as topic:
        produce(system.address, topic, WARM_UP)
        consume(system.address, topic, WARM_UP.count)


def _throughput(system: BrokerUnderTest, load: Load, report: Callable[[str], None]) -> None:
    with fresh_topic(system.address) as topic:
        before = cpu_s([system.pid])
        work = produce(system.address, topic, load)
        cpu = cpu_s([system.pid]) - before
    system.note(f"produce {load}", load.megabytes / work.seconds)
    system.note(f"produce {load}, CPU", cpu * 1000 / load.megabytes)
    system.note(f"produce {load}, client's busiest thread", work.busiest_thread)
    system.note(f"produce {load}, broker", cpu / work.seconds)
    report(
        f"{system.name}: produce {load}: {load.megabytes / work.seconds:.0f} MB/s, "
        f"{cpu * 1000 / load.megabytes:.2f} ms/MB; of a processor: "
        f"client's busiest thread {work.busiest_thread:.2f}, broker {cpu / work.seconds:.2f}"
    )


def _consumption(system: BrokerUnderTest, scale: float, report: Callable[[str], None]) -> None:
    load = Load(CONSUMED.message_bytes, CONSUMED.batch_bytes, int(CONSUMED.count * scale))
    with fresh_topic(system.address) as topic:
        produce(system.address, topic, load)
        before = cpu_s([system.pid])
        seconds = consume(system.address, topic, load.count).seconds
        cpu = cpu_s([system.pid]) - before
    system.note("consume 1000 B", load.megabytes / seconds)
    system.note("consume 1000 B, CPU", cpu * 1000 / load.megabytes)
    report(f"{system.name}: consume: {load.megabytes / seconds:.0f} MB/s, {cpu * 1000 / load.megabytes:.2f} ms/MB")


def _latency(system: BrokerUnderTest, pace_s: float, pinned: bool, report: Callable[[str], None]) -> None:
    """Measure the latency with one request in flight. Each request is sent `pace_s` after the previous response.

    If `pinned`, broker and client run on separate processors.
    """
    name = ("paced" if pace_s else "back to back") + (", pinned apart" if pinned else "")
    program = str(Path(__file__).with_name("one_in_flight.py"))
    previous_processors = os.sched_getaffinity(system.pid)
    with fresh_topic(system.address) as topic:
        if pinned:
            _pin(system.pid, {0})
        try:
            command = [
                sys.executable,
                program,
                system.address,
                topic,
                str(LATENCY_S),
                str(pace_s),
                *(["1"] if pinned else []),
            ]
            found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        finally:
            _pin(system.pid, previous_processors)
    for percentile in ("p50_us", "p99_us", "p999_us"):
        system.note(f"{name} {percentile}", found[percentile])
    report(
        f"{system.name}: {name}: p50 {found['p50_us']:.0f}, p99 {found['p99_us']:.0f}, p99.9 {found['p999_us']:.0f} us"
    )


def _pin(pid: int, processors: set[int]) -> None:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), processors)


# {name: (unit, goal as the ratio of headrace's median to Kafka's, whether more is better)}
_GOALS: dict[str, tuple[str, float, bool]] = {
    "back to back p50_us": ("us", 0.9, False),
    "back to back p99_us": ("us", 0.8, False),
    "paced p99_us": ("us", 0.5, False),
}


def _rows(systems: list[BrokerUnderTest]) -> list[Row]:
    rows = []
    for name in systems[0].measured:
        unit, goal, more = _GOALS.get(name) or _default_goal(name)
        values = [system.median(name) for system in systems if name in system.measured]
        rows.append(
            Row(
                "broker",
                name.replace("_us", ""),
                unit,
                values[0],
                values[1] if len(values) > 1 else None,
                goal,
                more,
                _limit(systems[0], name),
            )
        )
    return rows


def _limit(system: BrokerUnderTest, name: str) -> str:
    """Return "the client is saturated" if the client limits the throughput, else "".

    `name` is the name of the throughput in the measurements of `system`.

    The client limits the throughput if the rate is near the client's maximum, or if one of the client's threads uses a
    whole processor and the broker does not.
    """
    client_limit = f"{name}, client alone"
    if client_limit in system.measured and system.median(name) >= CLIENT_LIMIT_RATIO * system.median(client_limit):
        return "the client is saturated"
    client, broker = (f"{name}, {process}" for process in ("client's busiest thread", "broker"))
    if client not in system.measured or system.median(client) < SATURATED or system.median(broker) >= SATURATED:
        return ""
    return "the client is saturated"


def _default_goal(name: str) -> tuple[str, float | None, bool]:
    if name.endswith("CPU"):
        return "ms/MB", 0.35, False
    if name.endswith(("thread", ", broker")):
        return "processors", None, False
    if name.startswith("memory"):
        return "MB", None, False
    if name.endswith("client alone"):
        return "MB/s", None, True
    if name.endswith("_us"):
        return "us", None, False
    return "MB/s", 1.2 if "1000 KB" in name or name.startswith("consume") else 2.0, True
