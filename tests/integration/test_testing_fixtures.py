"""Tests of the pytest plug-in: its imports, its fixture `connect_worker`, and the examples in docs/testing.md."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import urllib.request
from pathlib import Path

import psutil
import pytest

from headrace.testing import ConnectWorker, ConnectWorkerError, KafkaBroker
from support.processes import is_alive
from support.worker import wait_for

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
PLUGIN = """
from headrace.api import Config, SourceTask

class Broken(SourceTask[Config]):
    def poll(self):
        raise ValueError("the database is gone")
"""


def test_examples_of_the_testing_documentation_pass_as_written(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "docs/testing.md").read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 6
    for number, block in enumerate(blocks):
        (tmp_path / f"test_example_{number}.py").write_text(block)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-W",
        "error",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
    ]
    run = subprocess.run([*command, str(tmp_path)], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert run.returncode == 0, run.stdout + run.stderr
    assert " passed" in run.stdout


def test_pytest_plugin_imports_nothing_but_pytest() -> None:
    program = """
import pytest, sys
before = set(sys.modules)
import headrace.testing.pytest_plugin
print(*sorted(set(sys.modules) - before))
"""
    imported = subprocess.check_output([sys.executable, "-c", program], text=True).split()
    assert imported == ["headrace", "headrace.testing", "headrace.testing.pytest_plugin"]


@pytest.mark.parametrize("isolation", ["thread", "process"])
def test_connect_worker_runs_pauses_resumes_and_deletes_a_connector(
    kafka_broker: KafkaBroker, tmp_path: Path, isolation: str
) -> None:
    output = tmp_path / "output.txt"
    kafka_broker.produce("lines", ['"a"', '"b"'])
    config = {"connector.class": "FileStreamSink", "topics": "lines", "file": output, "tasks.max": 1}
    with ConnectWorker(kafka_broker.bootstrap_servers, {"task.isolation": isolation}) as worker:
        process = psutil.Process(worker._process.pid)  # type: ignore[union-attr]
        worker.create("sink", config)
        assert worker.status("sink")["tasks"][0]["state"] == "RUNNING"
        worker.request("PUT", "/connectors/sink/pause")
        worker.wait_for_status("sink", "PAUSED")
        worker.request("PUT", "/connectors/sink/resume")
        worker.wait_for_status("sink", "RUNNING")
        worker.request("PUT", "/connectors/sink/stop")
        assert worker.wait_for_status("sink", "STOPPED")["tasks"] == []
        worker.request("PUT", "/connectors/sink/resume")
        worker.wait_for_status("sink", "RUNNING")
        with kafka_broker.fail("OffsetCommit", error="COORDINATOR_LOAD_IN_PROGRESS", times=1) as fault:
            kafka_broker.produce("lines", ['"c"'])
            fault.wait()
        wait_for(lambda: output.read_text() == "a\nb\nc\n", "the third line")
        worker.delete("sink")
        assert worker.request("GET", "/connectors") == []
        url = worker.url
    assert not process.is_running()
    with pytest.raises(OSError, match="refused"):
        urllib.request.urlopen(url, timeout=30)


def test_restarted_worker_continues_from_the_committed_offset(
    kafka_broker: KafkaBroker, connect_worker: ConnectWorker, tmp_path: Path
) -> None:
    file = tmp_path / "lines.txt"
    config = {"connector.class": "FileStreamSource", "topic": "lines", "file": file}
    file.write_text("a\n")
    connect_worker.create("source", config)
    kafka_broker.consume("lines", 1)
    connect_worker.stop()
    connect_worker.start()
    with file.open("a") as lines:
        lines.write("b\n")
    connect_worker.create("source", config)
    assert [record.value for record in kafka_broker.consume("lines", 2)] == [b'"a"', b'"b"']


@pytest.mark.skipif(sys.platform != "linux", reason="needs the parent-death signal of Linux")
def test_connect_worker_process_ends_when_the_test_process_is_killed(tmp_path: Path) -> None:
    program = """
import os, signal
from headrace.testing import ConnectWorker, KafkaBroker
worker = ConnectWorker(KafkaBroker().start().bootstrap_servers).start()
print(worker._process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    run = subprocess.run(
        [sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True, timeout=60
    )
    wait_for(lambda: not is_alive(int(run.stdout)), "the worker is dead", 40)


def test_creation_of_a_connector_with_an_invalid_configuration_raises_an_error_with_the_workers_message(
    connect_worker: ConnectWorker,
) -> None:
    with pytest.raises(ConnectWorkerError, match=r"(?s)400 .*Failed to find any class .* Missing"):
        connect_worker.create("c", {"connector.class": "Missing"})
    with pytest.raises(ConnectWorkerError, match="404"):
        connect_worker.delete("c")


@pytest.fixture
def plugin_directory(tmp_path: Path) -> Path:
    (tmp_path / "broken.py").write_text(PLUGIN)
    return tmp_path


def test_wait_for_status_raises_an_error_that_contains_the_trace_of_a_failed_task(
    kafka_broker: KafkaBroker, plugin_directory: Path
) -> None:
    settings = {"plugin.path": str(plugin_directory)}
    with ConnectWorker(kafka_broker.bootstrap_servers, settings) as worker:
        worker.create("c", {"connector.class": "Broken"}, wait=False)
        assert "the database is gone" in worker.wait_for_status("c", "FAILED")["tasks"][0]["trace"]
        with pytest.raises(ConnectWorkerError, match="the database is gone"):
            worker.wait_for_status("c", "RUNNING")
        assert "the database is gone" in worker.log


def test_start_of_a_worker_that_exits_raises_an_error_that_contains_the_workers_log(kafka_broker: KafkaBroker) -> None:
    with (
        pytest.raises(ConnectWorkerError, match=r"(?s)exited before .* task.isolation"),
        ConnectWorker(kafka_broker.bootstrap_servers, {"task.isolation": "vm"}),
    ):
        pass
