"""Runs a standalone worker as a process, and calls its REST API."""

from __future__ import annotations

import base64
import json
import os
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from support.commands import run_process
from support.ports import free_port
from support.preloaded import PreloadedPopen

CONVERTERS = {
    "key.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "key.converter.schemas.enable": "false",
    "value.converter.schemas.enable": "false",
}


class RestError(Exception):
    """An error response of the REST API: its status and body."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(f"{status}: {body}")
        self.status = status
        self.body = body


class Worker:
    """Runs `connect-standalone` in its own directory, with the embedded broker if `bootstrap.servers` is not set."""

    module = "headrace.cli.connect_standalone"

    def __init__(
        self,
        directory: Path,
        settings: Mapping[str, str] = {},
        connectors: Sequence[Path] = (),
        port: int | None = None,
    ) -> None:
        self.directory = directory
        self.connectors = connectors
        self.url = f"http://127.0.0.1:{port or free_port()}"
        self.settings = {
            **CONVERTERS,
            "offset.flush.interval.ms": "100",
            "listeners": self.url,
            "headrace.data.dir": str(directory / "data"),
            **settings,
        }
        self.url = self.settings["listeners"]
        self.tls: ssl.SSLContext | None = None
        """The TLS context of requests, if the worker has an https listener."""
        self.user: str | None = None
        """User and password of requests: `user:password`."""
        self._process: subprocess.Popen[bytes] | None = None
        self._log = directory / "worker.log"

    def command(self) -> list[str]:
        """Write the worker's properties file and return the command line."""
        file = self.directory / "worker.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in self.settings.items()))
        return [sys.executable, "-m", self.module, str(file), *map(str, self.connectors)]

    def start(self) -> Worker:
        """Start the worker and wait until it is healthy."""
        self.launch()
        wait_for(self.is_healthy, f"the worker is healthy; {self.log()}", 60)
        return self

    def launch(self) -> None:
        """Start the worker without waiting."""
        with open(self._log, "ab") as log:
            self._process = PreloadedPopen(self.command(), stdin=subprocess.DEVNULL, stderr=log, start_new_session=True)

    def run(self) -> subprocess.CompletedProcess[str]:
        """Run a worker that exits because of an error."""
        return run_process(self.command())

    def terminate(self) -> None:
        """Send SIGTERM to the worker."""
        assert self._process is not None
        self._process.terminate()

    def stop(self, timeout_s: float = 60) -> float:
        """Stop the worker with SIGTERM. Return the seconds until it has exited with status 0."""
        started_s = time.monotonic()
        self.terminate()
        assert self.wait(timeout_s) == 0, self.log()
        return time.monotonic() - started_s

    def is_healthy(self) -> bool:
        """Return whether GET /health reports a healthy worker. Raises AssertionError if the process has exited."""
        assert self._process is not None
        assert self._process.poll() is None, f"the worker exited with {self._process.poll()}:\n{self.log()}"
        try:
            return bool(self.request("GET", "/health")["status"] == "healthy")
        except (RestError, urllib.error.URLError, ConnectionError):
            return False

    def __enter__(self) -> Worker:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(30)
            except subprocess.TimeoutExpired:
                self.kill_group()
                raise
        if error is not None:
            sys.stderr.write(self.log())

    @property
    def pid(self) -> int:
        """The worker's process id."""
        assert self._process is not None
        return self._process.pid

    def wait(self, timeout_s: float) -> int:
        """Wait for the worker to exit and return its exit status."""
        assert self._process is not None
        return self._process.wait(timeout_s)

    def kill_group(self) -> None:
        """Kill the worker's process group with SIGKILL."""
        os.killpg(os.getpgid(self.pid), 9)
        self.wait(30)

    def log(self) -> str:
        """Return the worker's log so far."""
        return self._log.read_text() if self._log.exists() else ""

    def bootstrap_servers(self) -> str:
        """Return the embedded broker's address from the worker's log."""
        return self.log().rpartition("started an embedded broker at ")[2].partition(" ")[0]

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """Send a REST request and return the response body. Raises RestError."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        if self.user is not None:
            request.add_header("Authorization", f"Basic {base64.b64encode(self.user.encode()).decode()}")
        try:
            with urllib.request.urlopen(request, timeout=60, context=self.tls) as response:
                content = response.read()
        except urllib.error.HTTPError as error:
            with error:
                content = error.read()
            raise RestError(error.code, json.loads(content) if content[:1] in b"{[" else content.decode()) from None
        return json.loads(content) if content[:1] in b"{[" and content else content.decode()

    def create(self, name: str, config: Mapping[str, str], **more: str) -> Any:
        """Create a connector with POST /connectors."""
        return self.request("POST", "/connectors", {"name": name, "config": dict(config), **more})

    def status(self, name: str) -> Any:
        """Return the response to GET /connectors/NAME/status."""
        return self.request("GET", f"/connectors/{name}/status")

    def status_if_found(self, name: str) -> Any:
        """Return the connector's status, or None while a new connector has no status yet."""
        try:
            return self.status(name)
        except RestError as error:
            if error.status != 404:
                raise
            return None

    def wait_for_state(self, name: str, state: str, timeout_s: float = 60) -> None:
        """Wait until the connector and all its tasks are in `state`. The connector must have at least one task."""

        def reached() -> bool:
            status = self.status_if_found(name)
            if status is None:
                return False
            states = [status["connector"]["state"], *(task["state"] for task in status["tasks"])]
            return len(states) > 1 and set(states) == {state}

        wait_for(reached, f"{name} is {state}", timeout_s, lambda: self.status_if_found(name))

    def wait_for_task_state(self, name: str, task: int, state: str, timeout_s: float = 60) -> None:
        """Wait until a task is in `state`."""

        def reached() -> bool:
            status = self.status_if_found(name) or {"tasks": []}
            return any(each["id"] == task and each["state"] == state for each in status["tasks"])

        wait_for(reached, f"task {name}-{task} is {state}", timeout_s, lambda: self.status_if_found(name))


def wait_for(
    condition: Callable[[], bool], description: str, timeout_s: float = 60, explain: Callable[[], Any] = lambda: ""
) -> None:
    """Wait until `condition()` is true.

    On a timeout, raises an AssertionError that contains `description` and the result of `explain()`.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"timed out after {timeout_s} s waiting for: {description} {explain()}"
        time.sleep(0.02)
