"""Tests that requests which change connectors do not wait for the heartbeat interval of the workers.

The interval is several minutes, so that a request that waits for it times out.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.broker import running_broker
from support.distributed import DistributedWorker, is_running, worker_group
from support.worker import wait_for

pytestmark = pytest.mark.integration

SETTINGS = {"heartbeat.interval.ms": "300000", "session.timeout.ms": "600000"}


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[DistributedWorker]]:
    directory = tmp_path_factory.mktemp("workers")
    with running_broker(directory) as broker, worker_group(directory, broker.address, 2, SETTINGS) as running:
        yield running


def create_connectors(workers: list[DistributedWorker], directory: Path, count: int) -> list[str]:
    names = [f"lines-{number}" for number in range(count)]
    for name in names:
        (directory / name).write_text("first\n")
        config = {"connector.class": "FileStreamSource", "topic": "lines", "file": str(directory / name)}
        workers[0].create(name, config)
    wait_for(lambda: all(is_running(workers[0], name, 1) for name in names), "all connectors run")
    return names


def test_20_serial_deletions_with_two_workers_do_not_wait_for_a_heartbeat_interval(
    workers: list[DistributedWorker], tmp_path: Path
) -> None:
    for number, name in enumerate(create_connectors(workers, tmp_path, 20)):
        workers[number % 2].request("DELETE", f"/connectors/{name}")
    for worker in workers:
        wait_for(lambda w=worker: w.request("GET", "/connectors") == [], "all connectors are deleted")


def test_connector_that_is_resumed_immediately_after_a_stop_does_not_wait_for_a_heartbeat_interval(
    workers: list[DistributedWorker], tmp_path: Path
) -> None:
    names = create_connectors(workers, tmp_path, 4)
    for name in names:
        workers[0].request("PUT", f"/connectors/{name}/stop")
        workers[1].request("PUT", f"/connectors/{name}/resume")
        wait_for(lambda name=name: is_running(workers[0], name, 1), f"{name} runs")
    for name in names:
        workers[0].request("DELETE", f"/connectors/{name}")
