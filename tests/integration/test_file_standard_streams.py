"""Tests FileStreamSource and FileStreamSink without a file: they use the worker's standard input and output."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.worker import Worker, wait_for

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_file_connectors_without_a_file_read_standard_input_and_write_standard_output(tmp_path: Path) -> None:
    files = []
    for name, props in {
        "in": {"connector.class": "FileStreamSource", "topic": "t"},
        "out": {"connector.class": "FileStreamSink", "topics": "t"},
    }.items():
        text = {"name": name, "value.converter": "org.apache.kafka.connect.storage.StringConverter"}
        files.append(tmp_path / f"{name}.properties")
        files[-1].write_text("".join(f"{key}={value}\n" for key, value in (props | text).items()))
    worker, output = Worker(tmp_path, {}, files), tmp_path / "output.txt"
    with open(output, "wb") as stdout, open(tmp_path / "worker.log", "wb") as log:
        process = subprocess.Popen(worker.command(), stdin=subprocess.PIPE, stdout=stdout, stderr=log)
    assert process.stdin is not None
    try:
        for lines in ("first\nsecönd\n", "th", "ird\nincomplete"):
            process.stdin.write(lines.encode())
            process.stdin.flush()
        wait_for(lambda: "third" in output.read_text(), "the lines are written", 60, worker.log)
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
    assert output.read_text().splitlines() == ["first", "secönd", "third"]
