"""Tests that a worker runs in the background with the option -daemon of Kafka's scripts."""

from __future__ import annotations

import os
import re
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from support.worker import Worker, wait_for

pytestmark = pytest.mark.integration


def test_worker_with_daemon_option_runs_in_the_background_and_prints_the_command_that_stops_it(tmp_path: Path) -> None:
    python, *options, properties = Worker(tmp_path).command()
    command = [python, *options, "-daemon", "-name", "worker-1", properties]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True)
    found = re.fullmatch(r"The worker starts .* to (\S+)\. To stop the worker: kill (\d+)\n", result.stdout)
    assert found, result
    log, process = tmp_path / found[1], psutil.Process(int(found[2]))
    assert log == tmp_path / "logs" / "worker-1.out"
    try:
        wait_for(lambda: "Kafka Connect started" in log.read_text(), "the worker has started", 30)
        os.kill(process.pid, signal.SIGTERM)
        process.wait(30)
    finally:
        if process.is_running():
            process.kill()
