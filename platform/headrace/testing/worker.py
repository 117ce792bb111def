"""`ConnectWorker`: a real standalone Connect worker for tests, as a child process that a test controls over REST.

The child process runs `connect-standalone`. It can import everything that the test's process can import, and it is
killed when that process dies. Tasks are threads of the worker (`task.isolation=thread`), because threads start faster
than processes. Set `task.isolation` to `process` to test tasks as they run in production.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

T = TypeVar("T")

_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 15.0
_REQUEST_TIMEOUT_S = 60.0
_POLL_S = 0.02
_REST_ADDRESS = re.compile(r"REST server listening at (http://\S+?)/,")
_DEFAULTS = {
    "key.converter": "org.apache.kafka.connect.json.JsonConverter",
    "key.converter.schemas.enable": "false",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter.schemas.enable": "false",
    "listeners": "http://127.0.0.1:0",
    "offset.flush.interval.ms": "100",
    "task.isolation": "thread",
}


class ConnectWorkerError(Exception):
    """The worker did not start or stop, or rejected a request, or a connector or task failed."""


class ConnectWorker:
    """A worker for tests; use it as a context manager, or call `start` first and `close` last.

    `config` overrides the worker's configuration. By default keys and values are JSON without schemas, and offsets are
    committed every 100 ms.
    """

    def __init__(self, bootstrap_servers: str, config: Mapping[str, str] | None = None) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._config = dict(config or {})
        self._directory: tempfile.TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._url = ""

    # -- life cycle --------------------------------------------------------------------------------------------------

    def start(self) -> ConnectWorker:
        """Start the worker, and wait until it is ready. Raises ConnectWorkerError with the worker's log."""
        if self._process is not None:
            raise RuntimeError("the worker is already running")
        if self._directory is None:
            self._directory = tempfile.TemporaryDirectory(prefix="connect-worker-")
        file = self._path("worker.properties")
        file.write_text("".join(f"{key}={_escaped(value)}\n" for key, value in self._properties().items()))
        command = [sys.executable, "-m", "headrace.testing.worker", str(os.getpid()), str(file)]
        offset = len(self.log)
        with open(self._path("worker.log"), "ab") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        self._url = self._wait(lambda: self._rest_address(offset), "REST server", _START_TIMEOUT_S)
        self._wait(self._is_healthy, "worker", _START_TIMEOUT_S)
        return self

    def stop(self) -> None:
        """Stop the worker cleanly.

        The worker keeps its offsets for the next `start`. As in Kafka Connect, it does not keep its connectors.
        """
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise ConnectWorkerError(f"the worker did not stop within {_STOP_TIMEOUT_S:g} s:\n{self.log}") from None

    def kill(self) -> None:
        """Kill the worker (kill -9). The worker keeps its committed offsets for the next `start`."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def close(self) -> None:
        """Stop the worker and delete its files."""
        try:
            self.stop()
        finally:
            if self._directory is not None:
                self._directory.cleanup()
                self._directory = None

    def __enter__(self) -> ConnectWorker:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def url(self) -> str:
        """The address of the REST API, without a slash at the end."""
        return self._url

    @property
    def log(self) -> str:
        """The log of the worker and its tasks."""
        path = self._path("worker.log")
        return path.read_text(errors="replace") if path.exists() else ""

    def _path(self, name: str) -> Path:
        if self._directory is None:
            raise RuntimeError("the worker has not been started; call start() first")
        return Path(self._directory.name) / name

    def _properties(self) -> dict[str, str]:
        return {
            **_DEFAULTS,
            "offset.storage.file.filename": str(self._path("connect.offsets")),
            **self._config,
            "bootstrap.servers": self._bootstrap_servers,
        }

    def _rest_address(self, log_offset: int) -> str | None:
        found = _REST_ADDRESS.search(self.log[log_offset:])
        return None if found is None else found[1]

    def _is_healthy(self) -> bool:
        try:
            return bool(self.request("GET", "/health")["status"] == "healthy")
        except (ConnectWorkerError, OSError):
            return False

    def _wait(self, check: Callable[[], T | None], name: str, timeout_s: float) -> T:
        deadline = time.monotonic() + timeout_s
        while not (result := check()):
            if self._process is None or self._process.poll() is not None:
                self._process = None
                raise ConnectWorkerError(f"the worker exited before its {name} was ready:\n{self.log}")
            if time.monotonic() > deadline:
                raise ConnectWorkerError(f"the {name} was not ready within {timeout_s:g} s:\n{self.log}")
            time.sleep(_POLL_S)
        return result

    # -- connectors --------------------------------------------------------------------------------------------------

    def create(self, name: str, config: Mapping[str, object], *, wait: bool = True) -> None:
        """Create a connector or change its configuration. If `wait` is true, wait until it and its tasks are RUNNING.

        Values that are not strings are written as in a properties file. Raises ConnectWorkerError if the configuration
        is invalid, or if the connector or a task fails while this method waits.
        """
        self.request("PUT", f"/connectors/{_quoted(name)}/config", {key: _text(value) for key, value in config.items()})
        if wait:
            self.wait_for_status(name, "RUNNING")

    def status(self, name: str) -> dict[str, Any]:
        """Return the status of a connector and its tasks: the REST API's response."""
        status: dict[str, Any] = self.request("GET", f"/connectors/{_quoted(name)}/status")
        return status

    def wait_for_status(self, name: str, state: str, timeout: float = 20.0) -> dict[str, Any]:
        """Wait until the connector `name` and all its tasks are in `state`; return the status.

        There must be at least one task, unless `state` is STOPPED. If `state` is FAILED, return when the connector or
        any task has failed. For any other state, raise ConnectWorkerError with the trace if the connector or a task
        fails. Raises TimeoutError after `timeout` seconds.
        """
        deadline = time.monotonic() + timeout
        while True:
            status = self._status_if_known(name)
            instances = [] if status is None else [status["connector"], *status["tasks"]]
            failed = [instance for instance in instances if instance["state"] == "FAILED"]
            if status is not None and state == "FAILED" and failed:
                return status
            if failed:
                raise ConnectWorkerError(f"connector {name} or one of its tasks failed: {failed[-1].get('trace', '')}")
            has_tasks = len(instances) > 1 or state == "STOPPED"  # a stopped connector has no tasks
            if status is not None and has_tasks and all(each["state"] == state for each in instances):
                return status
            if time.monotonic() > deadline:
                raise TimeoutError(f"connector {name} is not {state} after {timeout:g} s; its status is {status}")
            time.sleep(_POLL_S)

    def delete(self, name: str) -> None:
        """Stop and delete a connector. Raises ConnectWorkerError if it does not exist."""
        self.request("DELETE", f"/connectors/{_quoted(name)}")

    def request(self, method: str, path: str, body: object = None) -> Any:
        """Send a request to the REST API; return the response body. Raises ConnectWorkerError for an error status."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, {"Content-Type": "application/json"}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=_REQUEST_TIMEOUT_S) as response:
                content = response.read()
        except urllib.error.HTTPError as error:
            with error:
                log = f"\n{self.log}" if error.code >= 500 else ""
                raise ConnectWorkerError(f"{method} {path}: {error.code} {_message(error.read())}{log}") from None
        return json.loads(content) if content else None

    def _status_if_known(self, name: str) -> dict[str, Any] | None:
        """Return the status, or None if the connector is unknown, for example because it has just been created."""
        try:
            return self.status(name)
        except ConnectWorkerError as error:
            if " 404 " in str(error):
                return None
            raise


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _quoted(name: str) -> str:
    return urllib.parse.quote(name, safe="")


def _message(body: bytes) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")


def _escaped(value: str) -> str:
    """Escape a value for a properties file."""
    return value.replace("\\", "\\\\").replace("\n", "\\n")


def main() -> int:
    """Run a worker that the kernel kills when the test's process (first argument) dies."""
    from headrace.cli import connect_standalone
    from headrace.runtime import process_tree

    process_tree.signal_at_death_of(int(sys.argv[1]))
    return connect_standalone.main(sys.argv[2:])


if __name__ == "__main__":
    sys.exit(main())
