"""Tests that a lakehouse sink loses and duplicates no records if a process is killed, and that its processes exit.

At random moments, the tests kill the task's process, Spark's JVM, a Python worker, an executor, a Spark worker, or the
broker with SIGKILL. `HEADRACE_SEED` replays the choices of a run.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from support.broker import BrokerProcess, running_broker
from support.lakehouse_process import EXIT_S, TaskProcess
from support.s3 import BUCKET, S3Server
from support.s3 import running as running_s3
from support.spark_cluster import EXECUTOR_CONF, SparkCluster, running_cluster

pytest.importorskip("pyspark")
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog

pytestmark = [pytest.mark.spark, pytest.mark.integration, pytest.mark.timeout(600)]

COMMIT_S = 180.0
TOPICS = {"one": 1, "three": 3}
SCHEMA = b'{"type":"struct","fields":[{"type":"int64","optional":false,"field":"n"}],"optional":false}'


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


Rows = Callable[[str], list[dict[str, Any]]]
COLUMNS = ["_kafka_partition", "_kafka_offset", "n"]


def assert_loaded_once(rows_of: Rows, ends: dict[str, int]) -> None:
    """Assert that the tables contain every record below the end offsets `ends` exactly once."""
    for topic in TOPICS:
        rows = rows_of(topic)
        seen = Counter((row["_kafka_partition"], row["_kafka_offset"]) for row in rows)
        assert [key for key, count in seen.items() if count > 1] == []
        expected = {(p, o) for p in range(TOPICS[topic]) for o in range(ends[f"{topic}/{p}"])}
        assert seen.keys() == expected
        assert all(row["n"] == row["_kafka_offset"] for row in rows)


@dataclass
class Combination:
    """A table format in a place: the connector's keys, and a function that reads a table."""

    props: dict[str, str]
    rows_of: Rows
    cluster: SparkCluster | None = None
    victims: list[str] = field(default_factory=lambda: ["task", "jvm", "python worker", "broker"])


def s3_props(server: S3Server) -> dict[str, str]:
    """Return the keys of the sink for tables in the bucket."""
    return {
        "lakehouse.path": f"s3://{BUCKET}/tables",
        "s3.region": "us-east-1",
        "store.url": server.url,
        "aws.access.key.id": server.access_key,
        "aws.secret.access.key": server.secret,
    }


def delta_rows(uri: str, options: dict[str, str] | None = None) -> Rows:
    """Return a function that reads Delta tables below `uri`."""
    return lambda topic: (
        DeltaTable(f"{uri}/{topic}", storage_options=options).to_pyarrow_table(columns=COLUMNS).to_pylist()
    )


def iceberg_rows(directory: Path, **properties: str) -> Rows:
    """Return a function that reads Iceberg tables of the SQLite catalog in `directory`."""

    def rows_of(topic: str) -> list[dict[str, Any]]:
        catalog = SqlCatalog("iceberg", uri=f"sqlite:///{directory / 'catalog.db'}", **properties)
        rows: list[dict[str, Any]] = (
            catalog.load_table(f"default.{topic}").scan(selected_fields=tuple(COLUMNS)).to_arrow().to_pylist()
        )
        return rows

    return rows_of


@contextlib.contextmanager
def combination(name: str, directory: Path) -> Iterator[Combination]:
    """Start what the combination needs."""
    directory.mkdir()
    tables = directory / "tables"
    local = {"lakehouse.path": str(tables)}
    if name == "parquet":
        yield Combination(
            {**local, "lakehouse.format": "parquet"},
            lambda topic: pq.read_table(tables / topic, columns=COLUMNS).to_pylist(),
        )
    elif name == "delta":
        yield Combination(local, delta_rows(str(tables)))
    elif name == "iceberg":
        yield Combination({**local, "lakehouse.format": "iceberg"}, iceberg_rows(tables))
    elif name == "delta on a cluster":
        with running_cluster(directory, workers=2) as cluster:
            props = {**local, **EXECUTOR_CONF, "spark.master": cluster.master}
            yield Combination(props, delta_rows(str(tables)), cluster, ["task", "jvm", "executor", "spark worker"])
    else:
        with running_s3() as server:
            props = s3_props(server)
            if name == "delta on S3":
                options = {
                    "AWS_ACCESS_KEY_ID": server.access_key,
                    "AWS_SECRET_ACCESS_KEY": server.secret,
                    "AWS_ENDPOINT_URL": server.url,
                    "AWS_REGION": "us-east-1",
                    "AWS_ALLOW_HTTP": "true",
                }
                yield Combination(props, delta_rows(props["lakehouse.path"], options))
            else:
                catalog = {
                    "iceberg.catalog.type": "sql",
                    "iceberg.catalog.uri": f"sqlite:///{directory / 'catalog.db'}",
                }
                io = {
                    "s3.endpoint": server.url,
                    "s3.access-key-id": server.access_key,
                    "s3.secret-access-key": server.secret,
                    "s3.region": "us-east-1",
                }
                yield Combination({**props, "lakehouse.format": "iceberg", **catalog}, iceberg_rows(directory, **io))


