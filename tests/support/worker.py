"""A standalone worker as a real process, and its REST API."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from support.ports import free_port

CONVERTERS = {
    "key.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "key.converter.schemas.enable": "false",
    "value.converter.schemas.enable": "false",
}


class RestError(Exception):
    """An error answer: status and body."""

    def __init__(self, status: int, body: Any) -> None:
        super().__init__(f"{status}: {body}")
        self.status = status
        self.body = body


class Worker:
    """`connect-standalone` in a directory of its own, with the embedded broker unless settings name another."""

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
        self._process: subprocess.Popen[bytes] | None = None
        self._log = directory / "worker.log"

    def command(self) -> list[str]:
        """The command line; writes the worker file."""
        file = self.directory / "worker.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in self.settings.items()))
        return [sys.executable, "-m", "headrace.cli.connect_standalone", str(file), *map(str, self.connectors)]

    def start(self) -> Worker:
        """Start it and wait until it is healthy."""
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stderr=log, start_new_session=True
            )
        wait_for(self.is_healthy, f"the worker is healthy; {self.log()}", 30)
        return self

    def is_healthy(self) -> bool:
        """Whether GET /health says so. Raises AssertionError when the process has ended."""
        assert self._process is not None
        assert self._process.poll() is None, f"the worker ended with {self._process.poll()}:\n{self.log()}"
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
                self._process.wait(15)
            except subprocess.TimeoutExpired:
                self.kill_group()
                raise
        if error is not None:
            sys.stderr.write(self.log())

    @property
    def pid(self) -> int:
        """The worker's process."""
        assert self._process is not None
        return self._process.pid

    def wait(self, timeout_s: float) -> int:
        """Its exit status."""
        assert self._process is not None
        return self._process.wait(timeout_s)

    def kill_group(self) -> None:
        """SIGKILL the worker's process group."""
        os.killpg(os.getpgid(self.pid), 9)
        self.wait(5)

    def log(self) -> str:
        """What it has logged so far."""
        return self._log.read_text() if self._log.exists() else ""

    def bootstrap_servers(self) -> str:
        """The embedded broker's address, as the log tells it."""
        return self.log().rpartition("an embedded broker serves at ")[2].partition(",")[0]

    def request(self, method: str, path: str, body: Any = None) -> Any:
        """Ask REST. Raises RestError."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as response:
                content = response.read()
        except urllib.error.HTTPError as error:
            with error:
                raise RestError(error.code, json.loads(error.read())) from None
        return json.loads(content) if content[:1] in b"{[" and content else content.decode()

    def create(self, name: str, config: Mapping[str, str], **more: str) -> Any:
        """POST /connectors."""
        return self.request("POST", "/connectors", {"name": name, "config": dict(config), **more})

    def status(self, name: str) -> Any:
        """GET /connectors/NAME/status."""
        return self.request("GET", f"/connectors/{name}/status")

    def wait_for_state(self, name: str, state: str, timeout_s: float = 20) -> None:
        """Wait until connector and all tasks (one at least) are in that state."""

        def reached() -> bool:
            status = self.status(name)
            states = [status["connector"]["state"], *(task["state"] for task in status["tasks"])]
            return len(states) > 1 and set(states) == {state}

        wait_for(reached, f"{name} is {state}", timeout_s, lambda: self.status(name))

    def wait_for_task_state(self, name: str, task: int, state: str, timeout_s: float = 20) -> None:
        """Wait until a task is in that state."""

        def reached() -> bool:
            return any(each["id"] == task and each["state"] == state for each in self.status(name)["tasks"])

        wait_for(reached, f"task {name}-{task} is {state}", timeout_s, lambda: self.status(name))


def wait_for(
    condition: Callable[[], bool], what: str, timeout_s: float = 20, explain: Callable[[], Any] = lambda: ""
) -> None:
    """Poll a condition. Raises AssertionError."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what} {explain()}"
        time.sleep(0.02)
