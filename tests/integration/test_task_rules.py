"""Tests of how a worker runs tasks (retries, commits, pauses, errors), with plug-ins that misbehave on purpose."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psutil
import pytest

from support.shared_worker import SharedWorkers
from support.topics import end_offset, read_topic, write_topic
from support.worker import RestError, Worker, wait_for

pytestmark = pytest.mark.integration

PLUGINS = """
# plug-ins for the tests of headrace
import json, os, time
from headrace.api import (
    Config, DataError, ErrantRecord, RecordErrors, RetriableError, SelfReadingSinkTask, SinkConnector, SinkRecord,
    SinkTask, SourceConnector, SourceRecord, SourceTask, Transformation, key,
)
from headrace.data.schema import STRING_SCHEMA

class JournalConfig(Config):
    journal: str = key("journal")
    mode: str = key("mode", default="")

class _Journal:
    def note(self, what, *details):
        with open(self.config.journal, "a") as file:
            file.write(json.dumps([what, *details]) + "\\n")

class JournalSinkTask(_Journal, SinkTask[JournalConfig]):
    failures = 0
    def start(self, config):
        self.note("start")
    def open(self, partitions):
        self.note("open", sorted(partitions))
    def close(self, partitions):
        self.note("close", sorted(partitions))
    def put(self, records):
        if self.config.mode == "empty retry" and not len(records) and self.failures < 2:
            self.failures += 1
            self.note("empty retry")
            raise RetriableError("not yet")
        if self.config.mode == "record errors" and len(records):
            errors = {n: DataError(f"{r.value} is odd") for n, r in enumerate(records) if r.value % 2}
            if self.failures < 2:
                errors |= {n: RetriableError("not yet") for n, r in enumerate(records) if r.value == 2}
                self.failures += 1
            self.note("put", [r.value for n, r in enumerate(records) if n not in errors], [])
            if errors:
                raise RecordErrors(errors)
            return
        for batch in records.batches:
            self.put_batch(batch)
    def put_batch(self, batch):
        if self.config.mode == "retry" and self.failures < 3:
            self.failures += 1
            self.note("retry", list(batch.offsets))
            self.context.timeout(50)
            raise RetriableError("not yet")
        if self.config.mode == "errant":
            for record in batch.to_records():
                if record.value % 2:
                    self.context.errant_record_reporter.report(record, DataError(f"{record.value} is odd"))
        if self.config.mode == "errant copy":
            for record in batch.to_records():
                copy = SinkRecord(topic="t", partition=0, offset=record.offset, value="changed")
                self.context.errant_record_reporter.report(copy, DataError("copied")).result(30)
        if self.config.mode == "swallowed":
            for record in batch.to_records():
                try:
                    self.context.errant_record_reporter.report(record, DataError("bad"))
                except Exception as error:
                    self.note("swallowed", str(error))
        if self.config.mode == "slow" and not os.path.exists(self.config.journal + ".fast"):
            time.sleep(0.1)
        self.note("put", batch.values, list(batch.offsets))
        if self.config.mode == "commit":
            self.context.request_commit()
        if self.config.mode == "seek" and self.failures < 1:
            self.failures += 1
            self.context.offset({(batch.topic, batch.partition): 1})
        if self.config.mode == "pause":
            self.context.pause(*self.context.assignment)
    def pre_commit(self, offsets):
        if self.config.mode == "rewind" and self.failures < 1 and any(offsets.values()):
            self.failures += 1
            raise ValueError("cannot flush")
        return offsets
    def stop(self):
        self.note("stop")

class JournalSink(_Journal, SinkConnector[JournalConfig]):
    task_class = JournalSinkTask
    def start(self, config):
        self.note("connector start")
    def stop(self):
        self.note("connector stop")

