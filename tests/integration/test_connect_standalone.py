"""Tests of standalone workers as users run them: the files of Kafka's documentation, REST, restarts, kill -9."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from headrace.stores import java_hashmap
from headrace_broker.protocol import KAFKA_VERSION
from support.broker import running_broker
from support.commands import run_command, run_process
from support.ports import free_port
from support.processes import command_line
from support.shared_worker import SharedWorkers
from support.topics import end_offset, read_topic, write_topic
from support.worker import RestError, Worker, wait_for

pytestmark = pytest.mark.integration

# The files of the Kafka documentation ("Running Kafka Connect", "Transformations").
DOC_SOURCE = """name=local-file-source
connector.class=FileStreamSource
tasks.max=1
file=test.txt
topic=connect-test
transforms=MakeMap, InsertSource
transforms.MakeMap.type=org.apache.kafka.connect.transforms.HoistField$Value
transforms.MakeMap.field=line
transforms.InsertSource.type=org.apache.kafka.connect.transforms.InsertField$Value
transforms.InsertSource.static.field=data_source
transforms.InsertSource.static.value=test-file-source
"""
DOC_SINK = """name=local-file-sink
connector.class=FileStreamSink
tasks.max=1
file=test.sink.txt
topics=connect-test
"""
# Apache Kafka's connect-standalone.properties without the comments.
APACHE_WORKER = """bootstrap.servers=localhost:9092
key.converter=org.apache.kafka.connect.json.JsonConverter
value.converter=org.apache.kafka.connect.json.JsonConverter
key.converter.schemas.enable=true
value.converter.schemas.enable=true
offset.storage.file.filename=/tmp/connect.offsets
offset.flush.interval.ms=10000
plugin.path=
"""


@pytest.fixture(scope="module")
def shared_workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SharedWorkers]:
    with SharedWorkers(tmp_path_factory) as workers:
        yield workers


@pytest.fixture
def worker(shared_workers: SharedWorkers) -> Iterator[Worker]:
    """Yield a running worker, which other tests may have used before."""
    with shared_workers.acquire() as running:
        yield running


@pytest.fixture
def new_worker(tmp_path: Path) -> Iterator[Worker]:
    with Worker(tmp_path) as running:
        yield running


def source(worker: Worker, file: Path, topic: str, **more: str) -> dict[str, str]:
    return {"connector.class": "FileStreamSource", "file": str(file), "topic": topic, **more}


def test_connect_standalone_accepts_the_configuration_files_of_kafkas_documentation_unchanged(tmp_path: Path) -> None:
    port, rest_port = free_port(), free_port()
    (tmp_path / "broker.properties").write_text(
        f"node.id=1\nlisteners=PLAINTEXT://localhost:{port}\n"
        f"log.dirs={tmp_path}/log\noffsets.topic.replication.factor=1\ngroup.initial.rebalance.delay.ms=0\n"
    )
    (tmp_path / "source.properties").write_text(DOC_SOURCE)
    (tmp_path / "sink.properties").write_text(DOC_SINK)
    text = APACHE_WORKER.replace("localhost:9092", f"localhost:{port}")  # port 9092 may be in use
    text = text.replace("/tmp/connect.offsets", str(tmp_path / "connect.offsets"))
    (tmp_path / "connect-standalone.properties").write_text(text + f"listeners=http://127.0.0.1:{rest_port}\n")
    (tmp_path / "test.txt").write_text("foo\nbar\n")
    run = [sys.executable, "-m", "headrace.cli.main"]
    broker = subprocess.Popen(
        [*run, "broker", "start", "broker.properties"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    worker = None
    try:
        assert broker.stdout is not None
        with broker.stdout as output:
            assert "serves" in output.readline()
        files = ["connect-standalone.properties", "source.properties", "sink.properties"]
        worker = subprocess.Popen([*run, "connect", "standalone", *files], cwd=tmp_path)
        sink = tmp_path / "test.sink.txt"
        wait_for(lambda: sink.exists() and sink.read_text().count("\n") == 2, "two lines in the sink")
        worker.send_signal(signal.SIGINT)
        assert worker.wait(30) == 0
        record = read_topic(f"localhost:{port}", "connect-test")[0].value()
    finally:
        for process in (worker, broker):
            if process is not None:
                process.terminate()
                process.wait(30)
    assert sink.read_text() == (
        "Struct{line=foo,data_source=test-file-source}\nStruct{line=bar,data_source=test-file-source}\n"
    )
    assert record is not None
    assert json.loads(record)["payload"] == {"line": "foo", "data_source": "test-file-source"}
    offsets = java_hashmap.load((tmp_path / "connect.offsets").read_bytes())
    assert offsets == {b'["local-file-source",{"filename":"test.txt"}]': b'{"position":8}'}


def test_file_sink_writes_schemaless_records_in_the_text_format_of_java_maps(tmp_path: Path, worker: Worker) -> None:
    write_topic(worker.bootstrap_servers(), "maps", [(None, b'{"a":1}'), (None, b'{"b":"x","a":[1.5,null]}')])
    out = tmp_path / "out.txt"
    worker.create("maps", {"connector.class": "FileStreamSink", "file": str(out), "topics": "maps"})
    wait_for(lambda: out.exists() and out.read_text().count("\n") == 2, "two lines")
    assert out.read_text() == "{a=1}\n{a=[1.5, null], b=x}\n"


def test_rest_requests_create_pause_restart_change_and_delete_a_connector(tmp_path: Path, worker: Worker) -> None:
    (tmp_path / "in.txt").write_text("1\n2\n")
    config = source(worker, tmp_path / "in.txt", "life")
    created = worker.create("life", config)
    full = {"name": "life", **config}
    assert created == {"name": "life", "config": full, "tasks": [{"connector": "life", "task": 0}], "type": "source"}
    assert worker.request("GET", "/connectors") == ["life"]
    with pytest.raises(RestError, match="Connector life already exists") as conflict:
        worker.create("life", config)
    assert conflict.value.status == 409
    worker.wait_for_state("life", "RUNNING")
    assert worker.request("GET", "/connectors/life/config") == full
    tasks = worker.request("GET", "/connectors/life/tasks")
    assert tasks[0]["id"] == {"connector": "life", "task": 0}
    assert tasks[0]["config"]["task.class"] == "org.apache.kafka.connect.file.FileStreamSourceTask"
    wait_for(lambda: worker.request("GET", "/connectors/life/topics") == {"life": {"topics": ["life"]}}, "a topic")
    expected = [{"partition": {"filename": str(tmp_path / "in.txt")}, "offset": {"position": 4}}]
    wait_for(lambda: worker.request("GET", "/connectors/life/offsets") == {"offsets": expected}, "an offset")

    worker.request("PUT", "/connectors/life/pause")
    worker.wait_for_state("life", "PAUSED")
    with (tmp_path / "in.txt").open("a") as file:
        file.write("3\n")
    time.sleep(0.5)  # a task that did not pause would produce the line in this time
    assert end_offset(worker.bootstrap_servers(), "life") == 2
    worker.request("PUT", "/connectors/life/resume")
    worker.wait_for_state("life", "RUNNING")
    wait_for(lambda: end_offset(worker.bootstrap_servers(), "life") == 3, "the third line")

    assert worker.request("POST", "/connectors/life/restart?includeTasks=true")["tasks"][0]["state"] == "RESTARTING"
    worker.wait_for_state("life", "RUNNING")
    worker.request("POST", "/connectors/life/tasks/0/restart")
    worker.wait_for_state("life", "RUNNING")
    expanded = worker.request("GET", "/connectors?expand=status&expand=info")
    assert expanded["life"]["info"]["type"] == "source"
    assert worker.request("PATCH", "/connectors/life/config", {"batch.size": "7"})["config"]["batch.size"] == "7"

    with pytest.raises(RestError, match="must be in the STOPPED state") as refused:
        worker.request("DELETE", "/connectors/life/offsets")
    assert refused.value.status == 400
    worker.request("PUT", "/connectors/life/stop")
    assert worker.status("life")["connector"]["state"] == "STOPPED"
    assert worker.status("life")["tasks"] == []
    change = {"offsets": [{"partition": {"filename": str(tmp_path / "in.txt")}, "offset": {"position": 2}}]}
    message = worker.request("PATCH", "/connectors/life/offsets", change)["message"]
    assert message == "The offsets for this connector have been altered successfully"
    worker.request("PUT", "/connectors/life/resume")
    wait_for(lambda: end_offset(worker.bootstrap_servers(), "life") == 5, "lines two and three again")

    worker.request("DELETE", "/connectors/life")
    with pytest.raises(RestError, match="Connector life not found") as missing:
        worker.request("GET", "/connectors/life")
    assert missing.value.body["error_code"] == 404


def test_connector_name_may_contain_any_character_and_cannot_be_changed(tmp_path: Path, worker: Worker) -> None:
    name, path = "a/b %2F+c", "/connectors/a%2Fb%20%252F+c"
    worker.create(name, source(worker, tmp_path / "in.txt", "named"))
    assert worker.request("GET", path)["name"] == name
    with pytest.raises(RestError, match="cannot be changed") as refused:
        worker.request("PATCH", f"{path}/config", {"name": "other"})
    assert refused.value.status == 400
    assert worker.request("PATCH", f"{path}/config", {"name": None})["config"]["name"] == name
    assert worker.request("GET", "/connector-plugins/HoistField%24Value/config")[0]["name"] == "field"
    worker.request("DELETE", path)
    assert worker.request("GET", "/connectors") == []


def test_standalone_worker_serves_the_rest_endpoints_of_kafka_connect(worker: Worker) -> None:
    root = worker.request("GET", "/")
    assert set(root) == {"version", "commit", "kafka_cluster_id"}
    assert root["version"] == KAFKA_VERSION
    assert root["kafka_cluster_id"]
    plugins = {plugin["class"]: plugin["type"] for plugin in worker.request("GET", "/connector-plugins")}
    assert plugins["org.apache.kafka.connect.file.FileStreamSourceConnector"] == "source"
    keys = [key["name"] for key in worker.request("GET", "/connector-plugins/FileStreamSink/config")]
    assert "file" in keys
    outcome = worker.request("PUT", "/connector-plugins/FileStreamSource/config/validate", {
        "connector.class": "FileStreamSource", "tasks.max": "none",
    })  # fmt: skip
    errors = {item["value"]["name"]: item["value"]["errors"] for item in outcome["configs"] if item["value"]["errors"]}
    assert set(errors) == {"name", "tasks.max", "topic"}
    assert outcome["error_count"] == 3
    for path, status in (
        ("/connectors/none/status", 404),
        ("/no/such/path", 404),
        ("/connector-plugins/X/config", 404),
    ):
        with pytest.raises(RestError) as error:
            worker.request("GET", path)
        assert error.value.status == error.value.body["error_code"] == status
    assert "kafka_connect_worker_connector_count 0.0" in worker.request("GET", "/metrics")


def test_invalid_connector_configuration_is_rejected_with_all_errors(worker: Worker) -> None:
    with pytest.raises(RestError) as error:
        worker.create("bad", {"connector.class": "FileStreamSource", "tasks.max": "0", "transforms": "x"})
    message = error.value.body["message"]
    assert error.value.status == 400
    assert "contains the following 3 error(s):" in message
    for key in ("tasks.max", '"topic"', "transforms.x.type"):
        assert key in message
    with pytest.raises(RestError, match="Did you mean FileStreamSourceConnector"):
        worker.create("bad", {"connector.class": "FileStreamSorce"})
    assert worker.request("GET", "/connectors") == []


def test_admin_loggers_endpoint_changes_log_levels_and_rejects_unknown_levels(
    tmp_path: Path, new_worker: Worker
) -> None:
    new_worker.create("quiet", source(new_worker, tmp_path / "missing.txt", "quiet"))
    new_worker.wait_for_state("quiet", "RUNNING")
    wait_for(lambda: "[quiet|task-0] Couldn't find file" in new_worker.log(), "a line with its context")
    affected = new_worker.request("PUT", "/admin/loggers/headrace", {"level": "debug"})
    assert "headrace" in affected
    assert new_worker.request("GET", "/admin/loggers/headrace")["level"] == "DEBUG"
    with pytest.raises(RestError) as error:
        new_worker.request("PUT", "/admin/loggers/headrace", {"level": "LOUD"})
    assert error.value.status == 404


def test_values_of_config_providers_do_not_appear_in_log_or_rest_responses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_FILE_NAME", str(tmp_path / "in-hush-hush-42.txt"))
    settings = {
        "config.providers": "env",
        "config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
    }
    with Worker(tmp_path, settings) as worker:
        worker.create("s", {"connector.class": "FileStreamSource", "file": "${env:TEST_FILE_NAME}", "topic": "t"})
        worker.wait_for_state("s", "RUNNING")
        wait_for(lambda: "Couldn't find file" in worker.log(), "the task has tried to open its file")
        assert worker.request("GET", "/connectors/s/tasks")[0]["config"]["file"] == "${env:TEST_FILE_NAME}"
        assert worker.request("GET", "/connectors/s")["config"]["file"] == "${env:TEST_FILE_NAME}"
        assert "hush-hush" not in worker.log()


def test_sink_records_that_cannot_be_converted_go_to_the_dead_letter_queue(tmp_path: Path, worker: Worker) -> None:
    good = [b'{"n":%d}' % n for n in range(100)]
    records = [(b'"k"', value) for value in good]
    records[10:10] = [(b'"bad-key', b"not json")]
    records[50:50] = [(b'"k"', b'{"n":')]
    write_topic(worker.bootstrap_servers(), "mixed", records)
    out = tmp_path / "out.txt"
    config = {
        "connector.class": "FileStreamSink", "file": str(out), "topics": "mixed", "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": "dead", "errors.deadletterqueue.topic.replication.factor": "1",
        "errors.deadletterqueue.context.headers.enable": "true", "errors.log.enable": "true",
    }  # fmt: skip
    worker.create("dlq", config)
    wait_for(lambda: out.exists() and out.read_text().count("\n") == 100, "all good records")
    assert out.read_text() == "".join(f"{{n={n}}}\n" for n in range(100))
    wait_for(lambda: end_offset(worker.bootstrap_servers(), "dead") == 2, "two DLQ records")
    first, second = read_topic(worker.bootstrap_servers(), "dead")
    assert (first.key(), first.value()) == (b'"bad-key', b"not json")
    headers = dict(first.headers() or [])
    assert headers["h"] == b"1"
    assert headers["__connect.errors.topic"] == b"mixed"
    assert headers["__connect.errors.offset"] == b"10"
    assert headers["__connect.errors.stage"] == b"KEY_CONVERTER"
    assert headers["__connect.errors.connector.name"] == b"dlq"
    assert dict(second.headers() or [])["__connect.errors.stage"] == b"VALUE_CONVERTER"
    assert "topic mixed, partition 0, offset 50" in worker.log()
    wait_for(lambda: _committed(worker, "dlq") == 102, "the offset is past the bad records")


def _committed(worker: Worker, name: str) -> int | None:
    offsets = worker.request("GET", f"/connectors/{name}/offsets")["offsets"]
    return int(offsets[0]["offset"]["kafka_offset"]) if offsets else None


def test_sink_task_without_error_tolerance_fails_on_a_bad_record_and_its_error_names_the_record(
    tmp_path: Path, worker: Worker
) -> None:
    write_topic(worker.bootstrap_servers(), "bad", [(None, b"{}"), (None, b"nonsense")])
    out = str(tmp_path / "out.txt")
    worker.create("strict", {"connector.class": "FileStreamSink", "file": out, "topics": "bad"})
    worker.create("other", {"connector.class": "FileStreamSink", "file": out, "topics": "fine"})
    worker.wait_for_task_state("strict", 0, "FAILED")
    trace = worker.status("strict")["tasks"][0]["trace"]
    text = "Tolerance exceeded in error handler: topic bad, partition 0, offset 1, stage VALUE_CONVERTER"
    assert trace.startswith(f"headrace.runtime.error_policy.ToleranceExceeded: {text}")
    assert worker.status("strict")["connector"]["state"] == "RUNNING"
    worker.wait_for_state("other", "RUNNING")


def test_source_records_that_the_broker_rejects_are_skipped_and_counted_if_errors_are_tolerated(
    tmp_path: Path, worker: Worker
) -> None:
    from confluent_kafka.admin import AdminClient, NewTopic

    admin = AdminClient({"bootstrap.servers": worker.bootstrap_servers()})
    admin.create_topics([NewTopic("narrow", 1, 1, config={"max.message.bytes": "300"})])["narrow"].result(30)
    lines = [f"{n}" if n not in (3, 7) else "x" * 1000 for n in range(20)]
    (tmp_path / "in.txt").write_text("".join(line + "\n" for line in lines))
    text = {"value.converter": "org.apache.kafka.connect.storage.StringConverter", "errors.tolerance": "all"}
    worker.create("narrow", {**source(worker, tmp_path / "in.txt", "narrow"), **text})
    offset = {"position": (tmp_path / "in.txt").stat().st_size}
    wait_for(
        lambda: any(
            each["offset"] == offset for each in worker.request("GET", "/connectors/narrow/offsets")["offsets"]
        ),
        "the offset of the last line",
    )
    written = [(message.value() or b"").decode() for message in read_topic(worker.bootstrap_servers(), "narrow")]
    assert written == [line for line in lines if len(line) < 1000]
    counters = 'kafka_connect_task_error_{}{{connector="narrow",task="0"}} 2.0'
    wait_for(
        lambda: counters.format("total_records_skipped") in worker.request("GET", "/metrics"), "two skipped records"
    )
    assert counters.format("total_record_failures") in worker.request("GET", "/metrics")


def test_sink_with_topics_regex_consumes_a_matching_topic_that_is_created_later(tmp_path: Path, worker: Worker) -> None:
    out = tmp_path / "out.txt"
    worker.create("pattern", {"connector.class": "FileStreamSink", "file": str(out), "topics.regex": r"log-[a-z]++"})
    worker.wait_for_state("pattern", "RUNNING")
    write_topic(worker.bootstrap_servers(), "log-1", [(None, b'"no"')])
    write_topic(worker.bootstrap_servers(), "log-a", [(None, b'"yes"')])
    wait_for(lambda: out.exists() and out.read_text() == "yes\n", "the record of the new topic", 40)


def test_sink_task_logs_once_which_of_its_topics_do_not_exist_yet(tmp_path: Path, worker: Worker) -> None:
    write_topic(worker.bootstrap_servers(), "there", [(None, b"1")])
    out = {"connector.class": "FileStreamSink", "file": str(tmp_path / "out.txt")}
    worker.create("named", {**out, "topics": "orders,there,bills"})
    worker.create("waiting", {**out, "topics": "there,later", "consumer.override.allow.auto.create.topics": "false"})
    worker.create("pattern", {**out, "topics.regex": "shop-.*"})
    matching = tmp_path / "matching.txt"
    worker.create("matching", {**out, "topics.regex": "th.*", "file": str(matching)})
    expected = [
        "[named|task-0] Task named-0: topics orders, bills do not exist yet; subscribing creates them",
        "[waiting|task-0] Task waiting-0: topics later do not exist yet; they will be consumed once they exist",
        "[pattern|task-0] Task pattern-0: no topic matches topics.regex=shop-.* yet",
    ]
    wait_for(lambda: all(line in worker.log() for line in expected), "every line")
    wait_for(lambda: matching.exists() and matching.read_text() == "1\n", "the record of the topic that is there")
    assert worker.log().count("do not exist yet") == 2
    assert worker.log().count("no topic matches") == 1


def test_paused_sink_stops_consuming_and_continues_on_resume(tmp_path: Path, worker: Worker) -> None:
    out = tmp_path / "out.txt"
    write_topic(worker.bootstrap_servers(), "rest", [(None, b"1")])
    worker.create("rest", {"connector.class": "FileStreamSink", "file": str(out), "topics": "rest"})
    wait_for(lambda: out.exists() and out.read_text() == "1\n", "the first record")
    worker.request("PUT", "/connectors/rest/pause")
    worker.wait_for_state("rest", "PAUSED")
    write_topic(worker.bootstrap_servers(), "rest", [(None, b"2")])
    time.sleep(0.5)  # a task that did not pause would write the record in this time
    assert out.read_text() == "1\n"
    worker.request("PUT", "/connectors/rest/resume")
    wait_for(lambda: out.read_text() == "1\n2\n", "the second record")


def test_topic_creation_configs_apply_to_the_topics_that_a_source_creates(tmp_path: Path, worker: Worker) -> None:
    (tmp_path / "in.txt").write_text("x\n")
    settings = {"topic.creation.default.partitions": "3", "topic.creation.default.replication.factor": "-1"}
    worker.create("made", source(worker, tmp_path / "in.txt", "made", **settings))
    wait_for(
        lambda: sum(end_offset(worker.bootstrap_servers(), "made", p) for p in _partitions(worker, "made")) == 1, "it"
    )
    assert len(_partitions(worker, "made")) == 3


def _partitions(worker: Worker, topic: str) -> list[int]:
    from confluent_kafka.admin import AdminClient

    metadata = AdminClient({"bootstrap.servers": worker.bootstrap_servers()}).list_topics(timeout=30).topics.get(topic)
    return sorted(metadata.partitions) if metadata is not None else []


def test_source_continues_from_its_offsets_after_the_worker_switches_to_another_broker(
    tmp_path: Path,
) -> None:
    """The worker first uses its embedded broker. After a restart, it uses the broker in `bootstrap.servers`."""
    file = tmp_path / "in.properties"
    file.write_text(f"name=in\nconnector.class=FileStreamSource\ntopic=t\nfile={tmp_path / 'in.txt'}\n")
    (tmp_path / "in.txt").write_text("one\ntwo\n")
    with Worker(tmp_path, connectors=[file]) as worker:
        wait_for(lambda: end_offset(worker.bootstrap_servers(), "t") == 2, "two lines")
        assert worker.stop() < 20
    with open(tmp_path / "in.txt", "a") as lines:
        lines.write("three\n")
    with running_broker(tmp_path) as broker, Worker(tmp_path, {"bootstrap.servers": broker.address}, [file]) as worker:
        wait_for(lambda: end_offset(broker.address, "t") == 1, "the line that was not read before")
        path = tmp_path / "data" / "connect.offsets"
        assert f"offset.storage.file.filename is not set: source offsets are stored in {path}" in worker.log()
        (message,) = read_topic(broker.address, "t")
        assert b"three" in (message.value() or b"")


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("key.converter=x\n", 2, 'Missing required configuration "value.converter"'),
        ("value.converter=x\nkey.converter=x\noffset.flush.interval.ms=soon\n", 2, "offset.flush.interval.ms"),
    ],
)
def test_worker_exits_with_an_error_that_names_the_invalid_or_missing_key_of_its_properties_file(
    tmp_path: Path, text: str, code: int, message: str
) -> None:
    file = tmp_path / "worker.properties"
    file.write_text(text)
    result = _run(str(file))
    assert result.returncode == code
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_worker_exits_with_an_error_if_a_converter_class_is_unknown(tmp_path: Path) -> None:
    """The error contains the configuration key, the unknown class name and a similar class name."""
    worker = Worker(tmp_path, {"value.converter": "org.apache.kafka.connect.json.JsonConvertor"})
    result = worker.run()
    assert result.returncode == 2
    assert "value.converter=org.apache.kafka.connect.json.JsonConvertor" in result.stderr
    assert "Did you mean JsonConverter?" in result.stderr


@pytest.mark.parametrize(
    ("configure", "message"),
    [
        ("os._exit(7)", "exited unexpectedly (exit status 7)"),
        ("print('hello'); raise ValueError('too old')", "value.converter=bad_converter:BadConverter: too old"),
        ("time.sleep(1000)", "hangs, its configuration did not complete within connector.validation.timeout.ms=1500"),
    ],
)
def test_worker_exits_without_a_traceback_if_a_converter_fails_or_hangs_in_configure(
    tmp_path: Path, configure: str, message: str
) -> None:
    (tmp_path / "bad_converter.py").write_text(
        "import os, time\nfrom headrace.api.converter import Converter\n"
        f"class BadConverter(Converter):\n    def configure(self, config):\n        {configure}\n"
    )
    settings = {"value.converter": "bad_converter:BadConverter", "plugin.path": str(tmp_path)}
    if "sleep" in configure:
        settings["connector.validation.timeout.ms"] = "1500"
    worker = Worker(tmp_path, settings)
    result = worker.run()
    assert result.returncode == 2
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_sigterm_stops_a_starting_worker_while_a_converter_hangs_in_configure(tmp_path: Path) -> None:
    (tmp_path / "bad_converter.py").write_text(
        "import time\nfrom headrace.api.converter import Converter\n"
        "class BadConverter(Converter):\n    def configure(self, config):\n"
        f"        open({str(tmp_path / 'hangs')!r}, 'w').close()\n        time.sleep(1000)\n"
    )
    worker = Worker(tmp_path, {"value.converter": "bad_converter:BadConverter", "plugin.path": str(tmp_path)})
    with subprocess.Popen(worker.command(), stderr=subprocess.PIPE, text=True) as process:
        wait_for((tmp_path / "hangs").exists, "the check hangs")
        process.terminate()
        _, log = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "Traceback" not in log


@pytest.mark.cold_start
def test_standalone_worker_without_connectors_has_only_the_embedded_broker_as_child_process(
    new_worker: Worker,
) -> None:
    def has_only_the_broker_process() -> bool:
        children = psutil.Process(new_worker.pid).children(recursive=True)
        return ["headrace.cli.broker_child" in command_line(child) for child in children] == [True]

    wait_for(has_only_the_broker_process, "the converter check has exited", 40)


def test_worker_reports_every_invalid_connector_file_before_it_exits(tmp_path: Path) -> None:
    worker = Worker(tmp_path, connectors=[tmp_path / "none.properties", tmp_path / "nameless.json"])
    (tmp_path / "nameless.json").write_text('{"connector.class": "FileStreamSource"}')
    result = worker.run()
    assert result.returncode == 3
    assert "none.properties: no such file" in result.stderr
    assert "nameless.json: the connector has no name" in result.stderr


def test_worker_with_an_invalid_connector_file_exits_with_errors_that_name_the_configuration_keys(
    tmp_path: Path,
) -> None:
    path = tmp_path / "c.properties"
    path.write_text("name=c\nconnector.class=FileStreamSource\ntpic=x\nfile=${env:HEADRACE_NOT_SET}\n")
    worker = Worker(tmp_path, connectors=[path])
    result = worker.run()
    assert result.returncode == 3
    assert re.search(r'c\.properties: (.*\n){1,3}.*"topic"', result.stderr)
    assert result.stderr.count("tpic is ignored; did you mean topic?") == 1
    assert "file: variable ${env:HEADRACE_NOT_SET} is not resolved" in result.stderr
    assert "Traceback" not in result.stderr


def test_worker_creates_connectors_in_the_order_of_its_files_and_stops_at_the_first_invalid_file(
    tmp_path: Path,
) -> None:
    paths = [tmp_path / f"{name}.properties" for name in ("first", "invalid", "second")]
    for path in paths:
        (tmp_path / f"{path.stem}.txt").write_text("line\n")
        path.write_text(f"name={path.stem}\nconnector.class=FileStreamSource\nfile={tmp_path / path.stem}.txt\n")
    for path in (paths[0], paths[2]):
        path.write_text(f"{path.read_text()}topic=t\n")
    worker = Worker(tmp_path, connectors=paths)
    result = worker.run()
    assert result.returncode == 3
    assert "Created connector first" in result.stdout + result.stderr
    assert "second" not in result.stdout + result.stderr
    (tmp_path / "other").mkdir()
    with Worker(tmp_path / "other", connectors=[paths[2], paths[0]]) as running:
        created = re.findall(r"Created connector (\w+)", running.log())
    assert created == ["second", "first"]


def test_connect_standalone_accepts_override_options_between_file_names(tmp_path: Path) -> None:
    result = _run(str(tmp_path / "none"), "--override", "a=b", "c.properties", "--override", "no equals")
    assert result.returncode == 1
    assert "'no equals' is not KEY=VALUE" in result.stderr
    result = _run(str(tmp_path / "none"), "--override", "a=b", "c.properties")
    assert result.returncode == 2
    assert "none: no such file" in result.stderr


def test_validate_command_reports_all_errors_if_the_connector_name_is_missing_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "nameless.properties"
    path.write_text("connector.class=FileStreamSource\ntransforms=A\ntransforms.A.type=HoistFeld$Value\n")
    result = run_command("headrace.cli.main", "validate", str(path))
    assert result.returncode == 1
    assert 'Missing required configuration "name"' in result.stderr
    assert 'Missing required configuration "topic"' in result.stderr
    assert "Did you mean HoistField$Value?" in result.stderr


def test_connect_standalone_without_arguments_exits_with_status_1_and_prints_its_usage() -> None:
    result = _run()
    assert result.returncode == 1
    assert "usage: connect-standalone" in result.stderr


def test_validate_command_reports_the_errors_of_each_file(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.json", tmp_path / "bad.properties"
    config = {"connector.class": "FileStreamSource", "topic": "t", "fil": "x"}
    good.write_text(json.dumps({"name": "good", "config": config}))
    bad.write_text("name=bad\nconnector.class=FileStreamSource\nbatch.size=0\n")
    command = ("headrace.cli.main", "validate", str(good), str(bad))
    result = run_command(*command)
    assert result.returncode == 1
    assert "good is valid" in result.stdout
    assert "fil is ignored; did you mean file?" in result.stderr
    assert "batch.size" in result.stderr
    assert '"topic"' in result.stderr
    good.write_text(json.dumps({"name": "sink", "connector.class": "FileStreamSink"}))
    result = run_command(*command)
    assert result.stderr.count("Must configure one of topics") == 1


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headrace.cli.connect_standalone", *arguments]
    return run_process(command, env={**os.environ, "COLUMNS": "200"})
