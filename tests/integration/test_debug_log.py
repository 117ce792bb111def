"""Tests that an operator can follow a batch, an offset commit and a rebalance in the DEBUG log of real workers."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from support.broker import running_broker
from support.distributed import DistributedWorker, is_running, worker_group
from support.topics import read_topic
from support.worker import RestError, Worker, wait_for

pytestmark = pytest.mark.integration

TEXT = {"key.converter": "StringConverter", "value.converter": "StringConverter"}
SECRET = "hunter22-in-the-config"
CONTENT = "content-of-a-record"


def steps_found(log: str, patterns: Sequence[str]) -> list[str]:
    """Return the patterns that match lines of the log in this order, up to the first pattern that does not match."""
    lines = iter(log.splitlines())
    return [pattern for pattern in patterns if any(re.search(pattern, line) for line in lines)]


def wait_for_steps(worker: Worker, patterns: Sequence[str]) -> None:
    wait_for(
        lambda: steps_found(worker.log(), patterns) == list(patterns),
        "the steps in the log",
        explain=lambda: f"found only {steps_found(worker.log(), patterns)}",
    )


def set_debug(worker: Worker, logger: str, query: str = "") -> None:
    worker.request("PUT", f"/admin/loggers/{logger}{query}", {"level": "DEBUG"})


def test_one_batch_and_its_offset_commits_can_be_followed_through_a_source_and_a_sink(tmp_path: Path) -> None:
    """The level is set while the tasks run, with the names of Apache Kafka, and so reaches the running processes."""
    lines, out = tmp_path / "lines.txt", tmp_path / "out.txt"
    lines.write_text("first\n")
    drop = {
        "transforms": "drop",
        "transforms.drop.type": "Filter",
        "transforms.drop.predicate": "other",
        "predicates": "other",
        "predicates.other.type": "TopicNameMatches",
        "predicates.other.pattern": "other",
    }
    source = {"connector.class": "FileStreamSource", "file": str(lines), "topic": "lines", **TEXT}
    sink = {"connector.class": "FileStreamSink", "file": str(out), "topics": "lines", **TEXT, **drop}
    with Worker(tmp_path) as worker:
        worker.create("source", source)
        worker.create("sink", sink)
        wait_for(lambda: out.exists() and out.read_text() == "first\n", "the first line")
        assert "DEBUG" not in worker.log()
        for task in ("WorkerSourceTask", "WorkerSinkTask"):
            set_debug(worker, f"org.apache.kafka.connect.runtime.{task}")
        with lines.open("a") as file:
            file.write("second\nthird\n")
        wait_for_steps(
            worker,
            [
                r"DEBUG \[source\|task-0\] Task source-0: poll returned 2 records in 1 batches after \d+ ms",
                r"Task source-0: transformed and converted 2 records of source partition {'filename': '.*'} up to "
                r"offset {'position': 19} in \d+ ms: 2 records to send to topic lines, 0 dropped by transforms, 0 s",
                r"Task source-0: sending 2 records to topic lines, partition selected by the producer",
                r"Task source-0: acknowledged lines-0 offsets 1-2, so source offset {'position': 19} can be committed",
                r"Task source-0: committing the offsets of 1 source partitions",
                r"Task source-0: committed source offsets {'filename': '.*'}: {'position': 19} in \d+ ms",
            ],
        )
        wait_for_steps(
            worker,
            [
                r"DEBUG \[sink\|task-0\] Task sink-0: the consumer fetched \d+ bytes of lines-0 offsets 1-2",
                r"Task sink-0: converted and transformed 2 fetched records \(lines-0 offsets 1-2\) in \d+ ms: "
                r"2 records to put, 0 dropped by transforms, 0 skipped after errors",
                r"Task sink-0: put of 2 records returned after \d+ ms",
                r"Task sink-0: pre_commit of offsets lines-0: 3 returned lines-0: 3 after \d+ ms",
                r"Task sink-0: committing offsets lines-0: 3 of group connect-sink",
                r"Task sink-0: committed offsets lines-0: 3 of group connect-sink in \d+ ms",
            ],
        )
        worker.request("PUT", "/admin/loggers/headrace", {"level": "INFO"})


def test_a_rebalance_can_be_followed_on_both_workers(tmp_path: Path) -> None:
    (tmp_path / "broker").mkdir()
    config = {"connector.class": "FileStreamSink", "topics": "lines", "tasks.max": "1", **TEXT}
    with (
        running_broker(tmp_path / "broker") as broker,
        worker_group(tmp_path, broker.address, 1) as [first],
    ):
        for name in ("a", "b"):
            first.create(name, {**config, "file": str(tmp_path / name)})
            first.wait_for_state(name, "RUNNING")
        set_debug(first, "headrace", "?scope=cluster")
        set_debug(first, "org.apache.kafka.connect.runtime.distributed.WorkerCoordinator")
        wait_for_steps(first, ["Config topic: received PutLogLevel"])
        with DistributedWorker(tmp_path / "second", broker.address) as second:
            second.create("c", {**config, "file": str(tmp_path / "c")})
            wait_for(lambda: is_running(first, "c", 1), "c runs")
            member = r"workers-[-\w]+"
            wait_for_steps(
                first,
                [
                    r"Group workers: the heartbeat response reports a rebalance",
                    r"Group workers: a rebalance begins after generation \d+; this worker runs connectors a, b; "
                    r"tasks a-0, b-0",
                    rf"Group workers: sending JoinGroup as {member}: ",
                    rf"Group workers: JoinGroup response for member {member}: NONE, generation \d+, leader {member}",
                    rf"is the leader of generation \d+ and assigns connectors and tasks to members {member}, {member}",
                    r"Group member \S+: generation \d+ assigns connectors none; tasks none; it revokes connectors [ab]",
                    r"Group workers: SyncGroup response for generation \d+: NONE",
                    r"Group workers: after generation \d+, this worker runs connectors (a|b); tasks (a|b)-0",
                    r"Group workers: rejoining after the stop of revoked connectors (a|b); tasks (a|b)-0",
                    r"\[(a|b)\|task-0\] Task (a|b)-0: stopping",
                    r"Task (a|b)-0: the worker stops the task",
                    r"\[(a|b)\|task-0\] Task (a|b)-0: stopped after \d+ ms",
                    r"Group workers: rejoining: revoked connectors and tasks have stopped",
                    r"Group member \S+: generation \d+ assigns connectors (a|b); tasks (a|b)-0; it revokes",
                ],
            )


def test_log_level_of_the_group_reaches_the_processes_of_all_workers(tmp_path: Path) -> None:
    (tmp_path / "broker").mkdir()
    config = {"connector.class": "FileStreamSink", "topics": "lines", "tasks.max": "2", **TEXT}
    with (
        running_broker(tmp_path / "broker") as broker,
        worker_group(tmp_path, broker.address, 2) as workers,
    ):
        workers[0].create("sink", {**config, "file": str(tmp_path / "out.txt")})
        wait_for(lambda: is_running(workers[0], "sink", 2), "the sink runs")
        set_debug(workers[1], "org.apache.kafka.connect.runtime.WorkerTask", "?scope=cluster")
        for worker in workers:
            wait_for_steps(worker, ["Config topic: received PutLogLevel"])
        workers[0].request("PUT", "/connectors/sink/pause")
        for worker in workers:
            wait_for_steps(worker, [r"DEBUG \[sink\|task-(0|1)\] Task sink-(0|1): the worker pauses the task"])
        with pytest.raises(RestError, match="not found"):
            set_debug(workers[0], "org.apache.kafka.connect.Misspelt", "?scope=cluster")


def test_debug_log_contains_neither_secrets_nor_the_content_of_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transform fails with a message that contains the record, which goes to the dead letter queue."""
    monkeypatch.setenv("TEST_SECRET", SECRET)
    (tmp_path / "lines.txt").write_text(f"17\n{CONTENT}\n18\n")
    config = {
        "connector.class": "FileStreamSource",
        "file": str(tmp_path / "lines.txt"),
        "topic": "numbers",
        "key.converter": "StringConverter",
        "value.converter": "JsonConverter",
        "transforms": "hoist,secret,cast",
        "transforms.hoist.type": "HoistField$Value",
        "transforms.hoist.field": "number",
        "transforms.secret.type": "InsertField$Value",
        "transforms.secret.static.field": "password",
        "transforms.secret.static.value": "${env:TEST_SECRET}",
        "transforms.cast.type": "Cast$Value",
        "transforms.cast.spec": "number:int32",
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": "failed",
        "errors.deadletterqueue.topic.replication.factor": "1",
    }
    providers = {
        "config.providers": "env",
        "config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
    }
    with Worker(tmp_path, providers) as worker:
        for logger in ("root", "headrace", "headrace_broker", "headrace_connectors", "headrace_transforms"):
            worker.request("PUT", f"/admin/loggers/{logger}", {"level": "ALL"})
        worker.create("numbers", config)
        wait_for_steps(
            worker,
            [
                r"Task numbers-0: a record for topic numbers from source partition .* failed in stage TRANSFORMATION",
                r"Task numbers-0: sending the failed record of topic numbers to the dead letter queue failed",
                r"2 records to send to topic numbers, 0 dropped by transforms, 1 skipped after errors",
                r"Task numbers-0: committed source offsets",
            ],
        )
        assert SECRET in str([each.value() for each in read_topic(worker.bootstrap_servers(), "numbers")])
        worker.request("PUT", "/connectors/numbers/config", {**config, "batch.size": "7"})
        worker.wait_for_state("numbers", "RUNNING")
        log = worker.log()
    assert log.count("Task numbers-0: acknowledged") == 1, "a line for each batch, not for each record"
    assert SECRET not in log
    assert CONTENT not in log
