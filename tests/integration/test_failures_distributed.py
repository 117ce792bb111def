"""Tests of connector failures in a distributed worker: retries, DLQ, restarts, tasks.max, the override policy."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from support.broker import BrokerProcess, running_broker
from support.distributed import DistributedWorker, worker_group
from support.topics import end_offset, read_topic, write_topic
from support.worker import RestError, wait_for

pytestmark = pytest.mark.integration

MAX_ATTEMPTS = "errors.restart.max.attempts"
PLUGINS = """
import time
from pathlib import Path
from headrace.api import (
    Config, ConnectError, DataError, RetriableError, SinkConnector, SinkTask, SourceConnector, SourceRecord, SourceTask,
    Transformation, key,
)

class FlakyConfig(Config):
    attempts: str = key("attempts", doc="The file that counts the attempts.")
    failures: int = key("failures", default=0, doc="The number of attempts that fail.")

def count(config):
    with open(config.attempts, "a") as file:
        file.write("x")
    return len(Path(config.attempts).read_text())

class Flaky(Transformation[FlakyConfig]):
    def apply(self, record):
        if record.value == "bad":
            raise DataError("bad record")
        if record.value == "flaky" and count(self.config) <= self.config.failures:
            raise RetriableError("temporary failure")
        return record

class CollectConfig(Config):
    path: str = key("path", doc="The output file.")

class CollectTask(SinkTask[CollectConfig]):
    def put(self, records):
        with open(self.config.path, "a") as file:
            file.writelines(f"{record.value}\\n" for record in records)

class CollectConnector(SinkConnector[CollectConfig]):
    task_class = CollectTask

class ManyConfig(FlakyConfig):
    tasks: int = key("tasks", default=1, doc="The number of tasks, whatever tasks.max is.")

class ManyTask(SourceTask[ManyConfig]):
    def start(self, config):
        if count(config) <= config.failures:
            raise ConnectError("start failed")

    def poll(self):
        return None

class ManyConnector(SourceConnector[ManyConfig]):
    task_class = ManyTask

    def task_configs(self, maximum):
        return [dict(self.context.props) for _ in range(self.config.tasks)]

class BadOffsetConfig(Config):
    offset: str = key("offset", doc="A Python expression: the source offset of all records.")

class BadOffsetTask(SourceTask[BadOffsetConfig]):
    def poll(self):
        time.sleep(0.1)
        return [SourceRecord(topic="bad-offsets", value="v", source_partition={"p": 1},
                             source_offset={"o": eval(self.config.offset)})]

class BadOffsetConnector(SourceConnector[BadOffsetConfig]):
    task_class = BadOffsetTask
