"""Tests of a sink that reads topics itself with the reader and the pipeline of its context, in a real worker."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest

from headrace.testing import ConnectWorker, KafkaBroker
from support.worker import wait_for

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

PLUGIN = """
    import json
    import pickle

    from headrace.api import Config, SelfReadingSinkTask, SinkConnector, key

    class LinesConfig(Config):
        file: str = key("file")

    class LinesTask(SelfReadingSinkTask[LinesConfig]):
        def run(self):
            context = self.context
            rows = context.metrics.counter("rows-total", "Rows that were written")
            freshness = context.metrics.gauge("freshness", "Age of the newest row\\nin seconds")
            freshness.set(7)
            position = dict(context.committed_offsets())
            with open(self.config.file + ".metadata", "w") as file:
                file.write(json.dumps(sorted([*key, text] for key, text in context.committed_metadata().items())))
            reader = pickle.loads(pickle.dumps(context.record_reader()))
            pipeline = pickle.loads(pickle.dumps(context.record_pipeline(2)))
            with reader.open() as topics, pipeline.open() as transforms:
                while context.wait(0.02):
                    if context.pause_requested:
                        continue
                    found = topics.describe_topics(context.topics, context.topics_regex)
                    partitions = [(name, number) for name, each in found.items() for number in each.partitions]
                    starts, ends = topics.log_bounds(partitions)
                    for (topic, partition), end in ends.items():
                        start = position.get((topic, partition), starts[topic, partition])
                        for records in topics.read(topic, partition, start, end):
                            self.write(transforms.apply(records), rows)
                        position[topic, partition] = end
                        context.report_offsets({(topic, partition): end}, "note" if end else "")
            for module in ("helper", "helper", "no_such_module"):
                context.run_module(module)

        def write(self, result, rows):
            self.context.errant_record_reporter.report(iter(result.errors))
            with open(self.config.file, "a") as file:
                for batch in result.batches:
                    for value, offset in zip(batch.values, batch.original_offsets):
                        file.write(json.dumps([batch.topic, offset, value]) + "\\n")
                    rows.add(len(batch))

    class LinesSink(SinkConnector[LinesConfig]):
        task_class = LinesTask

        def alter_offsets(self, config, offsets):
            context = self.offsets_context
            with context.record_reader().open() as reader:
                partitions = reader.describe_topics([context.props["topics"]], None)[context.props["topics"]].partitions
            with open(config.file, "a") as file:
                found = [[*partition, offset] for partition, offset in offsets.items()]
                line = [context.connector_name, context.is_reset, list(partitions), found, context.changes_topics]
                file.write(json.dumps(line) + "\\n")
            return "Rows are loaded again."
"""


HELPER = """
    import pathlib
    import time

    directory = pathlib.Path(__file__).parent
    with open(directory / "started", "a") as file:
        file.write("x")
    while not (directory / "release").exists():
        time.sleep(0.02)
    (directory / "ended").touch()
"""


@pytest.fixture
def connect_worker_config(tmp_path: Path) -> dict[str, str]:
    plugins = tmp_path / "plugins"
    plugins.mkdir()
    (plugins / "lines_plugin.py").write_text(dedent(PLUGIN))
    (plugins / "helper.py").write_text(dedent(HELPER))
    return {"plugin.path": str(plugins), "task.isolation": "process"}


def config_of(tmp_path: Path, **more: str) -> dict[str, str]:
    return {
        "connector.class": "LinesSink",
        "topics": "t",
        "file": str(tmp_path / "out"),
        "transforms": "cast",
        "transforms.cast.type": "Cast$Value",
        "transforms.cast.spec": "a:int32",
        "errors.tolerance": "all",
        **more,
    }


def lines(tmp_path: Path, count: int) -> list[Any]:
    """Return the first lines of the sink's file when it has this number of lines."""
    file, deadline_s = tmp_path / "out", time.monotonic() + 60
    while not file.exists() or len(file.read_text().splitlines()) < count:
        assert time.monotonic() < deadline_s, "the sink has not written its lines"
        time.sleep(0.02)
    return [json.loads(line) for line in file.read_text().splitlines()]


def metrics(worker: ConnectWorker) -> str:
    with urllib.request.urlopen(f"{worker.url}/metrics", timeout=30) as response:
        return str(response.read().decode())


def wait_for_metric(worker: ConnectWorker, line: str) -> str:
    deadline_s = time.monotonic() + 60
    while line not in (page := metrics(worker)):
        assert time.monotonic() < deadline_s, page
        time.sleep(0.1)
    return page


