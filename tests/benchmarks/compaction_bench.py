"""Measures produce latency while the broker compacts a gigabyte.

The cleaner process alternately runs for one second and is paused (SIGSTOP) for one second. The latency while the
cleaner is paused is the baseline. Because both states alternate, noise on the machine affects both latencies equally.

The benchmark measures this for both priorities of the cleaner. For a log that has exceeded max.compaction.lag.ms, the
cleaner runs at niceness 10. For any other log, the cleaner runs under SCHED_IDLE.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType
from one_in_flight import request, round_trip
from results import Row

from support.broker import BrokerProcess, running_broker
from support.processes import cleaner_pids

RECORDS = 1_000_000
RECORD_BYTES = 1000
KEYS = 200_000
PACE_S = 0.0005
WINDOW_S = 1.0
WAIT_S = 300
QUANTILES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}


def run(rounds: int, scale: float, report: Callable[[str], None]) -> list[Row]:
    """Measure the produce latency while the broker cleans two logs, one after the other.

    Only the second log has exceeded max.compaction.lag.ms.
    """
    rows = []
    for how, config in (("by idle processors", {}), ("overdue", {"max.compaction.lag.ms": "1"})):
        latencies: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(rounds):
            with TemporaryDirectory(prefix="headrace-bench-") as directory:
                _measure_cleaning(Path(directory), config, int(RECORDS * scale), latencies, report)
        for name, quantile in QUANTILES.items():
            beside, alone = (_quantile(latencies[is_cleaning], quantile) for is_cleaning in (True, False))
            report(f"{how}: {name} {beside:.0f} us with the cleaner, {alone:.0f} us without")
            rows.append(
                Row("compaction", f"paced produce during cleaning {how}, {name}", "us", beside, alone, None, False)
            )
    return rows


def _measure_cleaning(
    directory: Path,
    config: dict[str, str],
    records: int,
    latencies: dict[bool, list[float]],
    report: Callable[[str], None],
) -> None:
    settings = {"log.cleaner.backoff.ms": "100", "log.segment.bytes": str(64 * 1024 * 1024)}
    with running_broker(directory, **{key.replace(".", "_"): value for key, value in settings.items()}) as broker:
        _fill(broker, records)
        _start_cleaning(broker, config)
        pid = _wait_for_cleaner(broker)
        connection, message = _connect(broker), request("paced", b"x" * 100, 1)
        started, is_cleaning, windows = time.monotonic(), True, 0
        try:
            while "Log big-0: cleaned" not in broker.log and time.monotonic() - started < WAIT_S:
                os.kill(pid, signal.SIGCONT if is_cleaning else signal.SIGSTOP)
                latencies[is_cleaning] += _window(connection, message)
                is_cleaning, windows = not is_cleaning, windows + 1
        finally:
            os.kill(pid, signal.SIGCONT)
        done = re.findall(r"Log big-0: cleaned .*? in (\d+) ms, from (\d+) to (\d+) bytes", broker.log)
        report(f"{windows} windows; {done[0] if done else 'not finished'} (ms, bytes before, bytes after)")


def _fill(broker: BrokerProcess, records: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    not_yet_cleaned = {"cleanup.policy": "compact", "min.compaction.lag.ms": "3600000"}
    created = admin.create_topics([NewTopic("big", 1, 1, config=not_yet_cleaned), NewTopic("paced", 1, 1)])
    for future in created.values():
        future.result(30)
    producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 5, "batch.size": 131_072})
    value = os.urandom(RECORD_BYTES)
    for number in range(records):
        while True:
            try:
                producer.produce("big", value, key=b"%d" % (number * 7919 % KEYS))
                break
            except BufferError:
                producer.poll(0.01)
    if producer.flush(WAIT_S):
        raise RuntimeError("not every record was delivered")


def _start_cleaning(broker: BrokerProcess, config: dict[str, str]) -> None:
    configs = {"min.compaction.lag.ms": "0", **config}
    entries = [ConfigEntry(key, text, incremental_operation=AlterConfigOpType.SET) for key, text in configs.items()]
    resource = ConfigResource(ResourceType.TOPIC, "big", incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": broker.address})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)


def _wait_for_cleaner(broker: BrokerProcess) -> int:
    deadline = time.monotonic() + 60
    while not (found := cleaner_pids(broker.pid)):
        if time.monotonic() > deadline:
            raise RuntimeError(f"the cleaner does not start:\n{broker.log}")
        time.sleep(0.01)  # poll, because no event reports the cleaner's start
    return found[0]


def _connect(broker: BrokerProcess) -> socket.socket:
    connection = socket.create_connection((broker.host, broker.port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _window(connection: socket.socket, message: bytes) -> list[float]:
    latencies = []
    ends = time.perf_counter() + WINDOW_S
    while time.perf_counter() < ends:
        started = time.perf_counter_ns()
        round_trip(connection, message)
        latencies.append((time.perf_counter_ns() - started) / 1000)
        time.sleep(PACE_S)  # the pause limits the load to a constant rate
    return latencies


def _quantile(values: list[float], quantile: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(quantile * len(ordered)), len(ordered) - 1)]