class CountingSourceTask(_Journal, SourceTask[JournalConfig]):
    def start(self, config):
        if config.mode == "unavailable" and not os.path.exists(config.journal + ".available"):
            self.note("unavailable")
            raise DataError("the database is unavailable")
        offset = self.context.offsets.read({"counter": 1})
        self.next = offset["n"] + 1 if offset else 0
        self.note("start", self.next)
        self.failures = 0
    def poll(self):
        if self.config.mode == "retry" and self.failures < 2:
            self.failures += 1
            raise RetriableError("not yet")
        if self.next >= 10:
            time.sleep(0.05)
            return None
        n, self.next = self.next, self.next + 1
        return [SourceRecord(topic="counted", value_schema=STRING_SCHEMA, value=str(n),
                             source_partition={"counter": 1}, source_offset={"n": n})]
    def commit(self):
        self.note("commit")
    def commit_record(self, record, metadata):
        self.note("acknowledged", record.source_offset["n"])

class CountingSource(_Journal, SourceConnector[JournalConfig]):
    task_class = CountingSourceTask
    def task_configs(self, max_tasks):
        return [self.config.originals] * (3 if self.config.mode == "too many" else 1)

class HangingValidation(JournalSink):
    def validate(self, props, values):
        with open(props["journal"], "a") as file:
            file.write('["validate"]\\n')
        time.sleep(600)

class FailOdd(Transformation):
    def apply(self, record):
        if int(record.value) % 2:
            raise DataError(f"{record.value} is odd")
        return record

class RetryForever(_Journal, Transformation[JournalConfig]):
    def apply(self, record):
        self.note("transform", record.value)
        raise RetriableError("not yet")

class DropRepeated(Transformation):
    def configure(self, config):
        self.seen = set()
    def apply(self, record):
        if int(record.value) == 1:
            raise DataError("one")
        if record.value in self.seen:
            return None
        self.seen.add(record.value)
        return record

class SelfReadingSink(_Journal, SelfReadingSinkTask[JournalConfig]):
    def run(self):
        reporter = self.context.errant_record_reporter
        reporter.report([ErrantRecord("t", 0, offset, DataError(f"bad {offset}")) for offset in (1, 3)])
        self.context.report_offsets({("t", 0): 4})
        while self.context.wait(60):
            pass
