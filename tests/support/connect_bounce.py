"""Stops and kills workers and brokers at random while file connectors run, and checks the connectors' records.

There are two sources. Each source reads a file and produces the lines of the file to its own topic. Each topic has one
partition. There are two sinks with two tasks each. Each sink writes both topics to its own file.

A line is `NAME NUMBER`, with consecutive numbers. Therefore, each topic must contain the numbers 0, 1, 2, ... in order.
After a failure, a source may go back to an earlier number and continue from there. The same is true for the lines of
each topic in the file of each sink.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException

from support.cluster import ClusterProcess
from support.distributed import DistributedWorker, is_running, owners
from support.topics import read_topic
from support.worker import wait_for

NAMES = ("alpha", "beta")
SINKS = ("first", "second")
SETTINGS = {
    **{f"{kind}.storage.replication.factor": "3" for kind in ("config", "offset", "status")},
    "scheduled.rebalance.max.delay.ms": "1000",
    "offset.flush.interval.ms": "500",
}
BROKERS = {"default.replication.factor": "3", "min.insync.replicas": "2"}
RECOVERY_TIMEOUT_S = 180.0
_INTERVAL_S = 0.01
_STRING = {
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
}


class Writer:
    """Appends lines to the files of the sources until `stop` is called."""

    def __init__(self, directory: Path) -> None:
        self.count = 0
        self._files = [open(source_file(directory, name), "w", buffering=1) for name in NAMES]  # noqa: SIM115 - closed by `stop`
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _write(self) -> None:
        while not self._ended.wait(_INTERVAL_S):
            for name, file in zip(NAMES, self._files, strict=True):
                file.write(f"{name} {self.count}\n")
            self.count += 1

    def stop(self) -> int:
        """Stop writing. Return the number of lines that each file has, which is the same for all files."""
        self._ended.set()
        self._thread.join()
        for file in self._files:
            file.close()
        return self.count


@dataclass(frozen=True, slots=True)
class Sequences:
    """The differences between a sequence of numbers and the sequence 0, 1, 2, ..., `length` - 1."""

    missing: int
    """The count of numbers that do not occur, or occur for the first time only after a higher number."""
    duplicates: int
    rewinds: int
    """How often a number is not higher than the previous number."""


def compare(numbers: Iterable[int], length: int) -> Sequences:
    """Compare numbers with 0, 1, 2, ..., `length` - 1."""
    seen: set[int] = set()
    highest, before, duplicates, rewinds, late = -1, -1, 0, 0, 0
    for number in numbers:
        duplicates += number in seen
        late += number > highest + 1
        rewinds += number <= before
        seen.add(number)
        highest, before = max(highest, number), number
    return Sequences(late + len(set(range(length)) - seen), duplicates, rewinds)


class Bounce:
    """Stops and kills workers and brokers, and starts them again.

    At most one broker and two workers are down at a time.
    """

    def __init__(self, seed: int, cluster: ClusterProcess, workers: Sequence[DistributedWorker]) -> None:
        self.events = 0
        self._rng = random.Random(seed)
        self._cluster = cluster
        self._workers = workers
        self._started_s = time.monotonic()

    def run(self, seconds: float) -> None:
        """Stop, kill and start workers and brokers at random for `seconds`. At the end, all of them run."""
        actions = [
            (4, self._stop_worker),
            (4, self._kill_worker),
            (1, self._kill_two_workers),
            (2, self._stop_broker),
            (3, self._kill_broker),
            (2, self._kill_worker_and_broker),
        ]
        while time.monotonic() - self._started_s < seconds:
            [action] = self._rng.choices([each for _, each in actions], [weight for weight, _ in actions])
            action(self._rng.uniform(0, 6))
            self.events += 1
            time.sleep(self._rng.uniform(0.5, 6))

    def _stop_worker(self, down_s: float) -> None:
        worker = self._worker("stop", down_s)
        worker.stop()
        time.sleep(down_s)
        worker.start()

    def _kill_worker(self, down_s: float) -> None:
        worker = self._worker("kill", down_s)
        worker.kill_group()
        time.sleep(down_s)
        worker.start()

    def _kill_two_workers(self, down_s: float) -> None:
        for worker in (workers := self._rng.sample(self._workers, 2)):
            self._print(f"kill worker {worker.worker_id}, down for {down_s:.1f} s")
            worker.kill_group()
        time.sleep(down_s)
        for worker in workers:
            worker.start()

    def _stop_broker(self, down_s: float) -> None:
        node = self._broker("stop", down_s)
        self._cluster.stop_node(node)
        time.sleep(down_s)
        self._cluster.start_node(node)

    def _kill_broker(self, down_s: float) -> None:
        node = self._broker("kill", down_s)
        self._cluster.kill(node)
        time.sleep(down_s)
        self._cluster.start_node(node)

    def _kill_worker_and_broker(self, down_s: float) -> None:
        worker, node = self._worker("kill", down_s), self._broker("kill", down_s)
        worker.kill_group()
        self._cluster.kill(node)
        time.sleep(down_s)
        self._cluster.start_node(node)
        worker.start()

    def _worker(self, action: str, down_s: float) -> DistributedWorker:
        worker = self._rng.choice(self._workers)
        self._print(f"{action} worker {worker.worker_id}, down for {down_s:.1f} s")
        return worker

    def _broker(self, action: str, down_s: float) -> int:
        node = self._rng.randint(1, self._cluster.nodes)
        self._print(f"{action} broker {node}, down for {down_s:.1f} s")
        return node

    def _print(self, text: str) -> None:
        print(f"[{time.monotonic() - self._started_s:6.1f} s] {text}", flush=True)


def source_file(directory: Path, name: str) -> Path:
    """Return the file of a source."""
    return directory / f"{name}.txt"


def sink_file(directory: Path, name: str) -> Path:
    """Return the file of a sink."""
    return directory / f"{name}-sink.txt"


def create_connectors(worker: DistributedWorker, directory: Path) -> None:
    """Create two sources, and two sinks with two tasks each. Wait until they run."""
    for name in NAMES:
        source = {"connector.class": "FileStreamSource", "file": str(source_file(directory, name)), "topic": name}
        creation = {"topic.creation.default.partitions": "1", "topic.creation.default.replication.factor": "3"}
        worker.create(name, {**source, **_STRING, **creation})
        wait_for(lambda n=name: is_running(worker, n, 1), f"{name} runs", 60, lambda n=name: owners(worker, n))
    for name in SINKS:
        sink = {"connector.class": "FileStreamSink", "file": str(sink_file(directory, name)), "tasks.max": "2"}
        consumer = {"consumer.override.session.timeout.ms": "6000", "consumer.override.heartbeat.interval.ms": "500"}
        worker.create(name, {**sink, **_STRING, **consumer, "topics": ",".join(NAMES)})
        wait_for(lambda n=name: is_running(worker, n, 2), f"{name} runs", 60, lambda n=name: owners(worker, n))


def wait_until_delivered(workers: Sequence[DistributedWorker], directory: Path, count: int) -> None:
    """Wait until all connectors and tasks run, and the sinks have written the last line of each source file.

    Each source file has `count` lines.
    """
    for name, tasks in [*((name, 1) for name in NAMES), *((name, 2) for name in SINKS)]:
        wait_for(
            lambda n=name, t=tasks: is_running(workers[0], n, t),
            f"{name} runs",
            RECOVERY_TIMEOUT_S,
            lambda n=name: owners(workers[0], n),
        )
    for sink in SINKS:
        for name in NAMES:
            wait_for(
                lambda s=sink, n=name: count - 1 in sink_numbers(directory, s, n),
                f"{sink} has written line {count - 1} of {name}",
                RECOVERY_TIMEOUT_S,
                lambda s=sink, n=name: f"(written: {max(sink_numbers(directory, s, n), default=None)})",
            )


def sink_numbers(directory: Path, sink: str, name: str) -> list[int]:
    """Read the file of the sink `sink`, and return the number in each line `NAME NUMBER` whose NAME equals `name`."""
    file = sink_file(directory, sink)
    lines = file.read_text().splitlines() if file.exists() else []
    return [int(number) for line_name, number in map(str.split, lines) if line_name == name]


def topic_numbers(bootstrap_servers: str, name: str) -> list[int]:
    """Return the numbers from all records `NAME NUMBER` in the topic of the source `name`."""
    deadline = time.monotonic() + 60
    while True:
        try:
            return [int((message.value() or b"").split()[1]) for message in read_topic(bootstrap_servers, name)]
        except KafkaException:  # a leader moves
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
