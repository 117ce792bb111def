"""Measures how fast a restarted follower replicates 1 GB, and how much the replication affects producers.

The follower's rate is compared with the rate of a process that only receives data over loopback and writes it to a new
file. Both rates are measured within one minute. The producers' latency (acks=all) is compared with their latency before
the restart.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from clusters import Nodes, headrace, wait_until_in_sync
from confluent_kafka.admin import AdminClient, NewTopic
from measured import Measurements
from paced_produce import paced, paced_in_background
from process_stats import cpu_s
from produce_load import Load, produce
from receive_and_write import receive_and_write, warm_page_cache
from results import Row

PARTITIONS = 6
REPLICAS = 3
LOAD = Load(1000, 131_072, 1_000_000, "1")
PACE_S = 0.002
BEFORE_S = 5.0
VICTIM = 3
_POLL_S = 0.005
_TIMEOUT_S = 120.0


def run(rounds: int, scale: float, report: Callable[[str], None]) -> list[Row]:
    """Measure `rounds` times. A `scale` below 1 shrinks the amount of data that the follower replicates."""
    ours, floor = Measurements(), Measurements()
    load = Load(LOAD.message_bytes, LOAD.batch_bytes, int(LOAD.count * scale), LOAD.acks)
    with headrace(REPLICAS, min_insync_replicas="2", log_segment_delete_delay_ms="1000") as nodes:
        for number in range(rounds):
            with TemporaryDirectory(prefix="headrace-bench-") as kept:
                _measure_floor(floor, load, f"{kept}/before")
                _catch_up(nodes, f"catch-up-{number}", load, kept, ours)
                _measure_floor(floor, load, f"{kept}/after")
            report(
                f"round {number + 1}: {ours.measured['rate'][-1]:.0f} MB/s, receiving and writing alone "
                f"{floor.measured['rate'][-2]:.0f} and {floor.measured['rate'][-1]:.0f} MB/s; "
                f"{ours.measured['cpu'][-1]:.2f} ms/MB compared with {floor.measured['cpu'][-1]:.2f}; p99 "
                f"{ours.measured['before'][-1]:.0f} -> {ours.measured['meanwhile'][-1]:.0f} us; "
                f"in sync after {ours.measured['in sync'][-1]:.1f} s"
            )
    size = f"{load.megabytes / 1000:g} GB"
    return [
        Row("catch-up", f"{size} over {PARTITIONS} partitions", "MB/s", ours.median("rate"), floor.median("rate"), 0.8),
        Row(
            "catch-up",
            f"{size} over {PARTITIONS} partitions, CPU of the node",
            "ms/MB",
            ours.median("cpu"),
            floor.median("cpu"),
            more_is_better=False,
        ),
        Row(
            "catch-up",
            "paced produce p99 during the catch-up, compared with before",
            "us",
            ours.median("meanwhile"),
            ours.median("before"),
            2.0,
            more_is_better=False,
        ),
        Row("catch-up", "start of the node until all are in sync", "s", ours.median("in sync"), more_is_better=False),
    ]


def _measure_floor(floor: Measurements, load: Load, path: str) -> None:
    rate, cpu = receive_and_write(int(load.megabytes), path)
    floor.note("rate", rate)
    floor.note("cpu", cpu)


def _catch_up(nodes: Nodes, topic: str, load: Load, kept: str, ours: Measurements) -> None:
    admin = AdminClient({"bootstrap.servers": nodes.bootstrap})
    for future in admin.create_topics([NewTopic(topic, PARTITIONS, REPLICAS)]).values():
        future.result(30)
    wait_until_in_sync(nodes.bootstrap, topic, PARTITIONS, REPLICAS)
    ours.note("before", paced(nodes.bootstrap, topic, BEFORE_S, PACE_S)["p99_us"])
    nodes.stop(VICTIM)
    produce(nodes.bootstrap, topic, load)
    os.sync()
    files = nodes.data(VICTIM)
    before_bytes = _size(files, topic)
    warm_page_cache(int(load.megabytes) * 5 // 4, f"{kept}/pages")
    with paced_in_background(nodes.bootstrap, topic, PACE_S) as found:
        started = time.perf_counter()
        nodes.start(VICTIM)
        _measure_growth(nodes, topic, before_bytes, int(load.megabytes * 1e6), ours)
        wait_until_in_sync(nodes.bootstrap, topic, PARTITIONS, REPLICAS)
        ours.note("in sync", time.perf_counter() - started)
    ours.note("meanwhile", found["p99_us"])
    for future in admin.delete_topics([topic]).values():
        future.result(30)
    time.sleep(3)  # the broker deletes the files asynchronously; no event reports it
    os.sync()


def _size(files: Path, topic: str) -> int:
    return sum(path.stat().st_size for path in files.glob(f"{topic}-*/*.log"))


def _measure_growth(nodes: Nodes, topic: str, before_bytes: int, awaited_bytes: int, ours: Measurements) -> None:
    """Measure the follower's MB/s and CPU ms per MB from 5 % to 95 % of the replication.

    The follower appends `awaited_bytes` to its logs, which have `before_bytes` at the start. The results are added to
    the measurements `ours`.
    """
    first, last = before_bytes + awaited_bytes // 20, before_bytes + awaited_bytes * 19 // 20
    start: tuple[float, float, int] | None = None
    files, victim = nodes.data(VICTIM), [nodes.pids()[VICTIM - 1]]
    deadline = time.monotonic() + _TIMEOUT_S
    while time.monotonic() < deadline:
        size, now, cpu = _size(files, topic), time.perf_counter(), cpu_s(victim)
        if start is None and size >= first:
            start = now, cpu, size
        if start is not None and size >= last:
            megabytes = (size - start[2]) / 1e6
            ours.note("rate", megabytes / (now - start[0]))
            ours.note("cpu", (cpu - start[1]) * 1000 / megabytes)
            return
        time.sleep(_POLL_S)  # poll, because no event reports the growth of the files
    raise TimeoutError(f"the follower did not catch up within {_TIMEOUT_S:.0f} s")
