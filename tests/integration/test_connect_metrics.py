"""Tests that the metrics of real workers change with the work, the pauses and the errors of their tasks."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from support.broker import running_broker
from support.connect_metrics import LEFT_OUT, REGISTRY, page_names, scrape, total
from support.distributed import worker_group
from support.metrics import Samples, value
from support.shared_worker import SharedWorkers
from support.topics import write_topic
from support.worker import Worker, wait_for

pytestmark = pytest.mark.integration

PLUGINS = """
import os
from headrace.api import (
    Config, DataError, ErrantRecord, RetriableError, SelfReadingSinkTask, SinkConnector, SinkTask, key,
)

class FailingConfig(Config):
    blocking_file: str = key("blocking.file", default="")
    reports: bool = key("reports", default=False)

class FailingSinkTask(SinkTask[FailingConfig]):
    def start(self, config):
        pass
    def put(self, records):
        if self.config.reports:
            for batch in records.batches:
                for record in batch.to_records():
                    self.context.errant_record_reporter.report(record, DataError("bad"))
        elif len(records) and os.path.exists(self.config.blocking_file):
            raise RetriableError("the file exists")

class SelfReadingTask(SelfReadingSinkTask[FailingConfig]):
    def start(self, config):
        pass
    def run(self):
        self.context.report_offsets({("own", 0): 0})
        self.context.errant_record_reporter.report([ErrantRecord("own", 0, 1, DataError("bad"))])
        self.context.report_offsets({("own", 0): 4})
        while self.context.wait(60):
            pass
    def stop(self):
        pass

class SelfReadingSink(SinkConnector[FailingConfig]):
    task_class = SelfReadingTask
    def start(self, config):
        pass

class FailingSink(SinkConnector[FailingConfig]):
    task_class = FailingSinkTask
    def start(self, config):
        pass
"""
ERRORS = ("total_record_failures", "total_record_errors", "total_records_skipped", "total_errors_logged")
DOCS = Path(__file__).parents[2] / "docs" / "connect.md"


@pytest.fixture(scope="module")
def shared_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedWorkers]:
    plugins = tmp_path_factory.mktemp("plugins")
    (plugins / "failing_plugins.py").write_text(PLUGINS)
    with SharedWorkers(tmp_path_factory, {"plugin.path": str(plugins)}) as workers:
        yield workers


@pytest.fixture
def worker(shared_workers: SharedWorkers) -> Iterator[Worker]:
    with shared_workers.acquire() as running:
        yield running


def create_topic(worker: Worker, topic: str, partitions: int = 1, **config: str) -> None:
    admin = AdminClient({"bootstrap.servers": worker.bootstrap_servers()})
    admin.create_topics([NewTopic(topic, partitions, 1, config=config)])[topic].result(30)


def sink(worker: Worker, name: str, topic: str, **more: str) -> None:
    file = str(worker.directory / f"{name}.txt")
    worker.create(name, {"connector.class": "FileStreamSink", "file": file, "topics": topic, **more})


def task_value(page: Samples, name: str, connector: str) -> float | None:
    return page.get((name, (("connector", connector), ("task", "0"))))


def wait_for_values(worker: Worker, connector: str, group: str, **expected: float) -> Samples:
    """Wait until the metrics of a connector's task have these values. Return the page."""
    page: Samples = {}

    def values() -> dict[str, float | None]:
        return {name: task_value(page, f"kafka_connect_{group}_{name}", connector) for name in expected}

    def reached() -> bool:
        page.clear()
        page.update(scrape(worker))
        return values() == expected

    wait_for(reached, f"{expected}", 60, values)
    return page


def wait_for_page(worker: Worker, holds: Callable[[Samples], bool], what: str) -> Samples:
    """Wait until the page is as expected, and return it."""
    pages = [scrape(worker)]

    def reached() -> bool:
        pages.append(scrape(worker))
        return holds(pages[-1])

    wait_for(reached, what)
    return pages[-1]


