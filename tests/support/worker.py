"""A real connect-standalone process on a free REST port, stopped in good order at the end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from support.apache import free_ports

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 30.0


@dataclass(slots=True)
class Worker:
    """A running worker; `rest` is HOST:PORT of its REST API."""

    rest: str
    process: subprocess.Popen[bytes]
    directory: Path
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """A call to the REST API; the parsed answer. Raises urllib.error.HTTPError for an error status."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://{self.rest}{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=60) as response:
            text = response.read()
        return json.loads(text) if text else None

    def await_true(self, condition: Callable[[], bool], timeout_s: float = 30.0) -> None:
        """Wait for a condition outside; fails with the worker's log when it does not come true."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                raise AssertionError(f"it did not happen within {timeout_s} s; the worker's log:\n{self.log_text()}")
            time.sleep(0.02)

    def log_text(self) -> str:
        return self.log.read_text(errors="replace")[-6000:]


@contextmanager
def running(
    settings: Mapping[str, str],
    connectors: Sequence[Mapping[str, str]] = (),
    *,
    directory: Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Worker]:
    """Start the worker with these settings and connectors; wait until its REST API answers."""
    own = directory is None
    place = Path(mkdtemp(prefix="headrace-worker-")) if directory is None else directory
    worker = start(settings, connectors, place, environment)
    try:
        yield worker
    finally:
        stop(worker)
        if own:
            shutil.rmtree(place, ignore_errors=True)


def start(
    settings: Mapping[str, str],
    connectors: Sequence[Mapping[str, str]],
    directory: Path,
    environment: Mapping[str, str] | None = None,
) -> Worker:
    """Start a worker in `directory`, in a process group of its own; the caller stops it."""
    (port,) = free_ports(1)
    worker_settings = {
        "listeners": f"http://127.0.0.1:{port}",
        "headrace.data.dir": str(directory / "headrace-data"),
        "offset.storage.file.filename": str(directory / "connect.offsets"),
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
        **settings,
    }
    files = [_write(directory / "worker.properties", worker_settings)]
    files += [_write(directory / f"{config['name']}.properties", config) for config in connectors]
    log = directory / "worker.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [str(Path(sys.executable).with_name("connect-standalone")), *files],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **(environment or {})},
            cwd=directory,
            start_new_session=True,
        )
    worker = Worker(f"127.0.0.1:{port}", process, directory, log)
    _await_rest(worker)
    return worker


def stop(worker: Worker) -> None:
    """SIGTERM and wait; SIGKILL to the whole group when that takes too long."""
    if worker.process.poll() is None:
        worker.process.send_signal(signal.SIGTERM)
        try:
            worker.process.wait(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            os.killpg(worker.pid, signal.SIGKILL)
            worker.process.wait()


def _write(path: Path, config: Mapping[str, str]) -> str:
    path.write_text("".join(f"{key}={value}\n" for key, value in config.items()))
    return str(path)


def _await_rest(worker: Worker) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        if worker.process.poll() is not None:
            raise AssertionError(f"connect-standalone ended with {worker.process.returncode}:\n{worker.log_text()}")
        try:
            worker.call("GET", "/connectors")
            return
        except (urllib.error.URLError, ConnectionError):
            if time.monotonic() > deadline:
                raise AssertionError(f"no answer from {worker.rest}:\n{worker.log_text()}") from None
            time.sleep(0.02)