"""


@pytest.fixture(scope="module")
def shared_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedWorkers]:
    plugins = tmp_path_factory.mktemp("plugins")
    (plugins / "journal_plugins.py").write_text(PLUGINS)
    with SharedWorkers(tmp_path_factory, {"plugin.path": str(plugins)}) as workers:
        yield workers


@pytest.fixture(params=["process"])
def worker(request: pytest.FixtureRequest, shared_workers: SharedWorkers) -> Iterator[Worker]:
    with shared_workers.acquire({"task.isolation": request.param}) as running:
        for file in running.directory.glob("journal*"):
            file.unlink()
        yield running


def journal(worker: Worker) -> list[Any]:
    path = worker.directory / "journal"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def entries(worker: Worker, what: str) -> list[Any]:
    return [entry[1:] for entry in journal(worker) if entry[0] == what]


def sink(worker: Worker, topic: str, mode: str = "", **more: str) -> None:
    config = {"connector.class": "JournalSink", "topics": topic, "journal": str(worker.directory / "journal")}
    worker.create("sink", {**config, "mode": mode, **more})


def source(worker: Worker, mode: str = "", **more: str) -> None:
    text = {"value.converter": "org.apache.kafka.connect.storage.StringConverter"}
    config = {"connector.class": "CountingSource", "journal": str(worker.directory / "journal"), "mode": mode}
    worker.create("source", {**config, **text, **more})


def let_tasks_be_fast(worker: Worker) -> None:
    """End the sleeps of the tasks in mode "slow"."""
    (worker.directory / "journal.fast").touch()


def committed(worker: Worker) -> int | None:
    offsets = worker.request("GET", "/connectors/sink/offsets")["offsets"]
    return int(offsets[0]["offset"]["kafka_offset"]) if offsets else None


def test_put_that_raises_a_retriable_error_is_called_again_with_the_same_records(worker: Worker) -> None:
    write_topic(worker.bootstrap_servers(), "t", [(None, b"%d" % n) for n in range(5)])
    sink(worker, "t", "retry")
    wait_for(lambda: [n for values, _ in entries(worker, "put") for n in values] == [0, 1, 2, 3, 4], "all records")
    retried = entries(worker, "retry")
    assert len(retried) == 3
    assert retried[0] == retried[1] == retried[2] == [entries(worker, "put")[0][1]]
    wait_for(lambda: committed(worker) == 5, "the commit")
    write_topic(worker.bootstrap_servers(), "t", [(None, b"5")])
    wait_for(lambda: entries(worker, "put")[-1][0] == [5], "the next record after the retries")


def test_sink_task_rewinds_to_its_committed_offsets_if_pre_commit_fails(worker: Worker) -> None:
    write_topic(worker.bootstrap_servers(), "t", [(None, b"%d" % n) for n in range(3)])
    sink(worker, "t", "rewind")
    wait_for(lambda: [n for values, _ in entries(worker, "put") for n in values] == [0, 1, 2] * 2, "everything again")
    wait_for(lambda: committed(worker) == 3, "the commit")


def test_sink_offsets_are_committed_when_the_task_requests_a_commit(shared_workers: SharedWorkers) -> None:
    with shared_workers.acquire({"offset.flush.interval.ms": "600000"}) as worker:
        write_topic(worker.bootstrap_servers(), "t", [(None, b"0")])
        sink(worker, "t", "commit")
        wait_for(lambda: committed(worker) == 1, "the commit")


def test_sink_task_can_rewind_to_an_offset(worker: Worker) -> None:
    write_topic(worker.bootstrap_servers(), "t", [(None, b"%d" % n) for n in range(3)])
    sink(worker, "t", "seek")
    wait_for(lambda: [n for values, _ in entries(worker, "put") for n in values] == [0, 1, 2, 1, 2], "1 and 2 again")
    wait_for(lambda: committed(worker) == 3, "the commit")


def test_sink_task_can_pause_its_partitions(worker: Worker) -> None:
    write_topic(worker.bootstrap_servers(), "t", [(None, b"0")])
    sink(worker, "t", "pause")
    wait_for(lambda: len(entries(worker, "put")) == 1, "the first record")
    write_topic(worker.bootstrap_servers(), "t", [(None, b"1")])
    time.sleep(0.5)  # a task that did not pause would receive the record in this time
    assert len(entries(worker, "put")) == 1


def test_slow_sink_task_stays_in_its_group_during_a_long_put_and_while_it_is_paused(worker: Worker) -> None:
    """The task needs 50 s to put its records unless the test makes it fast, and is paused for 3 s.

    Both times exceed max.poll.interval.ms. If the consumer did not poll during them, it would have to leave its group.
    """
    write_topic(worker.bootstrap_servers(), "t", [(None, b"%d" % n) for n in range(1000)])
    limits = {"consumer.override.max.poll.records": "2", "consumer.override.max.poll.interval.ms": "2500"}
    sink(worker, "t", "slow", **limits)

    def put() -> list[int]:
        return [n for values, _ in entries(worker, "put") for n in values]

    wait_for(lambda: len(put()) >= 60, "the puts of the first 3 s")
    worker.request("PUT", "/connectors/sink/pause")
    worker.wait_for_state("sink", "PAUSED")
    worker.wait_for_task_state("sink", 0, "PAUSED")
    paused_at = len(put())
    assert paused_at < 1000
    time.sleep(3)  # wait for longer than max.poll.interval.ms, because only the time matters here
    assert len(put()) == paused_at
    let_tasks_be_fast(worker)
    worker.request("PUT", "/connectors/sink/resume")
    wait_for(lambda: len(put()) >= 1000, "all records")
    assert put() == list(range(1000))
    assert all(len(values) <= 2 for values, _ in entries(worker, "put"))
    assert len(entries(worker, "open")) == 1
    assert entries(worker, "close") == []


def test_member_that_joins_the_group_of_a_slow_sink_task_does_not_wait_until_the_task_has_put_its_backlog(
    worker: Worker,
) -> None:
    """The task needs 200 s to put its backlog, and max.poll.interval.ms gives its consumer as long to rejoin."""
    from confluent_kafka import Consumer

    topics = ["t0", "t1"]
    for topic in topics:
        write_topic(worker.bootstrap_servers(), topic, [(None, b"%d" % n) for n in range(2000)])
    limits = {"consumer.override.max.poll.records": "2", "consumer.override.max.poll.interval.ms": "200000"}
    sink(worker, ",".join(topics), "slow", **limits)
    wait_for(lambda: len(entries(worker, "put")) >= 2, "the first puts")
    assigned: list[int] = []
    member = Consumer({
        "bootstrap.servers": worker.bootstrap_servers(), "group.id": "connect-sink", "enable.auto.commit": False,
        "partition.assignment.strategy": "range",
    })  # fmt: skip
    try:
        member.subscribe(topics, on_assign=lambda _, partitions: assigned.append(len(partitions)))
        started = time.monotonic()
        while not assigned:
            member.poll(0.1)
            assert time.monotonic() - started < 60, "the member waits for the puts of the task"
    finally:
        member.close()
    puts = len(entries(worker, "put"))
    wait_for(lambda: len(entries(worker, "put")) > puts, "the task continues")
    assert entries(worker, "close") != []
    assert worker.status("sink")["tasks"][0]["state"] == "RUNNING"


def test_sink_task_fails_after_it_reports_a_record_if_errors_are_not_tolerated(worker: Worker) -> None:
    """The method `report` raises an error. The task fails even if the task catches this error."""
    write_topic(worker.bootstrap_servers(), "t", [(None, b"%d" % n) for n in range(3)])
    sink(worker, "t", "swallowed", **{"errors.log.enable": "true"})
    worker.wait_for_task_state("sink", 0, "FAILED")
    assert len(entries(worker, "swallowed")) == 3
    trace = worker.status("sink")["tasks"][0]["trace"]
    assert "Tolerance exceeded in error handler" in trace, trace
    assert committed(worker) in (None, 0)


def test_records_that_a_sink_task_reports_are_sent_to_the_dead_letter_queue(worker: Worker) -> None:
    write_topic(worker.bootstrap_servers(), "t", [(b'"k%d"' % n, b"%d" % n) for n in range(4)])
    queue = {"errors.deadletterqueue.topic.name": "dead", "errors.deadletterqueue.topic.replication.factor": "1"}
    sink(worker, "t", "errant", **queue, **{"errors.tolerance": "all"})
    wait_for(lambda: end_offset(worker.bootstrap_servers(), "dead") == 2, "two DLQ records")
    assert [(m.key(), m.value()) for m in read_topic(worker.bootstrap_servers(), "dead")] == [
        (b'"k1"', b"1"),
        (b'"k3"', b"3"),
    ]


@pytest.mark.parametrize(
    ("mode", "more", "stage"),
    [
        ("", {"transforms": "f", "transforms.f.type": "FailOdd"}, "TRANSFORMATION"),
        ("record errors", {}, "TASK_PUT"),
        ("errant", {}, "TASK_PUT"),
    ],
)
def test_record_that_fails_the_task_is_logged_and_sent_to_the_dead_letter_queue(
    worker: Worker, mode: str, more: dict[str, str], stage: str
) -> None:
    write_topic(worker.bootstrap_servers(), "t", [(b'"k%d"' % n, b"%d" % n) for n in range(4)])
    queue = {"errors.deadletterqueue.topic.name": "dead", "errors.deadletterqueue.topic.replication.factor": "1"}
    sink(worker, "t", mode, **queue, **more, **{"errors.log.enable": "true"})
    worker.wait_for_task_state("sink", 0, "FAILED")
    assert "Tolerance exceeded in error handler" in worker.status("sink")["tasks"][0]["trace"]
    assert f"Executing stage '{stage}'" in worker.log()
    assert [(m.key(), m.value()) for m in read_topic(worker.bootstrap_servers(), "dead")] == [(b'"k1"', b"1")]
    assert committed(worker) in (None, 0, 1)


def test_retriable_error_of_a_put_without_records_does_not_fail_the_task(worker: Worker) -> None:
    write_topic(worker.bootstrap_servers(), "t", [])
    sink(worker, "t", "empty retry")
    wait_for(lambda: len(entries(worker, "empty retry")) == 2, "two retries")
    write_topic(worker.bootstrap_servers(), "t", [(None, b"7")])
    wait_for(lambda: [values for values, _ in entries(worker, "put")] == [[7]], "the record after the retries")
    assert worker.status("sink")["tasks"][0]["state"] == "RUNNING"


def test_records_that_put_rejects_go_to_the_dead_letter_queue_and_retriable_records_are_redelivered(
    worker: Worker,
) -> None:
    write_topic(worker.bootstrap_servers(), "t", [(b'"k%d"' % n, b"%d" % n) for n in range(5)])
    queue = {"errors.deadletterqueue.topic.name": "dead", "errors.deadletterqueue.topic.replication.factor": "1"}
    sink(worker, "t", "record errors", **queue, **{"errors.tolerance": "all"})
    wait_for(lambda: end_offset(worker.bootstrap_servers(), "dead") == 2, "two DLQ records")
    assert [(m.key(), m.value()) for m in read_topic(worker.bootstrap_servers(), "dead")] == [
        (b'"k1"', b"1"),
        (b'"k3"', b"3"),
    ]
    wait_for(lambda: [values for values, _ in entries(worker, "put")] == [[0, 4], [], [2]], "the redelivered record")
    wait_for(lambda: committed(worker) == 5, "the commit")


def test_record_is_read_again_for_the_dead_letter_queue_if_the_task_reports_a_copy_of_the_record(
    worker: Worker,
) -> None:
    write_topic(worker.bootstrap_servers(), "t", [(b'"k%d"' % n, b"%d" % n) for n in range(2)])
    queue = {"errors.deadletterqueue.topic.name": "dead", "errors.deadletterqueue.topic.replication.factor": "1"}
    sink(worker, "t", "errant copy", **queue, **{"errors.tolerance": "all"})
    wait_for(lambda: end_offset(worker.bootstrap_servers(), "dead") == 2, "two DLQ records")
    assert [(m.key(), m.value()) for m in read_topic(worker.bootstrap_servers(), "dead")] == [
        (b'"k0"', b"0"),
        (b'"k1"', b"1"),
    ]


def test_record_is_read_again_for_the_dead_letter_queue_if_the_task_reports_only_an_offset(worker: Worker) -> None:
    """The task is a `SelfReadingSinkTask`. Such a task consumes its topics itself."""
    write_topic(worker.bootstrap_servers(), "t", [(b"k%d" % n, b"%d" % n) for n in range(4)])
    queue = {"errors.deadletterqueue.topic.name": "dead", "errors.deadletterqueue.topic.replication.factor": "1"}
    log = {"errors.log.enable": "true", "errors.log.include.messages": "true"}
    config = {"connector.class": "SelfReadingSink", "topics": "t", "journal": str(worker.directory / "journal")}
    worker.create("sink", {**config, **queue, **log, "errors.tolerance": "all"})
    wait_for(lambda: end_offset(worker.bootstrap_servers(), "dead") == 2, "two DLQ records")
    assert [(m.key(), m.value()) for m in read_topic(worker.bootstrap_servers(), "dead")] == [
        (b"k1", b"1"),
        (b"k3", b"3"),
    ]
    assert "where topic t, partition 0, offset 3, record value b'3': bad 3" in worker.log()
    wait_for(lambda: committed(worker) == 4, "the commit")


def test_record_that_is_being_retried_when_its_task_stops_is_neither_committed_nor_reported(worker: Worker) -> None:
    write_topic(worker.bootstrap_servers(), "t", [(None, b"7")])
    more = {"errors.tolerance": "all", "errors.retry.timeout": "-1", "errors.deadletterqueue.topic.name": "dead"}
    more |= {"errors.deadletterqueue.topic.replication.factor": "1", "transforms": "r"}
    more |= {"transforms.r.type": "RetryForever", "transforms.r.journal": str(worker.directory / "journal")}
    sink(worker, "t", **more)
    wait_for(lambda: len(entries(worker, "transform")) >= 2, "a retry")
    worker.request("PUT", "/connectors/sink/stop")
    wait_for(lambda: entries(worker, "stop") == [[]], "the end of the task")
    assert committed(worker) in (None, 0)
    assert end_offset(worker.bootstrap_servers(), "dead") == 0


def test_stateful_transform_receives_each_good_record_once_if_another_record_of_the_batch_fails(worker: Worker) -> None:
    write_topic(worker.bootstrap_servers(), "t", [(None, b"%d" % n) for n in (0, 1, 2, 0, 3)])
    sink(worker, "t", **{"transforms": "d", "transforms.d.type": "DropRepeated", "errors.tolerance": "all"})
    wait_for(lambda: committed(worker) == 5, "the commit")
    assert [value for values, _ in entries(worker, "put") for value in values] == [0, 2, 3]


def test_open_and_close_of_sink_tasks_are_called_for_assigned_and_revoked_partitions(worker: Worker) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": worker.bootstrap_servers()})
    admin.create_topics([NewTopic("t", 4, 1)])["t"].result(30)
    sink(worker, "t", **{"tasks.max": "2"})

    def assigned() -> list[int]:
        count = {"open": 1, "close": -1}
        changes = [(count[e[0]], p[1]) for e in journal(worker) if e[0] in count for p in e[1]]
        return sorted(p for p in range(4) if sum(change for change, number in changes if number == p) == 1)

    wait_for(lambda: assigned() == [0, 1, 2, 3] and len(entries(worker, "open")) >= 2, "each partition assigned once")
    worker.request("PUT", "/connectors/sink/config", {
        "connector.class": "JournalSink", "topics": "t", "journal": str(worker.directory / "journal"), "tasks.max": "1",
    })  # fmt: skip
    worker.wait_for_state("sink", "RUNNING")
    wait_for(lambda: assigned() == [0, 1, 2, 3], "all partitions assigned to one task")
    worker.request("DELETE", "/connectors/sink")
    assert assigned() == []
    assert len(entries(worker, "stop")) == len(entries(worker, "start"))


@pytest.mark.parametrize("worker", ["process", "connector", "thread"], indirect=True)
def test_source_task_is_notified_of_acknowledgements_and_resumes_from_committed_offset(worker: Worker) -> None:
    source(worker, "retry")
    wait_for(lambda: end_offset(worker.bootstrap_servers(), "counted") == 10, "all records")
    wait_for(lambda: [n for (n,) in entries(worker, "acknowledged")] == list(range(10)), "all acknowledgements")
    wait_for(lambda: entries(worker, "commit") != [], "a commit")
    worker.request("POST", "/connectors/source/tasks/0/restart")
    wait_for(lambda: entries(worker, "start") == [[0], [10]], "the task continues at its offset")
    assert "Task source-0: poll failed with a retriable error, retrying: not yet" in worker.log()
    assert end_offset(worker.bootstrap_servers(), "counted") == 10


def test_source_records_that_fail_in_a_transform_are_skipped_and_their_offsets_are_committed(worker: Worker) -> None:
    chain = {"transforms": "f", "transforms.f.type": "FailOdd", "errors.tolerance": "all", "errors.log.enable": "true"}
    source(worker, **chain)
    wait_for(lambda: end_offset(worker.bootstrap_servers(), "counted") == 5, "the even records")
    offset = [{"partition": {"counter": 1}, "offset": {"n": 9}}]
    wait_for(lambda: worker.request("GET", "/connectors/source/offsets") == {"offsets": offset}, "the offset of all")
    line = "stage 'TRANSFORMATION' with class 'journal_plugins:FailOdd'"
    wait_for(lambda: line in worker.log(), "the log line of the task's process")


def test_source_record_that_fails_the_task_is_logged(worker: Worker) -> None:
    source(worker, **{"transforms": "f", "transforms.f.type": "FailOdd", "errors.log.enable": "true"})
    worker.wait_for_task_state("source", 0, "FAILED")
    assert "Tolerance exceeded in error handler" in worker.status("source")["tasks"][0]["trace"]
    assert "stage 'TRANSFORMATION' with class 'journal_plugins:FailOdd'" in worker.log()


def test_dead_letter_queue_of_a_source_contains_records_that_fail_in_a_transform(worker: Worker) -> None:
    queue = {"errors.deadletterqueue.topic.name": "dead", "errors.deadletterqueue.topic.replication.factor": "1"}
    queue |= {"errors.deadletterqueue.context.headers.enable": "true", "errors.tolerance": "all"}
    source(worker, **queue, **{"transforms": "f", "transforms.f.type": "FailOdd"})
    wait_for(lambda: end_offset(worker.bootstrap_servers(), "counted") == 5, "the even records")
    offset = [{"partition": {"counter": 1}, "offset": {"n": 9}}]
    wait_for(lambda: worker.request("GET", "/connectors/source/offsets") == {"offsets": offset}, "the offset of all")
    records = read_topic(worker.bootstrap_servers(), "dead")
    assert [json.loads(record.value() or b"")["value"] for record in records] == ["1", "3", "5", "7", "9"]
    first = json.loads(records[0].value() or b"")
    assert (first["topic"], first["source_partition"], first["source_offset"]) == ("counted", {"counter": 1}, {"n": 1})
    headers = dict(records[0].headers() or [])
    assert headers["__connect.errors.stage"] == b"TRANSFORMATION"
    assert headers["__connect.errors.exception.message"] == b"transform f: 1 is odd"
    assert headers["__headrace.errors.source.offset"] == b'{"n":1}'


def test_dead_letter_queue_of_a_source_contains_records_that_the_broker_rejects(worker: Worker) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": worker.bootstrap_servers()})
    admin.create_topics([NewTopic("counted", 1, 1, config={"max.message.bytes": "10"})])["counted"].result(30)
    queue = {"errors.deadletterqueue.topic.name": "dead", "errors.deadletterqueue.topic.replication.factor": "1"}
    source(worker, **queue, **{"errors.tolerance": "all"})
    offset = [{"partition": {"counter": 1}, "offset": {"n": 9}}]
    wait_for(lambda: worker.request("GET", "/connectors/source/offsets") == {"offsets": offset}, "the offset of all")
    values = [json.loads(record.value() or b"")["value"] for record in read_topic(worker.bootstrap_servers(), "dead")]
    assert sorted(values) == [str(n) for n in range(10)]
    assert end_offset(worker.bootstrap_servers(), "counted") == 0


def test_failed_task_is_restarted_automatically_until_it_succeeds(worker: Worker) -> None:
    restart = {"errors.restart.max.attempts": "-1", "errors.restart.backoff.initial.ms": "50"}
    source(worker, "unavailable", **restart, **{"errors.restart.backoff.max.ms": "200"})
    wait_for(lambda: len(entries(worker, "unavailable")) >= 3, "the second automatic restart")
    wait_for(
        lambda: (
            "follows in 200 ms (errors.restart.max.attempts)" in worker.status("source")["tasks"][0].get("trace", "")
        ),
        "the status shows the next restart",
    )
    (worker.directory / "journal.available").touch()
    wait_for(lambda: end_offset(worker.bootstrap_servers(), "counted") == 10, "all records")
    assert worker.status("source")["tasks"][0]["state"] == "RUNNING"


def test_pause_stops_the_connector_process_and_keeps_the_task_process(worker: Worker) -> None:
    sink(worker, "t")
    worker.wait_for_state("sink", "RUNNING")
    worker.request("PUT", "/connectors/sink/pause")
    worker.wait_for_state("sink", "PAUSED")
    assert [entry[0] for entry in journal(worker) if "connector" in entry[0]] == ["connector start", "connector stop"]
    assert "sink-0" in _process_names(worker.pid)
    assert "sink" not in _process_names(worker.pid)
    worker.request("PUT", "/connectors/sink/resume")
    worker.wait_for_state("sink", "RUNNING")
    write_topic(worker.bootstrap_servers(), "t", [(None, b"1")])
    wait_for(lambda: bool(entries(worker, "put")), "the task continues")
    assert len(entries(worker, "connector start")) == 2
    assert len(entries(worker, "start")) == 1
    assert entries(worker, "stop") == []


def test_connector_with_more_tasks_than_tasks_max_fails(worker: Worker) -> None:
    source(worker, "too many")
    status = worker.status("source")
    assert status["connector"]["state"] == "FAILED"
    assert "generated 3 tasks, which is greater than 1" in status["connector"]["trace"]


def _process_names(pid: int) -> set[str]:
    names = set()
    for process in psutil.Process(pid).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            names.add(process.name())
    return names


def test_source_offsets_are_not_committed_before_the_broker_acknowledges_the_records(worker: Worker) -> None:
    """If the topic rejects every record, the task fails and no source offset is committed."""
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": worker.bootstrap_servers()})
    admin.create_topics([NewTopic("counted", 1, 1, config={"max.message.bytes": "10"})])["counted"].result(30)
    source(worker)
    worker.wait_for_task_state("source", 0, "FAILED")
    wait_for(lambda: "source-0" not in _process_names(worker.pid), "the failed task's process exits")
    assert "Failed to write a record to its topic" in worker.status("source")["tasks"][0]["trace"]
    assert worker.request("GET", "/connectors/source/offsets") == {"offsets": []}
    worker.request("POST", "/connectors/source/tasks/0/restart")
    worker.wait_for_task_state("source", 0, "FAILED")


def test_hanging_validation_does_not_delay_other_requests(worker: Worker) -> None:
    config = {"connector.class": "HangingValidation", "topics": "t", "journal": str(worker.directory / "journal")}
    with ThreadPoolExecutor(1) as beside, contextlib.suppress(OSError):
        hanging = beside.submit(worker.create, "hanging", config)
        wait_for(lambda: bool(entries(worker, "validate")), "the validation has started")
        started = time.monotonic()
        sink(worker, "t")
        assert time.monotonic() - started < 40
        assert not hanging.done()
        worker.kill_group()
        hanging.result()


def test_invalid_sink_offsets_are_rejected(worker: Worker) -> None:
    sink(worker, "t")
    worker.request("PUT", "/connectors/sink/stop")
    for partition in ({"kafka_topic": "t", "kafka_partition": "x"}, {"kafka_topic": "t", "kafka_partition": [1]}):
        with pytest.raises(RestError) as caught:
            worker.request("PATCH", "/connectors/sink/offsets", {"offsets": [{"partition": partition, "offset": None}]})
        assert caught.value.status == 400