def run_source_and_sink(worker: Worker) -> Samples:
    """Let a source write 100 lines, and a sink read them. Return the page afterwards."""
    file = worker.directory / "in.txt"
    file.write_text("".join(f"line {number}\n" for number in range(100)))
    create_topic(worker, "lines")
    worker.create("lines-in", {"connector.class": "FileStreamSource", "file": str(file), "topic": "lines"})
    sink(worker, "lines-out", "lines")
    wait_for_values(worker, "lines-in", "source_task", source_record_write_total=100, source_record_active_count=0)
    return wait_for_values(
        worker, "lines-out", "sink_task", sink_record_send_total=100, sink_record_active_count=0, sink_record_lag_max=0
    )


def test_page_has_all_metric_names_of_connect_except_those_that_the_documentation_lists(worker: Worker) -> None:
    names = {name for name, _ in run_source_and_sink(worker)}
    expected = {
        page_name
        for group, attributes in REGISTRY.items()
        if group != "connect-worker-rebalance-metrics"  # only workers in a group have them
        for attribute in attributes
        if f"{group} {attribute}" not in LEFT_OUT
        for page_name in page_names(group, attribute)
    }
    assert not expected - names
    text = DOCS.read_text()
    for each in LEFT_OUT:
        group, _, name = each.partition(" ")
        assert not page_names(group, name) & names, each
        assert f"`{name}`" in text, each


def test_queries_in_the_documentation_select_metrics_of_the_page(worker: Worker) -> None:
    names = {name for name, _ in run_source_and_sink(worker)}
    section = DOCS.read_text().partition("## Metrics\n")[2].partition("\n## ")[0]
    queries = "\n".join(re.findall(r"```promql\n(.*?)```", section, re.DOTALL))
    used = set(re.findall(r"\bkafka_\w+", queries))
    assert len(used) > 5
    assert not used - names


def test_source_and_sink_metrics_count_records_batches_and_commits(worker: Worker) -> None:
    page = run_source_and_sink(worker)

    def of(name: str, connector: str) -> float:
        found = task_value(page, f"kafka_connect_{name}", connector)
        assert found is not None, name
        return found

    for connector, group, names in (
        ("lines-in", "source_task", ("source_record_poll", "source_record_write")),
        ("lines-out", "sink_task", ("sink_record_read", "sink_record_send", "offset_commit_completion")),
    ):
        for name in names:
            assert 0 < of(f"{group}_{name}_rate", connector) <= of(f"{group}_{name}_total", connector) / 30
        assert 0 < of("connector_task_batch_size_avg", connector) <= of("connector_task_batch_size_max", connector)
        assert of("connector_task_running_ratio", connector) == 1
        assert of("connector_task_offset_commit_success_percentage", connector) == 1
        assert of("connector_task_offset_commit_max_time_ms", connector) > 0
    assert 0 < of("source_task_source_record_active_count_max", "lines-in") <= 100
    assert 0 < of("sink_task_sink_record_active_count_max", "lines-out") <= 100
    assert of("sink_task_partition_count", "lines-out") == 1
    assert of("sink_task_offset_commit_seq_no", "lines-out") >= 1
    assert of("sink_task_put_batch_max_time_ms", "lines-out") >= of("sink_task_put_batch_avg_time_ms", "lines-out") > 0
    assert of("source_task_poll_batch_max_time_ms", "lines-in") > 0


def test_lag_of_a_paused_sink_rises_and_returns_to_zero_after_the_sink_was_resumed(worker: Worker) -> None:
    create_topic(worker, "lagging", 2)
    records = [(None, b'"x"')] * 10
    write_topic(worker.bootstrap_servers(), "lagging", records)
    sink(worker, "out", "lagging")
    wait_for_values(worker, "out", "sink_task", sink_record_read_total=10, sink_record_lag_max=0, partition_count=2)
    worker.request("PUT", "/connectors/out/pause")
    worker.wait_for_state("out", "PAUSED")
    write_topic(worker.bootstrap_servers(), "lagging", records * 3)
    page = wait_for_values(worker, "out", "sink_task", sink_record_read_total=10, sink_record_lag_max=30)
    client = "connector-consumer-out-0"
    for prefix, labels in (
        ("kafka_consumer_fetch_manager_records_lag", {"clientId": client, "client_id": client}),
        ("kafka_consumer_consumer_fetch_manager_metrics_records_lag", {"client_id": client}),
    ):
        assert value(page, prefix, **labels, topic="lagging", partition="0") == 30
        assert value(page, prefix, **labels, topic="lagging", partition="1") == 0
        assert value(page, prefix + "_max", **labels, topic="lagging", partition="0") == 30
        assert 0 < value(page, prefix + "_avg", **labels, topic="lagging", partition="0") < 30
        assert value(page, prefix + "_max", **labels) == 30
    worker.request("PUT", "/connectors/out/resume")
    page = wait_for_values(worker, "out", "sink_task", sink_record_read_total=40, sink_record_lag_max=0)
    running_ratio = task_value(page, "kafka_connect_connector_task_running_ratio", "out") or 0
    pause_ratio = task_value(page, "kafka_connect_connector_task_pause_ratio", "out") or 0
    assert 0 < running_ratio < 1
    assert 0 < pause_ratio < 1
    assert running_ratio + pause_ratio == pytest.approx(1)


