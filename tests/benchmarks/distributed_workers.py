"""Runs distributed workers of headrace and of Apache Kafka with the same settings, so benchmarks can compare them."""

from __future__ import annotations

import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from measured import Measurements
from process_stats import cpu_s, memory, tree

from support import apache
from support.distributed import DistributedWorker

STRING = "org.apache.kafka.connect.storage.StringConverter"
START_TIMEOUT_S = 60.0
_POLL_S = 0.02


@dataclass(slots=True)
class System(Measurements):
    """Headrace or Apache Kafka Connect, and its measurements."""

    name: str


@dataclass(slots=True)
class GroupWorker:
    """A running distributed Connect worker."""

    rest: str
    pid: int
    ready_s: float

    def cpu_s(self) -> float:
        """Return the CPU time of the worker and its descendants."""
        return cpu_s(tree(self.pid))

    def pss_mb(self) -> float:
        """Return the PSS of the worker and its descendants."""
        return memory(tree(self.pid)).pss_mb

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """Call the REST API. Repeat the request while the worker responds that a rebalance is in progress (409)."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        while True:
            request = urllib.request.Request(f"http://{self.rest}{path}", data, headers, method=method)
            try:
                with urllib.request.urlopen(request, timeout=120) as response:
                    content = response.read()
                return json.loads(content) if content else None
            except urllib.error.HTTPError as error:
                with error:
                    if error.code != 409:
                        raise RuntimeError(f"{method} {path}: {error.code} {error.read().decode()}") from None
                time.sleep(_POLL_S)  # the REST API does not report the end of a rebalance

    def is_healthy(self) -> bool:
        """Whether GET /health reports that the worker is ready."""
        try:
            with urllib.request.urlopen(f"http://{self.rest}/health", timeout=30) as response:
                return bool(json.loads(response.read())["status"] == "healthy")
        except OSError:
            return False

    def states(self) -> list[tuple[str, str]]:
        """Return (state, worker id) of all connectors and tasks."""
        found = self.call("GET", "/connectors?expand=status")
        parts = [part for each in found.values() for part in (each["status"]["connector"], *each["status"]["tasks"])]
        if failed := [part for part in parts if part["state"] == "FAILED"]:
            raise RuntimeError(f"failed: {failed[0]}")
        return [(part["state"], part["worker_id"]) for part in parts]

    def wait_until_running(self, instances: int, timeout_s: float = 300.0) -> None:
        """Wait until the group runs `instances` connectors and tasks in total."""
        wait_until(
            lambda: [state for state, _ in self.states()].count("RUNNING") == instances,
            f"{instances} connectors and tasks are running",
            timeout_s,
        )

    def delete_all(self) -> None:
        """Delete all connectors and wait until they are gone."""
        for name in self.call("GET", "/connectors"):
            self.call("DELETE", f"/connectors/{name}")
        wait_until(lambda: not self.call("GET", "/connectors"), "the connectors are deleted", 60.0)

    def kill(self) -> None:
        """Kill the worker with SIGKILL."""
        os.kill(self.pid, signal.SIGKILL)


def systems() -> list[System]:
    """Return headrace and, if Maven and Java are available, Apache Kafka Connect."""
    if apache.unavailable_reason():
        return [System("headrace")]
    apache.classpath()  # fetches the jars before the first measurement
    return [System("headrace"), System("Apache Connect")]


_SETTINGS_OF_TESTS = {
    "heartbeat.interval.ms",
    "session.timeout.ms",
    "scheduled.rebalance.max.delay.ms",
    "offset.flush.interval.ms",
    "offset.storage.partitions",
}


def settings(address: str, **more: str) -> dict[str, str]:
    """Return the settings of a worker in a new group, with Kafka's defaults for delays and timeouts.

    A keyword argument `a_b="x"` sets the key `a.b` to "x".
    """
    group = f"bench-{time.time_ns()}"
    internal = {
        f"{kind}.storage.{key}": value
        for kind in ("config", "offset", "status")
        for key, value in (("topic", f"{group}-{kind}"), ("replication.factor", "1"))
    }
    return {
        "bootstrap.servers": address,
        "group.id": group,
        **internal,
        "key.converter": STRING,
        "value.converter": STRING,
        **{key.replace("_", "."): value for key, value in more.items()},
    }


@contextmanager
def running_worker(system: System, properties: dict[str, str]) -> Iterator[GroupWorker]:
    """Run a worker. Its `ready_s` is the time from the start of its process until it is healthy."""
    with ExitStack() as stack:
        started = time.perf_counter()
        if system.name == "headrace":
            directory = Path(stack.enter_context(TemporaryDirectory(prefix="headrace-bench-")))
            ours = DistributedWorker(directory, properties["bootstrap.servers"], properties)
            # Kafka's defaults instead of those of the tests
            for key in _SETTINGS_OF_TESTS - properties.keys():
                del ours.settings[key]
            stack.enter_context(ours)
            worker = GroupWorker(ours.url.removeprefix("http://"), ours.pid, 0.0)
        else:
            theirs = stack.enter_context(apache.connect_distributed(_of_kafka(properties)))
            worker = GroupWorker(theirs.address, theirs.pid, 0.0)
        wait_until(worker.is_healthy, f"the worker of {system.name} is healthy", START_TIMEOUT_S)
        worker.ready_s = time.perf_counter() - started
        yield worker


def _of_kafka(properties: dict[str, str]) -> dict[str, str]:
    return {key: value for key, value in properties.items() if key != "task.isolation"}


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float) -> None:
    """Poll until the condition is true. Polling is necessary because the REST API reports no events.

    On a timeout, raises a RuntimeError that contains `what`, a description of the condition.
    """
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"timed out after {timeout_s:.0f} s: {what}")
        time.sleep(_POLL_S)