def test_sink_loads_transformed_records_dead_letters_bad_ones_and_shows_its_metrics(
    tmp_path: Path, kafka_broker: KafkaBroker, connect_worker: ConnectWorker
) -> None:
    kafka_broker.create_topic("t")
    kafka_broker.produce("t", ['{"a": "1"}', "{", '{"a": "x"}', '{"a": 4}'])
    dlq = {"errors.deadletterqueue.topic.name": "dlq", "errors.deadletterqueue.topic.replication.factor": "1"}
    context = {"errors.deadletterqueue.context.headers.enable": "true"}
    connect_worker.create("lines", config_of(tmp_path, **dlq, **context))
    assert lines(tmp_path, 2) == [["t", 0, {"a": 1}], ["t", 3, {"a": 4}]]
    first, second = kafka_broker.consume("dlq", 2)
    assert (first.value, second.value) == (b"{", b'{"a": "x"}')
    headers = {name.removeprefix("__connect.errors."): (text or b"").decode() for name, text in second.headers}
    assert (headers["offset"], headers["stage"]) == ("2", "TRANSFORMATION")
    assert headers["class.name"] == "org.apache.kafka.connect.transforms.Cast$Value"
    assert headers["exception.class.name"] == "org.apache.kafka.connect.errors.DataException"
    assert headers["exception.message"].startswith("transform cast: ")
    assert "Traceback" in headers["exception.stacktrace"]
    page = wait_for_metric(connect_worker, 'kafka_connect_plugins_rows_total{connector="lines",task="0"} 2.0')
    assert "# TYPE kafka_connect_plugins_rows_total counter\n" in page
    assert "# HELP kafka_connect_plugins_freshness Age of the newest row\\nin seconds\n" in page
    assert 'kafka_connect_plugins_freshness{connector="lines",task="0"} 7.0' in page
    path = "/connectors/lines/tasks/0/status"
    wait_for_metric(connect_worker, 'kafka_connect_sink_task_sink_record_lag_max{connector="lines",task="0"} 0.0')
    status = connect_worker.request("GET", f"{path}?metrics=true")
    found = status.pop("metrics")
    assert (found["rows-total"], found["freshness"], found["sink-record-lag-max"]) == (2, 7, 0)
    assert found["total-record-errors"] == 2
    assert connect_worker.request("GET", path) == status


def test_connector_reads_topics_while_its_offsets_are_changed_and_its_text_is_in_the_response(
    tmp_path: Path, kafka_broker: KafkaBroker, connect_worker: ConnectWorker
) -> None:
    kafka_broker.create_topic("t", 2)
    kafka_broker.produce("t", ['{"a": "1"}', '{"a": "2"}'], partition=1)
    connect_worker.create("lines", config_of(tmp_path))
    assert len(lines(tmp_path, 2)) == 2
    connect_worker.request("PUT", "/connectors/lines/stop")
    connect_worker.wait_for_status("lines", "STOPPED")
    partition = {"kafka_topic": "t", "kafka_partition": 1}
    body = {"offsets": [{"partition": partition, "offset": {"kafka_offset": 1}}]}
    altered = connect_worker.request("PATCH", "/connectors/lines/offsets", body)
    assert altered == {
        "message": "The offsets for this connector have been altered successfully. Rows are loaded again."
    }
    assert lines(tmp_path, 3)[2] == ["lines", False, [0, 1], [["t", 1, {"kafka_offset": 1}]], False]
    connect_worker.request("PUT", "/connectors/lines/resume")
    assert lines(tmp_path, 4)[3] == ["t", 1, {"a": 2}]
    connect_worker.request("PUT", "/connectors/lines/stop")
    connect_worker.wait_for_status("lines", "STOPPED")
    reset = connect_worker.request("DELETE", "/connectors/lines/offsets")
    assert reset == {"message": "The offsets for this connector have been reset successfully. Rows are loaded again."}
    assert lines(tmp_path, 5)[4] == ["lines", True, [0, 1], [["t", 0, None], ["t", 1, None]], False]


def test_metadata_of_offsets_is_committed_and_a_connector_knows_that_its_transforms_change_topics(
    tmp_path: Path, kafka_broker: KafkaBroker, connect_worker: ConnectWorker
) -> None:
    kafka_broker.create_topic("t", 2)
    kafka_broker.produce("t", ['{"a": "1"}'], partition=1)
    router = {"transforms": "r", "transforms.r.type": "RegexRouter", "transforms.r.regex": "t"}
    connect_worker.create("lines", config_of(tmp_path, **router, **{"transforms.r.replacement": "routed"}))
    assert lines(tmp_path, 1) == [["routed", 0, {"a": "1"}]]
    for action in ("stop", "resume", "stop"):
        connect_worker.request("PUT", f"/connectors/lines/{action}")
        connect_worker.wait_for_status("lines", "STOPPED" if action == "stop" else "RUNNING")
    assert json.loads((tmp_path / "out.metadata").read_text()) == [["t", 0, ""], ["t", 1, "note"]]
    connect_worker.request("DELETE", "/connectors/lines/offsets")
    assert lines(tmp_path, 2)[1] == ["lines", True, [0, 1], [["t", 0, None], ["t", 1, None]], True]


def test_module_that_a_task_requests_runs_once_after_the_task_has_ended_and_its_failure_is_logged(
    tmp_path: Path, kafka_broker: KafkaBroker, connect_worker: ConnectWorker
) -> None:
    kafka_broker.create_topic("t")
    kafka_broker.produce("t", ['{"a": "1"}'])
    connect_worker.create("lines", config_of(tmp_path))
    assert len(lines(tmp_path, 1)) == 1
    connect_worker.request("PUT", "/connectors/lines/stop")
    connect_worker.wait_for_status("lines", "STOPPED")
    plugins = tmp_path / "plugins"
    wait_for((plugins / "started").exists, "the module is started", 60)
    connect_worker.delete("lines")
    (plugins / "release").touch()
    wait_for((plugins / "ended").exists, "the module has ended", 60)
    assert (plugins / "started").read_text() == "x"
    wait_for(lambda: "No module named no_such_module" in connect_worker.log, "the failure is logged", 60)
    assert "Module no_such_module failed: " in connect_worker.log
    wait_for(lambda: "Module helper has ended" in connect_worker.log, "the end is logged", 60)