"""
STRING = dict.fromkeys(("key.converter", "value.converter"), "org.apache.kafka.connect.storage.StringConverter")


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("failures")
    (path / "plugins").mkdir()
    (path / "plugins" / "failures.py").write_text(PLUGINS)
    (path / "plugins" / "missing_package.py").write_text(
        "import headrace.api\nimport a_package_that_is_not_installed\n"
    )
    (path / "plugins" / "wrong_syntax.py").write_text("import headrace.api\nclass Wrong(:\n")
    return path


@pytest.fixture(scope="module")
def broker(directory: Path) -> Iterator[BrokerProcess]:
    with running_broker(directory) as running:
        yield running


@pytest.fixture(scope="module")
def worker(directory: Path, broker: BrokerProcess) -> Iterator[DistributedWorker]:
    settings = {"plugin.path": str(directory / "plugins")}
    with worker_group(directory, broker.address, 1, settings) as [started]:
        yield started


def collecting_sink(directory: Path, name: str, **settings: str) -> dict[str, str]:
    return {
        "connector.class": "CollectConnector",
        "topics": name,
        "path": str(directory / f"{name}.out"),
        "transforms": "flaky",
        "transforms.flaky.type": "Flaky",
        "transforms.flaky.attempts": str(directory / f"{name}.attempts"),
        **STRING,
        **settings,
    }


def source(directory: Path, name: str, **settings: str) -> dict[str, str]:
    return {"connector.class": "ManyConnector", "attempts": str(directory / f"{name}.attempts"), **settings}


def lines(file: Path) -> list[str]:
    return file.read_text().splitlines() if file.exists() else []


def test_retriable_transform_error_is_retried_and_a_failed_record_goes_to_the_dead_letter_queue(
    worker: DistributedWorker, directory: Path
) -> None:
    write_topic(worker.bootstrap_servers(), "retried", [(b"k", b"good"), (b"k", b"bad"), (b"k", b"flaky")])
    config = collecting_sink(
        directory,
        "retried",
        **{
            "transforms.flaky.failures": "2",
            "errors.retry.timeout": "60000",
            "errors.retry.delay.max.ms": "100",
            "errors.tolerance": "all",
            "errors.deadletterqueue.topic.name": "retried-dlq",
            "errors.deadletterqueue.topic.replication.factor": "1",
            "errors.deadletterqueue.context.headers.enable": "true",
        },
    )
    worker.create("retried", config)
    wait_for(lambda: lines(directory / "retried.out") == ["good", "flaky"], "the good records", 60)
    assert (directory / "retried.attempts").read_text() == "xxx"
    topics = AdminClient({"bootstrap.servers": worker.bootstrap_servers()}).list_topics(timeout=20).topics
    assert len(topics["retried-dlq"].partitions) == 1
    wait_for(lambda: end_offset(worker.bootstrap_servers(), "retried-dlq") > 0, "the record in the queue")
    (letter,) = read_topic(worker.bootstrap_servers(), "retried-dlq")
    headers = {name: value.decode() for name, value in letter.headers() or [] if name.startswith("__connect.")}
    assert (letter.key(), letter.value()) == (b"k", b"bad")
    assert headers["__connect.errors.connector.name"] == "retried"
    assert headers["__connect.errors.stage"] == "TRANSFORMATION"
    assert headers["__connect.errors.topic"] == "retried"
    assert headers["__connect.errors.offset"] == "1"
    worker.request("DELETE", "/connectors/retried")


def test_sink_task_fails_if_the_dead_letter_queue_rejects_a_record(worker: DistributedWorker, directory: Path) -> None:
    brokers, name = worker.bootstrap_servers(), "rejected"
    admin = AdminClient({"bootstrap.servers": brokers})
    admin.create_topics([NewTopic(f"{name}-dlq", 1, 1, config={"max.message.bytes": "300"})])[f"{name}-dlq"].result(20)
    write_topic(brokers, name, [(b"k", b"good"), (b"k", b"bad")])
    config = collecting_sink(
        directory,
        name,
        **{
            "errors.tolerance": "all",
            "errors.deadletterqueue.topic.name": f"{name}-dlq",
            "errors.deadletterqueue.context.headers.enable": "true",  # they contain the stack trace
        },
    )
    worker.create(name, config)
    worker.wait_for_task_state(name, 0, "FAILED", 30)
    trace = worker.status(name)["tasks"][0]["trace"]
    assert f"Could not write a record to the dead letter queue {name}-dlq" in trace
    assert lines(directory / f"{name}.out") == ["good"]
    worker.request("DELETE", f"/connectors/{name}")


@pytest.mark.parametrize(
    ("value", "timeout", "reason"), [("bad", "60000", "bad record"), ("flaky", "500", "temporary failure")]
)
def test_task_without_error_tolerance_fails_on_a_bad_record_or_after_the_retry_timeout(
    worker: DistributedWorker, directory: Path, value: str, timeout: str, reason: str
) -> None:
    name = f"failing-{value}"
    write_topic(worker.bootstrap_servers(), name, [(b"k", value.encode())])
    settings = {"transforms.flaky.failures": "1000", "errors.retry.timeout": timeout, "errors.retry.delay.max.ms": "50"}
    worker.create(name, collecting_sink(directory, name, **settings))
    worker.wait_for_task_state(name, 0, "FAILED", 60)
    status = worker.status(name)
    assert "Tolerance exceeded in error handler" in status["tasks"][0]["trace"]
    assert reason in status["tasks"][0]["trace"]
    assert "queue.Empty" not in status["tasks"][0]["trace"]
    assert status["connector"]["state"] == "RUNNING"
    assert lines(directory / f"{name}.out") == []
    worker.request("DELETE", f"/connectors/{name}")


def test_failed_task_is_restarted_automatically_if_errors_restart_max_attempts_is_set(
    worker: DistributedWorker, directory: Path
) -> None:
    settings = {MAX_ATTEMPTS: "5", "errors.restart.backoff.initial.ms": "10"}
    worker.create("restarted", source(directory, "restarted", failures="2", **settings))
    worker.wait_for_state("restarted", "RUNNING", 60)
    wait_for(lambda: lines(directory / "restarted.attempts") == ["xxx"], "three starts")
    assert "Task restarted-0: automatic restart 1 of 5 follows in 10 ms" in worker.log()
    assert "Task restarted-0: threw an uncaught and unrecoverable exception. Task is being killed (" in worker.log()
    worker.create("exhausted", source(directory, "exhausted", failures="9", **{**settings, MAX_ATTEMPTS: "1"}))
    text = "ll automatic restarts have failed (errors.restart.max.attempts=1), restart it manually"
    wait_for(lambda: f"Task exhausted-0: a{text}" in worker.log(), "the last failure")
    assert worker.status("exhausted")["tasks"][0]["trace"].endswith(f"\nA{text}.")
    worker.create("failed", source(directory, "failed", failures="1"))
    worker.wait_for_task_state("failed", 0, "FAILED")
    worker.request("POST", "/connectors/failed/restart?includeTasks=true&onlyFailed=true")
    worker.wait_for_state("failed", "RUNNING")
    assert lines(directory / "failed.attempts") == ["xx"]
    assert "Task failed-0: threw an uncaught and unrecoverable exception. Task is being killed and will" in worker.log()
    for name in ("restarted", "exhausted", "failed"):
        worker.request("DELETE", f"/connectors/{name}")


def test_connector_with_more_tasks_than_tasks_max_fails_unless_tasks_max_enforce_is_false(
    worker: DistributedWorker, directory: Path
) -> None:
    worker.create("many", source(directory, "many", tasks="1"))
    worker.wait_for_state("many", "RUNNING")
    worker.request("PATCH", "/connectors/many/config", {"tasks": "3"})
    wait_for(lambda: worker.status("many")["connector"]["state"] == "FAILED", "the connector fails")
    status = worker.status("many")
    assert "generated 3 tasks, which is greater than 1" in status["connector"]["trace"]
    assert [task["state"] for task in status["tasks"]] == ["RUNNING"]
    worker.request("PATCH", "/connectors/many/config", {"tasks.max.enforce": "false"})
    wait_for(lambda: len(worker.status("many")["tasks"]) == 3, "three tasks")
    worker.wait_for_state("many", "RUNNING")
    assert "because tasks.max.enforce=false" in worker.log()
    worker.request("DELETE", "/connectors/many")


def test_forbidden_client_overrides_are_rejected_in_new_connectors_and_fail_tasks_of_existing_connectors(
    worker: DistributedWorker, broker: BrokerProcess, directory: Path, tmp_path: Path
) -> None:
    group = f"policy-{uuid.uuid4().hex[:8]}"
    settings = {
        "plugin.path": str(directory / "plugins"),
        "group.id": group,
        **{f"{kind}.storage.topic": f"{group}-{kind}" for kind in ("config", "offset", "status")},
    }
    override = {"producer.override.linger.ms": "5"}
    with worker_group(tmp_path, broker.address, 1, settings) as [open_worker]:
        open_worker.create("before", source(directory, "before", **override))
        open_worker.wait_for_state("before", "RUNNING")
    strict = {**settings, "connector.client.config.override.policy": "None"}
    with worker_group(tmp_path, broker.address, 1, strict) as [strict_worker]:
        text = "The 'None' policy does not allow 'linger.ms' to be overridden"
        strict_worker.wait_for_task_state("before", 0, "FAILED", 60)
        assert f"producer.override.linger.ms: {text}" in strict_worker.status("before")["tasks"][0]["trace"]
        with pytest.raises(RestError) as refused:
            strict_worker.create("after", source(directory, "after", **override))
        assert refused.value.status == 400
        assert text in str(refused.value)
        strict_worker.request("PATCH", "/connectors/before/config", dict.fromkeys(override))
        strict_worker.wait_for_state("before", "RUNNING", 60)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("missing_package", "a_package_that_is_not_installed"),
        ("wrong_syntax", "invalid syntax"),
    ],
)
def test_plugin_that_cannot_be_imported_is_reported_and_affects_no_other_connector(
    worker: DistributedWorker, directory: Path, module: str, reason: str
) -> None:
    with pytest.raises(RestError, match=rf"{module}.*{reason}") as error:
        worker.create(f"of-{module}", {"connector.class": f"{module}:Connector"})
    assert error.value.status == 400
    worker.create(f"beside-{module}", source(directory, f"beside-{module}"))
    worker.wait_for_state(f"beside-{module}", "RUNNING")
    assert "ManyConnector" in str(worker.request("GET", "/connector-plugins"))
    warning = f"plugin.path: {directory}/plugins/{module}: "
    wait_for(lambda: warning in worker.log(), "the worker has logged the error")
    [line] = [line for line in worker.log().splitlines() if warning in line]
    assert reason in line


@pytest.mark.parametrize(
    ("offset", "reason"),
    [
        ("'x' * 2_000_000", "The source offsets of the task cannot be stored: .*larger than max.request.size"),
        ("10**30", "Source offset .*: the value of 'o' is 10{30}: it must be a 64-bit integer"),
        ("b'x'", "Source offset .*: the value of 'o' has the type bytes"),
        ("(1, 2)", "Source offset .*: the value of 'o' has the type tuple"),
    ],
)
def test_source_task_fails_if_its_source_offset_can_never_be_stored(
    worker: DistributedWorker, offset: str, reason: str
) -> None:
    worker.create("bad-offset", {"connector.class": "BadOffsetConnector", "offset": offset, **STRING})
    worker.wait_for_task_state("bad-offset", 0, "FAILED", 30)
    trace = worker.status("bad-offset")["tasks"][0]["trace"]
    assert re.search(reason, trace)
    worker.request("DELETE", "/connectors/bad-offset")
