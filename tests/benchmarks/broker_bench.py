"""One broker under load: throughput, CPU per MB, latency, memory; headrace and, where it can run, Apache Kafka in turn.

Cases are interleaved (A B, then B A, ...), so that a noisy moment of the machine hits both; ratios compare medians.
Both write to the same file system, each load into a fresh topic whose files go a second after it is deleted, and what
is dirty is written before the next load begins: nobody pays for the pages of the load before. Both are warmed up alike.
Latencies are measured in several short turns, because where the system places two processes decides much of them.
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
from measured import Measured, in_turn
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
AT_THE_CLIENTS_LIMIT = 0.85
LATENCY_S = 2.0
LATENCY_TURNS = 4
SATURATED = 0.9
PACE_S = 0.0005


@dataclass(slots=True)
class Side(Measured):
    """A running broker and what was measured on it."""

    name: str
    address: str
    pid: int


@contextmanager
def sides() -> Iterator[list[Side]]:
    """headrace's broker, and Apache's where Maven and Java are there."""
    settings = {"log.segment.delete.delay.ms": DELETE_DELAY_MS}
    with TemporaryDirectory(prefix="headrace-bench-") as directory, running_broker(Path(directory), **settings) as ours:
        mine = Side("headrace", ours.address, ours.pid)
        if apache.missing():
            yield [mine]
            return
        with apache.broker(**settings) as theirs:
            yield [mine, Side("Apache Kafka", theirs.address, theirs.pid)]


def run(rounds: int, scale: float, say: Callable[[str], None]) -> list[Row]:
    """Measure everything; `scale` shrinks the loads for a quick look."""
    say(f"load client: {client_name()}")
    loads = [Load(load.message_bytes, load.batch_bytes, int(load.count * scale)) for load in FULL]
    with sides() as both:
        for side in both:
            side.note("memory idle", memory([side.pid]).rss_mb)
        for side in both:
            _warm_up(side)
        for round_number in range(rounds):
            for load in loads:
                for side in in_turn(both, round_number):
                    _throughput(side, load, say)
            for side in in_turn(both, round_number):
                _consumption(side, scale, say)
            for pinned in (False, True):
                for pace_s in (0.0, PACE_S):
                    for turn in range(LATENCY_TURNS):
                        for side in in_turn(both, turn):
                            _latency(side, pace_s, pinned, say)
            say(f"round {round_number + 1} of {rounds} done")
        for side in both:
            side.note("memory after load", memory([side.pid]).rss_mb)
        _client_alone(both[0], loads, say)
        return _rows(both)


def _client_alone(mine: Side, loads: list[Load], say: Callable[[str], None]) -> None:
    """What the client reaches when the broker only answers: the most that any broker could show."""
    program = [str(Path(__file__).with_name("null_broker.py"))]
    with TemporaryDirectory(prefix="headrace-bench-") as directory:
        broker = BrokerProcess(Path(directory), {}, program)
        broker.start()
        try:
            nothing = Side("a broker that keeps nothing", broker.address, broker.pid)
            with fresh_topic(nothing.address) as topic:
                produce(nothing.address, topic, WARM_UP)
            for load in loads:
                with fresh_topic(nothing.address) as topic:
                    rate = load.megabytes / produce(nothing.address, topic, load).seconds
                mine.note(f"produce {load}, client alone", rate)
                say(f"{nothing.name}: produce {load}: {rate:.0f} MB/s")
        finally:
            broker.close()


def _warm_up(side: Side) -> None:
    with fresh_topic(side.address) as topic:
        produce(side.address, topic, WARM_UP)
        consume(side.address, topic, WARM_UP.count)


def _throughput(side: Side, load: Load, say: Callable[[str], None]) -> None:
    with fresh_topic(side.address) as topic:
        before = cpu_s([side.pid])
        work = produce(side.address, topic, load)
        cpu = cpu_s([side.pid]) - before
    side.note(f"produce {load}", load.megabytes / work.seconds)
    side.note(f"produce {load}, CPU", cpu * 1000 / load.megabytes)
    side.note(f"produce {load}, client's busiest thread", work.busiest_thread)
    side.note(f"produce {load}, broker", cpu / work.seconds)
    say(
        f"{side.name}: produce {load}: {load.megabytes / work.seconds:.0f} MB/s, "
        f"{cpu * 1000 / load.megabytes:.2f} ms/MB; of a processor: "
        f"client's busiest thread {work.busiest_thread:.2f}, broker {cpu / work.seconds:.2f}"
    )


def _consumption(side: Side, scale: float, say: Callable[[str], None]) -> None:
    load = Load(CONSUMED.message_bytes, CONSUMED.batch_bytes, int(CONSUMED.count * scale))
    with fresh_topic(side.address) as topic:
        produce(side.address, topic, load)
        before = cpu_s([side.pid])
        seconds = consume(side.address, topic, load.count).seconds
        cpu = cpu_s([side.pid]) - before
    side.note("consume 1000 B", load.megabytes / seconds)
    side.note("consume 1000 B, CPU", cpu * 1000 / load.megabytes)
    say(f"{side.name}: consume: {load.megabytes / seconds:.0f} MB/s, {cpu * 1000 / load.megabytes:.2f} ms/MB")


def _latency(side: Side, pace_s: float, pinned: bool, say: Callable[[str], None]) -> None:
    """One request in flight; `pinned`: broker and client each on a processor of its own."""
    name = ("paced" if pace_s else "back to back") + (", pinned apart" if pinned else "")
    program = str(Path(__file__).with_name("one_in_flight.py"))
    placed = os.sched_getaffinity(side.pid)
    with fresh_topic(side.address) as topic:
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
        values = [side.median(name) for side in both if name in side.measured]
        rows.append(
            Row(
                "broker",
                name.replace("_us", ""),
                unit,
                values[0],
                values[1] if len(values) > 1 else None,
                goal,
                more,
                _limit(both[0], name),
            )
        )
    return rows


def _limit(side: Side, name: str) -> str:
    """The client: no broker could show more, or a thread of it has all of a processor while the broker has not."""
    alone = f"{name}, client alone"
    if alone in side.measured and side.median(name) >= AT_THE_CLIENTS_LIMIT * side.median(alone):
        return "the client is saturated"
    client, broker = (f"{name}, {who}" for who in ("client's busiest thread", "broker"))
    if client not in side.measured or side.median(client) < SATURATED or side.median(broker) >= SATURATED:
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
