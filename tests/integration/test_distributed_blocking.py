"""Tests that connector and task calls that never return do not delay other connectors, rebalances or requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path

import pytest

from support.broker import running_broker
from support.distributed import DistributedWorker, is_running, owners, worker_group
from support.monitored import PLUGINS
from support.topics import end_offset, write_topic
from support.worker import RestError, wait_for

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]

SOURCE_CALLS = (
    "connector validate",
    "connector start",
    "connector task configs",
    "connector stop",
    "task start",
    "task poll",
    "task stop",
)
SINK_CALLS = ("sink task start", "sink task put", "sink task flush", "sink task stop")
GRACEFUL_S = 2.0
SETTINGS = {**PLUGINS, "task.shutdown.graceful.timeout.ms": str(int(GRACEFUL_S * 1000))}


def test_blocked_connector_and_task_calls_delay_neither_other_connectors_nor_rebalances_nor_the_stop_of_a_worker(
    tmp_path: Path,
) -> None:
    with running_broker(tmp_path) as broker:
        write_topic(broker.address, "in", [(b"1", b"1")])
        with worker_group(tmp_path, broker.address, 2, SETTINGS) as workers:
            blocked = {call.replace(" ", "-"): call for call in (*SOURCE_CALLS, *SINK_CALLS)}
            configs = {name: config(tmp_path, name, call) for name, call in blocked.items()}
            configs["constructor"] = config(tmp_path, "constructor", "", **{"connector.class": "BlockedInConstructor"})
            creations = [in_background(lambda n=name: workers[0].create(n, configs[n])) for name in configs]
            for name in blocked:
                if name not in ("connector-validate", "connector-stop", "task-stop", "sink-task-stop"):
                    wait_for(lambda n=name: blocked[n] in journal(tmp_path, n), f"{name} is blocked")
            workers[1].create("healthy", config(tmp_path, "healthy", ""))
            wait_for(lambda: is_running(workers[0], "healthy", 1), "the healthy connector is running")
            with DistributedWorker(tmp_path / "third", broker.address, SETTINGS) as third:
                wait_for(lambda: runs_work(third), "the third worker has work")
                assert_progress(broker.address, "healthy")
                for name in [each for each in configs if exists(workers[0], each)]:
                    started_s = time.monotonic()
                    third.request("DELETE", f"/connectors/{name}")
                    assert time.monotonic() - started_s < 40, f"the deletion of {name} waited for its blocked call"
                wait_for(lambda: is_running(third, "healthy", 1), "the healthy connector is running")
                assert_progress(broker.address, "healthy")
                third.stop(GRACEFUL_S + 30)
            wait_for(lambda: is_running(workers[0], "healthy", 1), "the healthy connector is running")
            workers[0].create("again", configs["task-poll"])
            wait_for(lambda: "task poll" in journal(tmp_path, "task-poll"), "a task is blocked again")
            for worker in workers:
                worker.stop(GRACEFUL_S + 30)
        for creation in creations:
            creation.join(30)
            assert not creation.is_alive()


def config(directory: Path, name: str, call: str, **more: str) -> dict[str, str]:
    """Return the configuration of a connector that blocks in `call`."""
    common = {"journal": str(directory / f"{name}.journal"), "topic": name, "blocks.in": call, "tasks.max": "1"}
    if call.startswith("sink"):
        return common | {"connector.class": "MonitoredSink", "topics": "in", "topic": ""} | more
    return common | {"connector.class": "MonitoredSource"} | more


def journal(directory: Path, name: str) -> str:
    file = directory / f"{name}.journal"
    return file.read_text() if file.exists() else ""


def in_background(request: Callable[[], object]) -> threading.Thread:
    """Send a request in a thread, because its response may come only when the worker stops, and may be an error."""

    def send() -> None:
        try:
            request()
        except (RestError, OSError, HTTPException) as error:
            print(f"the request ended with {error}")

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


def exists(worker: DistributedWorker, name: str) -> bool:
    return name in worker.request("GET", "/connectors")


def runs_work(worker: DistributedWorker) -> bool:
    names = worker.request("GET", "/connectors")
    return any(worker.worker_id == owner for name in names for _, owner in owners(worker, name).values())


def assert_progress(address: str, topic: str) -> None:
    before = end_offset(address, topic)
    wait_for(lambda: end_offset(address, topic) > before, f"new records in {topic}")
