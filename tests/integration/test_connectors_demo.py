"""Tests that the demo of the connectors moves all rows through all stages, and stops its servers."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from support import postgres, search_server
from support.worker import wait_for

ROOT = Path(__file__).parents[2]
pytestmark = [
    pytest.mark.integration,
    pytest.mark.postgres,
    pytest.mark.slow,
    pytest.mark.timeout(900),  # the first download of OpenSearch takes minutes
    pytest.mark.skipif(postgres.unavailable_reason() is not None, reason=str(postgres.unavailable_reason())),
]
TABLES = {"airlines": 16, "airports": 100, "flights": 100, "planes": 100, "weather": 100}


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, str(ROOT / "configs" / "demo" / "run_connectors_demo.py"), "--rows", "100"]
    with (tmp_path / "output").open("wb") as output:
        process = subprocess.Popen(
            [*command, "--dir", str(tmp_path / "demo")], stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    yield process
    if process.poll() is None:
        process.terminate()
        process.wait(60)


def test_connectors_demo_shows_equal_row_counts_at_every_stage(demo: subprocess.Popen[bytes], tmp_path: Path) -> None:
    status = demo.wait(800)
    output = (tmp_path / "output").read_text()
    assert status == 0, output
    stages = 4 if search_server.unavailable_reason() else 5
    for table, count in TABLES.items():
        assert re.search(rf"^\W*{table}\W+({count}\W+){{{stages}}}equal", output, re.MULTILINE), output
    if search_server.unavailable_reason():
        assert "OpenSearch: skipped" in output
    assert "without OpenSearch" in output or stages == 5


def test_interrupted_connectors_demo_stops_all_its_servers(demo: subprocess.Popen[bytes], tmp_path: Path) -> None:
    def output() -> str:
        return (tmp_path / "output").read_text()

    wait_for(lambda: "worker: http" in output(), "the worker is started", 800, output)
    children = psutil.Process(demo.pid).children(recursive=True)
    found = re.search(r"PostgreSQL: responds on port (\d+)", output())
    assert found is not None
    assert len(children) >= 2
    demo.send_signal(signal.SIGINT)
    assert demo.wait(120) == 130, output()
    assert "all servers are stopped" in output()
    _, alive = psutil.wait_procs(children, 30)
    assert alive == []
    with pytest.raises(ConnectionRefusedError):  # PostgreSQL is no child: pg_ctl starts it in the background
        socket.create_connection(("127.0.0.1", int(found[1])), timeout=30)
