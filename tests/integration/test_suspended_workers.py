"""Tests that sink tasks write nothing and are not members of their consumer group while their worker is suspended.

SIGSTOP suspends a worker, but not its tasks, which run in other processes.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from support.broker import BrokerProcess, running_broker
from support.distributed import DistributedWorker, is_running, owners, worker_group
from support.worker import wait_for

pytestmark = pytest.mark.integration

PARTITIONS = 4
RECORDS = 80

BLOCKING_SINK = """
import os, time

from headrace.api import Config, SinkTask, key

class BlockingSinkConfig(Config):
    journal: str = key("journal")
    blocks_until: str = key("blocks.until")

class BlockingSink(SinkTask[BlockingSinkConfig]):
    def note(self, call):
        with open(self.config.journal, "a") as file:
            file.write(call + "\\n")
    def put(self, records):
        if len(records):
            self.note("put")
        while len(records) and not os.path.exists(self.config.blocks_until):
            time.sleep(0.05)
    def flush(self, offsets):
        self.note("flush")
    def close(self, partitions):
        self.note("close")
"""

STARTING_SINK = """
import os, time

from headrace.api import Config, SinkTask, key

class StartingSinkConfig(Config):
    journal: str = key("journal")
    starts_when: str = key("starts.when")

class StartingSink(SinkTask[StartingSinkConfig]):
    def note(self, call):
        with open(self.config.journal, "a") as file:
            file.write(call + "\\n")
    def start(self, config):
        self.note("start")
        while not os.path.exists(config.starts_when):
            time.sleep(0.05)
        self.note("started")
    def put(self, records):
        if len(records):
            self.note("put")
"""

COUNTING_SINK = """
import itertools

from headrace.api import Config, SelfReadingSinkTask, key

class CountingSinkConfig(Config):
    file: str = key("file")

class CountingSink(SelfReadingSinkTask[CountingSinkConfig]):
    def run(self):
        for number in itertools.count(1):
            if not self.context.wait(0.05):
                return
            self.context.report_offsets({("in", 0): number})
            if not self.context.pause_requested:
                with open(self.config.file, "a") as file:
                    file.write(f"{number}\\n")
"""


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path) as running:
        admin = AdminClient({"bootstrap.servers": running.address})
        admin.create_topics([NewTopic("in", PARTITIONS, 1)])["in"].result(20)
        yield running


def produce(broker: BrokerProcess, prefix: str) -> set[str]:
    """Write records to all partitions, and return their values, which begin with `prefix`."""
    producer = Producer({"bootstrap.servers": broker.address})
    values = [f"{prefix}{number}" for number in range(RECORDS)]
    for number, value in enumerate(values):
        producer.produce("in", json.dumps(value), partition=number % PARTITIONS)
    producer.flush()
    return set(values)


def sink(file: Path, tasks: int = 2) -> dict[str, str]:
    return {"connector.class": "FileStreamSink", "topics": "in", "tasks.max": str(tasks), "file": str(file)}


def values_in(file: Path) -> set[str]:
    return set(file.read_text().split()) if file.exists() else set()


def members(broker: BrokerProcess) -> int:
    """Return the number of members of the connector's consumer group."""
    admin = AdminClient({"bootstrap.servers": broker.address})
    return len(admin.describe_consumer_groups(["connect-s"])["connect-s"].result(20).members)


