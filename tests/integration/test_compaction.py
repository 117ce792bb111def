"""Tests of compacted topics in a real broker: the cleaner process, kills of the broker, and consumer group offsets."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from headrace_broker.log.compaction.job import CleaningJob, decode_report, encode_job
from headrace_broker.log.config import LogConfig
from headrace_broker.log.log import PartitionLog
from headrace_broker.log.storage import DiskStorage
from headrace_broker.records.builder import build_batch
from headrace_broker.records.columns import RecordColumns
from headrace_broker.records.reader import read_columns
from support.broker import running_broker
from support.cluster import running_cluster
from support.processes import cleaner_pids, is_alive
from support.topics import end_offset, write_topic

pytestmark = [pytest.mark.integration, pytest.mark.timed]

FAST_CLEANING = {
    "log_cleaner_backoff_ms": "100",
    "log_cleaner_min_cleanable_ratio": "0.01",
    "log_roll_ms": "200",
    "offsets_topic_num_partitions": "1",
}
Table = dict[bytes, bytes]


def create(address: str, topic: str, *, replicas: int = 1, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": address})
    settings = {"cleanup.policy": "compact", **{key.replace("_", "."): value for key, value in config.items()}}
    admin.create_topics([NewTopic(topic, 1, replicas, config=settings)])[topic].result(20)


def wait_until(condition: Callable[[], bool], description: str, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"{description}: not within {timeout_s} s"
        time.sleep(0.02)  # poll, because the condition depends on another process


def read_all(address: str, topic: str) -> list[tuple[int, bytes, bytes | None]]:
    """Return (offset, key, value) of every record up to the high watermark. Compaction leaves gaps in the offsets."""
    settings = {"bootstrap.servers": address, "group.id": "reads-all", "enable.partition.eof": True}
    consumer = Consumer({**settings, "enable.auto.commit": False, "isolation.level": "read_uncommitted"})
    records: list[tuple[int, bytes, bytes | None]] = []
    try:
        consumer.assign([TopicPartition(topic, 0, 0)])
        while True:
            message = consumer.poll(20)
            assert message is not None, f"{topic} ended after {len(records)} records"
            if message.error() is not None:
                assert message.error().name() == "_PARTITION_EOF", message.error()
                return records
            records.append((message.offset(), message.key(), message.value()))
    finally:
        consumer.close()


def table_of(records: list[tuple[int, bytes, bytes | None]]) -> Table:
    table: dict[bytes, bytes | None] = {key: value for _, key, value in records}
    return {key: value for key, value in table.items() if value is not None}


def test_cleaner_process_starts_with_the_first_cleaning_and_exits_with_its_broker(tmp_path: Path) -> None:
    with running_broker(tmp_path, **FAST_CLEANING) as broker:
        assert cleaner_pids(broker.pid) == []
        create(broker.address, "compacted")
        for _ in range(3):
            write_topic(broker.address, "compacted", [(b"key", b"%d" % number) for number in range(100)])
            time.sleep(0.25)  # segment.ms must pass for the segment to be rolled
        wait_until(lambda: "Log compacted-0: cleaned" in broker.log, "a compacted log")
        (pid,) = cleaner_pids(broker.pid)
        assert os.sched_getscheduler(pid) == os.SCHED_IDLE
        broker.kill()
        wait_until(lambda: not is_alive(pid), "the end of the cleaner process after a kill")
        broker.start()
        seen = broker.log.count("Log compacted-0: cleaned")
        for value in (b"1", b"2", b"3"):
            write_topic(broker.address, "compacted", [(b"other", value)] * 100)
            time.sleep(0.25)
        wait_until(lambda: broker.log.count("Log compacted-0: cleaned") > seen, "a compacted log after a restart")
        (pid,) = cleaner_pids(broker.pid)
        os.kill(pid, 9)
        wait_until(lambda: not is_alive(pid), "the end of the cleaner process")
        write_topic(broker.address, "compacted", [(b"key", b"last")])
        time.sleep(0.25)
        write_topic(broker.address, "compacted", [(b"other", b"last")])
        wait_until(lambda: cleaner_pids(broker.pid) not in ([], [pid]), "a new cleaner process")
        assert table_of(read_all(broker.address, "compacted")) == {b"key": b"last", b"other": b"last"}
        (pid,) = cleaner_pids(broker.pid)
        assert broker.stop() == 0
        assert not is_alive(pid)
        errors = [line for line in broker.log.splitlines() if " ERROR " in line]
        assert all("the cleaner process exited with status -9" in line for line in errors), errors


def test_log_that_exceeds_max_compaction_lag_is_cleaned_at_niceness_10_instead_of_idle_priority(tmp_path: Path) -> None:
    with running_broker(tmp_path, **FAST_CLEANING | {"log_cleaner_max_compaction_lag_ms": "300"}) as broker:
        create(broker.address, "compacted")
        for _ in range(3):
            write_topic(broker.address, "compacted", [(b"key", b"1")] * 10)
            time.sleep(0.35)
        wait_until(lambda: "Log compacted-0: cleaned" in broker.log, "a compacted log")

        def has_normal_scheduling() -> bool:
            pids = cleaner_pids(broker.pid)
            return [os.sched_getscheduler(pid) for pid in pids if is_alive(pid)] == [os.SCHED_OTHER]

        def write_again() -> bool:
            write_topic(broker.address, "compacted", [(b"key", b"2")])
            time.sleep(0.35)
            return has_normal_scheduling()

        wait_until(write_again, "a cleaner process with normal scheduling")
        (pid,) = cleaner_pids(broker.pid)
        assert os.getpriority(os.PRIO_PROCESS, pid) == os.getpriority(os.PRIO_PROCESS, broker.pid) + 10


def start_cleaner(job: CleaningJob) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "headrace_broker.server.cleaning.cleaner_process", str(os.getpid())]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    process.stdin.write(encode_job(job))
    process.stdin.flush()
    return process


def job_of(directory: Path, bytes_per_second: float) -> CleaningJob:
    """Create a log with about 3 MB in one inactive segment.

    Return the job that cleans this log and reads at most `bytes_per_second`.
    """
    log = PartitionLog.open(DiskStorage(), str(directory), "t", 0, LogConfig(), 0)
    for number in range(30):
        columns = RecordColumns(keys=[b"k%d" % number], values=[bytes(100_000)], timestamps=0)
        log.append_as_leader(build_batch(columns), leader_epoch=0, now_ms=0)
    log.roll(0)
    log.close(clean=True, now_ms=0)
    size_bytes = log.segments[0].size_bytes
    limits = (1 << 30, 1 << 20, 4096, 1 << 20)
    return CleaningJob(str(directory), ((0, size_bytes),), 0, 30, 0, 30, 0, *limits, bytes_per_second)


def test_cleaner_process_reads_no_faster_than_its_io_rate_limit(tmp_path: Path) -> None:
    job = job_of(tmp_path / "t-0", 6_000_000)
    started_s = time.monotonic()
    process = start_cleaner(job)
    assert process.stdout is not None
    reports = [decode_report(process.stdout.readline()) for _ in range(2)]
    assert [type(report).__name__ for report in reports] == ["CleanedSegment", "CleaningDone"]
    assert time.monotonic() - started_s > 2 * 3_000_000 / 6_000_000  # the segment is read at least twice
    process.communicate()
    assert process.returncode == 0


def test_cleaner_process_exits_and_leaves_no_cleaned_file_when_its_pipes_are_closed(tmp_path: Path) -> None:
    process = start_cleaner(job_of(tmp_path / "t-0", 1.0))
    process.communicate(timeout=30)
    assert process.returncode == 0
    assert not [path for path in (tmp_path / "t-0").iterdir() if path.name.endswith(".cleaned")]


def test_committed_offsets_survive_broker_restarts_and_compaction_of_the_consumer_offsets_topic(tmp_path: Path) -> None:
    with running_broker(tmp_path, **FAST_CLEANING) as broker:
        create(broker.address, "read")
        write_topic(broker.address, "read", [(b"%d" % number, b"v") for number in range(1000)])
        committed: dict[str, int] = {}

        def commit(rounds: int) -> None:
            for number in range(rounds):
                for group in ("a", "b", "c"):
                    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": group})
                    position = committed.get(group, 0) + 1 + number % 2
                    metadata = f"metadata {number}"
                    consumer.commit(offsets=[TopicPartition("read", 0, position, metadata)], asynchronous=False)
                    committed[group] = position
                    consumer.close()

        def check() -> None:
            for group, position in committed.items():
                consumer = Consumer({"bootstrap.servers": broker.address, "group.id": group})
                (found,) = consumer.committed([TopicPartition("read", 0)], timeout=20)
                assert found.offset == position
                consumer.close()

        def compactions() -> int:
            return broker.log.count("Log __consumer_offsets-0: cleaned")

        def commit_until_compacted(seen: int) -> None:
            def is_compacted() -> bool:
                commit(1)  # an append rolls the expired segment
                return compactions() > seen

            wait_until(is_compacted, "a compacted offsets topic")

        for crashes in (False, True, False):
            seen = compactions()
            commit(6)
            commit_until_compacted(seen)
            if crashes:
                broker.kill()
                broker.start()
            else:
                broker.restart()
            check()
        records = read_all(broker.address, "__consumer_offsets")
        assert len(records) < end_offset(broker.address, "__consumer_offsets") / 2


class TableProducer(threading.Thread):
    """Produces records with random keys, using an idempotent producer, until `finish` is called.

    `table` contains the newest value of each key.
    """

    def __init__(self, address: str, topic: str, seed: int) -> None:
        super().__init__()
        self.table: Table = {}
        self.count = 0
        self.failures: list[str] = []
        self._rng = random.Random(seed)
        self._topic = topic
        self._stopping = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "linger.ms": 5,
                "compression.type": "lz4",
                "reconnect.backoff.max.ms": 500,
                "message.timeout.ms": 120_000,
                "log_level": 0,  # librdkafka must not log errors about the killed broker
            }
        )

    def run(self) -> None:
        while not self._stopping.wait(0.05):
            for _ in range(100):
                self._write()
            self._producer.poll(0)

    def _write(self) -> None:
        rng = self._rng
        key = b"key-%d" % int(rng.paretovariate(0.5) % 2000)
        value = None if rng.random() < 0.05 else b"%d:" % self.count + rng.randbytes(rng.randrange(400))
        try:
            self._producer.produce(self._topic, value=value, key=key, partition=0, on_delivery=self._delivered)
        except BufferError:
            self._producer.poll(0.1)
            return
        self.count += 1
        if value is None:
            self.table.pop(key, None)
        else:
            self.table[key] = value

    def _delivered(self, error: object, message: object) -> None:
        if error is not None:
            self.failures.append(str(error))

    def finish(self) -> None:
        """Stop producing and wait until all records are acknowledged."""
        self._stopping.set()
        self.join()
        assert self._producer.flush(120) == 0
        assert self.failures == []


@pytest.mark.parametrize(
    ("duration_s", "interval_s"),
    [
        pytest.param(65, 20, marks=[pytest.mark.slow, pytest.mark.timeout(300)]),
        pytest.param(600, 20, marks=[pytest.mark.prove, pytest.mark.timeout(1200)]),
    ],
)
def test_compacted_topic_keeps_the_newest_value_of_each_key_when_the_broker_is_killed_repeatedly(
    tmp_path: Path, duration_s: float, interval_s: float
) -> None:
    """Kill the broker with SIGKILL at intervals and restart it. At the end, the newest values must be readable."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    with running_broker(tmp_path, **FAST_CLEANING) as broker:
        create(broker.address, "table", segment_ms="500", delete_retention_ms="3000", segment_bytes="1048576")
        producer = TableProducer(broker.address, "table", seed)
        producer.start()
        deadline = time.monotonic() + duration_s
        kills = 0
        while (remaining_s := deadline - time.monotonic()) > 0:
            time.sleep(min(interval_s, remaining_s))
            wait_until(lambda count=kills: broker.log.count("Log table-0: cleaned") > count, "a compaction", 60)  # type: ignore[misc]
            if remaining_s > interval_s:
                broker.kill()
                kills += 1
                broker.start()
        producer.finish()
        records = read_all(broker.address, "table")
        assert table_of(records) == producer.table
        assert len(records) < producer.count / 2
        assert kills > 0
        broker.restart()
        assert table_of(read_all(broker.address, "table")) == producer.table
        assert "ERROR" not in broker.log


