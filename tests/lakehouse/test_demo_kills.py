"""Tests that the demo loses and duplicates no rows after repeated kill -9, and that Ctrl-C stops the demo cleanly."""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECONDS_MAX = 40.0
FINISH_S = 280.0


@pytest.mark.spark
@pytest.mark.parametrize(
    "kills",
    [
        pytest.param(2, marks=[pytest.mark.slow, pytest.mark.timeout(600)]),
        pytest.param(100, marks=[pytest.mark.prove, pytest.mark.timeout(4 * 3600)]),
    ],
)
def test_demo_that_was_killed_at_random_moments_completes_with_correct_tables(tmp_path: Path, kills: int) -> None:
    seed = int(os.environ.get("HEADRACE_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
    print(f"replay with HEADRACE_SEED={seed}")
    moments = random.Random(seed)
    for _ in range(kills):
        after_s = moments.uniform(2.0, SECONDS_MAX)
        demo = _start(tmp_path)
        try:
            demo.wait(after_s)
        except subprocess.TimeoutExpired:
            os.killpg(demo.pid, signal.SIGKILL)
            demo.wait()
        else:
            assert demo.returncode == 0, (tmp_path / "output").read_text()
    last = _start(tmp_path)
    # The demo checks the tables, and its exit status is 0 only if every table has the expected number of rows.
    assert last.wait(FINISH_S) == 0, (tmp_path / "output").read_text()


@pytest.mark.spark
@pytest.mark.timeout(300)
def test_worker_of_the_demo_shuts_down_cleanly_after_ctrl_c(tmp_path: Path) -> None:
    (tmp_path / "demo").mkdir()
    with sqlite3.connect(tmp_path / "demo" / "flights.sqlite") as database:
        for table in ("airlines", "airports", "flights", "planes", "weather"):
            database.execute(f"CREATE TABLE {table} (id INTEGER PRIMARY KEY)")
    database.close()
    demo = _start(tmp_path)
    try:
        _wait_for_text(tmp_path / "demo" / "connect.log", "Kafka Connect started")
        os.killpg(
            demo.pid, signal.SIGINT
        )  # signal the process group as Ctrl-C does, so that the worker also receives the signal
        assert demo.wait(60.0) == 130
    finally:
        if demo.poll() is None:
            os.killpg(demo.pid, signal.SIGKILL)
    output, log = (tmp_path / "output").read_text(), (tmp_path / "demo" / "connect.log").read_text()
    assert "make demo" in output
    assert "Traceback" not in output
    assert "Kafka Connect stopped" in log
    assert "Received a second signal" not in log


def _wait_for_text(file: Path, text: str) -> None:
    deadline = time.monotonic() + 100.0
    while not (file.exists() and text in file.read_text()):
        assert time.monotonic() < deadline, f"{file} does not contain {text!r}"
        time.sleep(0.1)


def _start(directory: Path) -> subprocess.Popen[bytes]:
    with (directory / "output").open("ab") as output:
        return subprocess.Popen(
            [sys.executable, str(ROOT / "configs" / "demo" / "run_demo.py"), "--dir", str(directory / "demo")],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