def test_lag_rises_while_put_is_retried_and_each_retry_is_counted(worker: Worker, tmp_path: Path) -> None:
    blocking_file = tmp_path / "blocked"
    blocking_file.touch()
    create_topic(worker, "retried")
    worker.create("out", {
        "connector.class": "FailingSink", "topics": "retried", "blocking.file": str(blocking_file),
    })  # fmt: skip
    write_topic(worker.bootstrap_servers(), "retried", [(None, b'"x"')] * 10)
    retries = "kafka_connect_task_error_total_retries"
    wait_for_values(worker, "out", "sink_task", sink_record_lag_max=10, sink_record_active_count=10)
    page = wait_for_page(worker, lambda page: (task_value(page, retries, "out") or 0) >= 2, "two retries")
    assert task_value(page, "kafka_connect_task_error_total_record_errors", "out") == 0
    blocking_file.unlink()
    page = wait_for_values(worker, "out", "sink_task", sink_record_lag_max=0, sink_record_send_total=10)


@pytest.mark.parametrize("logs", ["true", "false"])
def test_failed_records_and_dlq_records_are_counted(worker: Worker, logs: str) -> None:
    create_topic(worker, "bad")
    write_topic(worker.bootstrap_servers(), "bad", [(None, b'"good"'), (None, b"bad"), (None, b"worse")])
    dead = {"errors.deadletterqueue.topic.name": "dead", "errors.deadletterqueue.topic.replication.factor": "1"}
    started_ms = time.time_ns() // 1_000_000
    sink(worker, "out", "bad", **{**dead, "errors.tolerance": "all", "errors.log.enable": logs})
    expected = dict.fromkeys((*ERRORS, "deadletterqueue_produce_requests"), 2.0) | {
        "total_errors_logged": 2.0 if logs == "true" else 0.0,
        "deadletterqueue_produce_failures": 0,
        "total_retries": 0,
    }
    page = wait_for_values(worker, "out", "task_error", **expected)
    last_error = task_value(page, "kafka_connect_task_error_last_error_timestamp", "out") or 0
    assert started_ms <= last_error <= time.time_ns() // 1_000_000


def test_records_that_a_task_reports_are_counted(worker: Worker) -> None:
    create_topic(worker, "reported")
    write_topic(worker.bootstrap_servers(), "reported", [(None, b'"x"')] * 3)
    worker.create("out", {
        "connector.class": "FailingSink", "topics": "reported", "reports": "true", "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": "dead", "errors.deadletterqueue.topic.replication.factor": "1",
    })  # fmt: skip
    wait_for_values(
        worker, "out", "task_error",
        total_record_failures=3, total_record_errors=3, total_records_skipped=3, deadletterqueue_produce_requests=3,
    )  # fmt: skip


def test_sink_that_reads_topics_itself_has_the_metrics_of_sinks(worker: Worker) -> None:
    create_topic(worker, "own")
    write_topic(worker.bootstrap_servers(), "own", [(None, b'"x"')] * 10)
    dead = {"errors.deadletterqueue.topic.name": "dead", "errors.deadletterqueue.topic.replication.factor": "1"}
    worker.create("out", {"connector.class": "SelfReadingSink", "topics": "own", "errors.tolerance": "all", **dead})
    page = wait_for_values(
        worker, "out", "sink_task",
        sink_record_read_total=4, sink_record_send_total=4, sink_record_lag_max=6, partition_count=1,
        sink_record_active_count=0,
    )  # fmt: skip
    errors = {name: task_value(page, f"kafka_connect_task_error_{name}", "out") for name in ERRORS}
    assert errors == dict.fromkeys(ERRORS, 1.0) | {"total_errors_logged": 0.0}
    labels = {"client_id": "connector-consumer-out-0", "topic": "own", "partition": "0"}
    assert value(page, "kafka_consumer_consumer_fetch_manager_metrics_records_lag", **labels) == 6