@contextmanager
def suspended(worker: DistributedWorker) -> Iterator[None]:
    os.kill(worker.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(worker.pid, signal.SIGCONT)


@contextmanager
def suspended_owner(broker: BrokerProcess, tmp_path: Path) -> Iterator[DistributedWorker]:
    """Start sink tasks, suspend a worker that runs one, and return the worker to which all tasks have moved."""
    with worker_group(tmp_path, broker.address, 2) as workers:
        workers[0].create("s", sink(tmp_path / "old"))
        wait_for(lambda: is_running(workers[0], "s", 2), "the tasks are running", 60)
        wait_for(lambda: members(broker) == 2, "both tasks are members of their consumer group", 60)
        first = produce(broker, "first-")
        wait_for(lambda: values_in(tmp_path / "old") == first, "all records are written", 60)
        running = {task: worker_id for task, (_, worker_id) in owners(workers[0], "s").items()}
        [owner] = [each for each in workers if each.worker_id == running[1]]
        [other] = [each for each in workers if each is not owner]
        with suspended(owner):
            wait_for(
                lambda: is_running(other, "s", 2) and {each for _, each in owners(other, "s").values()}
                == {other.worker_id},
                "the tasks have moved to the other worker",
                60,
                lambda: owners(other, "s"),
            )  # fmt: skip
            yield other
        wait_for(lambda: "joined generation" in owner.log().rpartition("lost")[2], "it has joined again", 60, owner.log)


@pytest.mark.slow
def test_task_of_a_suspended_worker_writes_nothing_after_its_connector_was_reconfigured(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    with suspended_owner(broker, tmp_path) as other:
        other.request("PUT", "/connectors/s/config", sink(new))
        wait_for(lambda: is_running(other, "s", 2), "the tasks are running", 60)
        wait_for(lambda: members(broker) == 2, "only the new tasks are members of the consumer group", 60)
        second = produce(broker, "second-")
        wait_for(lambda: second <= values_in(old) | values_in(new), "all records are written", 60)
        assert values_in(old) & second == set()
    assert values_in(old) & second == set()


def test_task_of_a_suspended_worker_leaves_its_consumer_group_after_its_connector_was_deleted(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    old = tmp_path / "old"
    with suspended_owner(broker, tmp_path) as other:
        other.request("DELETE", "/connectors/s")
        wait_for(lambda: members(broker) == 0, "the consumer group is empty", 40)
        second = produce(broker, "second-")
        other.create("s", sink(tmp_path / "new"))
        wait_for(lambda: second <= values_in(tmp_path / "new"), "the new connector writes all records", 60)
        assert values_in(old) & second == set()
    assert values_in(old) & second == set()


@pytest.mark.slow
def test_task_of_a_suspended_worker_leaves_its_consumer_group_even_during_a_put_call(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / "blocking_sink.py").write_text(BLOCKING_SINK)
    journal, ends = tmp_path / "journal", tmp_path / "ends"
    config = {"connector.class": "BlockingSink", "topics": "in", "journal": str(journal), "blocks.until": str(ends)}
    with worker_group(tmp_path, broker.address, 1, {"plugin.path": str(plugins)}) as [worker]:
        worker.create("s", config)
        wait_for(lambda: members(broker) == 1, "the task is a member of its consumer group", 60)
        produce(broker, "")
        wait_for(lambda: "put" in values_in(journal), "the call of put has started", 60, worker.log)
        with suspended(worker):
            wait_for(lambda: members(broker) == 0, "the task has left its consumer group", 40)
            ends.touch()
            wait_for(lambda: "close" in values_in(journal), "the task has released its partitions", 40, worker.log)
            calls = journal.read_text().split()
            assert calls[calls.index("put") :] == ["put", "close"]  # before, the commit interval may have passed
        wait_for(lambda: journal.read_text().split().count("put") > 1, "the task continues", 60, worker.log)


@pytest.mark.slow
def test_sink_task_does_not_join_its_consumer_group_if_its_start_method_returns_while_its_worker_is_suspended(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / "starting_sink.py").write_text(STARTING_SINK)
    journal, starts = tmp_path / "journal", tmp_path / "starts"
    config = {"connector.class": "StartingSink", "topics": "in", "journal": str(journal), "starts.when": str(starts)}
    produce(broker, "")
    with worker_group(tmp_path, broker.address, 1, {"plugin.path": str(plugins)}) as [worker]:
        worker.create("s", config)
        wait_for(lambda: values_in(journal) == {"start"}, "the call of start has begun", 60, worker.log)
        with suspended(worker):
            wait_for(lambda: "does not begin to work" in worker.log(), "the task is not confirmed", 40, worker.log)
            starts.touch()
            wait_for(lambda: "started" in values_in(journal), "the call of start has returned", 40)
            time.sleep(2)  # several times as long as a task needs to join its group
            assert members(broker) == 0
            assert "put" not in values_in(journal)
        wait_for(lambda: "put" in values_in(journal), "the task works", 60, worker.log)


@pytest.mark.slow
def test_sink_task_of_a_suspended_worker_continues_at_committed_offsets_if_the_worker_continues_before_session_expiry(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    """The task regularly asks its worker whether it may run, and leaves its consumer group if there is no response.

    The worker's session in the Connect group may expire later than this. If the worker continues before its session
    expires, it is still a group member. The task then joins its consumer group again, and is not restarted.
    """
    file, expected = tmp_path / "file", set[str]()

    def has_all_records() -> bool:
        return expected <= values_in(file)

    with worker_group(tmp_path, broker.address, 1, {"offset.flush.interval.ms": "500"}) as [worker]:
        worker.create("s", sink(file, 1))
        for attempt in range(5):
            wait_for(lambda: is_running(worker, "s", 1), "the task is running", 60)
            wait_for(lambda: members(broker) == 1, "the task is a member of its consumer group", 60)
            expected |= produce(broker, f"{attempt}-before-")
            wait_for(has_all_records, "all records are written", 60)
            time.sleep(1)  # half of the interval between two confirmations
            with suspended(worker):
                wait_for(lambda: members(broker) == 0, "the task has left its consumer group", 40)
                expected |= produce(broker, f"{attempt}-after-")
            wait_for(has_all_records, "all records are written", 60, worker.log)
            if "is a member of its group again; continuing" in worker.log():
                return
        raise AssertionError(worker.log())


@pytest.mark.slow
def test_sink_task_that_reads_its_topics_itself_pauses_and_commits_no_offsets_while_its_worker_is_suspended(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    """While the worker does not respond, the platform requests that the task pauses.

    The task of this test reports offsets even while it is paused. The platform must not commit these offsets.
    """
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / "counting_sink.py").write_text(COUNTING_SINK)
    file, admin = tmp_path / "file", AdminClient({"bootstrap.servers": broker.address})

    def committed() -> list[int]:
        groups = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("connect-s")])
        return [each.offset for each in groups["connect-s"].result(20).topic_partitions]

    def progress() -> tuple[int, list[int]]:
        return len(values_in(file)), committed()

    def has_paused() -> bool:
        before = progress()
        time.sleep(1.5)  # several commit intervals
        return progress() == before

    settings = {"offset.flush.interval.ms": "300", "plugin.path": str(plugins)}
    with worker_group(tmp_path, broker.address, 1, settings) as [worker]:
        worker.create("s", {"connector.class": "CountingSink", "topics": "in", "file": str(file)})
        wait_for(committed, "the first commit", 60, worker.log)
        with suspended(worker):
            wait_for(has_paused, "the task has paused and commits nothing", 40)
            paused = progress()
        wait_for(lambda: progress()[0] > paused[0] and progress()[1] != paused[1], "the task continues", 60, worker.log)
