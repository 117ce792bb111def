"""Tests of workers during broker outages: the broker starts late, is restarted, or is killed with SIGKILL."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.ports import free_port
from support.preloaded import PreloadedPopen
from support.worker import Worker, wait_for

pytestmark = pytest.mark.integration

TEXT = {"value.converter": "org.apache.kafka.connect.storage.StringConverter"}


class Broker:
    """A broker on a fixed port. Tests restart it several times in the same directory."""

    def __init__(self, directory: Path) -> None:
        self.address = f"127.0.0.1:{free_port()}"
        self._file = directory / "broker.properties"
        self._file.write_text(
            f"node.id=1\nlisteners=PLAINTEXT://{self.address}\nlog.dirs={directory}/log\n"
            "offsets.topic.replication.factor=1\ngroup.initial.rebalance.delay.ms=0\n"
        )
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the broker and wait until it accepts requests."""
        command = [sys.executable, "-m", "headrace_broker.server", str(self._file)]
        self._process = PreloadedPopen(command, stdout=subprocess.PIPE)
        assert self._process.stdout is not None
        with self._process.stdout as output:
            assert b"serves" in output.readline()

    def end(self, number: int) -> None:
        """Send the signal `number` to the broker, and wait until the broker has exited."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(30)


def test_file_source_and_sink_deliver_all_lines_although_the_broker_starts_late_and_is_restarted_and_killed(
    tmp_path: Path,
) -> None:
    broker, source, sink = Broker(tmp_path), tmp_path / "in.txt", tmp_path / "out.txt"
    settings = {"bootstrap.servers": broker.address, "offset.storage.file.filename": str(tmp_path / "offsets")}
    lines: list[str] = []

    def feed(count: int) -> None:
        more = [f"line {number}" for number in range(len(lines), len(lines) + count)]
        lines.extend(more)
        with source.open("a") as file:
            file.write("".join(line + "\n" for line in more))

    def written() -> list[str]:
        return sink.read_text().splitlines() if sink.exists() else []

    feed(1000)
    try:
        with Worker(tmp_path, settings) as worker:
            worker.create("in", {"connector.class": "FileStreamSource", "file": str(source), "topic": "t", **TEXT})
            worker.create("out", {"connector.class": "FileStreamSink", "file": str(sink), "topics": "t", **TEXT})
            for name in ("in", "out"):
                assert worker.status(name)["tasks"][0]["state"] == "UNASSIGNED"
            for name in ("in", "out"):
                line = f"[{name}|task-0] Task {name}-0: no broker responds at bootstrap.servers={broker.address}"
                wait_for(lambda line=line: line in worker.log(), line, 40)  # type: ignore[misc]
            worker.create("gone", {"connector.class": "FileStreamSource", "topic": "t", "file": str(source), **TEXT})
            worker.request("DELETE", "/connectors/gone")
            assert "Graceful stop of gone-0 failed" not in worker.log()
            broker.start()
            wait_for(lambda: written() == lines, "the first lines", 60)
            for number in (signal.SIGTERM, signal.SIGKILL):
                broker.end(number)
                feed(1000)
                broker.start()
                feed(1000)
                wait_for(lambda: set(written()) == set(lines), f"all lines after {number}", 60)
            for name in ("in", "out"):
                worker.wait_for_state(name, "RUNNING")
    finally:
        broker.end(signal.SIGTERM)
