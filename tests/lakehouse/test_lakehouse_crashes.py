"""The lakehouse sink killed at any moment: no record twice in a table, none missing, nothing left running."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from support import lakehouse_task
from support.broker import BrokerProcess, running_broker

pytest.importorskip("pyspark")
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(300)]

TOPICS = {"one": 1, "three": 3}
SCHEMA = b'{"type":"struct","fields":[{"type":"int64","optional":false,"field":"n"}],"optional":false}'


class TaskProcess:
    """A task in a process of its own."""

    def __init__(self, broker: BrokerProcess, path: Path, **props: str) -> None:
        order = {
            "address": broker.address,
            "topics": list(TOPICS),
            "props": {"lakehouse.path": str(path), "lakehouse.trigger.interval.ms": "100", **props},
        }
        self._process = subprocess.Popen(
            [sys.executable, lakehouse_task.__file__, json.dumps(order)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self.lines: list[str] = []
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                self.lines.append(line.decode(errors="replace").rstrip())

    def offsets(self) -> dict[str, int]:
        """What the task reported last."""
        reported = [line for line in self.lines if line.startswith("reported ")]
        return json.loads(reported[-1].removeprefix("reported ")) if reported else {}

    def commits(self) -> int:
        """How many batches were committed."""
        return sum("Committed batch" in line for line in self.lines)

    def until(self, condition: Callable[[], bool], timeout_s: float = 120) -> None:
        """Wait for a condition while the task runs."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert self._process.poll() is None, "\n".join(self.lines[-40:])
            assert time.monotonic() < deadline, "\n".join(self.lines[-40:])
            time.sleep(0.05)

    def order(self, word: str) -> None:
        """Give an order and wait until it was taken."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n".encode())
        self._process.stdin.flush()
        deadline = time.monotonic() + 20
        while f"obeyed {word}" not in self.lines and self._process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def stop(self, timeout_s: float) -> None:
        """Order the task to stop; it has to end by itself, in time, with everything that it started."""
        family = psutil.Process(self._process.pid).children(recursive=True)
        self.order("stop")
        assert self._process.wait(timeout_s) == 0, "\n".join(self.lines[-40:])
        assert_gone(family)
        assert self._process.stdin is not None
        self._process.stdin.close()

    def kill_jvm(self) -> None:
        """SIGKILL Spark's JVM; the task has to end by itself soon, and to say so."""
        family = psutil.Process(self._process.pid).children(recursive=True)
        (jvm,) = (process for process in family if process.name() == "java")
        jvm.kill()
        assert self._process.wait(20) != 0
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._reader.join(5)
        assert any("ConnectError: Spark's JVM was killed by SIGKILL" in line for line in self.lines), self.lines[-40:]
        assert_gone(family)

    def kill(self) -> None:
        """SIGKILL the task's process alone; a second later nothing of it may live."""
        family = psutil.Process(self._process.pid).children(recursive=True)
        assert self._process.poll() is None, "\n".join(self.lines[-40:])
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.kill()
        self._process.wait(5)
        assert_gone(family)


def assert_gone(family: list[psutil.Process]) -> None:
    """A second later none of these processes lives; zombies that nobody reaps do not count."""
    deadline = time.monotonic() + 1
    while alive := [process for process in family if is_alive(process)]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.02)


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path) as running:
        yield running


class Feed:
    """Produces records to all partitions in the background, numbered per partition."""

    def __init__(self, address: str, first: dict[str, int] | None = None) -> None:
        admin = AdminClient({"bootstrap.servers": address})
        for future in (
            [] if first else admin.create_topics([NewTopic(name, count, 1) for name, count in TOPICS.items()]).values()
        ):
            future.result(10)
        self._producer = Producer({"bootstrap.servers": address, "linger.ms": 5})
        self._stopping = threading.Event()
        self.counts: Counter[tuple[str, int]] = Counter()
        for key, count in (first or {}).items():
            topic, partition = key.split("/")
            self.counts[topic, int(partition)] = count
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(0.02):
            for topic, partitions in TOPICS.items():
                for partition in range(partitions):
                    for _ in range(random.randrange(100)):
                        number = self.counts[topic, partition]
                        value = b'{"schema":' + SCHEMA + b',"payload":{"n":%d}}' % number
                        self._producer.produce(topic, value, partition=partition)
                        self.counts[topic, partition] += 1
            self._producer.flush(10)

    def stop(self) -> dict[str, int]:
        """Stop and return the end offsets."""
        self._stopping.set()
        self._thread.join(20)
        assert self._producer.flush(20) == 0
        return {f"{topic}/{partition}": count for (topic, partition), count in self.counts.items()}


def assert_whole(path: Path, ends: dict[str, int]) -> None:
    """Every record of every partition stands in its table exactly once."""
    for topic in TOPICS:
        rows = DeltaTable(path / topic).to_pyarrow_table(columns=["_kafka_partition", "_kafka_offset", "n"]).to_pylist()
        seen = Counter((row["_kafka_partition"], row["_kafka_offset"]) for row in rows)
        assert [key for key, count in seen.items() if count > 1] == []
        expected = {(p, o) for p in range(TOPICS[topic]) for o in range(ends[f"{topic}/{p}"])}
        assert seen.keys() == expected
        assert all(row["n"] == row["_kafka_offset"] for row in rows)


def test_killed_at_any_moment_it_loads_every_record_once(broker: BrokerProcess, tmp_path: Path) -> None:
    path = tmp_path / "lakehouse"
    feed = Feed(broker.address)
    for commits, kill in ((1, TaskProcess.kill_jvm), (3, TaskProcess.kill)):
        task = TaskProcess(broker, path)
        task.until(lambda task=task, commits=commits: task.commits() >= commits)  # type: ignore[misc]
        time.sleep(random.random() * 0.5)  # any moment will do
        kill(task)
    shutil.rmtree(path / "_checkpoints")
    ends = feed.stop()
    task = TaskProcess(broker, path)
    task.until(lambda: task.offsets() == ends)
    assert_whole(path, ends)

    # The same task rests, goes on and ends when it is told to; a broker that goes and comes is no failure.
    task.order("pause")
    time.sleep(0.5)  # a query that still ran would look for records five times
    feed = Feed(broker.address, first=ends)
    time.sleep(1)
    ends = feed.stop()
    assert task.offsets() != ends
    broker.restart()
    task.order("resume")
    task.until(lambda: task.offsets() == ends)
    assert_whole(path, ends)
    task.stop(timeout_s=5)
