"""Measures the startup time and idle memory of a broker, a standalone worker and one task process."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import psutil
from process_stats import memory, tree
from results import Row

from support import apache
from support.broker import BrokerProcess, running_broker
from support.worker import Worker

STRING = "org.apache.kafka.connect.storage.StringConverter"
FIRST_RESPONSE_SCRIPT = """
import socket, struct, sys, time
host, port = sys.argv[1].rsplit(":", 1)
request = struct.pack(">ihhihi", 14, 3, 1, 1, -1, -1)  # a Metadata v1 request for all topics
while True:
    try:
        connection = socket.create_connection((host, int(port)), timeout=30)
        break
    except OSError:
        time.sleep(0.001)
connection.sendall(request)
assert len(connection.recv(4)) == 4
"""


def run(rounds: int, scale: float, report: Callable[[str], None]) -> list[Row]:
    """Measure every value `rounds` times and return the medians."""
    rows = _broker(rounds, report)
    return rows + _worker(rounds, report)


def _broker(rounds: int, report: Callable[[str], None]) -> list[Row]:
    started, idle = [], []
    for _ in range(rounds):
        with TemporaryDirectory(prefix="headrace-bench-") as name:
            broker = BrokerProcess(Path(name), {})
            start = time.perf_counter()
            broker.start()
            _wait_for_first_response(broker.address)
            started.append(time.perf_counter() - start)
            idle.append(memory([broker.pid]))
            broker.close()
    their_start: list[float] = []
    their_memory: list[float] = []
    if not apache.unavailable_reason():
        apache.classpath()
        for _ in range(rounds):
            start = time.perf_counter()
            with apache.broker() as kafka:
                _wait_for_first_response(kafka.address)
                their_start.append(time.perf_counter() - start)
                their_memory.append(memory([kafka.pid]).rss_mb)
    report(f"broker: started in {statistics.median(started):.2f} s")
    rss, pss = (statistics.median(values) for values in zip(*((m.rss_mb, m.pss_mb) for m in idle), strict=True))
    return [
        Row(
            "startup",
            "broker: start to first response (the baseline includes formatting)",
            "s",
            *_medians(started, their_start),
            None,
            False,
        ),
        Row("startup", "broker: resident, idle", "MB", rss, _median(their_memory), None, False),
        Row("startup", "broker: private share (PSS), idle", "MB", pss, None, None, False),
    ]


def _worker(rounds: int, report: Callable[[str], None]) -> list[Row]:
    started, workers, tasks, with_task, theirs = [], [], [], [], []
    with TemporaryDirectory(prefix="headrace-bench-") as name, running_broker(Path(name)) as broker:
        source = Path(name) / "in.txt"
        source.write_text("line\n")
        for number in range(rounds):
            directory = Path(name) / str(number)
            directory.mkdir()
            start = time.perf_counter()
            settings = {"bootstrap.servers": broker.address, "offset.storage.file.filename": str(directory / "offsets")}
            with Worker(directory, settings) as worker:
                started.append(time.perf_counter() - start)
                workers.append(memory(tree(worker.pid)).pss_mb)
                config = {"connector.class": "FileStreamSource", "file": str(source), "topic": f"t{number}"}
                worker.create("source", config)
                worker.wait_for_state("source", "RUNNING")
                processes = tree(worker.pid)
                tasks.append(memory(pid for pid in processes if psutil.Process(pid).name() == "source-0").pss_mb)
                with_task.append(memory(processes).pss_mb)
        if not apache.unavailable_reason():
            converters = {"key.converter": STRING, "value.converter": STRING, "bootstrap.servers": broker.address}
            with ExitStack() as stack:
                start = time.perf_counter()
                connect = stack.enter_context(apache.connect_standalone(converters, []))
                theirs = [time.perf_counter() - start, psutil.Process(connect.pid).memory_info().rss / 1e6]
    report(f"worker: REST is available after {statistics.median(started):.2f} s")
    return [
        Row(
            "startup",
            "worker: start to healthy REST",
            "s",
            statistics.median(started),
            theirs[0] if theirs else None,
            None,
            False,
        ),
        Row(
            "startup",
            "worker and its processes, idle (PSS)",
            "MB",
            statistics.median(workers),
            theirs[1] if theirs else None,
            None,
            False,
        ),
        Row(
            "startup",
            "worker with one connector and its task (PSS)",
            "MB",
            statistics.median(with_task),
            None,
            None,
            False,
        ),
        Row("startup", "one task process (PSS)", "MB", statistics.median(tasks), None, None, False),
    ]


def _wait_for_first_response(address: str) -> None:
    subprocess.run([sys.executable, "-S", "-c", FIRST_RESPONSE_SCRIPT, address], check=True, timeout=60)


def _median(values: list[float]) -> float | None:
    return statistics.median(values) if values else None


def _medians(ours: list[float], theirs: list[float]) -> tuple[float, float | None]:
    return statistics.median(ours), _median(theirs)