class Killer:
    """Runs the task, and kills processes at random moments. It starts the task again if the task ended."""

    def __init__(self, broker: BrokerProcess, combination: Combination, moments: random.Random) -> None:
        self._broker = broker
        self._combination = combination
        self._moments = moments
        self.task = TaskProcess(broker, TOPICS, combination.props)

    def kill_one(self) -> None:
        """Wait for a commit, then kill a random process at a random moment within the next second."""
        self._ensure_running()
        task, commits = self.task, self.task.commits()
        self._until(lambda: self.task.commits() > (commits if self.task is task else 0))
        time.sleep(self._moments.random())
        if not self.task.is_running():
            return  # the victim of the last kill ended the task
        victim = self._moments.choice(self._combination.victims)
        print(f"killing: {victim}")
        cluster = self._combination.cluster
        if victim == "task":
            self.task.kill()
        elif victim == "jvm":
            self.task.kill_jvm()
        elif victim == "python worker":
            for process in self.task.python_workers()[:1]:
                process.kill()
        elif victim == "executor" and cluster is not None:
            for process in cluster.executors()[:1]:
                process.kill()
        elif victim == "spark worker" and cluster is not None:
            cluster.kill_workers()
            cluster.start_worker()
            cluster.start_worker()
        else:
            self._broker.kill()
            self._broker.start()

    def finish(self, ends: dict[str, int]) -> None:
        """Wait until all records are loaded, and stop the task."""
        self._ensure_running()
        self._until(lambda: self.task.offsets() == ends)
        self.task.stop(EXIT_S)

    def _until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` returns true. Fail if no batch is committed for `COMMIT_S` seconds."""
        progress, deadline = (self.task, 0), time.monotonic() + COMMIT_S
        while not condition():
            self._ensure_running()
            if (now := (self.task, self.task.commits())) != progress:
                progress, deadline = now, time.monotonic() + COMMIT_S
            assert time.monotonic() < deadline, "\n".join(self.task.lines[-40:])
            time.sleep(0.05)

    def _ensure_running(self) -> None:
        if not self.task.is_running():
            self.task.close()
            self.task = TaskProcess(self._broker, TOPICS, self._combination.props)


COMBINATIONS = ["delta", "iceberg", "parquet", "delta on S3", "iceberg on S3", "delta on a cluster"]


@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(3, marks=[pytest.mark.slow, pytest.mark.timeout(900)]),
        pytest.param(30, marks=[pytest.mark.prove, pytest.mark.timeout(3600)]),
    ],
)
@pytest.mark.parametrize("name", COMBINATIONS)
def test_every_record_is_loaded_once_after_kills_at_random_moments(name: str, kills: int, tmp_path: Path) -> None:
    seed = int(os.environ.get("HEADRACE_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
    print(f"replay with HEADRACE_SEED={seed}")
    with running_broker(tmp_path) as broker, combination(name, tmp_path / "lake") as chosen:
        feed = BackgroundProducer(broker.address)
        killer = Killer(broker, chosen, random.Random(seed))
        for _ in range(kills):
            killer.kill_one()
        ends = feed.stop()
        killer.finish(ends)
        assert_loaded_once(chosen.rows_of, ends)


@pytest.mark.slow
def test_task_that_is_paused_and_resumed_continues_after_a_restart_of_the_broker(tmp_path: Path) -> None:
    with running_broker(tmp_path) as broker, combination("delta", tmp_path / "lake") as chosen:
        feed = BackgroundProducer(broker.address)
        task = TaskProcess(broker, TOPICS, chosen.props)
        task.until(lambda: task.commits() >= 1)
        ends = feed.stop()
        task.until(lambda: task.offsets() == ends)
        task.send_command("pause")
        time.sleep(0.5)  # if the run still loaded, it would do so within these five trigger intervals
        feed = BackgroundProducer(broker.address, first=ends)
        time.sleep(1)
        ends = feed.stop()
        assert task.offsets() != ends
        broker.restart()
        task.send_command("resume")
        task.until(lambda: task.offsets() == ends)
        assert_loaded_once(chosen.rows_of, ends)
        task.stop(timeout_s=EXIT_S)
