"""Tests of the configuration of distributed workers: errors at start-up, validation of files, and broken plug-ins."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from support.broker import BrokerProcess, running_broker
from support.distributed import GROUP, DistributedWorker, worker_group
from support.worker import CONVERTERS, wait_for

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    with running_broker(tmp_path_factory.mktemp("broker")) as running:
        yield running


def write(directory: Path, properties: Mapping[str, str]) -> Path:
    file = directory / "worker.properties"
    file.write_text("".join(f"{key}={value}\n" for key, value in properties.items()))
    return file


def run(*command: str) -> tuple[int, str]:
    result = subprocess.run(
        [sys.executable, "-m", *command], capture_output=True, text=True, timeout=120, check=False, stdin=None
    )
    return result.returncode, result.stdout + result.stderr


INVALID = {
    **CONVERTERS,
    **GROUP,
    "bootstrap.servers": "localhost:abc",
    "group.id": "",
    "offset.storage.topic": "connect-configs",
    "status.storage.topic": "status!",
    "config.storage.replication.factor": "0",
    "offset.storage.partitions": "many",
    "heartbeat.interval.ms": "6000",
    "listeners": "8083",
    "offset.flush.intervall.ms": "1",
    "producer.linger.ms": "soon",
    "plugin.path": "/no/such/directory",
}
ERRORS = (
    "Invalid value localhost:abc for configuration bootstrap.servers: 'localhost:abc' is not host:port",
    "configuration group.id: String must be non-empty",
    "Invalid value connect-configs for configuration offset.storage.topic: config.storage.topic is the same topic",
    "Invalid value status! for configuration status.storage.topic: a topic name has",
    "Invalid value 0 for configuration config.storage.replication.factor: Replication factor must be a positive number",
    "Invalid value many for configuration offset.storage.partitions: Not a number of type INT",
    "Invalid value 6000 for configuration heartbeat.interval.ms: must be less than session.timeout.ms=6000",
    "configuration listeners: '8083' is not a listener; use http://HOST:PORT",
    "producer.linger.ms=soon: expected a whole number",
)
WARNING = "Unknown configuration key offset.flush.intervall.ms is ignored; did you mean offset.flush.interval.ms?"


def test_worker_reports_all_errors_of_its_properties_file_together(tmp_path: Path) -> None:
    file = write(tmp_path, INVALID)
    code, log = run("headrace.cli.connect_distributed", str(file))
    assert code == 2
    for error in (*ERRORS, WARNING):
        assert f"{file}: " in log
        assert error in log
    assert log.count(" ERROR ") == len(ERRORS)


def test_validate_command_reports_all_errors_of_a_worker_file_without_starting_a_worker(tmp_path: Path) -> None:
    file = write(tmp_path, INVALID)
    code, output = run("headrace.cli.main", "validate", str(file))
    assert code == 1
    for error in (*ERRORS, f"warning: {WARNING}", "warning: plugin.path: /no/such/directory is not a directory"):
        assert error in output
    file = write(tmp_path, {**CONVERTERS, **GROUP, "bootstrap.servers": "localhost:1"})
    assert run("headrace.cli.main", "validate", str(file)) == (
        0,
        f"{file}: valid configuration of a distributed worker\n",
    )
    standalone = {**CONVERTERS, "listeners": "http://:0", "value.converter": "Jsn"}
    code, output = run("headrace.cli.main", "validate", str(write(tmp_path, standalone)))
    assert code == 1
    assert f"{file}: value.converter=Jsn: Failed to find any class" in output


def test_worker_exits_if_no_host_of_bootstrap_servers_can_be_resolved(tmp_path: Path) -> None:
    file = write(tmp_path, {**CONVERTERS, **GROUP, "bootstrap.servers": "nowhere.invalid:9092,neither.invalid:9092"})
    code, log = run("headrace.cli.connect_distributed", str(file))
    assert code == 2
    assert "bootstrap.servers: the host nowhere.invalid cannot be resolved" in log
    assert "the host neither.invalid cannot be resolved" in log


def test_broken_plugins_are_reported_with_file_and_cause_and_do_not_affect_other_plugins(
    broker: BrokerProcess, tmp_path: Path
) -> None:
    plugins = tmp_path / "plugins"
    metadata = plugins / "acme_connect-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-connect\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[headrace.connectors]\nAcmeSource = acme.source:AcmeSource\n")
    (plugins / "acme").mkdir()
    (plugins / "acme" / "__init__.py").write_text("")
    (plugins / "acme" / "source.py").write_text("import acme_driver\n")
    (plugins / "broken.py").write_text("from headrace.api import NoSuchName\n")
    (plugins / "ticks.py").write_text(
        "from headrace.api import Config, SourceRecord, source\n\nclass Empty(Config):\n    pass\n\n"
        "@source\ndef ticks(config: Empty, offset):\n"
        "    yield SourceRecord(topic='ticks', value=1, source_offset={'n': 1})\n"
    )
    settings = {"plugin.path": str(plugins), "group.id": "broken"}
    with worker_group(tmp_path, broker.address, 1, settings) as [worker]:
        lines = (
            "Plug-in acme.source:AcmeSource (distribution acme-connect) cannot be imported: "
            "the Python package that contains the module acme_driver is not installed",
            f"plugin.path: {plugins / 'broken'}: ImportError: cannot import name 'NoSuchName' from 'headrace.api'",
        )
        for line in lines:
            wait_for(lambda text=line: text in worker.log(), line, 60, worker.log)
        worker.create("ticks", {"connector.class": "ticks"})
        worker.wait_for_state("ticks", "RUNNING")
        for line in lines:
            assert worker.log().count(line) == 1, worker.log()
        worker.request("DELETE", "/connectors/ticks")


def test_worker_logs_an_error_if_the_leader_uses_other_internal_topics(broker: BrokerProcess, tmp_path: Path) -> None:
    with worker_group(tmp_path, broker.address, 1, {"group.id": "mixed"}):
        settings = {"group.id": "mixed", "offset.storage.topic": "other-offsets"}
        with DistributedWorker(tmp_path / "other", broker.address, settings) as other:
            text = (
                "Group mixed: offset.storage.topic=other-offsets differs from the leader's "
                "offset.storage.topic=connect-offsets: set the same topic in all workers of the group"
            )
            wait_for(lambda: text in other.log(), text, 60, other.log)
            assert "status.storage.topic" not in other.log()