@pytest.mark.slow
def test_every_replica_compacts_its_log_to_the_newest_values_while_leaders_are_killed(tmp_path: Path) -> None:
    with running_cluster(tmp_path / "cluster", **FAST_CLEANING) as cluster:
        # Retain tombstones longer than a node is down: as in Kafka, a replica that misses a tombstone keeps the key.
        settings = {"segment_ms": "500", "delete_retention_ms": "60000", "min_insync_replicas": "2"}
        create(cluster.bootstrap_servers, "table", replicas=3, **settings)
        producer = TableProducer(cluster.bootstrap_servers, "table", 1)
        producer.start()

        def await_compaction(*nodes: int) -> None:
            seen = {node: cluster.log(node).count("Log table-0: cleaned") for node in nodes}
            for node in nodes:
                wait_until(
                    lambda node=node: cluster.log(node).count("Log table-0: cleaned") > seen[node],  # type: ignore[misc]
                    f"a compacted log on node {node}",
                )

        await_compaction(1, 2, 3)
        for _ in range(3):
            leader = leader_of(cluster.bootstrap_servers, "table")
            cluster.kill(leader)
            await_compaction(*({1, 2, 3} - {leader}))
            cluster.start_node(leader)
            await_compaction(1, 2, 3)
        producer.finish()
        assert table_of(read_all(cluster.bootstrap_servers, "table")) == producer.table
        assert cluster.stop() == 0
        for node in (1, 2, 3):
            assert "cannot be compacted" not in cluster.log(node)
            (directory,) = cluster.directory.glob(f"node-{node}/**/table-0")
            assert table_of(records_on_disk(directory)) == producer.table, f"node {node}"


def leader_of(address: str, topic: str) -> int:
    described = AdminClient({"bootstrap.servers": address}).list_topics(topic, timeout=20)
    return int(described.topics[topic].partitions[0].leader)


def records_on_disk(directory: Path) -> list[tuple[int, bytes, bytes | None]]:
    """Return (offset, key, value) of every record in the log of a stopped broker."""
    log = PartitionLog.open(DiskStorage(), str(directory), "t", 0, LogConfig(), 0, was_closed_cleanly=True)
    records: list[tuple[int, bytes, bytes | None]] = []
    for segment in log.segments:
        for _, _, batch in segment.iter_checked_batches(0):
            columns = read_columns(batch, 0)
            records += zip(columns.offsets or (), columns.keys or (), columns.values, strict=True)
    return records