def test_records_of_a_source_that_fail_in_a_transform_are_counted_and_are_not_active(worker: Worker) -> None:
    file = worker.directory / "in.txt"
    file.write_text("line\n" * 50)
    worker.create("in", {
        "connector.class": "FileStreamSource", "file": str(file), "topic": "lines", "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": "dead", "errors.deadletterqueue.topic.replication.factor": "1",
        "transforms": "e", "transforms.e.type": "ExtractField$Value", "transforms.e.field": "missing",
    })  # fmt: skip
    wait_for_values(
        worker, "in", "task_error",
        total_record_errors=50, total_records_skipped=50, deadletterqueue_produce_requests=50,
    )  # fmt: skip
    wait_for_values(
        worker, "in", "source_task",
        source_record_poll_total=50, source_record_write_total=0, source_record_active_count=0,
    )  # fmt: skip


def test_errors_of_a_failed_task_stay_on_the_page_until_the_task_is_restarted(worker: Worker) -> None:
    create_topic(worker, "bad")
    write_topic(worker.bootstrap_servers(), "bad", [(None, b"bad")])
    sink(worker, "out", "bad")
    worker.wait_for_task_state("out", 0, "FAILED")
    page = wait_for_values(
        worker, "out", "task_error", total_record_failures=1, total_record_errors=1, total_records_skipped=0
    )
    assert task_value(page, "kafka_connect_sink_task_sink_record_read_rate", "out") is None
    time.sleep(0.01)  # a FAILED state with a measurable duration
    ratio = task_value(scrape(worker), "kafka_connect_connector_task_running_ratio", "out")
    assert ratio is not None
    assert ratio < 1
    worker.request("DELETE", "/connectors/out")
    wait_for_page(
        worker,
        lambda page: not any(("connector", "out") in labels for _, labels in page),
        "the metrics of the deleted connector are removed",
    )


def test_record_that_cannot_be_written_to_the_dead_letter_queue_is_counted(worker: Worker) -> None:
    create_topic(worker, "bad")
    create_topic(worker, "narrow", **{"max.message.bytes": "100"})
    write_topic(worker.bootstrap_servers(), "bad", [(None, b"x" * 1000)])
    sink(worker, "out", "bad", **{"errors.tolerance": "all", "errors.deadletterqueue.topic.name": "narrow"})
    wait_for_values(worker, "out", "task_error", deadletterqueue_produce_requests=1, deadletterqueue_produce_failures=1)


def test_each_worker_of_a_group_shows_the_lag_of_its_own_tasks(tmp_path: Path) -> None:
    with (
        running_broker(tmp_path) as broker,
        worker_group(tmp_path, broker.address, 2) as workers,
    ):
        create_topic(workers[0], "shared", 2)
        workers[0].create("out", {
            "connector.class": "FileStreamSink", "file": str(tmp_path / "out.txt"), "topics": "shared",
            "tasks.max": "2",
        })  # fmt: skip
        workers[0].wait_for_state("out", "RUNNING")

        def clients() -> list[set[str]]:
            return [
                {dict(labels)["client_id"] for name, labels in scrape(each) if name.endswith("_records_lag")}
                for each in workers
            ]

        expected = [{"connector-consumer-out-0"}, {"connector-consumer-out-1"}]
        wait_for(lambda: sorted(clients(), key=sorted) == expected, "one lag for each task", 60, clients)
        names = {name for name, _ in scrape(workers[0])}
        group = "connect-worker-rebalance-metrics"
        assert not {each for name in REGISTRY[group] for each in page_names(group, name)} - names

        def partition_counts() -> list[float | None]:
            return [total(scrape(each), "kafka_connect_sink_task_partition_count", connector="out") for each in workers]

        wait_for(lambda: partition_counts() == [1, 1], "one partition for each task", 60, partition_counts)
