"""What followers cost: 1, 2 and 4 of them (replication factor 2, 3, 5 on as many nodes), acks=all from all of them.

Clusters of one size take turns, headrace's and Apache Kafka's; CPU is that of all nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from clusters import Nodes, peers
from fresh_topic import DELETE_DELAY_MS, fresh_topic
from measured import Measured, in_turn
from paced_produce import paced
from process_stats import cpu_s
from produce_load import Load, client_name, produce
from results import Row

FOLLOWERS = (1, 2, 4)
LOAD = Load(1000, 131_072, 400_000, "-1")
WARM_UP = Load(1000, 131_072, 50_000, "-1")
PRODUCE_S = 3.0
PACES_S = (0.0, 0.0005)


class Side(Measured):
    """One cluster after the other of one kind, and what was measured on them."""

    def __init__(self) -> None:
        super().__init__()
        self.nodes: Nodes


def run(rounds: int, scale: float, say: Callable[[str], None]) -> list[Row]:
    """Measure everything; `scale` shrinks the load for a quick look."""
    say(f"load client: {client_name()}")
    starts = peers()
    sides = [Side() for _ in starts]
    for followers in FOLLOWERS:
        with ExitStack() as stack:
            for side, start in zip(sides, starts, strict=True):
                settings = {
                    "log_segment_delete_delay_ms": DELETE_DELAY_MS,
                    "min_insync_replicas": str(1 + followers),
                    "offsets_topic_replication_factor": "2",
                }
                side.nodes = stack.enter_context(start(1 + followers, **settings))
            _measure(sides, followers, rounds, scale, say)
    return [_row(name, sides) for name in sides[0].measured]


def _measure(sides: Sequence[Side], followers: int, rounds: int, scale: float, say: Callable[[str], None]) -> None:
    replicas = 1 + followers
    for side in sides:
        with fresh_topic(side.nodes.bootstrap, 1, replicas) as topic:
            produce(side.nodes.bootstrap, topic, WARM_UP)
    load = Load(LOAD.message_bytes, LOAD.batch_bytes, int(LOAD.count * scale), LOAD.acks)
    for round_number in range(rounds):
        for side in in_turn(sides, round_number):
            _load(side, load, replicas, say)
        for side in in_turn(sides, round_number):
            _latency(side, replicas, say)


def _load(side: Side, load: Load, replicas: int, say: Callable[[str], None]) -> None:
    pids = side.nodes.pids()
    with fresh_topic(side.nodes.bootstrap, 1, replicas) as topic:
        before_s = cpu_s(pids)
        work = produce(side.nodes.bootstrap, topic, load)
        cpu_ms = (cpu_s(pids) - before_s) * 1000
    name = _named(replicas)
    side.note(f"{name}: produce {load}", load.megabytes / work.seconds)
    side.note(f"{name}: produce {load}, CPU", cpu_ms / load.megabytes)
    say(f"{side.nodes.name}, {name}: {load.megabytes / work.seconds:.0f} MB/s, {cpu_ms / load.megabytes:.2f} ms/MB")


def _latency(side: Side, replicas: int, say: Callable[[str], None]) -> None:
    name = _named(replicas)
    with fresh_topic(side.nodes.bootstrap, 1, replicas) as topic:
        for pace_s in PACES_S:
            found = paced(side.nodes.bootstrap, topic, PRODUCE_S, pace_s)
            how = "paced" if pace_s else "back to back"
            side.note(f"{name}: {how} p50", found["p50_us"])
            side.note(f"{name}: {how} p99", found["p99_us"])
            say(f"{side.nodes.name}, {name}, {how}: p50 {found['p50_us']:.0f}, p99 {found['p99_us']:.0f} us")


def _named(replicas: int) -> str:
    return f"{replicas - 1} follower{'s' if replicas > 2 else ''}"


def _row(name: str, sides: Sequence[Side]) -> Row:
    unit = "us" if name.endswith(("p50", "p99")) else "ms/MB" if name.endswith("CPU") else "MB/s"
    values = [side.median(name) for side in sides]
    peer = values[1] if len(values) > 1 else None
    return Row("followers", name, unit, values[0], peer, more_is_better=unit == "MB/s")
