"""One broker under load: throughput, CPU per MB, latency, memory; headrace and, where it can run, Apache Kafka in turn.

Cases are interleaved (A B A B ...), so that a noisy moment of the machine hits both; ratios compare medians.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from confluent_kafka.admin import AdminClient, NewTopic
from process_stats import cpu_s, memory
from produce_load import Load, client_name, consume, produce
from results import Row

from support import apache
from support.broker import running_broker

FULL = (
    Load(100, 16_384, 3_000_000),
    Load(100, 131_072, 5_000_000),
    Load(1000, 16_384, 500_000),
    Load(1000, 131_072, 1_000_000),
    Load(1000, 1_000_000, 1_000_000),
)
CONSUMED = Load(1000, 131_072, 1_000_000)
LATENCY_S = 4.0
PACE_S = 0.0005


@dataclass(slots=True)
class Side:
    """A running broker and what was measured on it."""

    name: str
    address: str
    pid: int
    measured: dict[str, list[float]] = field(default_factory=dict)

    def note(self, name: str, value: float) -> None:
        self.measured.setdefault(name, []).append(value)

    def median(self, name: str) -> float:
        return statistics.median(self.measured[name])


@contextmanager
def sides() -> Iterator[list[Side]]:
    """headrace's broker, and Apache's where Maven and Java are there."""
    with TemporaryDirectory(prefix="headrace-bench-") as directory, running_broker(Path(directory)) as ours:
        mine = Side("headrace", ours.address, ours.pid)
        if apache.missing():
            yield [mine]
            return
        with apache.broker() as theirs:
            yield [mine, Side("Apache Kafka", theirs.address, theirs.pid)]


def run(rounds: int, scale: float, say: Callable[[str], None]) -> list[Row]:
    """Measure everything; `scale` shrinks the loads for a quick look."""
    say(f"load client: {client_name()}")
    loads = [Load(load.message_bytes, load.batch_bytes, int(load.count * scale)) for load in FULL]
    with sides() as both:
        for side in both:
            side.note("memory idle", memory([side.pid]).rss_mb)
        for round_number in range(rounds):
            for load in loads:
                for side in both:
                    _throughput(side, load, say)
            for side in both:
                _consumption(side, scale, say)
            for pinned in (False, True):
                for pace_s in (0.0, PACE_S):
                    for side in both:
                        _latency(side, pace_s, pinned, say)
            say(f"round {round_number + 1} of {rounds} done")
        for side in both:
            side.note("memory after load", memory([side.pid]).rss_mb)
        return _rows(both)


def _throughput(side: Side, load: Load, say: Callable[[str], None]) -> None:
    with _topic(side) as topic:
        before = cpu_s([side.pid])
        seconds = produce(side.address, topic, load)
        cpu = cpu_s([side.pid]) - before
    side.note(f"produce {load}", load.megabytes / seconds)
    side.note(f"produce {load}, CPU", cpu * 1000 / load.megabytes)
    say(f"{side.name}: produce {load}: {load.megabytes / seconds:.0f} MB/s, {cpu * 1000 / load.megabytes:.2f} ms/MB")


def _consumption(side: Side, scale: float, say: Callable[[str], None]) -> None:
    load = Load(CONSUMED.message_bytes, CONSUMED.batch_bytes, int(CONSUMED.count * scale))
    with _topic(side) as topic:
        produce(side.address, topic, load)
        before = cpu_s([side.pid])
        seconds = consume(side.address, topic, load.count)
        cpu = cpu_s([side.pid]) - before
    side.note("consume 1000 B", load.megabytes / seconds)
    side.note("consume 1000 B, CPU", cpu * 1000 / load.megabytes)
    say(f"{side.name}: consume: {load.megabytes / seconds:.0f} MB/s, {cpu * 1000 / load.megabytes:.2f} ms/MB")


def _latency(side: Side, pace_s: float, pinned: bool, say: Callable[[str], None]) -> None:
    """One request in flight; `pinned`: broker and client each on a processor of its own."""
    name = ("paced" if pace_s else "back to back") + (", pinned apart" if pinned else "")
    program = str(Path(__file__).with_name("one_in_flight.py"))
    placed = os.sched_getaffinity(side.pid)
    with _topic(side) as topic:
        if pinned:
            _pin(side.pid, {0})
        try:
            command = [
                sys.executable,
                program,
                side.address,
                topic,
                str(LATENCY_S),
                str(pace_s),
                *(["1"] if pinned else []),
            ]
            found = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
        finally:
            _pin(side.pid, placed)
    for percentile in ("p50_us", "p99_us", "p999_us"):
        side.note(f"{name} {percentile}", found[percentile])
    say(f"{side.name}: {name}: p50 {found['p50_us']:.0f}, p99 {found['p99_us']:.0f}, p99.9 {found['p999_us']:.0f} us")


def _pin(pid: int, processors: set[int]) -> None:
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setaffinity(int(thread.name), processors)


@contextmanager
def _topic(side: Side) -> Iterator[str]:
    admin = AdminClient({"bootstrap.servers": side.address})
    name = f"bench-{time.time_ns()}"
    for future in admin.create_topics([NewTopic(name, 1, 1)]).values():
        future.result(30)
    while name not in admin.list_topics(timeout=10).topics:
        time.sleep(0.05)  # a foreign broker's metadata has no event to wait for
    yield name
    for future in admin.delete_topics([name]).values():
        future.result(30)


# (what, unit, goal as a ratio of headrace's median to Apache's, whether more is better)
_GOALS: dict[str, tuple[str, float, bool]] = {
    "back to back p50_us": ("us", 0.9, False),
    "back to back p99_us": ("us", 0.8, False),
    "paced p99_us": ("us", 0.5, False),
}


def _rows(both: list[Side]) -> list[Row]:
    rows = []
    for name in both[0].measured:
        unit, goal, more = _GOALS.get(name) or _default_goal(name)
        values = [side.median(name) for side in both]
        rows.append(
            Row("broker", name.replace("_us", ""), unit, values[0], values[1] if len(both) > 1 else None, goal, more)
        )
    return rows


def _default_goal(name: str) -> tuple[str, float | None, bool]:
    if name.endswith("CPU"):
        return "ms/MB", 0.35, False
    if name.startswith("memory"):
        return "MB", None, False
    if name.endswith("_us"):
        return "us", None, False
    return "MB/s", 1.2 if "1000 KB" in name or name.startswith("consume") else 2.0, True
