"""Produce latency while a gigabyte is compacted: the cleaner at work and frozen, a second each in turn.

The peer of a row is the same broker with its cleaner's process frozen (SIGSTOP): a noisy moment of the machine hits
both.  A log that is overdue (max.compaction.lag.ms) is cleaned at niceness 10, any other by idle processors only.
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


def run(rounds: int, scale: float, say: Callable[[str], None]) -> list[Row]:
    """Measure beside both kinds of cleaning."""
    rows = []
    for how, config in (("by idle processors", {}), ("overdue", {"max.compaction.lag.ms": "1"})):
        took: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(rounds):
            with TemporaryDirectory(prefix="headrace-bench-") as directory:
                _one_cleaning(Path(directory), config, int(RECORDS * scale), took, say)
        for name, quantile in QUANTILES.items():
            beside, alone = (_quantile(took[is_cleaning], quantile) for is_cleaning in (True, False))
            say(f"{how}: {name} {beside:.0f} us beside the cleaner, {alone:.0f} us without")
            rows.append(
                Row("compaction", f"paced produce beside cleaning {how}, {name}", "us", beside, alone, None, False)
            )
    return rows


def _one_cleaning(
    directory: Path, config: dict[str, str], records: int, took: dict[bool, list[float]], say: Callable[[str], None]
) -> None:
    settings = {"log.cleaner.backoff.ms": "100", "log.segment.bytes": str(64 * 1024 * 1024)}
    with running_broker(directory, **{key.replace(".", "_"): value for key, value in settings.items()}) as broker:
        _fill(broker, records)
        _begin_to_clean(broker, config)
        pid = _await_cleaner(broker)
        connection, message = _connected(broker), request("paced", b"x" * 100, 1)
        started, is_cleaning, windows = time.monotonic(), True, 0
        try:
            while "Compacted big-0" not in broker.log and time.monotonic() - started < WAIT_S:
                os.kill(pid, signal.SIGCONT if is_cleaning else signal.SIGSTOP)
                took[is_cleaning] += _window(connection, message)
                is_cleaning, windows = not is_cleaning, windows + 1
        finally:
            os.kill(pid, signal.SIGCONT)
        done = re.findall(r"Compacted big-0 .*? in (\d+) ms: (\d+) bytes became (\d+)", broker.log)
        say(f"{windows} windows; {done[0] if done else 'not finished'} (ms, bytes before, bytes after)")


def _fill(broker: BrokerProcess, records: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    later = {"cleanup.policy": "compact", "min.compaction.lag.ms": "3600000"}
    made = admin.create_topics([NewTopic("big", 1, 1, config=later), NewTopic("paced", 1, 1)])
    for future in made.values():
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


def _begin_to_clean(broker: BrokerProcess, config: dict[str, str]) -> None:
    wanted = {"min.compaction.lag.ms": "0", **config}
    entries = [ConfigEntry(key, text, incremental_operation=AlterConfigOpType.SET) for key, text in wanted.items()]
    resource = ConfigResource(ResourceType.TOPIC, "big", incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": broker.address})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)


def _await_cleaner(broker: BrokerProcess) -> int:
    deadline = time.monotonic() + 60
    while not (found := cleaner_pids(broker.pid)):
        if time.monotonic() > deadline:
            raise RuntimeError(f"nothing is cleaned:\n{broker.log}")
        time.sleep(0.01)  # another process is what is waited for
    return found[0]


def _connected(broker: BrokerProcess) -> socket.socket:
    connection = socket.create_connection((broker.host, broker.port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _window(connection: socket.socket, message: bytes) -> list[float]:
    took = []
    ends = time.perf_counter() + WINDOW_S
    while time.perf_counter() < ends:
        started = time.perf_counter_ns()
        round_trip(connection, message)
        took.append((time.perf_counter_ns() - started) / 1000)
        time.sleep(PACE_S)  # the pace is what is measured
    return took


def _quantile(values: list[float], quantile: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(quantile * len(ordered)), len(ordered) - 1)]
