"""Tests that a lakehouse sink loses and duplicates no records if it is killed, and that all its processes exit."""

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
from support.spark import SHORT_RUN_CONF

pytest.importorskip("pyspark")
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(600)]

EXIT_S = 60.0
"""The processes exit within a second, except on a busy machine. Other tests run at the same time."""
TOPICS = {"one": 1, "three": 3}
SCHEMA = b'{"type":"struct","fields":[{"type":"int64","optional":false,"field":"n"}],"optional":false}'


class TaskProcess:
    """A lakehouse sink task in a child process."""

    def __init__(self, broker: BrokerProcess, path: Path, **props: str) -> None:
        arguments = {
            "address": broker.address,
            "topics": list(TOPICS),
            "props": {"lakehouse.path": str(path), "lakehouse.trigger.interval.ms": "100", **SHORT_RUN_CONF, **props},
        }
        self._process = subprocess.Popen(
            [sys.executable, lakehouse_task.__file__, json.dumps(arguments)],
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
        """Return the offsets in the task's last report."""
        reported = [line for line in self.lines if line.startswith("reported ")]
        return json.loads(reported[-1].removeprefix("reported ")) if reported else {}

    def commits(self) -> int:
        """Return the number of committed batches."""
        return sum("Committed batch" in line for line in self.lines)

    def until(self, condition: Callable[[], bool], timeout_s: float = 120) -> None:
        """Wait until `condition` returns true. Fail if the task ends earlier."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert self._process.poll() is None, "\n".join(self.lines[-40:])
            assert time.monotonic() < deadline, "\n".join(self.lines[-40:])
            time.sleep(0.05)

    def send_command(self, word: str) -> None:
        """Send a command and wait until the task has executed it."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n".encode())
        self._process.stdin.flush()
        deadline = time.monotonic() + 20
        while f"executed {word}" not in self.lines and self._process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def stop(self, timeout_s: float) -> None:
        """Stop the task. Assert that its process exits within `timeout_s`, and all child processes soon after."""
        children = psutil.Process(self._process.pid).children(recursive=True)
        self.send_command("stop")
        assert self._process.wait(timeout_s) == 0, "\n".join(self.lines[-40:])
        assert_exited(children)
        assert self._process.stdin is not None
        self._process.stdin.close()

    def kill_jvm(self) -> None:
        """Kill Spark's JVM with SIGKILL.

        Assert that the task fails within 20 s, that the error names the cause, and that all child processes exit soon.
        """
        children = psutil.Process(self._process.pid).children(recursive=True)
        (jvm,) = (process for process in children if process.name() == "java")
        jvm.kill()
        assert self._process.wait(30) != 0
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._reader.join(30)
        assert any("ConnectError: Spark's JVM was killed by SIGKILL" in line for line in self.lines), self.lines[-40:]
        assert_exited(children)

    def kill(self) -> None:
        """Kill only the task's process with SIGKILL. Assert that all its child processes exit soon."""
        children = psutil.Process(self._process.pid).children(recursive=True)
        assert self._process.poll() is None, "\n".join(self.lines[-40:])
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.kill()
        self._process.wait(30)
        assert_exited(children)


def assert_exited(processes: list[psutil.Process]) -> None:
    """Assert that `processes` exit soon. Zombies count as exited."""
    deadline = time.monotonic() + EXIT_S
    while alive := [process for process in processes if is_alive(process)]:
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


class BackgroundProducer:
    """Produces numbered records to all partitions in the background."""

    def __init__(self, address: str, first: dict[str, int] | None = None) -> None:
        admin = AdminClient({"bootstrap.servers": address})
        for future in (
            [] if first else admin.create_topics([NewTopic(name, count, 1) for name, count in TOPICS.items()]).values()
        ):
            future.result(30)
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
        """Stop producing and return the log end offset of each partition."""
        self._stopping.set()
        self._thread.join(20)
        assert self._producer.flush(20) == 0
        return {f"{topic}/{partition}": count for (topic, partition), count in self.counts.items()}


def assert_loaded_once(path: Path, ends: dict[str, int]) -> None:
    """Assert that the tables in `path` contain every record below the end offsets `ends` exactly once."""
    for topic in TOPICS:
        rows = DeltaTable(path / topic).to_pyarrow_table(columns=["_kafka_partition", "_kafka_offset", "n"]).to_pylist()
        seen = Counter((row["_kafka_partition"], row["_kafka_offset"]) for row in rows)
        assert [key for key, count in seen.items() if count > 1] == []
        expected = {(p, o) for p in range(TOPICS[topic]) for o in range(ends[f"{topic}/{p}"])}
        assert seen.keys() == expected
        assert all(row["n"] == row["_kafka_offset"] for row in rows)


@pytest.mark.slow
def test_lakehouse_sink_loads_every_record_once_after_kills_at_random_moments(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    path = tmp_path / "lakehouse"
    feed = BackgroundProducer(broker.address)
    for commits, kill in ((1, TaskProcess.kill_jvm), (3, TaskProcess.kill)):
        task = TaskProcess(broker, path)
        task.until(lambda task=task, commits=commits: task.commits() >= commits)  # type: ignore[misc]
        time.sleep(random.random() * 0.5)  # kill at a random moment
        kill(task)
    shutil.rmtree(path / "_checkpoints")
    ends = feed.stop()
    task = TaskProcess(broker, path)
    task.until(lambda: task.offsets() == ends)
    assert_loaded_once(path, ends)

    # The last task can be paused, resumed and stopped, and survives a restart of the broker.
    task.send_command("pause")
    time.sleep(0.5)  # if the query still ran, it would load records within these five trigger intervals
    feed = BackgroundProducer(broker.address, first=ends)
    time.sleep(1)
    ends = feed.stop()
    assert task.offsets() != ends
    broker.restart()
    task.send_command("resume")
    task.until(lambda: task.offsets() == ends)
    assert_loaded_once(path, ends)
    task.stop(timeout_s=5)
