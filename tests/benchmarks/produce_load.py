"""Produces and consumes with librdkafka: with `rdkafka_performance` if it is available, else with confluent-kafka.

`rdkafka_performance` is one of librdkafka's examples. Set RDKAFKA_PERFORMANCE to its path, or put it on the PATH.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from confluent_kafka import Consumer, Producer, TopicPartition
from process_stats import thread_cpu_s

TIMEOUT_S = 300


@dataclass(frozen=True, slots=True)
class Load:
    """The number and size of the messages to produce, in batches of at most `batch_bytes`."""

    message_bytes: int
    batch_bytes: int
    count: int
    acks: str = "1"

    @property
    def megabytes(self) -> float:
        return self.message_bytes * self.count / 1e6

    def __str__(self) -> str:
        return f"{self.message_bytes} B, {self.batch_bytes // 1000} KB batches"


@dataclass(slots=True)
class ClientRun:
    """The duration of one run of the load client, and the CPU time of its busiest thread."""

    seconds: float = 0.0
    busiest_thread_s: float = 0.0

    @property
    def busiest_thread(self) -> float:
        """The share of a processor that the client's busiest thread used. If it is near 1, the client is saturated."""
        return self.busiest_thread_s / self.seconds


def client_name() -> str:
    """Return the name of the load client in use."""
    return "rdkafka_performance" if _program() else "confluent-kafka"


def _program() -> str | None:
    return os.environ.get("RDKAFKA_PERFORMANCE") or shutil.which("rdkafka_performance")


def produce(address: str, topic: str, load: Load) -> ClientRun:
    """Produce the load. The returned duration is from the first message to the last acknowledgement."""
    settings = {
        "batch.size": load.batch_bytes,
        "linger.ms": 5,
        "queue.buffering.max.messages": 1_000_000,
        "queue.buffering.max.kbytes": 1_000_000,
        "batch.num.messages": 1_000_000,
        "message.max.bytes": 2_000_000,
    }
    program = _program()
    if program is None:
        return _produce_confluent(address, topic, load, settings)
    options = [option for name, value in settings.items() for option in ("-X", f"{name}={value}")]
    command = [program, "-P", "-t", topic, "-b", address, "-s", str(load.message_bytes), "-c", str(load.count)]
    output, work = _run([*command, "-a", load.acks, *options])
    delivered, milliseconds = map(int, re.findall(r"(\d+) delivered .*? in (\d+)ms", output)[-1])
    if delivered != load.count:
        raise RuntimeError(f"{delivered} of {load.count} messages were delivered: {output[-500:]}")
    work.seconds = milliseconds / 1000
    return work


def _produce_confluent(address: str, topic: str, load: Load, settings: dict[str, int]) -> ClientRun:
    producer = Producer({"bootstrap.servers": address, "acks": load.acks, **settings})
    value = b"x" * load.message_bytes
    with _watch_threads(os.getpid()) as work:
        started = time.perf_counter()
        for _ in range(load.count):
            while True:
                try:
                    producer.produce(topic, value)
                    break
                except BufferError:
                    producer.poll(0.01)
        if producer.flush(TIMEOUT_S):
            raise RuntimeError("not every message was delivered")
        work.seconds = time.perf_counter() - started
    return work


def consume(address: str, topic: str, count: int) -> ClientRun:
    """Consume `count` messages of partition 0 from the beginning."""
    program = _program()
    if program is None:
        return _consume_confluent(address, topic, count)
    settings = {
        "fetch.message.max.bytes": "1048576",
        "queued.max.messages.kbytes": "500000",
        "queued.min.messages": "1000000",
        "check.crcs": "false",
    }
    options = [option for name, value in settings.items() for option in ("-X", f"{name}={value}")]
    command = [program, "-C", "-t", topic, "-p", "0", "-b", address, "-o", "beginning", "-c", str(count), "-q"]
    output, work = _run([*command, *options])
    work.seconds = int(re.findall(r"in (\d+)ms", output)[-1]) / 1000
    return work


def _consume_confluent(address: str, topic: str, count: int) -> ClientRun:
    consumer = Consumer({"bootstrap.servers": address, "group.id": "bench", "queued.max.messages.kbytes": 500_000})
    consumer.assign([TopicPartition(topic, 0, 0)])
    with _watch_threads(os.getpid()) as work:
        started, seen = time.perf_counter(), 0
        while seen < count:
            seen += len(consumer.consume(10_000, timeout=1))
        work.seconds = time.perf_counter() - started
    consumer.close()
    return work


def _run(command: list[str]) -> tuple[str, ClientRun]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        with _watch_threads(process.pid) as work:
            output, _ = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    return output, work


@contextmanager
def _watch_threads(pid: int) -> Iterator[ClientRun]:
    """Sample the CPU time of the process's threads while the block runs.

    A single sample at the end of the block would miss the threads that have ended.
    """
    work, before, stopped = ClientRun(), thread_cpu_s(pid), threading.Event()

    def sample() -> None:
        while not stopped.wait(0.05):
            for thread, cpu_s in thread_cpu_s(pid).items():
                work.busiest_thread_s = max(work.busiest_thread_s, cpu_s - before.get(thread, 0.0))

    sampler = threading.Thread(target=sample)
    sampler.start()
    try:
        yield work
    finally:
        stopped.set()
        sampler.join()
